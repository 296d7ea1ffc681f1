"""Which axes of a fusion's tensors are the same: graphs of sets of axes, one graph for each mode.

    exact         axes that the operations relate, broadcast axes only with broadcast axes
    almost_exact  exact, and an axis is the same as what a split or merge with 1 makes of it
    broadcast     exact, and a broadcast axis is the same as what it is broadcast to
    permissive    broadcast, and what it is merged with counts as it alone
    loop          axes that share a loop, because a tensor is computed inside another's loops

If two axes are the same, so is what equal splits and merges make of them, in either direction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .analysis.mapping import producer_to_consumer
from .errors import DefinitionError, expected
from .frontend.enums import IdMappingMode
from .frontend.fusion import Fusion, require_fusion
from .frontend.handles import IterDomain
from .ir import domains
from .ir.disjoint_sets import DisjointSets
from .ir.domains import IdExpr, Split, history
from .ir.scalars import ONE
from .ir.vals import TensorView

_MODES = IdMappingMode


class DisjointValSets:
    """Sets of axes, each axis in one of them."""

    def __init__(self, sets: DisjointSets[domains.IterDomain], axes: Iterable[Any]) -> None:
        self._sets, self._axes = sets, list(axes)

    def strict_are_mapped(self, a: IterDomain, b: IterDomain) -> bool:
        """True if two axes are in one set."""
        return self._sets.find(a._axis) is self._sets.find(b._axis)

    def groups(self) -> list[list[domains.IterDomain]]:
        """The sets, in the order of their first axes."""
        found: dict[domains.IterDomain, list[domains.IterDomain]] = {}
        for axis in self._axes:
            found.setdefault(self._sets.find(axis), []).append(axis)
        return list(found.values())

    def __str__(self) -> str:
        lines = (f"  {{ {'; '.join(map(str, group))} }}\n" for group in self.groups())
        return f"disjoint sets{{\n{''.join(lines)}}}\n"


class ValGraph:
    """Sets of axes that are the same, closed under the splits and merges between them."""

    def __init__(self, axes: Iterable[domains.IterDomain], exprs: Iterable[IdExpr]) -> None:
        self.axes, self.exprs = list(axes), list(exprs)
        self._sets: DisjointSets[domains.IterDomain] = DisjointSets()

    def disjoint_val_sets(self) -> DisjointValSets:
        """The sets."""
        return DisjointValSets(self._sets, self.axes)

    def map_vals(self, v0: IterDomain, v1: IterDomain) -> None:
        """Makes two axes the same, and with them what equal splits and merges relate."""
        self.join(v0._axis, v1._axis)
        self.propagate()

    def join(self, a: domains.IterDomain, b: domains.IterDomain) -> None:
        """Makes two axes the same, without consequences; see `propagate`."""
        self._sets.join(a, b)

    def propagate(self) -> None:
        """Maps the outputs of equal expressions of mapped inputs, and the inputs of equal
        expressions of mapped outputs, until nothing changes.
        """
        while self._step():
            pass

    def _step(self) -> bool:
        changed = False
        for is_forward in (True, False):
            first: dict[object, IdExpr] = {}
            for expr in self.exprs:
                given, made = (expr.inputs, expr.outputs)[:: 1 if is_forward else -1]
                key = (_kind(expr), tuple(map(self._sets.find, given)))
                other = first.setdefault(key, expr)
                theirs = other.outputs if is_forward else other.inputs
                for a, b in zip(theirs, made, strict=True):
                    if self._sets.find(a) is not self._sets.find(b):
                        self._sets.join(a, b)
                        changed = True
        return changed

    def __str__(self) -> str:
        return f"IdGraph{{\nDisjoint Ids:\n{self.disjoint_val_sets()}}}\n"


def _kind(expr: IdExpr) -> tuple[object, ...]:
    how = (expr.factor, expr.inner_split) if isinstance(expr, Split) else ()
    return (type(expr), *how)


class IdModel:
    """The graphs of a fusion; with `build_graphs` all of them are built at once.

    Without `allow_self_mapping`, two exactly mapped axes of one tensor are an error, as in
    `t + t.T`.  `validate` also checks that exactly mapped axes have equal constant sizes.
    """

    def __init__(
        self,
        fusion: Fusion,
        build_graphs: bool = False,
        allow_self_mapping: bool = True,
        validate: bool = False,
    ) -> None:
        require_fusion("IdModel", fusion)
        self._fusion = fusion
        self._graphs: dict[IdMappingMode, ValGraph] = {}
        self._loops = {t: self._loop(t) for t in fusion.graph.tensors}
        if not allow_self_mapping:
            self._check_self_mapping()
        if validate:
            self._check_sizes()
        for mode in IdMappingMode if build_graphs else ():
            self.maybe_build_graph(mode)

    def _loop(self, tensor: TensorView) -> list[domains.IterDomain]:
        if not self._fusion.graph.has_user_schedule:
            return list(tensor.domain.logical)
        return list(self._fusion.user_schedule[tensor].loop)

    def maybe_build_graph(self, mode: IdMappingMode) -> ValGraph:
        """The graph of a mode, built on first use."""
        if not isinstance(mode, IdMappingMode):
            raise DefinitionError(expected("maybe_build_graph", "an IdMappingMode", repr(mode)))
        if mode not in self._graphs:
            self._graphs[mode] = self._loop_graph() if mode is _MODES.loop else self._graph(mode)
        return self._graphs[mode]

    def _empty(self) -> ValGraph:
        axes: dict[domains.IterDomain, None] = {}
        exprs: dict[IdExpr, None] = {}
        for tensor, loop in self._loops.items():
            roots = tensor.domain.root_or_logical
            made = [*history(tensor.domain.logical, roots), *history(loop, tensor.domain.logical)]
            exprs.update(dict.fromkeys(made))
            axes.update(dict.fromkeys((*roots, *tensor.domain.logical, *loop)))
            axes.update(dict.fromkeys(axis for expr in made for axis in expr.outputs))
        return ValGraph(axes, exprs)

    def _graph(self, mode: IdMappingMode) -> ValGraph:
        graph = self._empty()
        is_loose = mode in (_MODES.broadcast, _MODES.permissive)
        for expr in self._fusion.graph.exprs:
            for producer in expr.tensor_inputs:
                for consumer in expr.tensor_outputs:
                    for p, c in producer_to_consumer(expr, producer, consumer).items():
                        if is_loose or p.is_broadcast == c.is_broadcast:
                            graph.join(p, c)
        if mode is not _MODES.exact and mode is not _MODES.broadcast:
            _join_trivial(graph, mode is _MODES.permissive)
        graph.propagate()
        return graph

    def _loop_graph(self) -> ValGraph:
        graph = self._empty()
        if not self._fusion.graph.has_user_schedule:
            return graph
        for expr in self._fusion.graph.exprs:
            for producer in expr.tensor_inputs:
                depth = self._fusion.user_schedule[producer].compute_at
                for consumer in expr.tensor_outputs:
                    loops = zip(self._loops[producer], self._loops[consumer], strict=False)
                    for a, b in list(loops)[:depth]:
                        graph.join(a, b)
        return graph

    def loop_promotion(self, axis: IterDomain) -> IterDomain:
        """The axis that says how long the loop is that this one shares: made of the most axes that
        aren't broadcast.
        """
        loops, exact = (self.maybe_build_graph(mode) for mode in (_MODES.loop, _MODES.exact))
        sets = loops.disjoint_val_sets()
        group = next(g for g in sets.groups() if axis._axis in g)
        leaves = {each: _leaves(each, exact) for each in group}
        return IterDomain(self._fusion.graph, max(group, key=lambda each: len(leaves[each])))

    def _check_self_mapping(self) -> None:
        sets = self.maybe_build_graph(_MODES.exact).disjoint_val_sets()
        for tensor in self._fusion.graph.tensors:
            seen: dict[domains.IterDomain, domains.IterDomain] = {}
            for axis in tensor.domain.logical:
                other = seen.setdefault(sets._sets.find(axis), axis)
                if other is not axis:
                    what = f"axes of T{tensor.name} that aren't the same"
                    raise DefinitionError(expected("IdModel", what, f"{other} and {axis}"))

    def _check_sizes(self) -> None:
        for group in self.maybe_build_graph(_MODES.exact).disjoint_val_sets().groups():
            sizes = {axis.extent.value: axis for axis in group if axis.extent.is_constant}
            if len(sizes) > 1:
                got = ", ".join(map(str, sizes.values()))
                raise DefinitionError(expected("IdModel", "the same axes to be as long", got))

    def __str__(self) -> str:
        texts = (f"{mode.name}:\n{graph}" for mode, graph in self._graphs.items())
        return f"IdModel{{\n{''.join(texts)}}}\n"


def _join_trivial(graph: ValGraph, with_broadcast: bool) -> None:
    """Joins an axis with what a split by 1, or a merge with an axis of 1, makes of it."""
    for expr in graph.exprs:
        parts, whole = (
            (expr.outputs, expr.inputs) if isinstance(expr, Split) else (expr.inputs, expr.outputs)
        )
        if len(whole) != 1:
            continue
        rest = [
            axis
            for axis in parts
            if axis.extent is not ONE and not (with_broadcast and axis.is_broadcast)
        ]
        if len(rest) == 1:
            graph.join(rest[0], whole[0])


def _leaves(axis: domains.IterDomain, exact: ValGraph) -> set[domains.IterDomain]:
    """The sets of the axes without a definition that an axis is made of, broadcasts left out."""
    found: set[domains.IterDomain] = set()
    seen: set[domains.IterDomain] = set()
    pending = [axis]
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if each.definition is not None:
            pending += each.definition.inputs
        elif not each.is_broadcast:
            found.add(exact._sets.find(each))
    return found
