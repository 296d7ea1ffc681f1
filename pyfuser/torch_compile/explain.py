"""`explain(model, *inputs)`: how torch.compile would cut a model for pyfuser, and why.

Runs the model once (and its backward, if something requires a gradient) under Dynamo with the
ordinary backend, and observes every graph.  The report says for each graph which nodes
became which kernels, by which scheduler, how many bytes of intermediate results never reach memory,
what was left to torch and why; and where Dynamo had to break the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from torch.fx import GraphModule, Node

from ..errors import UnsupportedError
from .backend import BackendOptions, compile_with
from .compiled_graph import Call, CompiledGraph, boxed, interpreted
from .control_flow import is_control_flow
from .graph_text import op_name
from .views import bytes_of


@dataclass(frozen=True)
class Kernel:
    """One part of a region: its scheduler ("expr_eval": library calls, "no_op": views), its ops."""

    scheduler: str
    ops: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class RegionReport:
    """One region: its aten ops, kernels, and bytes of results that stay inside kernels.

    `shared` is True if an earlier region had the same structure, and so the same kernels.
    """

    key: int
    ops: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    inputs: int
    outputs: int
    bytes_saved: int
    shared: bool


@dataclass(frozen=True)
class GraphReport:
    """One graph: `source` is the function that a call runs; `outside` counts (op, reason)."""

    name: str
    regions: tuple[RegionReport, ...]
    library_calls: Mapping[str, int]
    outside: Mapping[tuple[str, str], int]
    source: str


@dataclass(eq=False)
class Explanation:
    """The result of `explain`; printing it with rich shows tables, `str` the same as plain text."""

    graphs: list[GraphReport] = field(default_factory=list)
    graph_breaks: list[str] = field(default_factory=list)

    @property
    def next_name(self) -> str:
        """The name of the graph whose report will be the next; bodies precede their graph."""
        return f"graph {len(self.graphs)}"

    @property
    def region_count(self) -> int:
        """Regions of all graphs."""
        return sum(len(graph.regions) for graph in self.graphs)

    @property
    def kernel_count(self) -> int:
        """The number of different kernels; equal regions count once."""
        return sum(
            len(region.kernels)
            for graph in self.graphs
            for region in graph.regions
            if not region.shared
        )

    @property
    def bytes_saved(self) -> int:
        """Bytes of intermediate results that are neither written nor read again."""
        return sum(region.bytes_saved for graph in self.graphs for region in graph.regions)

    def __str__(self) -> str:
        console = Console(width=120, no_color=True)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for graph in self.graphs:
            yield _region_table(graph)
            yield _outside_table(graph)
        saved = f"{self.bytes_saved / 2**20:.1f} MiB"
        yield (
            f"{_counted(len(self.graphs), 'graph')}, {_counted(self.region_count, 'region')}, "
            f"{_counted(self.kernel_count, 'kernel')}; "
            f"{saved} of intermediate results stay in registers and caches"
        )
        for reason in self.graph_breaks:
            yield f"graph break: {reason}"
        if not self.graph_breaks:
            yield "no graph breaks"


def explain(model: Callable[..., Any], *inputs: Any, **keywords: Any) -> Explanation:
    """How `torch.compile(model, backend="pyfuser")` cuts the model for these inputs.

    The model is really run on them, including its backward if it has one; gradients stay unchanged.
    Dynamo is reset before and after: previously compiled functions are traced again at their next
    call and take their kernels from the cache.
    """
    found = Explanation()
    seen: set[int] = set()

    def compiler(graph_module: GraphModule) -> Call:
        by_torch = interpreted(graph_module)
        try:
            compiled = CompiledGraph(graph_module, by_torch, compiler=compiler)
        except UnsupportedError as error:
            found.graphs.append(_report_of_torch(found.next_name, graph_module, str(error)))
            return by_torch
        found.graphs.append(_graph_report(found.next_name, compiled, seen))
        return boxed(compiled.call)

    def backend(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        reason = getattr(graph_module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            found.graph_breaks.append(str(reason.reason).strip().splitlines()[0])
        return compile_with(graph_module, example_inputs, BackendOptions(), compiler)

    torch._dynamo.reset()
    try:
        outputs = torch.compile(model, backend=backend)(*inputs, **keywords)
        _run_backward(model, inputs, outputs)
    finally:
        torch._dynamo.reset()
    return found


def _run_backward(model: Any, inputs: Sequence[Any], outputs: Any) -> None:
    """Compiles the backward graphs; gradients stay unchanged."""
    flat = torch.utils._pytree.tree_leaves(outputs)
    roots = [x for x in flat if isinstance(x, torch.Tensor) and x.requires_grad]
    if not roots:
        return
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves += list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if wanted:
        ones = [torch.ones_like(root) for root in roots]
        torch.autograd.grad(roots, wanted, ones, allow_unused=True)


def _graph_report(name: str, compiled: CompiledGraph, seen: set[int]) -> GraphReport:
    traced = compiled.traced
    regions = []
    inside: set[Node] = set()
    fusions = [step.fusion for step in traced.steps if step.fusion is not None]
    for fusion, resolved in zip(fusions, compiled.resolved, strict=True):
        inside |= set(fusion.region.nodes)
        kernels = tuple(
            Kernel(
                part.segment.scheduler,
                tuple(expr.name for expr in part.segment.exprs),
                part.segment.reason,
            )
            for part in resolved.program.parts
        )
        stored = set(fusion.outputs)
        saved = sum(
            bytes_of(node)
            for node in fusion.region.nodes
            if node in traced.views and node not in stored and traced.views.base(node) is node
        )
        regions.append(
            RegionReport(
                fusion.key,
                tuple(op_name(node) for node in fusion.region.nodes),
                kernels,
                len(fusion.inputs),
                len(fusion.outputs),
                saved,
                fusion.key in seen,
            )
        )
        seen.add(fusion.key)
    calls = Counter(
        op_name(step.node) for step in traced.steps if step.fusion is None and not step.is_update
    )
    outside = Counter(
        (op_name(node), "its bodies are graphs of their own" if is_control_flow(node) else reason)
        for node, reason in traced.outside.items()
        if node not in inside
    )
    return GraphReport(name, tuple(regions), dict(calls), dict(outside), compiled.source)


def _report_of_torch(name: str, graph_module: GraphModule, reason: str) -> GraphReport:
    """The report of a graph that torch runs as a whole."""
    calls = Counter(
        op_name(node) for node in graph_module.graph.nodes if node.op == "call_function"
    )
    return GraphReport(name, (), dict(calls), {(op, reason): n for op, n in calls.items()}, "")


def _region_table(graph: GraphReport) -> Table:
    table = Table(title=f"{graph.name}: regions", title_justify="left")
    for heading in ("region", "in -> out", "aten ops", "kernels (scheduler: ops)", "saved"):
        table.add_column(heading)
    for number, region in enumerate(graph.regions):
        ops = Counter(op.removeprefix("aten::") for op in region.ops)
        texts = [f"{kernel.scheduler}: {len(kernel.ops)} ops" for kernel in region.kernels]
        texts += [f"  cut: {k.reason}" for k in region.kernels if k.reason]
        table.add_row(
            f"{number} (fusion {region.key}{', shared' if region.shared else ''})",
            f"{region.inputs} -> {region.outputs}",
            ", ".join(op if n == 1 else f"{n} {op}" for op, n in ops.items()),
            "\n".join(texts),
            f"{region.bytes_saved / 1024:.1f} KiB",
        )
    return table


def _outside_table(graph: GraphReport) -> Table:
    table = Table(title=f"{graph.name}: run by torch", title_justify="left")
    for heading in ("op", "calls", "why"):
        table.add_column(heading)
    reasons: dict[str, str] = {}
    for (op, reason), _ in graph.outside.items():
        reasons.setdefault(op, reason)
    for op, count in sorted(graph.library_calls.items(), key=lambda item: -item[1]):
        why = reasons.get(op, "alone it isn't worth a kernel")
        table.add_row(op.removeprefix("aten::"), str(count), why)
    return table


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
