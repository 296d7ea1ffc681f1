"""All kernels of a test run through NVRTC: `pytest --emulate --nvrtc`, `make cubins`.

While tests run, each distinct text that a runtime of the emulator is asked to compile is kept in a
folder, which the processes of a run share.  At the end all of them are compiled, in threads, for
four architectures.  A warning counts as an error.  `python -m tests.cuda.kernel_texts FOLDER`
compiles a folder again.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.devices.cuda.emulator.runtime import EmulatedRuntime
from pyfuser.errors import CompilationError
from tests.support.folders import ROOT

FOLDER = ROOT / "build" / "kernels"
_WARNING = re.compile(r"^.*\bwarning\b.*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Failure:
    """A text that doesn't compile for an architecture, or not without warnings."""

    path: Path
    architecture: str
    log: str

    def __str__(self) -> str:
        return f"{self.path.name} for {self.architecture}: {self.log.strip()}"


@contextmanager
def kept_texts(folder: Path = FOLDER) -> Iterator[None]:
    """While it lasts, the texts of the emulator's kernels are kept in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_kernel = EmulatedRuntime.compile

    def kept(self: EmulatedRuntime, code: Any) -> Any:
        path = folder / f"{hashlib.sha256(code.text.encode()).hexdigest()[:24]}.cu"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(code.text, encoding="utf-8")
            partial.replace(path)
        return compile_kernel(self, code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedRuntime, "compile", kept)
        yield


def failures(
    paths: Sequence[Path],
    architectures: Sequence[str] = nvrtc.ARCHITECTURES,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Failure]:
    """Compiles each text for each architecture: those that fail, in the order of texts."""

    def attempt(job: tuple[Path, str]) -> Failure | None:
        path, architecture = job
        source = with_device_helpers(path.read_text(encoding="utf-8"))
        try:
            cubin, log = nvrtc.compile_with_report(source, architecture)
        except CompilationError as error:
            return Failure(path, architecture, str(error))
        warnings = _WARNING.findall(log)
        if not cubin.startswith(b"\x7fELF"):
            warnings.append("no cubin")
        return Failure(path, architecture, "\n".join(warnings)) if warnings else None

    found = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for done, each in enumerate(threads.map(attempt, product(paths, architectures)), 1):
            progress(done)
            if each is not None:
                found.append(each)
    return found


def report(folder: Path = FOLDER) -> tuple[str, bool]:
    """What became of a folder's texts, and whether all of them compiled without warnings."""
    paths = sorted(folder.glob("*.cu"))
    found = failures(paths)
    names = ", ".join(nvrtc.ARCHITECTURES)
    summary = f"{len(paths)} kernels for {names}: {len(found)} don't compile without warnings"
    return "\n".join((*map(str, found), summary)), bool(paths) and not found


if __name__ == "__main__":
    text, passed = report(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    print(text)
    sys.exit(not passed)
