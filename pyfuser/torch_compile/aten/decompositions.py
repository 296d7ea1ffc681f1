"""pyfuser's choice of decompositions: few, because each costs nodes to trace.

An operation is decomposed here if eager composes it of slower pieces and its parts are all
translated, so that it fuses with its neighbours. torch's own decompositions are used if their
numbers equal eager's.  Matrix products, convolutions, attention and sorting stay whole:
eager's kernels are good.  The attention of a single query is an exception (attention.py); torch's
own decomposition of the CPU's attention computes something else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import _disable_current_modes

from . import (
    attention,
    channels_last,
    checked,
    diagonals,
    extrema,
    group_norm,
    image_columns,
    losses,
    points,
    pooling,
    random_numbers,
    true_metadata,
    upsampling,
)
from .implemented import is_implemented
from .widening import is_half, widened

aten, prims = torch.ops.aten, torch.ops.prims

# Ops that use torch's own decompositions, in all functional overloads.
_BY_TORCH = (
    "binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits",
    "diag_embed",
    "glu_backward",
    "nll_loss2d_backward",
    "nll_loss_backward",
    "norm",
    "pixel_shuffle",
    "select_backward",
    "slice_backward",
    "soft_margin_loss",
    "soft_margin_loss_backward",
    "stack",
)


# A tensor that would be split into more parts stays whole: each would be a node.
_MOST_PARTS = 32


def keep_scale(dtype: torch.dtype, keep: float) -> float:
    """1 / keep as in eager's dropout: divided in the tensor's dtype."""
    if keep == 0:
        return 0.0
    with _disable_current_modes():
        return float(torch.ones((), dtype=dtype).div(keep))


def _drawn_mask(x: torch.Tensor, keep: float) -> torch.Tensor:
    """Bernoulli draws in the memory order of eager's mask."""

    def draw(sizes: list[Any]) -> torch.Tensor:
        empty = torch.empty(sizes, dtype=torch.bool, device=x.device)
        mask: torch.Tensor = aten.bernoulli.p(empty, keep)
        return mask

    return random_numbers.in_memory_order(x, draw)


