"""`autotune`: measures the kernels of a definition or a model, and keeps what is faster.

The user's call; the work is in `tuning/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .errors import InputError, expected
from .frontend.definition import FusionDefinition
from .frontend.executors import flattened, require_list
from .tuning.measuring import Cost
from .tuning.programs import tune
from .tuning.report import Report
from .tuning.session import SECONDS, Session, during


def autotune(
    what: Any, inputs: Sequence[Any], *, seconds: float = SECONDS, cost: Cost | None = None
) -> Report:
    """Measures other schedules for the kernels of a FusionDefinition, a module or a function.

    `inputs` are those of a call.  What is faster than the heuristics' choice is stored, and used by
    all later compilations on this machine (docs/tuning.md).  Results that are stored already aren't
    measured again.  `seconds` is how long this may take; kernels that are left keep their
    heuristics.  `cost` replaces the measurement: the cost of a number of calls of a kernel.

    Returns a report; printed, it has a line for each kernel.  InputError for other arguments.
    """
    require_list(inputs, "autotune")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise InputError(expected("autotune", "a positive number of seconds", repr(seconds)))
    session = Session(float(seconds), cost)
    if isinstance(what, FusionDefinition):
        tune_definition(what, inputs, session)
    elif callable(what) and not isinstance(what, type):
        _tune_function(what, inputs, session)
    else:
        kinds = "a FusionDefinition, a module or a function"
        raise InputError(expected("autotune", kinds, f"an object of type {type(what).__name__}"))
    return session.report()


def tune_definition(definition: FusionDefinition, inputs: Sequence[Any], session: Session) -> None:
    """Tunes a definition that is scheduled automatically."""
    if "ke" in vars(definition):
        hint = "its schedule was written by hand"
        raise InputError(expected("autotune", "automatic schedules", "a manual_execute", hint))
    tune(definition.engine.executor, flattened(inputs), session)


def _tune_function(function: Any, inputs: Sequence[Any], session: Session) -> None:
    """Compiles a function or module with tuning, and runs it and its backward."""
    original = getattr(function, "_orig_mod", function)
    options: Any = {"autotune": True}
    compiled: Any = torch.compile(original, backend="pyfuser", options=options)
    with during(session):
        found = _leaves(compiled(*inputs))
        outputs = [x for x in found if isinstance(x, torch.Tensor) and x.requires_grad]
        if not outputs:
            return
        known = [x for x in _leaves(list(inputs)) if isinstance(x, torch.Tensor)]
        if isinstance(original, torch.nn.Module):
            known += list(original.parameters())
        leaves = [x for x in known if x.requires_grad]
        gradients = [torch.ones_like(x) for x in outputs]
        torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)


def _leaves(values: Any) -> list[Any]:
    """The values in nested lists, tuples and dictionaries."""
    found: list[Any] = pytree.tree_leaves(values)
    return found
