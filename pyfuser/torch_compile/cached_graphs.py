"""Graphs that outlive the process, in the cache that AOTAutograd keeps on disk.

Tracing a model takes longer than compiling its kernels.  AOTAutograd's cache keeps what tracing
finds: a second process traces with Dynamo, and gets forward and backward as they were cut.  An
entry holds the cut graphs, not their kernels, which have a cache of their own
(caches/disk_cache.py); so an entry is valid on any processor, and
`torch.compiler.save_cache_artifacts` may move it to another machine.

torch decides about keys, guards and files, and leaves out what it can't describe; it loads entries
with pickle, from a directory of its own (TORCHINDUCTOR_CACHE_DIR), which has to meet the conditions
of pyfuser's own.  What this module adds to a key is all that decides how pyfuser cuts a graph: its
version and sources, and the backend's options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map_only

from .. import options as settings
from ..caches.disk_cache import disk_cache, untrusted
from ..caches.sources import sources
from ..executor import Resolved
from ..locks import ForkSafeLock
from ..nvfuser_direct_version import __version__
from . import kept_functions
from .compiled_graph import (
    Call,
    CompiledGraph,
    boxed,
    compile_graph,
    interpreted,
    undisturbed,
)
from .dynamo_graphs import graphs_in, unwrapped
from .kept_functions import Kept
from .keys_of_graphs import without_code_generators
from .overlapping_inputs import overlap
from .quick_calls import PlainCall
from .torch_digest import set_digest
from .upsampling import interpolate

try:
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor import config as inductor_config
    from torch._inductor.output_code import OutputCode
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch.fx._graph_pickler import GraphPickler, Options

    _NEEDED = ("bundled_autograd_cache", "force_non_lazy_backward_lowering")
    IS_KNOWN = all(hasattr(functorch_config, name) for name in _NEEDED)
except ImportError:  # this torch has no such cache for other compilers than its own
    IS_KNOWN = False
    OutputCode = object  # type: ignore[assignment, misc]

# A setting: functions that torch need not know for a graph that calls them to have a key.
_OTHERS_FUNCTIONS = "unsafe_marked_cacheable_functions"
# Those that pyfuser puts into Dynamo's graphs; its sources are part of each key.
_OWN_FUNCTIONS = (f"{interpolate.__module__}.{interpolate.__qualname__}",)
_found: ContextVar[list[CachedGraph] | None] = ContextVar("_found", default=None)
# The only metadata of a node that is read: its value, with the layout and the sizes.
_METADATA = frozenset({"val"})


class CachedGraph(OutputCode):
    """A graph that can be stored, and is compiled when it is first called or earlier.

    With a forward, what its calls need is kept: `updated` are the inputs that it updates
    (overlapping_inputs.py), `plain` says how an inference is called (quick_calls.py).
    """

    def __init__(
        self, graph_module: GraphModule, updated: frozenset[int] | None = frozenset()
    ) -> None:
        super().__init__()
        self._boxed_call = True
        self.updated = updated
        self.plain: PlainCall | None = None
        self._text: bytes | str = _dumped(graph_module)
        self._graph: GraphModule | None = graph_module
        self._call: Call | None = None
        self._by_torch: Call | None = None
        self._lock: Any = ForkSafeLock()

    def __call__(self, inputs: Any) -> Any:
        """Runs the graph; empties the list of arguments."""
        call = self._call
        return (self.compiled() if call is None else call)(inputs)

    def compiled(self) -> Call:
        """The compiled graph: the function that a process has kept of it, or a new one."""
        with self._lock:
            if self._call is None:
                kept = None
                if isinstance(self._text, bytes):
                    kept = undisturbed(partial(kept_functions.load, later=self), self._text)
                self._call = self._compile() if kept is None else self._calling(kept)
                self._graph = None
            return self._call

    def _compile(self) -> Call:
        def keep(compiled: CompiledGraph) -> None:
            if isinstance(self._text, bytes):
                kept_functions.store(self._text, compiled)

        return undisturbed(partial(compile_graph, then=keep), self._graph_module())

    def _calling(self, kept: Kept) -> Call:
        """A kept function; the graph is compiled for calls with sizes that it isn't for."""
        function, others = kept.function, list[Call]()
        if kept.for_all:
            return boxed(function)  # type: ignore[arg-type]

        def call(args: list[Any]) -> Sequence[Any]:
            results = function(args)
            if results is not None:
                return results
            if not others:
                with self._lock:
                    if not others:
                        others.append(self._compile())
            return others[0](args)

        return boxed(call)

    def _graph_module(self) -> GraphModule:
        """The graph, to be compiled once."""
        if self._graph is not None:
            return self._graph
        assert isinstance(self._text, bytes)
        return _loaded(self._text)

    # -- what a kept function seldom needs

    def by_torch(self, args: list[Any]) -> Sequence[Any]:
        """Runs the graph by torch."""
        if self._by_torch is None:
            self._by_torch = undisturbed(interpreted, self._graph_module())
        return self._by_torch(args)

    def resolved(self) -> Sequence[Resolved]:
        """The kernels of the graph, compiled again."""
        return undisturbed(CompiledGraph, self._graph_module()).resolved

    # -- what torch's cache calls

    def prepare_for_serialization(self) -> None:
        """Leaves only what can be stored."""
        if isinstance(self._text, str):
            raise BypassAOTAutogradCache(self._text)
        self._graph = self._call = self._by_torch = self._lock = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Makes a graph from the cache callable; a backward is compiled when it is needed."""
        assert isinstance(self._text, bytes)
        self._lock = ForkSafeLock()
        if not graph_kwargs["is_backward"]:
            found = _found.get()
            if found is not None:  # torch may load what was compiled ahead without the backend
                found.append(self)
            self.compiled()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There are no Triton kernels."""


