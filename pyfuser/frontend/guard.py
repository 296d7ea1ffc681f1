"""The active fusion: the Fusion to which the functions of `ops` add, as in the interface.

No other state of a definition is ambient, and this one stays in the front end: everything below
gets the fusion as an argument.  (Options are in options.py, observers in trace.py.)  A FusionGuard
is active from its creation until it is released; guards nest, and each thread has its own.
"""

from __future__ import annotations

import threading
from types import TracebackType

from ..errors import DefinitionError, expected
from .fusion import Fusion


class _Active(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[int, Fusion]] = []


_active = _Active()


class FusionGuard:
    """Makes a fusion the one to which `ops` functions add, while the guard is referenced."""

    _stack: list[tuple[int, Fusion]] = []  # of a guard that wasn't made, because of an error

    def __init__(self, fusion: Fusion) -> None:
        if not isinstance(fusion, Fusion):
            raise DefinitionError(expected("FusionGuard", "a Fusion", repr(fusion)))
        self._stack = _active.stack
        self._stack.append((id(self), fusion))

    def release(self) -> None:
        """Makes the previous fusion active again; dropping the guard does the same."""
        self._stack[:] = [entry for entry in self._stack if entry[0] != id(self)]

    def __enter__(self) -> FusionGuard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def active_fusion(operation: str) -> Fusion:
    """The fusion that is being defined; DefinitionError if there is none."""
    if not _active.stack:
        hint = "use `with FusionDefinition() as fd:`"
        raise DefinitionError(expected(operation, "an active FusionGuard", "none", hint))
    return _active.stack[-1][1]


def fusion_to_define(operation: str) -> Fusion:
    """The active fusion, in order to add to it; DefinitionError once it was executed."""
    fusion = active_fusion(operation)
    fusion.require_open(operation)
    return fusion
