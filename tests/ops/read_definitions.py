"""For tests of slices, pads, cat and gathers: definitions, their check, and tensors laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run as simplified
from tests.support.targets import segment

Define = Callable[..., Any]


def fused(define: Define, inputs: Sequence[Any]) -> FusionDefinition:
    """A definition over these inputs, tensors or scalars; lists of outputs are outputs each."""
    with FusionDefinition() as fd:
        values = [
            fd.from_pytorch(x)
            if isinstance(x, torch.Tensor)
            else fd.define_scalar(None, dtype=DataType.Int)
            for x in inputs
        ]
        made = define(fd.ops, *values)
        for output in made if isinstance(made, list) else [made]:
            fd.add_output(output)
    return fd


def check(define: Define, inputs: Sequence[Any], want: Any, **tolerance: float) -> FusionDefinition:
    """Kernels, evaluator and simplified evaluation agree with torch, and the text rebuilds it."""
    fd = fused(define, inputs)
    wanted = want if isinstance(want, list) else [want]
    graph = fd.fusion.definition
    close = {"rtol": 1e-5, "atol": 1e-5} | tolerance
    for got in (
        fd.execute(list(inputs)),
        evaluate(graph, inputs),
        evaluate(simplified(graph), inputs),
    ):
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, **close)
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    for a, b in zip(evaluate(again.fusion.definition, inputs), wanted, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, **close)
    return fd


def kernels(fd: FusionDefinition) -> list[str]:
    """The schedulers of the segments that a fusion is cut into."""
    return [s.scheduler for s in segment(simplified(fd.fusion.definition)).segments]


def values(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    made = torch.randn(tuple(shape)) * 4
    return made > 0 if dtype is torch.bool else made.to(dtype)


def laid_out(shape: Sequence[int], layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of a shape whose memory is in another order, has gaps, or is one row."""
    if layout == "transposed":
        return values((*shape[:-2], shape[-1], shape[-2]), dtype).transpose(-1, -2)
    if layout == "expanded":
        return values((1, *shape[1:]), dtype).expand(shape)
    if layout == "strided":
        return values((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    if layout == "channels last":
        return values(shape, dtype).to(memory_format=torch.channels_last)
    return values(shape, dtype)
