"""Passes over a row: what a later pass needs from an earlier one is computed again, or kept.

A normalisation walks along its rows several times: the result of a reduction exists only after a
pass, so what depends on it belongs to a later one.  A tensor whose readers are in different passes
is computed in the first of them; the readers of each later pass get their own copy of a cheap
tensor, and a buffer with the values of an expensive one, or of one at the end of a long chain of
cheap ones: a norm after a norm after a norm would compute all before it again.  All readers of one
pass share a copy, and so their loops.

If the columns are added up beside the rows, what follows from their sums comes after all rows, in
loops of its own.  It always computes again what it needs, for it can reach no buffer of a row.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ..analysis.costs import is_expensive, recomputation_cost
from ..analysis.iteration_space import IterationSpace
from ..analysis.mapping import downstream
from ..dtypes import size_in_bytes
from ..ir.exprs import Expr, FullOp, IotaOp, PointwiseOp, WindowOp
from ..ir.fusion import Cloner, Fusion, plain_domain
from ..ir.vals import TensorView, Val
from ..ops.op import EXPENSIVE
from .common import is_reduction


@dataclass(frozen=True, slots=True)
class _Pass:
    """The pass that an expression belongs to: this one, or (if free) this one or any later one."""

    number: int
    is_free: bool


class _Passes:
    """The passes of the expressions of a fusion, for those that have been asked, readers first.

    `after` are the tensors that are computed after all rows, and the results of sums of columns.
    """

    def __init__(self, fusion: Fusion, after: AbstractSet[Val]) -> None:
        self._of: dict[Expr, _Pass] = {}
        self._reductions_before: dict[TensorView, int] = {}
        self._after = after
        self._last = len(fusion.exprs) + 1
        for expr in fusion.exprs:
            before = self._earliest(expr) + is_reduction(expr)
            for tensor in expr.tensor_outputs:
                self._reductions_before[tensor] = before

    def _earliest(self, expr: Expr) -> int:
        """How many reductions, one after the other, must be finished before an expression."""
        if not is_reduction(expr) and not self._after.isdisjoint(expr.tensor_outputs):
            return self._last
        return max((self._reductions_before.get(t, 0) for t in expr.tensor_inputs), default=0)

    def readers(self, tensor: TensorView) -> tuple[list[list[Expr]], list[Expr]]:
        """The readers of a tensor by their passes over a row, in order, and those after the rows.

        Its expression is in the first pass.
        """
        passes = {expr: self._of[expr] for expr in tensor.uses_list}
        late = [expr for expr, own in passes.items() if own.number == self._last]
        numbers = {own.number for own in passes.values() if own.number != self._last}
        fixed = {own.number for own in passes.values() if not own.is_free} & numbers
        grouped: dict[int, list[Expr]] = {}
        for expr, own in passes.items():
            if expr not in late:
                later = (number for number in fixed if number >= own.number)
                number = min(later, default=max(numbers)) if own.is_free else own.number
                grouped.setdefault(number, []).append(expr)
        if tensor.expr is not None:
            first = min(grouped, default=self._earliest(tensor.expr))
            self._of[tensor.expr] = _Pass(first, first not in (*fixed, self._last))
        return [grouped[number] for number in sorted(grouped)], late

    def add_reduction(self, expr: Expr) -> None:
        """A reduction is free if no pass waits for it: nothing has the axes that it reduces."""
        rank = expr.tensor_outputs[0].concrete_rank
        after = downstream(expr.tensor_outputs)
        self._of[expr] = _Pass(self._earliest(expr), all(t.concrete_rank <= rank for t in after))

    def add_copy(self, copy: Expr, reader: Expr) -> None:
        """A copy is in the pass of its readers."""
        self._of[copy] = self._of[reader]


def _is_recomputable(expr: Expr, tensor: TensorView) -> bool:
    """False for random numbers, and for numbers that a thread has in a register for all passes."""
    if _is_of_numbers(expr):
        return tensor.concrete_rank > 0
    return bool(expr.tensor_inputs) or isinstance(expr, WindowOp)


def _is_of_numbers(expr: Expr) -> bool:
    """True if no tensor is read."""
    return isinstance(expr, FullOp | IotaOp)


def _most_axes(fusion: Fusion) -> int:
    return max((t.concrete_rank for expr in fusion.exprs for t in expr.tensor_outputs), default=0)


def _ends_of_chains(fusion: Fusion) -> set[TensorView]:
    """The tensors that cost as much to compute again as an expensive one, from what is kept."""
    most = _most_axes(fusion)
    costs: dict[TensorView, int] = {}
    ends: set[TensorView] = set()
    for expr in fusion.exprs:
        if is_reduction(expr) or is_expensive(expr):
            continue
        own = recomputation_cost(expr) or 0
        cost = own + sum(costs.get(tensor, 0) for tensor in dict.fromkeys(expr.tensor_inputs))
        for tensor in expr.tensor_outputs:
            if tensor.concrete_rank < most or tensor in fusion.outputs:
                continue
            if cost >= EXPENSIVE:
                ends.add(tensor)
            else:
                costs[tensor] = cost
    return ends


def _ends_of_passes(
    fusion: Fusion, after: AbstractSet[Val], ends: AbstractSet[TensorView]
) -> set[TensorView]:
    """The tensors that later passes read, if keeping these takes no more memory than keeping what
    is expensive before them.

    A value that was only rounded is kept as narrow as it was before.

    Before:  T1 = exp(T0); T2 = log(T0); T3 = mul(T1, T2); T4 = sum(T3); T5 = div(T3, T4)
    Kept:    T3, and neither T1 nor T2
    """
    most = _most_axes(fusion)
    behind: dict[TensorView, frozenset[TensorView]] = {}
    for expr in fusion.exprs:
        nothing = frozenset[TensorView]()
        before = nothing.union(*(behind.get(tensor, nothing) for tensor in expr.tensor_inputs))
        for tensor in expr.tensor_outputs:
            is_kept = tensor.concrete_rank == most and (is_expensive(expr) or tensor in ends)
            if not is_reduction(expr):
                behind[tensor] = frozenset([tensor]) if is_kept else before
    if not any(behind.values()):
        return set()  # as in most norms: only numbers of rows are expensive
    passes = _Passes(fusion, after)
    found: set[TensorView] = set()
    replaced: set[TensorView] = set()
    for expr in reversed(fusion.exprs):
        if is_reduction(expr):
            passes.add_reduction(expr)
            continue
        for tensor in expr.tensor_outputs:
            groups, _ = passes.readers(tensor)
            if len(groups) > 1 and behind[tensor]:
                found.add(_unrounded(tensor))
                replaced |= behind[tensor]
    return found if _bytes_each(found) <= _bytes_each(replaced) else set()


def _unrounded(tensor: TensorView) -> TensorView:
    """The computed tensor of a narrower type of which this is a cast; else itself."""
    expr = tensor.expr
    if not isinstance(expr, PointwiseOp) or expr.op != "cast":
        return tensor
    (source,) = expr.tensor_inputs
    is_narrower = size_in_bytes(source.dtype) < size_in_bytes(tensor.dtype)
    return source if is_narrower and source.expr is not None else tensor


def _bytes_each(tensors: AbstractSet[TensorView]) -> int:
    return sum(size_in_bytes(tensor.dtype) for tensor in tensors)


def recompute_cheap(
    fusion: Fusion,
    keeps: bool = True,
    after: AbstractSet[Val] = frozenset(),
    keeps_reads: bool = False,
) -> None:
    """Gives each later pass its own copy of a cheap tensor that would otherwise be kept for it.

    If `keeps`, an expensive tensor is kept in a buffer, which is written while its first readers
    run, and so are an output and the end of a long chain; else they are recomputed too.  What is
    computed `after` all rows, from the sums of columns, has its own copies of all that it needs.
    If it `keeps_reads`, all passes share what is read at a computed position, as they do inputs.

    Before:  T2 = sub(T0, T1); T3 = sum(T2); T4 = mul(T2, T3)
    After:   T2 = sub(T0, T1); T3 = sum(T2); T5 = sub(T0, T1); T4 = mul(T5, T3)
    """
    ends = _ends_of_chains(fusion)
    if keeps:
        ends |= _ends_of_passes(fusion, after, ends)
    passes = _Passes(fusion, after)
    for expr in reversed(list(fusion.exprs)):
        if is_reduction(expr):
            passes.add_reduction(expr)
            continue
        for tensor in expr.tensor_outputs:
            groups, late = passes.readers(tensor)
            later = groups[1:]
            is_worth_it = tensor in fusion.outputs or tensor in ends or is_expensive(expr)
            is_kept = keeps and is_worth_it
            if not _is_recomputable(expr, tensor):
                continue
            if keeps_reads and expr.source is not None:
                later = []
            if is_kept and later and tensor not in fusion.outputs:
                _keep_for(fusion, tensor, [reader for group in later for reader in group])
            copied = [] if is_kept else later
            if groups and late:
                copied = [*copied, late]
            for group in copied:
                passes.add_copy(_give_copy(fusion, expr, tensor, group), group[0])


def kept_rows(
    fusion: Fusion, reference: TensorView, after: AbstractSet[Val] = frozenset()
) -> tuple[int, int]:
    """How many inputs, and how many computed tensors, have the axes that `reference` reduces and
    readers in several passes, once `recompute_cheap` has given later passes copies of the others.
    """
    copy, cloner = fusion.clone()
    last = frozenset(map(cloner.value, after))
    recompute_cheap(copy, after=last)
    space = IterationSpace([expr for expr in copy.exprs if expr.tensor_outputs])
    axes = cloner.axis_list(reference.domain.root_or_logical)
    reduced = {space.number(axis) for axis in axes if axis.is_reduction}
    passes, computed = _Passes(copy, last), 0

    def is_kept(tensor: TensorView) -> bool:
        groups, _ = passes.readers(tensor)
        return len(groups) > 1 and not reduced.isdisjoint(space.axes(tensor))

    for expr in reversed(copy.exprs):
        if is_reduction(expr):
            passes.add_reduction(expr)
        else:
            computed += sum(map(is_kept, expr.tensor_outputs))
    return sum(map(is_kept, copy.input_tensors)), computed


def _keep_for(fusion: Fusion, tensor: TensorView, late: list[Expr]) -> None:
    """Adds a copy for the late readers, stored where the tensor is computed for the early ones.

    Before:  T1 = exp(T0); T2 = sum(T1); T3 = div(T1, T2)
    After:   T1 = exp(T0); T4 = set(T1); T2 = sum(T1); T3 = div(T4, T2)
    """
    axes = [fusion.ids.new(a.extent, a.iter_type, a.expanded_extent) for a in tensor.axes]
    copy = fusion.new_tensor(plain_domain(axes), tensor.dtype)
    first = min(tensor.uses_list, key=fusion.exprs.index)
    fusion.insert_expr(PointwiseOp((tensor,), (copy,), "set"), first)
    for expr in late:
        fusion.replace_input(expr, tensor, copy)


def _give_copy(fusion: Fusion, expr: Expr, tensor: TensorView, readers: list[Expr]) -> Expr:
    """Computes a tensor once more, for these readers; returns the copy's expression.

    The copy of what is made of numbers has the tensor's own axes, for it reads no tensor by which
    the two have the same loops.
    """
    cloner = Cloner(fusion, fusion)
    for value in expr.inputs:
        cloner.values[value] = value
    if _is_of_numbers(expr):
        cloner.axes |= {axis: axis for axis in tensor.axes}
    domain = cloner.domain(tensor.domain)
    for axis, own in cloner.axes.items():
        if own is not axis:
            own.name = fusion.ids.next_name
            fusion.ids.next_name += 1
    copy = fusion.new_tensor(domain, tensor.dtype)
    made = expr.rebuild(expr.inputs, (copy,))
    fusion.insert_expr(made, min(readers, key=fusion.exprs.index))
    for reader in readers:
        fusion.replace_input(reader, tensor, copy)
    return made
