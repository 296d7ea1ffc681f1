"""Runs with torch what can't be fused or failed to compile, and says so once.

The evaluator computes a segment expression by expression.  `PYFUSER_STRICT=1` makes a failure to
compile an error instead.  It also says what is wrong with the inputs that a kernel refuses.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence

import torch

from . import options
from .errors import InternalError, PyfuserError, expected
from .ir.fusion import Fusion
from .ops.binding import Input
from .ops.evaluator import evaluate, raise_refused

_warned: set[str] = set()
_lock = threading.Lock()


def run(fusion: Fusion, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """The outputs of a fusion, computed by torch."""
    return evaluate(fusion, inputs)


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


def report(error: Exception, fusion: Fusion) -> None:
    """Warns, once a reason, that a fusion runs through torch.  Raises under PYFUSER_STRICT."""
    names = ", ".join(dict.fromkeys(expr.name for expr in fusion.exprs))
    warn(error, f"a fusion of {names}")


def warn(error: Exception, what: str) -> None:
    """Says, once a reason, that `what` runs through torch.  Raises under PYFUSER_STRICT."""
    if options.strict():
        raise error
    reason = f"{type(error).__name__}: {error}"
    with _lock:
        if reason in _warned:
            return
        _warned.add(reason)
    kind = "isn't supported" if isinstance(error, PyfuserError) else "hit a bug of pyfuser"
    warnings.warn(
        f"pyfuser: {what} {kind} and runs through torch instead ({reason}); "
        "set PYFUSER_STRICT=1 to make this an error",
        RuntimeWarning,
        stacklevel=2,
    )
