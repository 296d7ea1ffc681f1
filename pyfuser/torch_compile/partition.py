"""Cuts a graph into regions, the nodes that become one fusion, in near-linear time.

A node is *fusible* (it has a translation), a *view* (it costs nothing and stays outside) or a
*library call*. Every node has a level: how often, at most, a path to it leads from a fusible node
to a library call.  Connected fusible nodes of one level form a region, and so do those that read
one large tensor.  This can't make a cycle: a path that leaves a region and returns contains a
library call, and so leads to a higher level; regions of one level are never connected.  A library
call that reads no result of a region, such as a random mask, just runs before its readers, and
after the random calls before it: their order counts as a path.

The cost model makes three decisions.  A node that only higher levels read sinks to the lowest of
them (computing it late costs nothing, but storing it would), unless this keeps more memory alive
than it saves.  A reshape of a part belongs to a kernel only if nothing needs the whole to be
stored.  And a region has to be worth a kernel: a lone copy or read is left to torch, unless the
copy transposes, which kernels do in tiles, or torch reads element by element.  Views inside a
region (between its nodes) are part of the kernel if they have translations; otherwise they end the
region.  Views at its edges belong to their readers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..ir.disjoint_sets import DisjointSets
from .aten import cost, refusal
from .op_facts import facts, is_ordered
from .views import (
    bytes_of,
    elements_of,
    is_getitem,
    is_in_steps,
    is_view,
    is_view_list,
    runs,
    viewed,
)

aten = torch.ops.aten

# Kernels of more nodes than this take longer to schedule than they save.
_MOST_NODES = 160
_LAST = 1 << 30  # the level of the graph's output
# Nodes that torch runs equally well if the kernel computes nothing.
_NOT_ALONE = ("view", "read")
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
# Below this many elements a copy, or a read, takes as long as a call.
_LEAST_MOVED = 1 << 12
# The C library takes blocks of so many bytes from the system, page by page, and gives them back at
# once; pyfuser's pool keeps them.  Measured, 64 MiB: a copy takes 3 to 5 ms instead of 14.
_LEAST_POOLED = 32 << 20


@dataclass(eq=False)
class Region:
    """The nodes of a future kernel (in order), their outside inputs, and their outputs."""

    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Node]


@dataclass(eq=False)
class Partition:
    """The regions of a graph, and why each fusible-looking node outside them is in none."""

    regions: list[Region]
    outside: dict[Node, str]


def partition(graph: Graph, outside: Mapping[Node, str] = MappingProxyType({})) -> Partition:
    """Cuts a graph; nodes in `outside` are never fused, for these reasons."""
    return _Partitioner(graph, outside).run()


class _Partitioner:
    def __init__(self, graph: Graph, outside: Mapping[Node, str]) -> None:
        self.nodes: list[Node] = [n for n in graph.nodes if n.op != "output"]
        self.reasons = dict(outside)
        self.views: set[Node] = {n for n in self.nodes if is_view(n) or is_view_list(n)}
        self.fusible: set[Node] = set()
        self.level: dict[Node, int] = {}

    def run(self) -> Partition:
        for node in self.nodes:
            if self._is_fusible(node):
                self.fusible.add(node)
        self._keep_stored_parts_outside()
        self.fusible = set(self._without_edge_views(self.nodes))
        self._find_levels()
        self._sink()
        regions = []
        for group in self._components():
            for piece in self._split(group):
                trimmed = self._without_edge_views(piece)
                if self._is_worth_it(trimmed):
                    regions.append(self._region(trimmed))
        return Partition(regions, self.reasons)

    # -- what can be fused

    def _is_fusible(self, node: Node) -> bool:
        if node.op != "call_function" or node in self.reasons:
            return False
        if is_getitem(node):
            source = node.args[0]
            return isinstance(source, Node) and source in self.fusible
        if not _has_tensor(node):
            return False  # arithmetic on sizes runs on the host
        reason = refusal(node)
        if reason is not None:
            self.reasons[node] = reason
        return reason is None

    def _keep_stored_parts_outside(self) -> None:
        """A reshape of a part is in a kernel only if kernels compute no more than parts.

        Otherwise the whole is stored, and the part is a view of that, which needs no kernel.
        """
        for node in self.nodes:
            part = viewed(node) if node in self.fusible and node.target in _RESHAPES else None
            if part is None or part.target is not aten.slice.Tensor:
                continue
            whole = viewed(part)
            if whole is None or not self._is_computed_in_parts(whole):
                self.fusible.discard(node)
                self.reasons[node] = "a reshape of a part of what is stored"

    def _is_computed_in_parts(self, whole: Node) -> bool:
        """True if kernels read parts of a node, and nothing else does."""
        return whole in self.fusible and all(
            user.target is aten.slice.Tensor and self._only_kernels_read(user)
            for user in whole.users
        )

    def _only_kernels_read(self, view: Node) -> bool:
        """True if kernels read a view, or views of it, and none of them parts or joins these."""
        for user in view.users:
            if user not in self.fusible or user.target is aten.slice.Tensor:
                return False
            if user in self.views:
                if not self._only_kernels_read(user):
                    return False
            elif cost(user) == "view" and not facts(user).copies:
                return False
        return True

    def _without_edge_views(self, nodes: Sequence[Node]) -> list[Node]:
        """The fusible nodes, without views that aren't between two of them.

        Views of elements a few places apart stay with their readers: a kernel that knows the step
        reads whole vectors.
        """
        chosen = {node for node in nodes if node in self.fusible}
        for node in nodes:
            is_first = node in chosen and node in self.views and viewed(node) not in chosen
            if is_first and not (is_in_steps(node) and self._is_read_in(node, chosen)):
                chosen.discard(node)
        for node in reversed(nodes):
            if node in chosen and node in self.views and chosen.isdisjoint(node.users):
                chosen.discard(node)
        return [node for node in nodes if node in chosen]

    def _is_read_in(self, view: Node, chosen: Collection[Node]) -> bool:
        """True if only chosen nodes read a view, and views of it."""
        waiting = [view]
        while waiting:
            node = waiting.pop()
            if not all(user in chosen for user in node.users):
                return False
            waiting += [user for user in node.users if user in self.views]
        return True

    # -- levels

    def _find_levels(self) -> None:
        previous = 0  # the level of the last call whose order is kept: the next one waits for it
        for node in self.nodes:
            floors = (self._floor(producer, node) for producer in node.all_input_nodes)
            self.level[node] = max(floors, default=0)
            is_call = node.op == "call_function" and node not in self.fusible
            if is_call and runs(node) and is_ordered(node):
                previous = self.level[node] = max(self.level[node], previous)

    def _floor(self, producer: Node, consumer: Node) -> int:
        """The least level of a node that reads `producer`."""
        if not _has_tensor(producer):
            return 0  # a size is known before anything runs
        level = self.level[producer]
        if consumer in self.fusible and producer in self.fusible:
            return level
        if consumer in self.views and consumer not in self.fusible:
            return level
        made = producer
        while made in self.views and made not in self.fusible:
            source = viewed(made)
            assert source is not None
            made = source
        return level + (made in self.fusible)

    def _sink(self) -> None:
        """Moves nodes that only later regions read into the first of these."""
        for node in reversed(self.nodes):
            if node not in self.fusible or is_getitem(node):
                continue
            picks = [user for user in node.users if is_getitem(user)]  # its results move with it
            readers = [user for made in (node, *picks) for user in made.users if user not in picks]
            if not readers or any(reader not in self.fusible for reader in readers):
                continue
            first_reader = min(self.level[reader] for reader in readers)
            if first_reader > self.level[node] and self._saves_memory(node):
                self.level |= dict.fromkeys((node, *picks), first_reader)

    def _saves_memory(self, node: Node) -> bool:
        """False if the node reads more than it makes, and this would be kept alive for it."""
        made = bytes_of(node)
        kept = 0
        for producer in node.all_input_nodes:
            if producer.op == "call_function":
                last = all(
                    self.level.get(user, _LAST) <= self.level[node] for user in producer.users
                )
                kept += bytes_of(producer) if last else 0
        return kept <= made

    # -- regions

    def _components(self) -> list[list[Node]]:
        """The fusible nodes that touch each other on one level, and those that read one tensor."""
        sets: DisjointSets[Node] = DisjointSets()
        chosen = [node for node in self.nodes if node in self.fusible]
        for node in chosen:
            for producer in node.all_input_nodes:
                if producer in self.fusible and self.level[producer] == self.level[node]:
                    sets.join(producer, node)
        self._join_readers(_groups(chosen, sets), sets)
        return list(_groups(chosen, sets).values())

    def _join_readers(self, groups: dict[Node, list[Node]], sets: DisjointSets[Node]) -> None:
        """Joins groups of one level that read the same tensor, as large as any of theirs.

        They aren't connected, so this makes no cycle; one kernel may read the tensor once for both.
        """
        size = {
            root: max(elements_of(each) for node in group for each in (node, *node.all_input_nodes))
            for root, group in groups.items()
        }
        count = {root: len(group) for root, group in groups.items()}
        for tensor in self.nodes:
            readers = dict.fromkeys(sets.find(u) for u in tensor.users if u in self.fusible)
            first: dict[int, Node] = {}  # by level
            for root in readers:
                level = self.level[root]
                other = first.setdefault(level, root)
                if other is root or not elements_of(tensor) >= max(size[root], size[other]):
                    continue
                if count[root] + count[other] <= _MOST_NODES:
                    sets.join(other, root)
                    first[level] = joined = sets.find(root)
                    count[joined] = count[root] + count[other]
                    size[joined] = max(size[root], size[other])

    def _split(self, group: list[Node]) -> list[list[Node]]:
        """Pieces of a region that is too large, one after the other in the graph's order."""
        if len(group) <= _MOST_NODES:
            return [group]
        pieces: list[list[Node]] = []
        for node in group:
            if not pieces or (len(pieces[-1]) >= _MOST_NODES and not is_getitem(node)):
                pieces.append([])
            pieces[-1].append(node)
        return pieces

    def _is_worth_it(self, group: list[Node]) -> bool:
        working = (n for n in group if not is_getitem(n) and n not in self.views)
        return any(_is_worth_a_kernel(n) for n in working)

    def _region(self, group: list[Node]) -> Region:
        chosen = set(group)
        inputs: dict[Node, None] = {}
        outputs: dict[Node, None] = {}
        for node in group:
            for producer in node.all_input_nodes:
                if producer not in chosen and _has_tensor(producer):
                    inputs[producer] = None
            if isinstance(node.meta.get("val"), torch.Tensor) and not chosen.issuperset(node.users):
                outputs[self._made(node)] = None
        return Region(group, list(inputs), list(outputs))

    def _made(self, node: Node) -> Node:
        """The base of a view inside a region; outside it, the view is a view of this base."""
        while node in self.views:
            source = viewed(node)
            assert source is not None
            node = source
        return node


