"""The scheduling operations that rewrite the computation: caches and rfactor.

cache_before and cache_after put a copy before or after a tensor; rfactor splits a reduction in two.
All of them change the scheduler's own copy of the fusion, or the user's fusion after it was
defined.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import ScheduleError, expected
from ..ir.domains import IterDomain, IterType, TensorDomain, history
from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import broadcast_contiguity, plain_domain
from ..ir.schedule import MemoryType, ScheduledFusion, TensorSchedule
from ..ir.vals import TensorView, Val
from .propagation import Replay


def _copied_axes(scheduled: ScheduledFusion, tensor: TensorView) -> list[IterDomain]:
    ids = scheduled.fusion.ids
    return [ids.new(a.extent, a.iter_type, a.expanded_extent) for a in tensor.axes]


def cache_after(
    scheduled: ScheduledFusion, tensor: TensorView, chosen: Collection[Expr] = ()
) -> TensorView:
    """tensor -> copy -> the tensor's readers, or those chosen.  Returns the copy, in local memory.

    What is read at computed positions is still the tensor: the copy isn't in memory.
    """
    fusion = scheduled.fusion
    readers = [
        expr
        for expr in tensor.uses_list
        if tensor in expr.aligned_inputs and (not chosen or expr in chosen)
    ]
    if not readers:
        got = "only reads at other positions" if tensor.uses_list else "a tensor without"
        raise ScheduleError(expected("cache_after", f"T{tensor.name} to have consumers", got))
    copy = fusion.new_tensor(plain_domain(_copied_axes(scheduled, tensor)), tensor.dtype)
    fusion.insert_expr(PointwiseOp((tensor,), (copy,), "set"), min(readers, key=fusion.exprs.index))
    for expr in readers:
        if expr.source is tensor:
            inputs = [tensor, *(copy if value is tensor else value for value in expr.inputs[1:])]
            fusion.redefine(expr, expr.rebuild(inputs, expr.outputs))
        else:
            fusion.replace_input(expr, tensor, copy)
    scheduled[copy].memory_type = MemoryType.local
    return copy


def cache_before(scheduled: ScheduledFusion, tensor: TensorView) -> TensorView:
    """definition -> copy -> tensor.  Returns the copy, in local memory; it takes over the loops.

    The order of its elements is one of loops, too.
    """
    fusion, expr = scheduled.fusion, tensor.expr
    if expr is None:
        what = f"T{tensor.name} to be computed"
        raise ScheduleError(expected("cache_before", what, "an input of the fusion"))
    domain = tensor.domain
    copy = fusion.new_tensor(
        TensorDomain(domain.logical, broadcast_contiguity(domain.logical), domain.root),
        tensor.dtype,
    )
    source = scheduled[tensor]
    scheduled[copy].loop, scheduled[copy].allocation = source.loop, source.allocation
    source.allocation = None
    axes = [fusion.ids.new(a.extent, a.iter_type, a.expanded_extent) for a in copy.axes]
    pairs = dict(zip(copy.axes, axes, strict=True))
    allocation = domain.allocation and [pairs[a] for a in domain.allocation]
    tensor.domain = TensorDomain(axes, domain.contiguity, None, allocation)
    source.loop = list(axes)
    source.compute_at = min(source.compute_at, len(axes))
    outputs: list[Val] = [copy if v is tensor else v for v in expr.outputs]
    fusion.redefine(expr, expr.rebuild(expr.inputs, outputs))
    position = fusion.exprs.index(copy.expr) if copy.expr else 0
    fusion.add_expr(PointwiseOp((copy,), (tensor,), "set"))
    fusion.exprs.insert(position + 1, fusion.exprs.pop())
    return copy


def rfactor(
    scheduled: ScheduledFusion, tensor: TensorView, axes: Sequence[int]
) -> TensorView | tuple[TensorView, ...]:
    """Splits a reduction in two; returns the new tensor (for welford the three new ones)."""
    made = rfactor_results(scheduled, tensor, axes)
    return made[0] if len(made) == 1 else made


def rfactor_results(
    scheduled: ScheduledFusion, tensor: TensorView, axes: Sequence[int]
) -> tuple[TensorView, ...]:
    """Splits a reduction in two: the new tensors reduce `axes`, the old ones the rest.

    [i, r_o, r_i], axes=[1]  ->  new [i, r_o, i_i] and old [i, r_i].
    Returns the new tensors.
    """
    expr = tensor.expr
    if expr is None or not expr.accumulates:
        what = f"T{tensor.name} to be the result of a reduction"
        raise ScheduleError(expected("rfactor", what, str(tensor)))
    schedule = scheduled[tensor]
    chosen = {schedule.loop[schedule.position(a, "rfactor")] for a in axes}
    for axis in chosen:
        if not axis.is_reduction:
            raise ScheduleError(expected("rfactor", f"reduction axes of T{tensor.name}", axis))
    if not chosen or all(a in chosen or not a.is_reduction for a in schedule.loop):
        raise ScheduleError(
            expected("rfactor", f"some but not all reduction axes of T{tensor.name}", list(axes))
        )
    _require_reduced_parts(schedule)
    old_loop, old_logical = list(schedule.loop), list(tensor.domain.logical)
    old_root = list(tensor.domain.root_or_logical)
    made = tuple(
        _rfactor_one(scheduled, output, old_root, old_logical, old_loop, chosen)
        for output in expr.tensor_outputs
    )
    partials: list[Val] = list(made)
    first = expr.rebuild(expr.inputs, partials)
    position = scheduled.fusion.exprs.index(expr)
    scheduled.fusion.remove_expr(expr)
    scheduled.fusion.add_expr(first)
    scheduled.fusion.exprs.insert(position, scheduled.fusion.exprs.pop())
    second: Expr = expr.rebuild(partials, expr.outputs)
    scheduled.fusion.add_expr(second)
    scheduled.fusion.exprs.insert(position + 1, scheduled.fusion.exprs.pop())
    return made


def _require_reduced_parts(schedule: TensorSchedule) -> None:
    """ScheduleError if a reduced loop is made of an axis that isn't reduced: it becomes logical."""
    logical = schedule.tensor.domain.logical
    for loop in schedule.loop:
        if loop.is_reduction:
            sources = {axis for expr in history([loop], logical) for axis in expr.inputs}
            kept = [axis for axis in logical if axis in sources and not axis.is_reduction]
            if kept:
                what = f"reduction axes of T{schedule.tensor.name} without others merged into them"
                raise ScheduleError(expected("rfactor", what, f"{loop}, made of {kept[0]}"))