def _native_dropout(
    make_mask: Callable[[torch.Tensor, float], torch.Tensor],
    x: torch.Tensor,
    p: float,
    train: bool | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bits of eager's dropout on the CPU for the same mask, which is saved as bool."""
    if train is False or p == 0 or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    mask = make_mask(x, 1 - p)
    return x * (mask.to(x.dtype) * keep_scale(x.dtype, 1 - p)), mask


def _glu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    half = x.shape[dim] // 2
    value, gate = x.narrow(dim, 0, half), x.narrow(dim, half, half)
    return value * gate.sigmoid()


def _split(x: torch.Tensor, size: Any, dim: int = 0) -> list[torch.Tensor] | Any:
    """Slices, which fuse with their readers; with sizes that aren't numbers, the op stays whole."""
    total = x.shape[dim]
    if isinstance(size, torch.SymInt) or isinstance(total, torch.SymInt) or not size:
        return NotImplemented
    starts = range(0, max(total, 1), size)
    if len(starts) > _MOST_PARTS:
        return NotImplemented
    return [aten.slice.Tensor(x, dim, start, min(start + size, total)) for start in starts]


def _split_with_sizes(x: torch.Tensor, sizes: Any, dim: int = 0) -> list[torch.Tensor] | Any:
    parts, start = [], 0
    if any(isinstance(size, torch.SymInt) for size in sizes):
        return NotImplemented
    for size in sizes:
        parts.append(aten.slice.Tensor(x, dim, start, start + size))
        start += size
    return parts


def _unbind(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor] | Any:
    if isinstance(x.shape[dim], torch.SymInt) or x.shape[dim] > _MOST_PARTS:
        return NotImplemented
    return [aten.select.int(x, dim, position) for position in range(x.shape[dim])]


def _addmm(
    bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor | Any:
    """A separate bias, for the kernel that reads the product; half precision would round again."""
    is_plain = beta == 1 and alpha == 1 and bias.dim() == 1 and x.shape[1] != 0
    if not is_plain or x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    bias.expand(x.shape[0], weight.shape[1])  # eager's error if it has another size
    return aten.mm.default(x, weight) + bias


def _zeros(size: list[Any], **options: Any) -> torch.Tensor:
    """Zeros with memory, in place of those of forward-mode differentiation, which have none."""
    return torch.zeros(size, **options)


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor | Any:
    """Decomposed, so that the backward can recompute the parts from x: only the sums are saved."""
    if x.dim() == 0 or x.numel() == 0 or half_to_float:
        return NotImplemented
    wide = widened(x)
    shifted = wide - wide.amax(dim, keepdim=True)
    result = shifted - shifted.exp().sum(dim, keepdim=True).log()
    return result.to(x.dtype).contiguous()


def _cross(x: torch.Tensor, y: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    sizes = torch.broadcast_shapes(x.shape, y.shape)  # type: ignore[no-untyped-call]
    (a, b, c), (d, e, f) = (each.expand(sizes).unbind(dim) for each in (x, y))
    return torch.stack([b * f - c * e, c * d - a * f, a * e - b * d], dim).contiguous()


def _weight_norm(
    v: torch.Tensor, g: torch.Tensor, dim: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(v * g / norm, norm); for both half precisions, the norm is float32, as in eager."""
    others = [d for d in range(v.dim()) if d != dim]
    dtype = torch.float32 if is_half(g) else None
    norm = v.norm(2, others, keepdim=True, dtype=dtype)
    return v * (g / norm.to(g.dtype)), norm


def _nansum(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor | Any:
    """The sum of what isn't NaN.  Traced, torch's own op keeps all dimensions if it gets none."""
    are_floating = x.dtype.is_floating_point and (dtype or x.dtype).is_floating_point
    if not are_floating or x.dtype.itemsize == 1:
        return NotImplemented
    return torch.where(x.isnan(), 0, x).sum(dim or None, keepdim, dtype=dtype)


def _pixel_unshuffle(x: torch.Tensor, factor: int) -> torch.Tensor | Any:
    """Torch's decomposition, but for empty images, which eager leaves in their shape."""
    if not x.numel():
        return NotImplemented
    op = aten.pixel_unshuffle.default
    return get_decompositions([op])[op](x, factor)


def _either(first: Callable[..., Any], second: Callable[..., Any] | None) -> Callable[..., Any]:
    """The first decomposition, and the second where that isn't implemented."""

    def decomposed(*arguments: Any, **keywords: Any) -> Any:
        made = first(*arguments, **keywords)
        if made is not NotImplemented or second is None:
            return made
        return second(*arguments, **keywords)

    return decomposed


_OWN: dict[OpOverload, Callable[..., Any]] = {
    **attention.DECOMPOSITIONS,
    **checked.DECOMPOSITIONS,
    **diagonals.DECOMPOSITIONS,
    **extrema.DECOMPOSITIONS,
    **losses.DECOMPOSITIONS,
    **true_metadata.DECOMPOSITIONS,
    **group_norm.DECOMPOSITIONS,
    **points.DECOMPOSITIONS,
    **image_columns.DECOMPOSITIONS,
    **pooling.DECOMPOSITIONS,
    **upsampling.DECOMPOSITIONS,
    aten.linalg_cross.default: _cross,
    aten.nansum.default: _nansum,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    aten.native_dropout.default: partial(_native_dropout, _drawn_mask),
    aten._log_softmax.default: _log_softmax,
    aten.addmm.default: _addmm,
    aten._efficientzerotensor.default: _zeros,
    aten.glu.default: _glu,
    aten.split.Tensor: _split,
    aten.unsafe_split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unbind.int: _unbind,
    aten._weight_norm_interface.default: _weight_norm,
}
_FUSED_RANDOM: dict[OpOverload, Callable[..., Any]] = {
    **random_numbers.DECOMPOSITIONS,
    aten.native_dropout.default: partial(_native_dropout, random_numbers.random_mask),
}


@lru_cache(maxsize=1)
def _table() -> dict[OpOverload, Callable[..., Any]]:
    packets = [getattr(aten, name) for name in _BY_TORCH]
    found = get_decompositions(packets)
    chosen = {o: f for o, f in found.items() if isinstance(o, OpOverload) and _is_functional(o)}
    own = {
        **channels_last.DECOMPOSITIONS,
        **{op: _either(f, channels_last.DECOMPOSITIONS.get(op)) for op, f in _OWN.items()},
    }
    return {op: _or_whole(op, function) for op, function in {**chosen, **own}.items()}


def _is_functional(overload: OpOverload) -> bool:
    return not overload._schema.is_mutable


def _or_whole(op: OpOverload, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves an op whole if its decomposition asks about a size that only data decide (nonzero), or
    if eager doesn't implement it."""

    @wraps(decomposition)
    def decompose(*args: Any, **keywords: Any) -> Any:
        if not is_implemented(op, args, keywords):
            return NotImplemented
        try:
            return decomposition(*args, **keywords)
        except GuardOnDataDependentSymNode:
            return NotImplemented

    return decompose


def _multiply_add(a: Any, b: Any, c: torch.Tensor) -> torch.Tensor:
    """`prims.fma`; eager rounds the product, too."""
    return a * b + c  # type: ignore[no-any-return]


def decompositions(fused_random: bool = False) -> dict[OpOverload, Callable[..., Any]]:
    """The table for AOTAutograd, with torch's random numbers or with those that kernels make.

    It is a copy, so that a caller may change it.
    """
    chosen = dict(_table())
    if fused_random:
        chosen |= {op: _or_whole(op, function) for op, function in _FUSED_RANDOM.items()}
    # Dynamo defines `fma` when it first writes x.addcmul_(a, b, value=c) with it.
    fma = getattr(prims, "fma", None)
    return chosen if fma is None else {**chosen, fma.default: _multiply_add}
