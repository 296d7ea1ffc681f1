"""Passes over a row: what a later pass needs from an earlier one is computed again, or kept.

A normalisation walks along its rows several times: the result of a reduction exists only after a
pass, so what depends on it belongs to a later one.  A tensor whose readers are in different passes
is computed in the first of them; the readers of each later pass get their own copy of a cheap
tensor, and a buffer with the values of an expensive one.  All readers of one pass share a copy, and
so their loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.costs import is_expensive
from ..analysis.iteration_space import IterationSpace
from ..analysis.mapping import downstream
from ..ir.exprs import Expr, PointwiseOp, WindowOp
from ..ir.fusion import Cloner, Fusion, plain_domain
from ..ir.vals import TensorView
from .common import is_reduction, reductions


@dataclass(frozen=True, slots=True)
class _Pass:
    """The pass that an expression belongs to: this one, or (if free) this one or any later one."""

    number: int
    is_free: bool


class _Passes:
    """The passes of the expressions of a fusion, for those that have been asked, readers first."""

    def __init__(self, fusion: Fusion) -> None:
        self._of: dict[Expr, _Pass] = {}
        self._reductions_before: dict[TensorView, int] = {}
        for expr in fusion.exprs:
            before = self._earliest(expr)
            for tensor in expr.tensor_outputs:
                self._reductions_before[tensor] = before + is_reduction(expr)

    def _earliest(self, expr: Expr) -> int:
        """How many reductions, one after the other, must be finished before an expression."""
        return max((self._reductions_before.get(t, 0) for t in expr.tensor_inputs), default=0)

    def readers(self, tensor: TensorView) -> list[list[Expr]]:
        """The readers of a tensor by their passes, in order; its expression is in the first."""
        readers = list(tensor.uses_list)
        passes = {expr: self._of[expr] for expr in readers}
        fixed = {p.number for p in passes.values() if not p.is_free}
        last = max((p.number for p in passes.values()), default=0)
        grouped: dict[int, list[Expr]] = {}
        for expr, own in passes.items():
            later = (number for number in fixed if number >= own.number)
            grouped.setdefault(min(later, default=last) if own.is_free else own.number, []).append(
                expr
            )
        if tensor.expr is not None:
            first = min(grouped, default=self._earliest(tensor.expr))
            self._of[tensor.expr] = _Pass(first, first not in fixed)
        return [grouped[number] for number in sorted(grouped)]

    def add_reduction(self, expr: Expr) -> None:
        """A reduction is free if no pass waits for it: nothing has the axes that it reduces."""
        rank = _rank(expr.tensor_outputs[0])
        after = downstream(expr.tensor_outputs)
        self._of[expr] = _Pass(self._earliest(expr), all(_rank(t) <= rank for t in after))

    def add_copy(self, copy: Expr, reader: Expr) -> None:
        """A copy is in the pass of its readers."""
        self._of[copy] = self._of[reader]


def _rank(tensor: TensorView) -> int:
    return sum(not axis.is_broadcast for axis in tensor.axes)


def recompute_cheap(fusion: Fusion, keeps: bool = True) -> None:
    """Gives each later pass its own copy of a cheap tensor that would otherwise be kept for it.

    If `keeps`, an expensive tensor is kept in a buffer, which is written while its first readers
    run, and so is an output; else they are recomputed too.

    Before:  T2 = sub(T0, T1); T3 = sum(T2); T4 = mul(T2, T3)
    After:   T2 = sub(T0, T1); T3 = sum(T2); T5 = sub(T0, T1); T4 = mul(T5, T3)
    """
    passes = _Passes(fusion)
    for expr in reversed(list(fusion.exprs)):
        if is_reduction(expr):
            passes.add_reduction(expr)
            continue
        for tensor in expr.tensor_outputs:
            later = passes.readers(tensor)[1:]
            is_kept = keeps and (tensor in fusion.outputs or is_expensive(expr))
            if not (expr.tensor_inputs or isinstance(expr, WindowOp)):
                continue
            if is_kept and later and tensor not in fusion.outputs:
                _keep_for(fusion, tensor, [reader for group in later for reader in group])
            for group in () if is_kept else later:
                passes.add_copy(_give_copy(fusion, expr, tensor, group), group[0])


def kept_rows(fusion: Fusion) -> tuple[int, int]:
    """How many inputs, and how many computed tensors, have reduced axes and readers in several
    passes, once `recompute_cheap` has given later passes copies of the others.
    """
    copy, _ = fusion.clone()
    recompute_cheap(copy)
    space = IterationSpace([expr for expr in copy.exprs if expr.tensor_outputs])
    first = reductions(copy)[0].domain.root_or_logical
    reduced = {space.number(axis) for axis in first if axis.is_reduction}
    passes, computed = _Passes(copy), 0

    def is_kept(tensor: TensorView) -> bool:
        return len(passes.readers(tensor)) > 1 and not reduced.isdisjoint(space.axes(tensor))

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
    """Computes a tensor once more, for these readers; returns the copy's expression."""
    cloner = Cloner(fusion, fusion)
    for value in expr.inputs:
        cloner.values[value] = value
    domain = cloner.domain(tensor.domain)
    for axis in cloner.axes.values():
        axis.name = fusion.ids.next_name
        fusion.ids.next_name += 1
    copy = fusion.new_tensor(domain, tensor.dtype)
    made = expr.rebuild(expr.inputs, (copy,))
    fusion.insert_expr(made, min(readers, key=fusion.exprs.index))
    for reader in readers:
        fusion.replace_input(reader, tensor, copy)
    return made
