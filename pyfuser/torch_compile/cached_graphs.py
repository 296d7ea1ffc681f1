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
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import GmWrapper
from torch._functorch import config as functorch_config
from torch.fx import GraphModule, Node

from .. import options as settings
from ..caches.disk_cache import disk_cache, untrusted
from ..caches.sources import sources
from ..locks import ForkSafeLock
from ..nvfuser_direct_version import __version__
from .compiled_graph import Call, compile_graph, undisturbed
from .torch_digest import set_digest

try:
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor import codecache
    from torch._inductor.output_code import OutputCode
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch.fx._graph_pickler import GraphPickler, Options

    _NEEDED = ("bundled_autograd_cache", "force_non_lazy_backward_lowering")
    IS_KNOWN = all(hasattr(functorch_config, name) for name in _NEEDED)
except ImportError:  # this torch has no such cache for other compilers than its own
    IS_KNOWN = False
    OutputCode = object  # type: ignore[assignment, misc]

# Graphs with fewer calls are traced again.  Measured: the first key of a process takes 0.1 s, most
# of it torch's imports.  Tracing takes 2.5 ms for each call that Dynamo records, 9 with gradients.
LEAST_CALLS = 40
LEAST_CALLS_WITH_GRADIENTS = 16
# The only metadata of a node that is read: its value, with the layout and the sizes.
_METADATA = frozenset({"val"})


class CachedGraph(OutputCode):
    """A graph that can be stored, and is compiled when it is first called or earlier."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__()
        self._boxed_call = True
        self._text: bytes | str = _dumped(graph_module)
        self._graph: GraphModule | None = graph_module
        self._call: Call | None = None
        self._lock: Any = ForkSafeLock()

    def __call__(self, inputs: Any) -> Any:
        """Runs the graph; empties the list of arguments."""
        call = self._call
        return (self.compiled() if call is None else call)(inputs)

    def compiled(self) -> Call:
        """The compiled graph."""
        with self._lock:
            if self._call is None:
                assert self._graph is not None
                self._call = undisturbed(compile_graph, self._graph)
                self._graph = None
            return self._call

    # -- what torch's cache calls

    def prepare_for_serialization(self) -> None:
        """Leaves only what can be stored."""
        if isinstance(self._text, str):
            raise BypassAOTAutogradCache(self._text)
        self._graph = self._call = self._lock = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Makes a graph from the cache callable; a backward is compiled when it is needed."""
        assert isinstance(self._text, bytes)
        self._lock = ForkSafeLock()
        self._graph = _loaded(self._text)
        if not graph_kwargs["is_backward"]:
            self.compiled()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There are no Triton kernels."""


def _dumped(graph_module: GraphModule) -> bytes | str:
    """The graph, or why it can't be stored."""
    chosen = Options(ops_filter=None, node_metadata_key_filter=_METADATA.__contains__)
    try:
        return GraphPickler.dumps(graph_module, chosen)
    except Exception as error:  # an object that can't be pickled; the graph itself is fine
        return f"a graph that can't be stored: {type(error).__name__}: {error}"


def _loaded(text: bytes) -> GraphModule:
    """A graph whose sizes are symbols of an environment of its own."""
    mode = torch._subclasses.FakeTensorMode(
        shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv()
    )
    made = GraphPickler.loads(text, mode)
    assert isinstance(made, GraphModule)
    made.recompile()  # its code; torch runs it if no kernel can
    return made


def may_cache(graph_module: torch.nn.Module, has_gradients: bool) -> bool:
    """True if a graph is worth keeping, this torch can, nobody has switched that off, and only this
    user (or root) can have written what would be loaded.

    A graph with a float among its arguments isn't kept: where tracing needs its value (`alpha=lr`),
    this is part of the graph, but neither of the key nor of the guards that torch keeps.
    """
    if not IS_KNOWN or settings.cache_directory() is None or sources() is None:
        return False
    inner = unwrapped(graph_module)
    if not isinstance(inner, GraphModule) or any(map(_is_float_argument, inner.graph.nodes)):
        return False
    least = LEAST_CALLS_WITH_GRADIENTS if has_gradients else LEAST_CALLS
    if sum(node.op.startswith("call") for node in inner.graph.nodes) < least:
        return False
    return untrusted(Path(cache_dir())) is None


def _is_float_argument(node: Node) -> bool:
    """True for a float that changed from call to call: Dynamo passes the graph a tensor of it."""
    if not isinstance(node.meta.get("example_value"), torch.SymFloat):
        return False
    return node.target == "item" and all(n.op == "placeholder" for n in node.all_input_nodes)


@contextmanager
def cached(graph_module: torch.nn.Module, chosen: object) -> Iterator[None]:
    """While AOTAutograd runs: its cache takes pyfuser's graphs.

    The backward is cut at once, for an entry has both graphs; it is compiled when it is needed.
    """
    unwrapped(graph_module).__dict__["pyfuser"] = f"{__version__} {sources()} {chosen}"
    _let_backends_be_left_out()
    kept = disk_cache()
    if kept is not None:
        set_digest(kept)
    token = _leaves_out_backends.set(True)
    try:
        with functorch_config.patch(
            bundled_autograd_cache=True, force_non_lazy_backward_lowering=True
        ):
            yield
    finally:
        _leaves_out_backends.reset(token)


_REGISTRATION = "init_backend_registration"
_leaves_out_backends: ContextVar[bool] = ContextVar("_leaves_out_backends", default=False)


@cache
def _let_backends_be_left_out() -> None:
    """Lets torch make keys without importing Inductor's code generators, which takes 0.6 s.

    It does so to find passes that are registered with them; none of them runs on pyfuser's graphs.
    """
    register: Callable[[], None] | None = getattr(codecache, _REGISTRATION, None)
    if register is None:
        return

    def register_for_inductor() -> None:
        if not _leaves_out_backends.get():
            register()

    setattr(codecache, _REGISTRATION, register_for_inductor)


def serializable(compiler: Callable[[GraphModule, Sequence[Any]], Any]) -> Any:
    """A compiler of a graph as AOTAutograd wants it, if its cache may be used."""
    return SerializableAOTDispatchCompiler(CachedGraph, compiler)


def unwrapped(graph_module: torch.nn.Module) -> Any:
    """The graph itself, a GraphModule; it is wrapped if its inputs are lists."""
    return graph_module.gm if isinstance(graph_module, GmWrapper) else graph_module
