"""Decompositions for operations whose traced metadata differs from eager's result.

Strides: some operations are traced by a composition whose operands are in a different order, or
that preserves a layout which eager's kernel doesn't: `copysign` of two permuted tensors,
`log_sigmoid` of one.  Everything that follows in a graph, including its outputs, would have a
different memory layout than in eager.  Dtypes: the norms of half-precision inputs with parameters
of float32 keep their statistics in float32, but are traced with half-precision statistics.  The
operands are converted first, so that metadata and result agree; if they agree anyway, the operation
stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from ...ir.strides import dense_strides, inverse
from ..sizes import hints
from ..traced_layouts import is_dense
from .widening import is_half

aten = torch.ops.aten

_POINTWISE = (
    aten.clamp.Tensor,
    aten.copysign.Tensor,
    aten.div.Tensor_mode,
    aten.elu_backward.default,
    aten.floor_divide.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.heaviside.default,
    aten.logaddexp.default,
    aten.logaddexp2.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
    aten.logit_backward.default,
    aten.softplus_backward.default,
    aten.special_xlog1py.default,
    aten.xlogy.Tensor,
)

_MASKS = (torch.bool, torch.uint8)

_BATCH_NORMS = (
    aten._native_batch_norm_legit.no_stats,
    aten._batch_norm_with_update_functional.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
)


# True in the decomposition of an indexed read, which is itself traced as indexed reads.
_in_index: ContextVar[bool] = ContextVar("_in_index", default=False)


def in_order(x: Tensor, order: list[int]) -> Tensor:
    """A copy whose dimensions have this order in memory, outermost first."""
    made = x.permute(order).clone(memory_format=torch.contiguous_format)
    return made.permute(inverse(order))


def by_stride(strides: tuple[int, ...]) -> list[int]:
    """The dimensions by stride, largest first, including those of one element."""
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An example tensor with the sizes and strides of a traced tensor."""
    return torch.empty_strided(
        hints(x.shape), hints(x.stride()), dtype=dtype or x.dtype, device="meta"
    )


def _of_examples(op: Callable[..., Tensor], *given: Any, **keywords: Any) -> tuple[int, ...]:
    """The strides of an operation's result according to tracing."""
    with _disable_current_modes(), FakeTensorMode() as mode:
        examples = (mode.from_tensor(_like(x)) if isinstance(x, Tensor) else x for x in given)
        return op(*examples, **keywords).stride()


def _pointwise(op: OpOverload) -> Callable[..., Any]:
    """For an operation on two or three tensors to which eager gives the layout of their sum."""

    def laid_out(*given: Any, **keywords: Any) -> Tensor | Any:
        operands = [x for x in given if isinstance(x, Tensor)]
        if len(operands) < 2 or max(x.dim() for x in operands) < 2:
            return NotImplemented
        alike = all(x.shape == operands[0].shape for x in operands)
        if alike and all(x.is_contiguous() for x in operands):
            return NotImplemented
        plain = aten.add.Tensor if len(operands) == 2 else aten.addcmul.default
        wanted = _of_examples(plain, *(_like(x, torch.float32) for x in operands))
        if _of_examples(op, *given, **keywords) == wanted:
            return NotImplemented
        shape = torch.broadcast_shapes(*(x.shape for x in operands))  # type: ignore[no-untyped-call]
        order = by_stride(wanted)
        first = next(x for x in operands if x.dim())
        converted = (
            in_order(_promoted(x, first).expand(shape), order) if isinstance(x, Tensor) else x
            for x in given
        )
        return op(*converted, **keywords)

    return laid_out


def _promoted(x: Tensor, other: Tensor) -> Tensor:
    """A tensor without dimensions, in the dtype that it has next to one with dimensions."""
    return x if x.dim() else x.to(torch.result_type(other, x))


