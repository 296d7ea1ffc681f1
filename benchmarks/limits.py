"""What a machine can do, measured, and what a function needs at least: the floor of its time.

The floor is the larger of bytes over bandwidth and operations over the peak of fused multiply-adds.
Bytes are those of inputs, outputs and gradients, each moved once; operations are counted while
torch runs the function, weighted by what they take of a vector unit (an exponential is a polynomial
of some ten multiply-adds).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .harness import copy_bandwidth, interleaved

Result = TypeVar("Result")

# Products, and which argument's last dimension they sum over.
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}

# Multiply-adds per element, of what a good vector library needs.
_WEIGHTS = {
    "exp": 10, "exp2": 9, "expm1": 12, "log": 12, "log1p": 14, "tanh": 16, "erf": 16, "sigmoid": 14,
    "silu": 15, "gelu": 20, "sin": 16, "cos": 16, "pow": 24, "div": 4, "reciprocal": 4, "sqrt": 4,
    "rsqrt": 5, "_softmax": 16, "_log_softmax": 14, "silu_backward": 20, "gelu_backward": 34,
    "native_layer_norm": 8, "native_batch_norm": 8, "native_group_norm": 8,
    "native_layer_norm_backward": 12, "native_batch_norm_backward": 12,
    "native_group_norm_backward": 12, "var_mean": 4, "var": 4, "native_dropout": 10,
    "bernoulli_": 10, "_log_softmax_backward_data": 13,
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Bytes per second of a copy and of `a = b + s * c`; multiply-adds (float32) per second."""

    copy: float
    triad: float
    multiply_adds: float

    def floor_seconds(self, traffic_bytes: int, operations: int) -> float:
        """The least time for so many bytes and operations."""
        bandwidth = max(self.copy, self.triad)
        return max(traffic_bytes / bandwidth, operations / self.multiply_adds)


def measure() -> Limits:
    """The limits of this process: its threads and its memory allocation."""
    return Limits(copy_bandwidth(), _triad(), _multiply_adds())


def _triad(size_bytes: int = 128 << 20) -> float:
    b, c = torch.ones(size_bytes // 4), torch.ones(size_bytes // 4)
    a = torch.empty_like(b)
    times = interleaved({"triad": lambda: torch.add(b, c, alpha=3.0, out=a)}, 0.2, 5)
    return 3 * size_bytes / times["triad"]


def _multiply_adds(size: int = 1024) -> float:
    """By a product of matrices, which comes closest to the peak."""
    a, b = torch.ones(size, size), torch.ones(size, size)
    out = torch.empty(size, size)
    times = interleaved({"product": lambda: torch.mm(a, b, out=out)}, 0.2, 5)
    return size**3 / times["product"]


def counted(function: Callable[[], Result]) -> tuple[int, Result]:
    """The weighted operations of a call, its backward included, and its result."""
    with _Counter() as counter:
        result = function()
    return counter.total, result


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if _name(func) in _PRODUCTS:  # a multiply-add for each element and each term of its sum
            self.total += outputs.numel() * args[_PRODUCTS[_name(func)]].shape[-1]
        if not func.is_view and torch.Tag.pointwise in func.tags or _is_weighted(func):
            self.total += _weight(func) * _elements(outputs, args)
        elif "sum" in func.name() or "mean" in func.name() or "max" in func.name():
            self.total += _elements(args)
        return outputs


def _name(func: Any) -> str:
    return func.overloadpacket.__name__


def _is_weighted(func: Any) -> bool:
    return _name(func) in _WEIGHTS


def _weight(func: Any) -> int:
    return _WEIGHTS.get(_name(func), 1)


def _elements(*nested: Any) -> int:
    """The elements of the greatest tensor."""
    flat, _ = torch.utils._pytree.tree_flatten(nested)
    return max((each.numel() for each in flat if isinstance(each, torch.Tensor)), default=0)
