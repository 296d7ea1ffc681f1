"""Runs fusions with torch if they can't be fused or failed to compile, with one warning.

The evaluator computes a segment expression by expression.  `PYFUSER_STRICT=1` turns a failure to
compile into an error.  An unexpected failure leaves a reproducer script; the warning or error says
where it is.  This module also reports what is wrong with the inputs that a kernel refuses.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from . import options, reproducer
from .errors import InternalError, PyfuserError, UnsupportedError, expected
from .ir.fusion import Fusion
from .locks import ForkSafeLock
from .ops.binding import Input
from .ops.evaluator import evaluate, raise_refused

# A reason contains sizes and names of its program, so there may be as many as programs.
MOST_REASONS = 1024

Script = Callable[[], str]
Report = Callable[[Exception, Fusion], None]

_warned: OrderedDict[str, None] = OrderedDict()
_lock = ForkSafeLock()


def run(fusion: Fusion, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """The outputs of a fusion, computed by torch."""
    return evaluate(fusion, inputs)


def run_part(fusion: Fusion, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """The outputs of a part of a fusion; updates of inputs happen when all parts are done."""
    return evaluate(fusion, inputs, updates=False)


def run_views(fusion: Fusion, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """The outputs of a fusion that computes nothing: views of its inputs where possible."""
    return evaluate(fusion, inputs, views=True)


class HasFusion(Protocol):
    """A part of a program, or what finds one when it is needed."""

    @property
    def fusion(self) -> Fusion:
        """What it computes."""


def refused(part: HasFusion, inputs: Sequence[Input]) -> None:
    """Raises torch's error, after the kernel of this part has refused these inputs.

    If torch accepts them, that is a bug in pyfuser.  A kernel that refuses by mistake has computed
    its results nonetheless, so the call continues, with a warning.
    """
    fusion = part.fusion
    raise_refused(fusion, inputs)
    names = ", ".join(dict.fromkeys(expr.name for expr in fusion.exprs))
    error = InternalError(expected("kernel", "values that torch refuses", f"others, by {names}"))
    if options.strict():
        raise error
    warnings.warn(f"pyfuser: {error}; the results are right", RuntimeWarning, stacklevel=2)


def report(error: Exception, fusion: Fusion, script: Script | None = None) -> None:
    """Warns, once per reason, that a fusion runs through torch.  Raises under PYFUSER_STRICT.

    `script` makes the program that reproduces the failure.
    """
    names = ", ".join(dict.fromkeys(expr.name for expr in fusion.exprs))
    warn(error, f"a fusion of {names}", script)


def reraise(error: Exception, fusion: Fusion) -> None:
    """A report of a failure that the caller handles."""
    raise error


def reporter(fusion: Fusion, inputs: Sequence[Input] | None) -> Report:
    """`report` for any part of this fusion that fails on inputs like these."""

    def of(error: Exception, part: Fusion) -> None:
        report(error, part, lambda: reproducer.fusion_script(fusion, inputs))

    return of


def warn(error: Exception, what: str, script: Script | None = None) -> None:
    """Warns, once per reason, that `what` runs through torch.  Raises under PYFUSER_STRICT."""
    reason = f"{type(error).__name__}: {error}"
    if options.strict():
        written = None if hasattr(error, "__notes__") else _write(error, script)
        if written is not None:
            error.add_note(f"{written} reproduces it")
        raise error
    with _lock:
        known = reason in _warned
        _warned[reason] = None
        _warned.move_to_end(reason)
        while len(_warned) > MOST_REASONS:
            _warned.popitem(last=False)
    if known:
        return
    kind = "isn't supported" if isinstance(error, PyfuserError) else "hit a bug of pyfuser"
    written = _write(error, script)
    where = "" if written is None else f"; {written} reproduces it"
    warnings.warn(
        f"pyfuser: {what} {kind} and runs through torch instead ({reason}); "
        f"set PYFUSER_STRICT=1 to make this an error{where}",
        RuntimeWarning,
        stacklevel=2,
    )


def _write(error: Exception, script: Script | None) -> Path | None:
    """The file with the script; None if something just isn't supported yet."""
    if script is None or isinstance(error, UnsupportedError):
        return None
    return reproducer.write(script, error)