def _contiguous_first(op: OpOverload, keeps_channels_last: bool = False) -> Callable[..., Any]:
    """For an operation whose result is contiguous in eager, or channels-last if its input is."""

    def laid_out(x: Tensor, *rest: Any, **keywords: Any) -> Any:
        if x.is_contiguous() or (keeps_channels_last and is_channels_last(x)):
            return NotImplemented
        kept = suggest_memory_format(x) if keeps_channels_last else torch.contiguous_format
        return op(x.contiguous(memory_format=kept), *rest, **keywords)

    return laid_out


def _dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Any:
    """The layout of a product in eager, which is traced as contiguous."""
    if gradient.is_contiguous():
        return NotImplemented
    examples = (_like(each, torch.float32) for each in (gradient, mask))
    order = by_stride(_of_examples(aten.mul.Tensor, *examples))
    operands = (each.permute(order) for each in (gradient, mask))
    return aten.native_dropout_backward.default(*operands, scale).permute(inverse(order))


def _log_sigmoid(x: Tensor) -> Any:
    """Contiguous on the CPU; other devices keep the layout, as it is traced."""
    if x.device.type != "cpu":
        return NotImplemented
    return _contiguous_first(aten.log_sigmoid_forward.default)(x)


def _power_of_number(base: Any, x: Tensor) -> Tensor | Any:
    """Contiguous in eager, whatever the layout of the exponents."""
    return NotImplemented if x.is_contiguous() else aten.pow.Scalar(base, x.contiguous())