def _dumped(graph_module: GraphModule) -> bytes | str:
    """The graph, or why it can't be stored."""
    for node in (node for graph in graphs_in(graph_module) for node in graph.graph.nodes):
        if "val" in node.meta:
            node.meta["val"] = tree_map_only(Tensor, _without_base, node.meta["val"])
    chosen = Options(ops_filter=None, node_metadata_key_filter=_METADATA.__contains__)
    try:
        return GraphPickler.dumps(graph_module, chosen)
    except Exception as error:  # an object that can't be pickled; the graph itself is fine
        return f"a graph that can't be stored: {type(error).__name__}: {error}"


def _without_base(value: Tensor) -> Tensor:
    """As what torch traces is: its pickler can't describe a view of a tensor, which passes make."""
    return value.detach() if value._is_view() else value


def _loaded(text: bytes) -> GraphModule:
    """A graph whose sizes are symbols of an environment of its own."""
    mode = torch._subclasses.FakeTensorMode(
        shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv()
    )
    made = GraphPickler.loads(text, mode)
    assert isinstance(made, GraphModule)
    made.recompile()  # its code; torch runs it if no kernel can
    return made


def may_cache(graph_module: torch.nn.Module, inputs: Sequence[Any]) -> bool:
    """True if this torch can keep a graph, nobody has switched that off, and only this user (or
    root) can have written what would be loaded.

    What isn't part of torch's key must not decide what is kept.  A graph with a float among its
    arguments isn't kept: where tracing needs its value (`alpha=lr`), this is part of the graph, but
    neither of the key nor of the guards that torch keeps.  Nor is one of inputs that overlap.
    """
    if not IS_KNOWN or settings.cache_directory() is None or sources() is None:
        return False
    inner = unwrapped(graph_module)
    if not isinstance(inner, GraphModule) or any(map(_is_float_argument, inner.graph.nodes)):
        return False
    if overlap(inputs, range(len(inputs))):
        return False
    return untrusted(Path(cache_dir())) is None


def _is_float_argument(node: Node) -> bool:
    """True for a float that changed from call to call: Dynamo passes the graph a tensor of it."""
    if not isinstance(node.meta.get("example_value"), torch.SymFloat):
        return False
    return node.target == "item" and all(n.op == "placeholder" for n in node.all_input_nodes)


@contextmanager
def cached(
    graph_module: torch.nn.Module, inputs: Sequence[Any], chosen: object
) -> Iterator[list[CachedGraph]]:
    """While AOTAutograd runs: its cache takes pyfuser's graphs.  Gives those that it finds there.

    The backward is cut at once, for an entry has both graphs; it is compiled when it is needed.
    torch's key doesn't say which inputs have a history: a graph without a gradient for such an
    input keeps it out of its own.
    """
    leaves = [isinstance(each, Tensor) and each.is_leaf for each in inputs]
    own = f"{__version__} {sources()} {chosen} {leaves}"
    unwrapped(graph_module).__dict__["pyfuser"] = own
    kept = disk_cache()
    if kept is not None:
        set_digest(kept)
    needed = dict.fromkeys(_NEEDED, True)
    known = getattr(inductor_config, _OTHERS_FUNCTIONS) | dict.fromkeys(_OWN_FUNCTIONS, "")
    found: list[CachedGraph] = []
    token = _found.set(found)
    try:
        with (
            without_code_generators(),
            functorch_config.patch(needed),
            inductor_config.patch(_OTHERS_FUNCTIONS, known),
        ):
            yield found
    finally:
        _found.reset(token)


def serializable(compiler: Callable[[GraphModule, Sequence[Any]], Any]) -> Any:
    """A compiler of a graph as AOTAutograd wants it, if its cache may be used."""
    return SerializableAOTDispatchCompiler(CachedGraph, compiler)
