"""Tunes the kernels of a fusion's program, in order, each on the tensors that it would get.

What other parts compute for a kernel is computed by torch.  Plans that were made before are
forgotten, so the next call asks what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import fallback
from ..caches.tuning_store import operations_of
from ..devices.switches import forget_plans
from ..executor import Executor
from ..ir.vals import Scalar, TensorView, Val
from ..ops.binding import Binding, bind
from ..ops.random_state import with_any_random_state
from ..parts import KernelPart
from .kernels import tune_kernel
from .report import Row
from .samples import laid_out, samples
from .session import Session


def tune(executor: Executor, inputs: Sequence[Any], session: Session) -> None:
    """Tunes for these inputs: tensors, or metadata for which tensors are made up."""
    given = samples(with_any_random_state(executor.fusion, inputs))
    program = executor.resolve(given).program
    values: dict[Val, Any] = dict(zip(program.fusion.inputs, given, strict=True))
    numbers = bind(program.fusion, given)
    for part in program.parts:
        own = [
            _own(_value(whole, values, numbers), value, whole in program.fusion.inputs)
            for whole, value in zip(part.segment.inputs, part.fusion.inputs, strict=True)
        ]
        if isinstance(part, KernelPart):
            tune_kernel(part, own, program.runtime, session)
        if part is not program.parts[-1]:
            try:
                outputs = fallback.run_part(part.fusion, own)
            except Exception as error:  # such as values, made up, that torch refuses
                note = f"what follows isn't measured: {error}"
                session.rows.append(Row("torch", operations_of(part.fusion), None, note))
                break
            values.update(zip(part.segment.outputs, outputs, strict=True))
    forget_plans()


def _value(whole: Val, values: Mapping[Val, Any], numbers: Binding) -> Any:
    """What a program's value is: a scalar that isn't an input, such as a size, is a number."""
    if isinstance(whole, Scalar) and whole not in values:
        return numbers.scalar(whole)
    return values[whole]


def _own(given: Any, value: Val, is_input: bool) -> Any:
    """The input of a part."""
    if isinstance(value, Scalar) or is_input or not isinstance(given, torch.Tensor):
        return given
    assert isinstance(value, TensorView)
    return laid_out(given, value)