def _roll(x: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor | Any:
    """Images and videos whose channels are innermost in memory stay so; traced, they don't."""
    if not dims or x.is_contiguous() or not has_channels_last_order(x):
        return NotImplemented
    order = [0, *range(2, x.dim()), 1]
    back = inverse(order)
    rolled = aten.roll.default(x.permute(order), shifts, [back[dim] for dim in dims])
    return rolled.permute(back)


def _index_fill(op: OpOverload) -> Callable[..., Any]:
    """In the order of the input; traced, an input with gaps gives a contiguous result."""

    def decompose(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor | Any:
        if is_dense(x):
            return NotImplemented
        dense = x.clone()  # unless it has no elements
        return op(dense, dim, index, value) if is_dense(dense) else NotImplemented

    return decompose


def _channel_shuffle(x: Tensor, groups: Any) -> Tensor | Any:
    """A view, a transposition and a copy, which fuses with what reads it.

    Images and videos whose channels are innermost in memory stay so; traced, they don't.
    """
    if not x.numel():
        return NotImplemented
    if x.is_contiguous() or not has_channels_last_order(x):
        batch, channels, *rest = x.shape
        parts = x.reshape(batch, groups, channels // groups, *rest).transpose(1, 2)
        return parts.clone(memory_format=torch.contiguous_format).view(x.shape)
    last = x.movedim(1, -1)
    parts = last.reshape(*last.shape[:-1], groups, -1).transpose(-1, -2)
    return parts.reshape(last.shape).movedim(-1, 1)


def has_channels_last_order(x: Tensor) -> bool:
    """True for images and videos whose channels are innermost in memory, also for parts of them."""
    return suggest_memory_format(x) != torch.contiguous_format


def is_channels_last(x: Tensor) -> bool:
    """True for whole images and videos whose channels are innermost in memory."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])


def is_mixed(x: Tensor, weight: Tensor | None) -> bool:
    """True for half precision with parameters of float32."""
    return is_half(x) and weight is not None and weight.dtype is torch.float32


def _norm(op: OpOverload, weight_at: int, lays_out: bool = False) -> Callable[..., Any]:
    """A norm that returns (result, statistics...); some of them change the result's layout."""
    laid_out = _contiguous_first(op, keeps_channels_last=True)

    def widened(x: Tensor, *rest: Any) -> Any:
        if is_mixed(x, rest[weight_at - 1]):
            result, *statistics = op(x.float(), *rest)
            return result.to(x.dtype), *statistics
        return laid_out(x, *rest) if lays_out else NotImplemented

    return widened


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | Any:
    """Eager gives the result the memory order of the source and of the index tensors."""
    given = [index for index in indices if index is not None]
    is_dense = all(is_in_order(each) for each in (x, *given))
    is_left = is_dense or len(given) > 2 or any(i.dtype in _MASKS for i in given)
    if is_left or _in_index.get():
        return NotImplemented
    wanted = indexed_strides(x, indices)
    if wanted == _of_examples(lambda source, *index: aten.index.Tensor(source, index), x, *indices):
        return NotImplemented
    token = _in_index.set(True)
    try:
        made = _by_permuted_index(x, indices)
        if made is not None and made.stride() == wanted:
            return made
        return in_order(aten.index.Tensor(x, indices), by_stride(wanted))
    finally:
        _in_index.reset(token)


def is_in_order(x: Tensor) -> bool:
    """True for the strides of new memory, those of dimensions of one element included."""
    return hints(x.stride()) == dense_strides(hints(x.shape), range(x.dim()))


def _is_block(indices: Sequence[Tensor | None]) -> bool:
    """True if the indexed dimensions are adjacent: the index's dimensions replace them in place."""
    places = [dim for dim, index in enumerate(indices) if index is not None]
    return places == list(range(places[0], places[-1] + 1))


def indexed_strides(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[int, ...]:
    """The strides of eager's result: those of a sum of the source and the index tensors, each laid
    out over the result's dimensions.
    """
    places = [dim for dim, index in enumerate(indices) if index is not None]
    kept = [dim for dim in range(x.dim()) if dim not in places]
    start = places[0] if _is_block(indices) else 0
    given = [_like(index, torch.float32) for index in indices if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in given))  # type: ignore[no-untyped-call]
    source = _like(x, torch.float32).permute([*kept, *places])
    sizes, strides = source.shape[: len(kept)], source.stride()[: len(kept)]
    source = source.as_strided(
        (*sizes[:start], *shape, *sizes[start:]),
        (*strides[:start], *(0 for _ in shape), *strides[start:]),
    )
    ones = (1,) * start, (1,) * (len(kept) - start)
    aligned = [index.expand(shape).reshape(*ones[0], *shape, *ones[1]) for index in given]
    with _disable_current_modes():
        plain = torch.add if len(aligned) == 1 else torch.addcmul
        return plain(source, *aligned).stride()


def _by_permuted_index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """The result of contiguous index tensors, permuted, if all are permuted in the same way."""
    given = [index for index in indices if index is not None]
    first = given[0]
    order = by_stride(tuple(hints(first.stride())))
    is_alike = all(i.shape == first.shape and i.stride() == first.stride() for i in given)
    if not is_alike or not first.permute(order).is_contiguous():
        return None
    made: Tensor = aten.index.Tensor(x, [i if i is None else i.permute(order) for i in indices])
    start = next(d for d, i in enumerate(indices) if i is not None) if _is_block(indices) else 0
    back = list(range(made.dim()))
    for position, dim in enumerate(order):
        back[start + dim] = start + position
    return made.permute(back)


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    **{op: _pointwise(op) for op in _POINTWISE},
    aten.channel_shuffle.default: _channel_shuffle,
    aten.index_fill.int_Scalar: _index_fill(aten.index_fill.int_Scalar),
    aten.index_fill.int_Tensor: _index_fill(aten.index_fill.int_Tensor),
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.native_dropout_backward.default: _dropout_backward,
    aten.poisson.default: _contiguous_first(aten.poisson.default),
    aten.pow.Scalar: _power_of_number,
    aten.rrelu_with_noise_functional.default: _contiguous_first(
        aten.rrelu_with_noise_functional.default
    ),
    aten.roll.default: _roll,
    aten.native_layer_norm.default: _norm(aten.native_layer_norm.default, 2),
    **{op: _norm(op, 1, lays_out=True) for op in _BATCH_NORMS},
}
