"""The order of a compiled graph: fusion nodes, library calls, updates of inputs, one by one.

A step runs once everything it reads exists.  Among the steps that could run, the first is the one
whose last node comes first in the graph, so that a region doesn't run before it has to, and memory
that eager would free early is freed early.  Calls that draw random numbers or have other effects
keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from ..ir.ordering import topological_order
from .fusion_nodes import FusionNode
from .op_facts import is_ordered
from .views import Views, is_getitem, runs

aten = torch.ops.aten


@dataclass(eq=False)
class Step:
    """A fusion node, a library call (`node`), or the update of an input by it (`copy_`).

    `reads` are the nodes whose memory it may read (the first operand's base is the first), each
    with the place in the graph of the last node that does; `makes` the nodes whose memory it
    allocates; `place` is that of its last node.
    """

    node: Node
    fusion: FusionNode | None
    reads: dict[Node, int]
    makes: list[Node]
    place: int
    waits_for: set[int] = field(default_factory=set)

    @property
    def is_update(self) -> bool:
        """True for `copy_(input, value)`."""
        return self.fusion is None and self.node.target is aten.copy_.default


def steps_of(graph: Graph, fusions: Sequence[FusionNode], views: Views) -> list[Step]:
    """The steps of a graph in the order in which they run."""
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    place = {node: i for i, node in enumerate(nodes)}
    inside = {node for fusion in fusions for node in fusion.region.nodes}
    steps = [_fusion_step(fusion, views, place) for fusion in fusions]
    for node in nodes:
        makes = views.base(node) is node or node.target is aten.copy_.default
        if node not in inside and makes and runs(node):
            steps.append(_library_step(node, views, place))
    _wait_for_producers(steps)
    _keep_effects_in_order(steps)
    order = topological_order([step.waits_for for step in steps], [step.place for step in steps])
    assert len(order) == len(steps), "a cycle among the steps of a graph"
    return [steps[number] for number in order]


def _fusion_step(fusion: FusionNode, views: Views, place: dict[Node, int]) -> Step:
    last, inside = fusion.region.nodes[-1], set(fusion.region.nodes)
    reads: dict[Node, int] = {}
    for node in fusion.inputs:
        at = max((place[user] for user in node.users if user in inside), default=place[last])
        for memory in views.memory(node):
            reads[memory] = max(reads.get(memory, at), at)
    return Step(last, fusion, reads, list(fusion.outputs), place[last])


def _library_step(node: Node, views: Views, place: dict[Node, int]) -> Step:
    reads = {m: place[node] for n in node.all_input_nodes for m in views.memory(n)}
    made = [node, *(user for user in node.users if is_getitem(user))]
    return Step(node, None, reads, [m for m in made if views.base(m) is m], place[node])


def _wait_for_producers(steps: Sequence[Step]) -> None:
    maker = {node: i for i, step in enumerate(steps) for node in step.makes}
    updated: dict[Node, list[int]] = {}
    for i, step in enumerate(steps):
        step.waits_for.update(maker[n] for n in step.reads if n in maker and maker[n] != i)
        if step.is_update:
            updated.setdefault(next(iter(step.reads)), []).append(i)
    for i, step in enumerate(steps):  # readers of an input read it before it is updated
        for node, at in step.reads.items():
            for update in updated.get(node, ()):
                if update != i and steps[update].place > at:
                    steps[update].waits_for.add(i)
                elif update != i and not step.is_update:
                    step.waits_for.add(update)


def _keep_effects_in_order(steps: Sequence[Step]) -> None:
    previous = None
    for i in sorted(range(len(steps)), key=lambda i: steps[i].place):
        if steps[i].fusion is None and is_ordered(steps[i].node):
            if previous is not None:
                steps[i].waits_for.add(previous)
            previous = i


def last_reads(steps: Iterable[Step]) -> dict[Node, int]:
    """The number of the last step that reads each node's memory."""
    last: dict[Node, int] = {}
    for number, step in enumerate(steps):
        for node in (*step.makes, *step.reads):
            last[node] = number
    return last
