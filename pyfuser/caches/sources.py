"""A digest of pyfuser's Python files: part of the key of everything on disk that its code decides.

Without it, an edited pyfuser would find what it made before.  (Texts of other files, .ll and .cuh,
are part of the kernels' own keys.)
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from pathlib import Path

_IMPORTED = time.time()
_FOLDER = Path(__file__).parents[1]  # pyfuser


@functools.cache
def sources() -> str | None:
    """The digest of the code that this process runs.

    None if that is unknown: there are no files, or one was changed after pyfuser was imported.
    """
    paths = sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(_FOLDER)
        for name in names
        if name.endswith(".py")
    )
    digest = hashlib.sha256()
    try:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_mtime > _IMPORTED:
                    return None
                content = file.read()
            digest.update(f"{os.path.relpath(path, _FOLDER)} {len(content)}\n".encode())
            digest.update(content)
    except OSError:
        return None
    return digest.hexdigest() if paths else None