def _groups(nodes: Sequence[Node], sets: DisjointSets[Node]) -> dict[Node, list[Node]]:
    """The nodes of each set, by its representative."""
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        groups.setdefault(sets.find(node), []).append(node)
    return groups


def _computes(node: Node) -> bool:
    """False for copies."""
    return not (facts(node).copies or facts(node).writes)


def _is_worth_a_kernel(node: Node) -> bool:
    """True for what a kernel does better than torch, even alone."""
    if not _computes(node):
        return _transposes(node) or (facts(node).copies and bytes_of(node) >= _LEAST_POOLED)
    if facts(node).finds_each and elements_of(node) >= _LEAST_MOVED:
        return True
    return cost(node) not in _NOT_ALONE


def _transposes(copy: Node) -> bool:
    """True for a copy whose memory runs along another axis than its operand's, and isn't small."""
    operand = copy.args[0] if facts(copy).copies else None
    if not isinstance(operand, Node) or elements_of(copy) < _LEAST_MOVED:
        return False
    along, before = _innermost(copy), _innermost(operand)
    return along is not None and before is not None and along != before


def _innermost(node: Node) -> int | None:
    """The axis whose elements are next to each other in memory; None if there is none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    for axis, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if statically_known_true(stride == 1) and not statically_known_true(size == 1):
            return axis
    return None


def _has_tensor(node: Node) -> bool:
    """True for nodes whose value is a tensor or has tensors in it."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        return any(isinstance(entry, torch.Tensor) for entry in value)
    return isinstance(value, torch.Tensor)
