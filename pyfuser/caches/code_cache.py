"""Kernels as text, kept on disk by what they are made from, so that a later process doesn't
schedule, lower and generate them again.

(fusion, scheduler, parameters, target) -> Code.  The machine code has an entry of its own, under
the text (devices/cpu/jit.py).  Both are in the disk cache, under its rules of trust.

Invariant: what is found is what the stages would make now.  They are functions of what the key
contains: the structure of the fusion, the scheduler, its parameters, the target, and pyfuser's
sources.
"""

from __future__ import annotations

import io
import pickle
import zlib
from contextlib import suppress
from typing import Any

from ..ir.fusion import Fusion
from ..ir.keys import kept_structure_key
from ..ir.vals import Val
from ..target.target import Code, Target
from .disk_cache import disk_cache
from .sources import sources


def load_code(fusion: Fusion, scheduler: str, parameters: object, target: Target) -> Code | None:
    """The code that a process made for a fusion with these parameters; None if it isn't there."""
    cache, key = disk_cache(), _key(fusion, scheduler, parameters, target)
    entry = None if cache is None or key is None else cache.load(key)
    if entry is not None:
        with suppress(Exception):  # then it is made again
            return _Unpickler(zlib.decompress(entry), fusion).load()  # type: ignore[no-any-return]
    return None


def store_code(
    code: Code, fusion: Fusion, scheduler: str, parameters: object, target: Target
) -> None:
    """Keeps the code of a fusion with these parameters, if its target's can be kept."""
    cache, key = disk_cache(), _key(fusion, scheduler, parameters, target)
    if cache is not None and key is not None:
        with suppress(pickle.PicklingError):
            cache.store(key, zlib.compress(_dumped(code, fusion), 1))


def _key(fusion: Fusion, scheduler: str, parameters: object, target: Target) -> str | None:
    """Everything that the code depends on; None if it can't be kept."""
    version = sources() if target.keeps_code else None
    if version is None:
        return None
    facts = ("code", version, repr(target), scheduler, repr(parameters), kept_structure_key(fusion))
    return "\n".join(facts)


# -- entries: the fusion's values, which a code refers to by the names that they have in copies of
#    the fusion, are stored as their positions.  In an equal fusion a scalar may have another name:
#    of one that is a size the key has only the size.


class _Pickler(pickle.Pickler):
    """Pickles a code that refers to values of a fusion."""

    def __init__(self, file: io.BytesIO, fusion: Fusion) -> None:
        super().__init__(file, protocol=5)
        self.positions = {_name(value): number for number, value in enumerate(_values(fusion))}

    def persistent_id(self, obj: Any) -> int | None:
        """The position of a value."""
        if not isinstance(obj, Val):
            return None
        name = _name(obj)
        if name not in self.positions:
            raise pickle.PicklingError(f"{obj} is a value of a schedule")
        return self.positions[name]


class _Unpickler(pickle.Unpickler):
    """Loads a code for an equal fusion."""

    def __init__(self, entry: bytes, fusion: Fusion) -> None:
        super().__init__(io.BytesIO(entry))
        self.values = _values(fusion)

    def persistent_load(self, pid: int) -> Val:
        """The value at a position."""
        return self.values[pid]


def _dumped(code: Code, fusion: Fusion) -> bytes:
    file = io.BytesIO()
    _Pickler(file, fusion).dump(code)
    return file.getvalue()


def _values(fusion: Fusion) -> list[Val]:
    """The values of a fusion in order; equal fusions have as many."""
    found = [*fusion.inputs]
    for expr in fusion.exprs:
        found += [*expr.inputs, *expr.outputs]
    return list(dict.fromkeys(found))


def _name(value: Val) -> tuple[str, int]:
    return type(value).__name__, value.name
