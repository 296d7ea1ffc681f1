"""A backend that runs torch's own graph, giving each result the layout promised by tracing.

Tracing and eager give axes of size 1 different strides, and based on these strides a later
operation may choose a different layout for its result: eager's layout then isn't what any backend
sees.  If an operation on operands with the traced layouts gives a different layout on longer axes
too, its metadata is false (see pyfuser/torch_compile/aten/true_metadata.py), and `false` counts it.
It isn't counted if broadcast operands leave the memory order of two axes open, or if other strides
for their axes of size 1 give the promised layout: then these axes decide it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule, Interpreter, Node


class TracedLayouts:
    """The backend; `false` are the operations whose traced strides eager doesn't give."""

    def __init__(self) -> None:
        self.false: list[str] = []

    def __call__(
        self, graph_module: GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        aot: Any = aot_module_simplified
        made: Callable[..., Any] = aot(graph_module, example_inputs, fw_compiler=self._compile)
        return made

    def _compile(self, traced: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        boxed: Callable[..., Any] = make_boxed_func(_AsTraced(traced, self.false).run)
        return boxed


class _AsTraced(Interpreter):
    def __init__(self, graph_module: GraphModule, false: list[str]) -> None:
        super().__init__(graph_module)
        self.false = false

    def run_node(self, n: Node) -> Any:
        """The result of one operation, under the traced strides."""
        result, promised = super().run_node(n), n.meta.get("val")
        if n.op != "call_function" or not isinstance(result, Tensor):
            return result
        if not isinstance(promised, Tensor) or result.stride() == promised.stride():
            return result
        if _moving(result) == _moving(promised):
            return result.as_strided(result.shape, promised.stride())
        arguments, keywords = self.fetch_args_kwargs_from_env(n)
        if not _leaves_order_open(result, [a for a in arguments if isinstance(a, Tensor)]):
            plain = [_plain(a) if isinstance(a, Tensor) else a for a in arguments]
            again = self.call_function(n.target, tuple(plain), keywords)
            if _moving(again) != _moving(promised):
                self.false.append(str(n.target))
        laid_out = torch.empty_strided(result.shape, promised.stride(), dtype=result.dtype)
        return laid_out.copy_(result)


def _leaves_order_open(result: Tensor, operands: Sequence[Tensor]) -> bool:
    """True if for some two axes of a pointwise result no operand has both."""
    if any(operand.dim() > result.dim() for operand in operands):
        return False
    walked = [
        {dim - result.dim() for dim in range(result.dim()) if _stride(operand, dim - result.dim())}
        for operand in operands
    ]
    real = [dim - result.dim() for dim, size in enumerate(result.shape) if size > 1]
    return any(
        not any({a, b} <= axes for axes in walked) for a, b in itertools.combinations(real, 2)
    )


def _stride(operand: Tensor, dim: int) -> int:
    """The stride of an axis counted from the last one; 0 if the operand is broadcast."""
    if -dim > operand.dim() or operand.shape[dim] == 1:
        return 0
    return operand.stride(dim)


def _plain(value: Tensor) -> Tensor:
    """The tensor with the strides for its axes of size 1 that a contiguous one would have there."""
    strides = list(value.stride())
    step = 1
    for dim in reversed(range(value.dim())):
        if value.shape[dim] == 1:
            strides[dim] = step
        step = strides[dim] * value.shape[dim]
    return value.as_strided(value.shape, strides)


def _moving(value: Tensor) -> list[int]:
    """Strides of the axes for which they are meaningful."""
    sizes = zip(value.shape, value.stride(), strict=True)
    return [stride for size, stride in sizes if size > 1 and value.numel()]