def _rfactor_one(
    scheduled: ScheduledFusion,
    target: TensorView,
    old_root: list[IterDomain],
    old_logical: list[IterDomain],
    old_loop: list[IterDomain],
    chosen: set[IterDomain],
) -> TensorView:
    """The first half for one output; the output becomes the second half.

    `old_root`, `old_logical` and `old_loop` belong to the tensor that the user scheduled; its
    siblings get the same loops.

    The reduction axes of the first half's logical domain are the leaves of the schedule so far; the
    iteration axes stay whole, so consumers see the same axes as before.
    """
    fusion = scheduled.fusion
    leaves = [axis for axis in old_loop if axis.is_reduction]

    root = [fusion.ids.new(a.extent, a.iter_type, a.expanded_extent) for a in old_root]
    first = Replay(fusion.ids, dict(zip(old_root, root, strict=True)))
    copies = [_required(first, axis) for axis in old_logical]
    logical: list[IterDomain] = []
    for old, new in zip(old_logical, copies, strict=True):
        new.iter_type = (
            old.iter_type
        )  # an earlier rfactor may have left iteration axes of a reduction
        if not old.is_reduction:
            logical.append(new)
        elif not any(a.is_reduction for a in old_logical[: old_logical.index(old)]):
            logical += [_required(first, leaf) for leaf in leaves]
    loop = [_required(first, axis) for axis in old_loop]
    for old, new in zip(old_loop, loop, strict=True):
        new.parallel_type = old.parallel_type
        if old.is_reduction and old not in chosen:
            new.iter_type = IterType.ITERATION
    partial = fusion.new_tensor(
        TensorDomain(logical, broadcast_contiguity(logical), root), target.dtype
    )
    scheduled[partial].loop = loop

    origins = [a for a in old_logical if not a.is_reduction]
    survivors: dict[IterDomain, IterDomain] = {}
    for old in [*origins, *(leaf for leaf in leaves if leaf not in chosen)]:
        survivors[old] = fusion.ids.new(old.extent, old.iter_type, old.expanded_extent)
    by_partial = {first.made[old]: new for old, new in survivors.items()}
    second = Replay(fusion.ids, survivors)
    rest = [_required(second, axis) for axis in old_loop if axis not in chosen]
    for old, new in zip([a for a in old_loop if a not in chosen], rest, strict=True):
        new.parallel_type = old.parallel_type
    allocation = target.domain.allocation
    own = dict(zip(target.axes, [survivors[a] for a in origins], strict=True))
    target.domain = TensorDomain(
        [by_partial[a] for a in logical if a in by_partial],
        target.domain.contiguity,
        None,
        None if allocation is None else [own[a] for a in allocation],
    )
    scheduled[target].loop = rest
    return partial


def _required(replay: Replay, axis: IterDomain) -> IterDomain:
    """The copy of a loop axis; a stand-in, made of none of the tensor's axes, gets a new one."""
    made = replay.axis(axis)
    if made is None:
        made = replay.made[axis] = replay.ids.broadcast()
    return made
