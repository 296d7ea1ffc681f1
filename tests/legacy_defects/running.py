"""Running a function or a definition as the tests of legacy defects do, and the judge: eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ir.fusion import Fusion
from pyfuser.schedule.registry import scheduler
from tests.support.targets import SM_90

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
CODES = {
    torch.float32: DataType.Float,
    torch.float64: DataType.Double,
    torch.float16: DataType.Half,
    torch.bfloat16: DataType.BFloat16,
}


def alike(got: Any, want: Any) -> None:
    """Asserts bitwise equality, with NaN equal to NaN, also of dtypes and strides."""
    pairs = zip(got, want, strict=True) if isinstance(want, (tuple, list)) else [(got, want)]
    for mine, eager in pairs:
        torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True, check_stride=True)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="pyfuser", fullgraph=True)


def same_compiled(function: Callable[..., Any], *inputs: Any) -> None:
    alike(compiled(function)(*inputs), function(*inputs))


def fused(define: Callable[..., Any], *inputs: Any) -> list[torch.Tensor]:
    """Runs define(fd.ops, tensors...), whose results are the outputs."""
    with FusionDefinition() as fd:
        given = [
            fd.from_pytorch(x) if isinstance(x, torch.Tensor) else fd.define_scalar(dtype=kind(x))
            for x in inputs
        ]
        made = define(fd.ops, *given)
        for output in made if isinstance(made, tuple) else (made,):
            fd.add_output(output)
    return fd.execute(list(inputs))


def kind(number: object) -> DataType:
    return DataType.Int if isinstance(number, int) else DataType.Double


def automatic(fusion: Fusion, sizes: dict[str, int]) -> Any:
    """The pointwise scheduler's schedule for a GPU."""
    chosen = scheduler("pointwise")
    return chosen.schedule(fusion, chosen.heuristics(fusion, sizes, SM_90))
