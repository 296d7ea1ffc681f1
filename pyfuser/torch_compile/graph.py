"""A traced graph made ready: what comes in and goes out, its views, sizes, fusion nodes and steps.

`prepare` takes a functional aten graph from AOTAutograd, flattens list ops, cuts it into regions
and makes a fusion node of each; a region that can't be translated or compiled is left to torch,
with the reason, and the graph is cut again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from .. import fallback
from ..analysis.size_conditions import SizeConditions
from ..compiler import ViewPart
from ..devices.registry import runtime_of
from ..devices.runtime import Runtime
from ..devices.switches import can_fuse_on
from ..errors import UnsupportedError, expected
from ..executor import Resolved
from .aten import NotTranslated
from .fusion_nodes import FusionNode, fusion_node
from .graph_passes import GRAPH_PASSES
from .graph_passes.cpu_scalars import devices, move_numbers
from .graph_script import graph_script
from .partition import Region, partition
from .sizes import GraphSizes, Size
from .steps import Step, steps_of
from .views import Views


@dataclass(eq=False)
class TracedGraph:
    """A graph, and everything the wrapper is written from.

    `outputs` are the graph's results as they stand (nodes, None, numbers); `results` the nodes
    among them; `attributes` the constants that the graph holds.  `outside` says why nodes are in no
    kernel.
    """

    graph: Graph
    placeholders: list[Node]
    attributes: dict[Node, Any]
    outputs: list[Any]
    runtime: Runtime
    sizes: GraphSizes
    views: Views
    fusions: list[FusionNode]
    steps: list[Step]
    outside: dict[Node, str] = field(default_factory=dict)

    @property
    def results(self) -> list[Node]:
        """The outputs that are nodes."""
        return [output for output in self.outputs if isinstance(output, Node)]

    def resolve(self, values: Mapping[Size, Any], conditions: SizeConditions) -> list[Resolved]:
        """Kernels of the fusion nodes, in the order of the steps, for the sizes of a call.

        `conditions` gets what has to hold for other sizes, so that they may use these kernels.

        The text of every kernel is made before the first one's machine code is waited for.
        """
        fusions = [step.fusion for step in self.steps if step.fusion is not None]
        if len(fusions) > 1:
            for fusion in fusions:
                fusion.start(values)
        return [fusion.resolve(self.sizes, values, conditions) for fusion in fusions]

    def left_to_torch(self, resolved: Sequence[Resolved]) -> dict[Node, str]:
        """The nodes of fusions of which a part has no kernel, and why: torch's own op is faster."""
        found: dict[Node, str] = {}
        fusions = [step.fusion for step in self.steps if step.fusion is not None]
        for fusion, made in zip(fusions, resolved, strict=True):
            for part, kernel in zip(made.program.parts, made.kernels, strict=True):
                if kernel is None and not isinstance(part, ViewPart):
                    reason = part.segment.reason or "its kernel couldn't be made"
                    found |= dict.fromkeys(fusion.region.nodes, reason)
        return found


def prepare(graph_module: GraphModule, outside: Mapping[Node, str] | None = None) -> TracedGraph:
    """Everything up to kernels; nodes in `outside` are left to torch, for these reasons.

    UnsupportedError for a graph that must run as it is.
    """
    for change in GRAPH_PASSES:
        change(graph_module.graph)
    graph = graph_module.graph
    attributes = _attributes(graph_module, list(graph.nodes))
    device = device_of(graph.nodes)
    if not can_fuse_on(device.type):
        raise UnsupportedError(expected("torch.compile", "a device with kernels", device))
    on_the_cpu = move_numbers(graph, device)
    nodes = list(graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    outputs = list(nodes[-1].args[0])
    sizes = GraphSizes()
    for position, node in enumerate(placeholders):
        sizes.add_placeholder(position, node.meta.get("val"))
    views = Views(nodes)
    for node in nodes:
        _require_sizes(sizes, views, node)
    excluded = {**on_the_cpu, **(outside or {})}
    while True:
        cut = partition(graph, excluded)
        try:
            fusions = [_node_of(graph_module, region, sizes) for region in cut.regions]
            break
        except _Unusable as unusable:
            excluded |= unusable.reasons
    steps = steps_of(graph, fusions, views)
    found = cut.outside | excluded
    return TracedGraph(
        graph,
        placeholders,
        attributes,
        outputs,
        runtime_of(device),
        sizes,
        views,
        fusions,
        steps,
        found,
    )


class _Unusable(Exception):
    """Nodes that turned out not to fit in a kernel, and why."""

    def __init__(self, reasons: dict[Node, str]) -> None:
        super().__init__()
        self.reasons = reasons


def _node_of(graph_module: GraphModule, region: Region, sizes: GraphSizes) -> FusionNode:
    try:
        return fusion_node(region, sizes)
    except NotTranslated as error:
        raise _Unusable({error.node: error.reason}) from error
    except UnsupportedError as error:
        raise _Unusable(dict.fromkeys(region.nodes, str(error))) from error
    except Exception as error:  # a bug of ours: the region runs as aten, and says so once
        what = f"a region of {len(region.nodes)} nodes"
        fallback.warn(error, what, partial(graph_script, graph_module))
        raise _Unusable(dict.fromkeys(region.nodes, f"{type(error).__name__}: {error}")) from error


def _attributes(graph_module: GraphModule, nodes: list[Node]) -> dict[Node, Any]:
    """What the graph holds itself, by its nodes, which get metadata where they have none.

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


def device_of(nodes: Iterable[Node]) -> torch.device:
    """The device of the graph's tensors.  UnsupportedError where they are on two."""
    found = devices(nodes) or {torch.device("cpu")}  # arithmetic on sizes alone
    if len(found) != 1:
        got = sorted(map(str, found))
        raise UnsupportedError(expected("torch.compile", "tensors of one device", got))
    return found.pop()


def _require_sizes(sizes: GraphSizes, views: Views, node: Node) -> None:
    """Notes the sizes that the wrapper will need of a node."""
    if node in views:
        view = views[node]
        for size in (*view.shape, *view.stride, view.offset):
            sizes.require(size)
    value = node.meta.get("val")
    if isinstance(value, (torch.SymInt, torch.SymFloat)) and node.op != "output":
        from .sizes import size_of

        sizes.require(size_of(value))
