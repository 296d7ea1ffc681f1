"""A traced graph, prepared: its inputs, outputs, views, sizes, fusion nodes and steps.

`prepare` takes a functional aten graph from AOTAutograd, runs the graph passes over it once, cuts
it into regions and makes a fusion node of each.  A region that can't be translated or compiled is
left to torch, with the reason; then only the cut is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node

from .. import fallback
from ..analysis.size_conditions import SizeConditions
from ..devices.registry import runtime_of
from ..devices.runtime import Runtime
from ..devices.switches import can_fuse_on
from ..errors import UnsupportedError, expected
from ..executor import Resolved
from ..ir.fusion import Fusion
from ..parts import ViewPart
from ..trace import DUMP, Trace
from .aten import NotTranslated, rounded_values
from .fusion_nodes import FusionNode, fusion_node
from .graph_passes import GRAPH_PASSES
from .graph_passes.cpu_scalars import devices, move_numbers
from .graph_passes.equal_results import merge_equal_results
from .graph_script import graph_script
from .graph_text import GraphText
from .input_aliases import return_views_of_arguments
from .partition import Region, partition
from .sizes import GraphSizes, Size, size_of
from .steps import Step, steps_of
from .views import Views

if TYPE_CHECKING:
    from ..tuning.session import Session

FusionCall = tuple[Fusion, tuple[Any, ...]]  # with metadata of tensors, and numbers


@dataclass(eq=False)
class TracedGraph:
    """A graph, and everything that the wrapper is written from.

    `outputs` are the graph's results (nodes, None, numbers); `results` the nodes among them;
    `attributes` the constants that the graph holds; `runtimes` those of its devices that have
    kernels.  `cut` finds the fusions and the steps; `outside` says why nodes are in no kernel.
    """

    graph_module: GraphModule
    placeholders: list[Node]
    attributes: dict[Node, Any]
    outputs: list[Any]
    runtimes: Mapping[torch.device, Runtime]
    sizes: GraphSizes
    views: Views
    outside: dict[Node, str]
    fusions: list[FusionNode] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def graph(self) -> Graph:
        """The nodes."""
        return self.graph_module.graph

    @property
    def results(self) -> list[Node]:
        """The outputs that are nodes."""
        return [output for output in self.outputs if isinstance(output, Node)]

    def cut(self) -> None:
        """Makes the fusions and the steps; nodes that don't fit in a kernel stay outside."""
        returned = self.results if self._has_backward() else ()
        rounded = rounded_values([*self.graph.nodes], returned)
        while True:
            found = partition(self.graph, self.outside)
            try:
                self.fusions = [self._fusion(region, rounded) for region in found.regions]
                break
            except _Unusable as unusable:
                self.outside |= unusable.reasons
        self.outside = found.outside
        self.steps = steps_of(self.graph, self.fusions, self.views)

    def _has_backward(self) -> bool:
        """True for the forward of a training step, whose arguments AOTAutograd names primals; a
        backward has tangents among them."""
        names = [str(each.target) for each in self.placeholders]
        has_primals, has_tangents = (
            any(name.startswith(kind) for name in names) for kind in ("primals", "tangents")
        )
        return has_primals and not has_tangents

    def _fusion(self, region: Region, rounded: AbstractSet[Node]) -> FusionNode:
        try:
            return fusion_node(region, self.sizes, rounded)
        except NotTranslated as error:
            raise _Unusable({error.node: error.reason}) from error
        except UnsupportedError as error:
            raise _Unusable(dict.fromkeys(region.nodes, str(error))) from error
        except Exception as error:  # a bug in pyfuser: the region runs as aten, with one warning
            what = f"a region of {len(region.nodes)} nodes"
            fallback.warn(error, what, partial(graph_script, self.graph_module))
            reason = f"{type(error).__name__}: {error}"
            raise _Unusable(dict.fromkeys(region.nodes, reason)) from error

    def resolve(self, values: Mapping[Size, Any], conditions: SizeConditions) -> list[Resolved]:
        """Kernels of the fusion nodes, in the order of the steps, for the sizes of a call.

        `conditions` gets the conditions under which other sizes may use these kernels.

        The text of every kernel is made before waiting for the first one's machine code.  Equal
        calls of a fusion, such as those of a model's layers, have the same kernels.
        """
        fusions = [step.fusion for step in self.steps if step.fusion is not None]
        calls = [(fusion.key, fusion.inputs_for(values)) for fusion in fusions]
        different = dict(zip(calls, fusions, strict=True))
        if len(different) > 1:
            for fusion in different.values():
                fusion.start(values)
        if not self.sizes.is_static:  # the names of the sizes, which are noted, differ
            return [fusion.resolve(self.sizes, values, conditions) for fusion in fusions]
        found = {
            call: fusion.resolve(self.sizes, values, conditions)
            for call, fusion in different.items()
        }
        return [found[call] for call in calls]

    def fusion_calls(self) -> list[FusionCall]:
        """The different fusions, with their arguments for the sizes of tracing."""
        values = self.sizes.values(self.sizes.hints)
        different = {fusion.key: fusion for fusion in self.fusions}
        return [(each.executor.fusion, each.inputs_for(values)) for each in different.values()]

    def tune(self, session: Session) -> None:
        """Measures the kernels of the different fusions on data made up for the traced sizes."""
        from ..tuning.programs import tune

        values = self.sizes.values(self.sizes.hints)
        for each in {fusion.key: fusion for fusion in self.fusions}.values():
            tune(each.executor, each.inputs_for(values), session)

    def without_kernels(self) -> dict[Node, str]:
        """The nodes of fusions with a part that has no kernel for the sizes of tracing, and why.

        torch's own op is faster for these.
        """
        resolved = self.resolve(self.sizes.values(self.sizes.hints), SizeConditions())
        found: dict[Node, str] = {}
        fusions = [step.fusion for step in self.steps if step.fusion is not None]
        for fusion, made in zip(fusions, resolved, strict=True):
            for part, kernel in zip(made.program.parts, made.kernels, strict=True):
                if kernel is None and not isinstance(part, ViewPart):
                    reason = part.segment.reason or "its kernel couldn't be made"
                    found |= dict.fromkeys(fusion.region.nodes, reason)
        return found


