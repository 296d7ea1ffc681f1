"""The result of a graph's compilation: a callable that takes its arguments in a list and empties
it.

A graph is written once for all sizes; it is written again only if a size changes a layout class (an
axis that now has one element).  With `async_compile` the original graph, run by torch, answers
calls until the kernels are ready.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import torch
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from .. import fallback
from ..analysis.size_conditions import SizeConditions
from ..collection import no_collection
from ..devices.registry import has_runtime
from ..devices.switches import switched_off
from ..executor import Resolved
from ..locks import ForkSafeLock
from ..trace import graph_trace
from .control_flow import compile_bodies
from .graph import prepare
from .graph_passes.cpu_scalars import devices
from .graph_script import graph_script
from .saved_layouts import orders_of_saved, with_orders
from .wrapper import GraphWriter

Call = Callable[[list[Any]], Sequence[Any]]
Given = TypeVar("Given")
Made = TypeVar("Made")
Function = Callable[[list[Any]], "Sequence[Any] | None"]  # None: not for these sizes

MOST_FUNCTIONS = 64  # per graph: one for each combination of layout classes


class CompiledGraph:
    """A graph as a callable, `call`.

    `source` is the text that it runs, `constants` are the values that this reads by name, and
    `resolved` its kernels in the order of the steps; if it `has_others` for other sizes, those
    written last.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        by_torch: Call | None = None,
        tunes: bool = False,
        compiler: Callable[[GraphModule], Call] | None = None,
    ) -> None:
        """`by_torch` is the result of `interpreted` for the graph, if already known.

        With `tunes`, the kernels are those that measurements find best.  `compiler` compiles the
        bodies of branches and loops; by default, as this graph is compiled.
        """
        self.by_torch = by_torch or interpreted(graph_module)
        trace = graph_trace()
        self.traced = prepare(graph_module, trace)
        compile_bodies(self.traced.attributes, compiler or partial(compile_graph, tunes=tunes))
        if tunes:
            from ..tuning.session import current

            self.traced.tune(current())
        self.source = ""
        self.constants: Mapping[str, object] = {}
        self.resolved: Sequence[Resolved] = ()
        self.functions: tuple[Function, ...] = ()
        self.symbols = _function_of_arguments(self.traced.sizes.sources.values())
        function, self.has_others = self._write(self.traced.sizes.hints)
        trace.stage("call", self.source)
        self.call = self._chooser() if self.has_others else function

    def _chooser(self) -> Call:
        """A call that looks up the function for the sizes of its arguments."""

        def choose(args: list[Any]) -> Sequence[Any]:
            functions = self.functions
            for function in functions:  # the most recent one is tried first
                results = function(args)
                if results is not None:
                    if function is not functions[0]:
                        self.functions = (function, *(f for f in functions if f is not function))
                    return results
            return self._write(self.symbols(args))[0](args)

        return choose

    def _write(self, symbols: tuple[int | float, ...]) -> tuple[Call, bool]:
        """(the function for calls with sizes like these, whether there can be other calls)."""
        conditions = SizeConditions(self.traced.sizes.least, self.traced.sizes.opaque)
        values = self.traced.sizes.values(symbols)
        self.resolved = self.traced.resolve(values, conditions)
        writer = GraphWriter(self.traced, self.resolved, conditions, self.by_torch)
        self.source, function = writer.write()
        self.constants = writer.writer.constants
        self.functions = (function, *self.functions[: MOST_FUNCTIONS - 1])
        return function, bool(conditions.needed())


def _function_of_arguments(texts: Iterable[str]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function from the arguments of a call to the values of these texts."""
    source = f"lambda args: ({''.join(f'{text}, ' for text in texts)})"
    made: Callable[[list[Any]], tuple[Any, ...]] = eval(source)  # only indices and names
    return made


def compile_graph(
    graph_module: GraphModule,
    tunes: bool = False,
    then: Callable[[CompiledGraph], None] = lambda compiled: None,
) -> Call:
    """The compiled graph (see CompiledGraph), after `then`; or itself, run by torch, if that isn't
    possible.
    """
    by_torch = interpreted(graph_module)
    try:
        types = sorted({device.type for device in devices(graph_module.graph.nodes)})
        off = [switched_off(each) for each in types if has_runtime(each)]
        if off and all(off):
            return _compiled_when_on(graph_module, by_torch, off)
        compiled = CompiledGraph(graph_module, by_torch, tunes)
        then(compiled)
        return boxed(compiled.call)
    except Exception as error:  # nothing that torch can run may fail
        fallback.warn(error, "a graph", partial(graph_script, graph_module))
        return by_torch


def _raise(error: Exception, args: list[Any]) -> NoReturn:
    raise error


def undisturbed(compiler: Callable[[Given], Made], given: Given) -> Made:
    """A compiler's result, whatever is being traced, dispatched or cast around this call."""
    with _disable_current_modes(), torch._C._DisableAutocast(), no_collection():
        return compiler(given)


def _compiled_when_on(
    graph_module: GraphModule, by_torch: Call, off: Sequence[AbstractSet[str]]
) -> Call:
    """A graph that torch runs until fusing on one of its devices is switched on again."""
    made: list[Call] = []
    lock = ForkSafeLock()

    def call(args: list[Any]) -> Sequence[Any]:
        if not made:
            if all(off):
                return by_torch(args)
            with lock:
                if not made:
                    made.append(undisturbed(compile_graph, graph_module))
        return made[0](args)

    return boxed(call)


def interpreted(graph_module: GraphModule) -> Call:
    """The graph as torch runs it, op by op; its nodes may be changed afterwards."""
    write_code = getattr(graph_module, "real_recompile", None)
    if write_code is not None:  # torch may postpone this to the first call
        write_code()
    forward = type(graph_module).forward
    constants = _constants(graph_module)
    orders = orders_of_saved(graph_module)

    def call(args: list[Any]) -> Sequence[Any]:
        given = list(args)
        args.clear()
        results: Sequence[Any] = forward(constants, *given)
        return with_orders(results, orders)

    return boxed(call)


def _constants(graph_module: GraphModule) -> SimpleNamespace:
    """The attributes that the graph's code reads, without the nodes and their metadata."""
    found = SimpleNamespace()
    for node in graph_module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            name = str(node.target).partition(".")[0]
            setattr(found, name, getattr(graph_module, name))
    return found


def boxed(call: Call) -> Call:
    """Marks a call for AOTAutograd: arguments come in a list, which the callee empties."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def compile_in_background(graph_module: GraphModule, tunes: bool = False) -> Call:
    """A graph that torch runs until a thread has compiled it; the next call raises its error."""
    current = [interpreted(graph_module)]
    copy = GraphModule(graph_module, deepcopy(graph_module.graph))

    def compile_it() -> None:
        try:
            current[0] = compile_graph(copy, tunes)
        except Exception as error:  # what can't be compiled is an error in strict mode
            current[0] = partial(_raise, error)

    def call(args: list[Any]) -> Sequence[Any]:
        return current[0](args)

    threading.Thread(target=compile_it, name="pyfuser compilation", daemon=True).start()
    return boxed(call)
