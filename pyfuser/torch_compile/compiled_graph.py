"""What AOTAutograd gets for a graph: a callable that takes its arguments in a list and empties it.

A graph whose sizes never change is written once, with its sizes in the text.  One with symbols is
written for a set of kernels; a call with new sizes makes the function for them from that source
and keeps it.  With `async_compile` the graph as it came, run by torch, answers until the kernels
are there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from .. import fallback
from ..devices.switches import switched_off
from ..executor import Resolved
from ..kernel_cache import KernelCache
from .graph import TracedGraph, device_type_of, prepare
from .graph_script import graph_script
from .wrapper import GraphShape, GraphWriter

Call = Callable[[list[Any]], Sequence[Any]]

MOST_SHAPES = 1024  # functions kept for one graph; some 10 KB each


class CompiledGraph:
    """A graph as a callable, `call`.

    `source` is the text it runs and `resolved` its kernels in the order of the steps: the last ones
    written, where sizes change.
    """

    def __init__(self, graph_module: GraphModule, by_torch: Call | None = None) -> None:
        """`by_torch` is what `interpreted` gave for the graph, if it was asked already."""
        self.by_torch = by_torch or interpreted(graph_module)
        self.traced = _usable(graph_module)
        traced = self.traced
        self.source = ""
        self.resolved: Sequence[Resolved] = ()
        self.shapes: KernelCache[object, Call] = KernelCache(MOST_SHAPES)
        self.factories: KernelCache[object, tuple[GraphWriter, Callable[..., Call]]]
        self.factories = KernelCache(64)
        self.call: Call
        if traced.sizes.is_static:
            self.call = self._static()
        else:
            self.call = _dispatch(traced.sizes.key, self._find)
            self._find(_hints(traced))

    def _static(self) -> Call:
        self.resolved = self.traced.resolve({})
        self.source, factory = GraphWriter(self.traced, self.resolved, {}, self.by_torch).write()
        made: Call = factory()
        return made

    def _find(self, symbols: tuple[int | float, ...]) -> Call:
        """The function for these sizes."""
        return self.shapes.get_or_create(symbols, lambda: self._make(symbols))

    def _make(self, symbols: tuple[int | float, ...]) -> Call:
        values = self.traced.sizes.values(symbols)
        resolved = self.traced.resolve(values)
        kernels = tuple((r.program, r.kernels) for r in resolved)
        writer, factory = self.factories.get_or_create(kernels, lambda: self._write(resolved))
        shape = GraphShape(values, resolved)
        return factory(*[value(shape) for value in writer.writer.shape_values.values()])

    def _write(self, resolved: Sequence[Resolved]) -> tuple[GraphWriter, Callable[..., Call]]:
        self.resolved = resolved
        writer = GraphWriter(self.traced, resolved, None, self.by_torch)
        self.source, factory = writer.write()
        return writer, factory


def _dispatch(key: str, find: Callable[[Any], Call]) -> Call:
    """A function that finds the function for the sizes of its arguments."""
    source = f"def call(args):\n    return find({key})(args)\n"
    namespace: dict[str, Any] = {"find": find}
    exec(compile(source, "<pyfuser sizes>", "exec"), namespace)  # names and numbers only
    made: Call = namespace["call"]
    return made


def _usable(graph_module: GraphModule) -> TracedGraph:
    """The graph cut so that every fusion has kernels for the sizes it was traced with."""
    traced = prepare(graph_module)
    while True:
        values = traced.sizes.values(_hints(traced))
        left = traced.left_to_torch(traced.resolve(values))
        if not left:
            return traced
        traced = prepare(graph_module, traced.outside | left)


def _hints(traced: TracedGraph) -> tuple[int | float, ...]:
    """The sizes that the graph was traced with."""
    found: dict[Any, int | float] = {}
    for node in traced.placeholders:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, (torch.SymInt, torch.SymFloat)):
                hint = size.node.hint
                found.setdefault(size.node.expr, 2 if hint is None else hint)
    return tuple(found[symbol] for symbol in traced.sizes.sources)


def compile_graph(graph_module: GraphModule) -> Call:
    """The compiled graph; the graph itself, run by torch, where it can't be compiled."""
    by_torch = interpreted(graph_module)
    try:
        off = switched_off(device_type_of(graph_module.graph.nodes))
        if off:
            return _compiled_when_on(graph_module, by_torch, off)
        return boxed(CompiledGraph(graph_module, by_torch).call)
    except Exception as error:  # nothing that torch runs may fail
        fallback.warn(error, "a graph", partial(graph_script, graph_module))
        return by_torch


def _compiled_when_on(graph_module: GraphModule, by_torch: Call, off: AbstractSet[str]) -> Call:
    """A graph that torch runs until fusing on its device is switched on again."""
    made: list[Call] = []
    lock = threading.Lock()

    def call(args: list[Any]) -> Sequence[Any]:
        if not made:
            if off:
                return by_torch(args)
            with lock, _disable_current_modes():
                if not made:
                    made.append(compile_graph(graph_module))
        return made[0](args)

    return boxed(call)


def interpreted(graph_module: GraphModule) -> Call:
    """The graph as torch runs it, op by op; its nodes may be changed afterwards."""
    write_code = getattr(graph_module, "real_recompile", None)
    if write_code is not None:  # torch may leave that to the first call
        write_code()
    forward = type(graph_module).forward
    constants = _constants(graph_module)

    def call(args: list[Any]) -> Sequence[Any]:
        given = list(args)
        args.clear()
        results: Sequence[Any] = forward(constants, *given)
        return results

    return boxed(call)


def _constants(graph_module: GraphModule) -> SimpleNamespace:
    """What the graph's code reads of its module, without the nodes and their metadata."""
    found = SimpleNamespace()
    for node in graph_module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            name = str(node.target).partition(".")[0]
            setattr(found, name, getattr(graph_module, name))
    return found


def boxed(call: Call) -> Call:
    """Marked for AOTAutograd: arguments come in a list, which the callee empties."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def compile_behind(graph_module: GraphModule) -> Call:
    """A graph that torch runs until a thread has compiled it."""
    current = [interpreted(graph_module)]
    copy = GraphModule(graph_module, deepcopy(graph_module.graph))

    def compile_it() -> None:
        current[0] = compile_graph(copy)

    def call(args: list[Any]) -> Sequence[Any]:
        return current[0](args)

    threading.Thread(target=compile_it, name="pyfuser compilation", daemon=True).start()
    return boxed(call)
