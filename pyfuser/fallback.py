"""Runs with torch what can't be fused or failed to compile, and says so once.

The evaluator computes a segment expression by expression.  `PYFUSER_STRICT=1` makes a failure to
compile an error instead.  What failed where it should not have leaves a script that reproduces it;
warning and error say where that lies.  It also says what is wrong with the inputs that a kernel
refuses.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from . import options, reproducer
from .errors import InternalError, PyfuserError, UnsupportedError, expected
from .ir.fusion import Fusion
from .ops.binding import Input
from .ops.evaluator import evaluate, raise_refused

# A reason has the sizes and names of its program in it: there may be as many as programs.
MOST_REASONS = 1024

Script = Callable[[], str]
Report = Callable[[Exception, Fusion], None]

_warned: OrderedDict[str, None] = OrderedDict()
_lock = threading.Lock()


def run(fusion: Fusion, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """The outputs of a fusion, computed by torch."""
    return evaluate(fusion, inputs)


def run_part(fusion: Fusion, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """The outputs of a part of a fusion; what updates an input does so when all parts are done."""
    return evaluate(fusion, inputs, updates=False)


def run_views(fusion: Fusion, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """The outputs of a fusion that computes nothing: views of its inputs where they can be."""
    return evaluate(fusion, inputs, views=True)


def refused(fusion: Fusion, inputs: Sequence[Input]) -> None:
    """Raises what torch raises, after a kernel of this fusion has refused these inputs.

    That torch takes them is a bug of ours.  What a kernel refuses by mistake it has nonetheless
    computed, so the call goes on, with a warning.
    """
    raise_refused(fusion, inputs)
    names = ", ".join(dict.fromkeys(expr.name for expr in fusion.exprs))
    error = InternalError(expected("kernel", "values that torch refuses", f"others, by {names}"))
    if options.strict():
        raise error
    warnings.warn(f"pyfuser: {error}; the results are right", RuntimeWarning, stacklevel=2)


def report(error: Exception, fusion: Fusion, script: Script | None = None) -> None:
    """Warns, once a reason, that a fusion runs through torch.  Raises under PYFUSER_STRICT.

    `script` makes the program that shows the failure again.
    """
    names = ", ".join(dict.fromkeys(expr.name for expr in fusion.exprs))
    warn(error, f"a fusion of {names}", script)


def reporter(fusion: Fusion, inputs: Sequence[Input] | None) -> Report:
    """`report` for whatever part of this fusion fails on inputs like these."""

    def of(error: Exception, part: Fusion) -> None:
        report(error, part, lambda: reproducer.fusion_script(fusion, inputs))

    return of


def warn(error: Exception, what: str, script: Script | None = None) -> None:
    """Says, once a reason, that `what` runs through torch.  Raises under PYFUSER_STRICT."""
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
    """The file with the script; None for what isn't a failure but a thing not there yet."""
    if script is None or isinstance(error, UnsupportedError):
        return None
    return reproducer.write(script, error)