class _Unusable(Exception):
    """Nodes that turned out not to fit in a kernel, and why."""

    def __init__(self, reasons: dict[Node, str]) -> None:
        super().__init__()
        self.reasons = reasons


def prepare(graph_module: GraphModule, trace: Trace = DUMP) -> TracedGraph:
    """Prepares a graph for the sizes of tracing: runs the passes, and finds a cut with kernels.

    UnsupportedError for a graph that must run unchanged.
    """
    traced = _traced(graph_module, trace)
    traced.cut()
    while left := traced.without_kernels():
        traced.outside |= left
        traced.cut()
    if trace.wants("regions"):
        number = {
            node: str(i) for i, each in enumerate(traced.fusions) for node in each.region.nodes
        }
        marks = {node: number.get(node, "-") for node in traced.graph.nodes}
        trace.stage("regions", GraphText(traced.graph, marks))
    if trace.wants("fusions"):
        trace.stage("fusions", traced.fusion_calls())
    return traced


def _traced(graph_module: GraphModule, trace: Trace) -> TracedGraph:
    """The graph after its passes, before the cut."""
    graph = graph_module.graph
    trace.stage("graph", GraphText(graph))
    return_views_of_arguments(graph_module)
    trace.after(return_views_of_arguments.__name__, GraphText(graph))
    for change in GRAPH_PASSES:
        change(graph)
        trace.after(change.__name__, GraphText(graph))
    attributes = _attributes(graph_module, list(graph.nodes))
    runtimes = _runtimes(graph.nodes)
    outside = move_numbers(graph, runtimes)
    trace.after(move_numbers.__name__, GraphText(graph))
    merge_equal_results(graph, outside)
    trace.after(merge_equal_results.__name__, GraphText(graph))
    nodes = list(graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    sizes = GraphSizes()
    for position, node in enumerate(placeholders):
        sizes.add_placeholder(position, node.meta.get("val"))
    views = Views(nodes)
    for node in nodes:
        _require_sizes(sizes, views, node)
    outputs = list(nodes[-1].args[0])
    return TracedGraph(
        graph_module, placeholders, attributes, outputs, runtimes, sizes, views, outside
    )


def _runtimes(nodes: Iterable[Node]) -> dict[torch.device, Runtime]:
    """The runtimes of the graph's devices that have kernels.

    UnsupportedError if none has; torch computes the nodes on other devices.
    """
    found = sorted(devices(nodes), key=str)
    usable = {device: runtime_of(device) for device in found if can_fuse_on(device.type)}
    if not usable:
        got = " and ".join(map(str, found))
        raise UnsupportedError(expected("torch.compile", "a device with kernels", got))
    return usable


def _attributes(graph_module: GraphModule, nodes: list[Node]) -> dict[Node, Any]:
    """The attributes of the graph, by node; nodes without metadata get it.

    UnsupportedError for kinds of nodes that functional graphs don't have.
    """
    found: dict[Node, Any] = {}
    for node in nodes:
        if node.op in ("call_module", "call_method"):
            raise UnsupportedError(expected("torch.compile", "a graph of functions", node.op))
        if node.op == "get_attr":
            value: Any = graph_module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            found[node] = value
            if isinstance(value, torch.Tensor):
                node.meta.setdefault("val", value)
    return found


def _require_sizes(sizes: GraphSizes, views: Views, node: Node) -> None:
    """Notes the sizes of a node that the wrapper will need."""
    if node in views:
        view = views[node]
        for size in (*view.shape, *view.stride, view.offset):
            sizes.require(size)
    value = node.meta.get("val")
    if isinstance(value, (torch.SymInt, torch.SymFloat)) and node.op != "output":
        sizes.require(size_of(value))
