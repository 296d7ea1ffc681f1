"""Cats as stacks: equal parts that are computed together are joined along an axis of their own.

The gradient of a gated unit joins two parts, both of which need the sigmoid.  As a cat, nothing
shows that an element of one part has anything in common with one of the other: one kernel would
compute the parts, and another join them.  As a stack, which is reshaped, the parts are an axis that
the sigmoid doesn't have (schedule/part_axes.py).  The reshape is free: a `segment_set` keeps it out of
the kernel, which writes to the memory of its result (plans/program_writer.py).

Runs before move_windows, which would compute each part at the size of the whole, and for which a
stack is a choice between its parts.  Cats in which little is shared stay: move_windows recomputes
that.  Short parts stay, too: a vector has several of them.

Before:
    T1_l_float[iS1{64}] = exp(T0_g_float[iS0{64}])
    T2_l_float[iS2{64}] = neg(T1_l_float[iS1{64}])
    T3_l_float[iS4{128}] = pad(T1_l_float[iS1{64}], 0.0, ([0, 64) from 0 by 1,))
    T4_g_float[iS7{128}] = pad(T2_l_float[iS2{64}], T3_l_float[iS4{128}], ([64, 128) from -64 by 1,))
After:
    T1_l_float[iS1{64}] = exp(T0_g_float[iS0{64}])
    T2_l_float[iS2{64}] = neg(T1_l_float[iS1{64}])
    T5_l_float[bS8{1}, iS9{64}] = broadcast(T1_l_float[iS1{64}], (True, False))
    T6_l_float[bS10{1}, iS11{64}] = broadcast(T2_l_float[iS2{64}], (True, False))
    T7_l_float[iS14{2}, iS13{64}] = pad(T5_l_float[bS8{1}, iS9{64}], 0.0, ([0, 1) from 0 by 1, None))
    T8_l_float[iS18{2}, iS19{64}] = pad(T6_l_float[bS10{1}, iS11{64}], T7_l_float[iS14{2}, iS13{64}], ([1, 2) from -1 by 1, None))
    T9_l_float[iS20{2}, iS21{64}] = segment_set(T8_l_float[iS18{2}, iS19{64}])
    T4_g_float[iS24{128}] = reshape(T9_l_float[iS20{2}, iS21{64}])
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.costs import is_copy, is_expensive, is_narrowing
from ..analysis.part_axes import MOST_PARTS
from ..dtypes import DataType
from ..ir.exprs import BroadcastOp, ExpandOp, Expr, FullOp, ReshapeOp, SqueezeOp, WindowOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, Integer
from ..ir.vals import TensorView, Val
from ..ops.pointwise import cast_tensor, pointwise
from ..ops.read_builders import cat
from ..ops.reshape_builders import Group, regrouped_domain
from ..ops.shape_builders import broadcast
from .cats import Parts, parts_of
from .dead_code import dead_code
from .read_moving import is_movable
from .rewriting import Rewriter, has_natural_layout, is_cast, rewrite
from .roundings import ORDERED

_LEAST_COLUMNS = 16  # of a part along the last axis
_MOST_RECOMPUTED = 3  # cheap operations that several parts need


def cats_as_stacks(fusion: Fusion) -> Fusion:
    """Makes cats stacks where the parts have much in common, and drops what is no longer read."""
    if not any(isinstance(expr, WindowOp) and len(expr.inputs) == 2 for expr in fusion.exprs):
        return fusion

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        joined = expr.inputs[0] if is_narrowing(expr) else expr.output
        parts = parts_of(joined.expr) if joined.expr is not None else None
        if parts is None or not _is_stack(rewriter.fusion, joined, expr.output, parts):
            rewriter.emit(expr)
            return
        for made in _stacked(rewriter.fusion, expr.tensor_outputs[0], parts):
            rewriter.emit(made)

    return dead_code(rewrite(fusion, rule))


def _is_stack(fusion: Fusion, joined: Val, output: Val, parts: Parts) -> bool:
    """True for a cat of equal parts that windows can't compute, and that nothing cuts again.

    `output` is the cat, or what all its readers see.
    """
    assert isinstance(joined, TensorView) and isinstance(output, TensorView)
    dim, readers = parts.dim, joined.uses_list
    is_read_once = joined not in fusion.outputs and len(readers) == 1
    if output is not joined and not is_read_once:
        return False
    if output is joined and is_read_once and is_narrowing(readers[0]):
        return False  # its result will be the stack
    tensors = [value for value in parts.tensors if isinstance(value, TensorView)]
    if len(tensors) != len(parts.tensors) or len(tensors) > MOST_PARTS:
        return False
    size = tensors[0].axes[dim].size
    is_short = isinstance(size, Integer) and size.value < _LEAST_COLUMNS
    if size is ONE or (is_short and dim == output.ndim - 1):
        return False
    is_plain = has_natural_layout(output) and not any(a.is_broadcast for a in output.axes)
    if not is_plain or output in fusion.aliases:
        return False
    if not all(t.axes[dim].size is size and not t.axes[dim].is_broadcast for t in tensors):
        return False
    is_cut = any(isinstance(reader, WindowOp) for reader in output.uses_list)
    return not is_cut and _is_shared_work(fusion, tensors)


def _is_shared_work(fusion: Fusion, parts: Sequence[TensorView]) -> bool:
    """True if the parts are computed from inputs and constants, element by element, and what is
    read several times on the way is too much to be computed again.
    """
    rank = max(map(_rank, parts))
    shared: set[Expr] = set()
    found: set[Expr] = set()
    pending = [(part, False) for part in parts]
    while pending:
        tensor, is_shared = pending.pop()
        expr = tensor.expr
        if expr is None or _rank(tensor) < rank:
            continue
        is_free = isinstance(expr, BroadcastOp | ExpandOp | SqueezeOp | FullOp)
        if not is_free and not is_movable(expr):
            return False
        is_shared |= len(tensor.uses_list) + (tensor in fusion.outputs) > 1
        if expr in (shared if is_shared else found):
            continue
        found.add(expr)
        if is_shared and not is_free:
            shared.add(expr)
        pending += [(source, is_shared) for source in expr.tensor_inputs]
    return any(map(is_expensive, shared)) or sum(map(_work_of, shared)) > _MOST_RECOMPUTED


def _work_of(expr: Expr) -> int:
    return 0 if is_cast(expr) or is_copy(expr) else 1


def _rank(tensor: TensorView) -> int:
    return sum(not axis.is_broadcast for axis in tensor.axes)


def _unrounded(fusion: Fusion, part: Val) -> TensorView:
    """A part in the dtype in which one is chosen, as it was before it was rounded."""
    assert isinstance(part, TensorView)
    if part.dtype not in ORDERED:
        return part
    whole = part.expr.inputs[0] if is_cast(part.expr) else part
    if isinstance(whole, TensorView) and whole.dtype is DataType.Float:
        return whole
    return cast_tensor(fusion, part, DataType.Float)


def _stacked(fusion: Fusion, output: TensorView, parts: Parts) -> list[Expr]:
    """The parts along an axis of their own, in memory, which the output shows in its shape."""
    start, rank = len(fusion.exprs), output.ndim + 1
    flags = [d == parts.dim for d in range(rank)]
    tensors = [_unrounded(fusion, part) for part in parts.tensors]
    stacked = cat(fusion, [broadcast(fusion, part, flags) for part in tensors], parts.dim)
    if stacked.dtype is not output.dtype:
        stacked = cast_tensor(fusion, stacked, output.dtype)
    kept = pointwise(fusion, "segment_set", stacked)
    assert isinstance(kept, TensorView)
    made = fusion.exprs[start:]
    del fusion.exprs[start:]
    groups = [
        Group((d, d + 1) if d == parts.dim else (d + (d > parts.dim),), (d,))
        for d in range(output.ndim)
    ]
    output.domain = regrouped_domain(fusion, kept, [axis.size for axis in output.axes], groups)
    return [*made, ReshapeOp((kept,), (output,))]
