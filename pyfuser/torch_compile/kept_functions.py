"""The function of a compiled graph, kept on disk: a later process neither cuts the graph again, nor
chooses schedules, nor writes the function.

(text of a graph) -> the source of its function, and what each of its constants is.  Machine code
isn't part of an entry: of a kernel it has the text, under which the machine code has an entry of
its own (devices/cpu/jit.py).  Both are in the disk cache, under its rules of trust.

Invariant: what is found is what `CompiledGraph` would make now.  It is a function of what the key
contains: the graph, pyfuser's sources, torch's version, the target and the number of threads, and
what else the process decides about compilation.  What can't be described isn't kept: a function
with a part that torch evaluates, or with the bodies of a loop.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from .. import options
from ..caches.disk_cache import disk_cache
from ..caches.sources import sources
from ..caches.tuning_store import tuning_store
from ..devices.registry import runtime_of
from ..devices.runtime import LaunchCode, Runtime
from ..devices.switches import switched_off
from ..dtypes import DataType
from ..executor import Resolved
from ..ir.fusion import Fusion
from ..kernel_builds import launch_function
from ..plans.library_calls import NATIVE_FUNCTIONS, overload_of
from ..plans.text import function_of
from ..profiling import active_recorder
from ..schedule.registry import NAMES
from ..trace import is_watched
from .compiled_graph import CompiledGraph, Function
from .graph_passes.cpu_scalars import devices

_CPU = torch.device("cpu")
_PLAIN = (
    *(bool, int, float, str, type(None), DataType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_MOST_BYTES = 64 << 10  # of a tensor in an entry
_OF_RUNTIME = ("empty_strided", "require_memory")


class Later(Protocol):
    """What a kept function needs of its graph only on rare occasions."""

    def by_torch(self, args: list[Any]) -> Any:
        """The graph, run by torch."""

    def resolved(self) -> Sequence[Resolved]:
        """The programs of the graph, in the order of its steps."""


@dataclass(frozen=True)
class Kept:
    """A function that was found; if it isn't `for_all` sizes, it returns None for others."""

    function: Function
    for_all: bool


class _NotKeptError(Exception):
    """A constant that has no description."""


# -- descriptions of constants: each is something that can be pickled, and makes the constant


@dataclass(frozen=True)
class _Plain:
    """A value that is its own description."""

    value: Any

    def constant(self, runtime: Runtime, later: Later) -> Any:
        return self.value


@dataclass(frozen=True)
class _Tensor:
    """A small tensor that the graph holds."""

    content: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]

    def constant(self, runtime: Runtime, later: Later) -> Any:
        if not self.content:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(bytearray(self.content), dtype=self.dtype).view(self.shape)


@dataclass(frozen=True)
class _Named:
    """A function, or anything else that a module has."""

    module: str
    path: str

    def constant(self, runtime: Runtime, later: Later) -> Any:
        return self._found()

    def names(self, value: Any) -> bool:
        """True if this is what it finds."""
        with suppress(ImportError, AttributeError):
            return self._found() is value
        return False

    def _found(self) -> Any:
        found: Any = importlib.import_module(self.module)
        for name in filter(None, self.path.split(".")):
            found = getattr(found, name)
        return found


@dataclass(frozen=True)
class _Overload:
    """An overload of an op; or its binding, which is faster to call."""

    packet: str
    overload: str
    is_binding: bool

    def constant(self, runtime: Runtime, later: Later) -> Any:
        namespace, _, name = self.packet.partition("::")
        packet = getattr(getattr(torch.ops, namespace), name)
        found = getattr(packet, self.overload)
        return found._op if self.is_binding else found


@dataclass(frozen=True)
class _OfRuntime:
    """A function of the runtime."""

    name: str

    def constant(self, runtime: Runtime, later: Later) -> Any:
        return getattr(runtime, self.name)


@dataclass(frozen=True)
class _Launch:
    """The launch function of a kernel."""

    code: LaunchCode

    def constant(self, runtime: Runtime, later: Later) -> Any:
        return launch_function(self.code, runtime)


@dataclass(frozen=True)
class _SwitchedOff:
    """The set that says whether fusing is switched off."""

    def constant(self, runtime: Runtime, later: Later) -> Any:
        return switched_off(runtime.device.type)


@dataclass(frozen=True)
class _ByTorch:
    """What computes a call by torch."""

    def constant(self, runtime: Runtime, later: Later) -> Any:
        return later.by_torch


@dataclass(frozen=True)
class _FusionOfPart:
    """A part, of which the fusion is needed to say why its kernel refused its inputs."""

    program: int
    part: int

    def constant(self, runtime: Runtime, later: Later) -> Any:
        return _LaterPart(self, later)


class _LaterPart:
    def __init__(self, place: _FusionOfPart, later: Later) -> None:
        self._place, self._later = place, later

    @cached_property
    def fusion(self) -> Fusion:
        """The fusion of the part."""
        program = self._later.resolved()[self._place.program].program
        return program.parts[self._place.part].fusion


class _Descriptions:
    """The descriptions of the constants of one graph's function."""

    def __init__(self, graph: CompiledGraph, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[int, Any] = {
            id(graph.by_torch): _ByTorch(),
            id(switched_off(runtime.device.type)): _SwitchedOff(),
        }
        for number, resolved in enumerate(graph.resolved):
            for place, part in enumerate(resolved.program.parts):
                self._known.setdefault(id(part), _FusionOfPart(number, place))
            for kernel in filter(None, resolved.kernels):
                launch = kernel.launch_code()
                if launch is not None:
                    self._known[id(launch[0])] = _Launch(launch[1])

    def of(self, value: Any) -> Any:
        """The description of a constant.  _NotKeptError if it has none."""
        if isinstance(value, _PLAIN):
            return _Plain(value)
        if isinstance(value, torch.Tensor):
            found = _tensor(value)
        else:
            found = self._known.get(id(value)) or self._named(value)
        if found is None:
            raise _NotKeptError(f"{type(value).__name__} {value!r:.80}")
        return found

    def _named(self, value: Any) -> Any:
        for name in _OF_RUNTIME:
            if value is getattr(self._runtime, name):
                return _OfRuntime(name)
        if isinstance(value, ModuleType):
            return _Named(value.__name__, "")
        overload = value if isinstance(value, OpOverload) else overload_of(value)
        if overload is not None:
            packet = str(overload._schema.name)
            return _Overload(packet, overload._overloadname, overload is not value)
        own, native = (getattr(value, name, None) for name in ("__qualname__", "__name__"))
        places = [(getattr(value, "__module__", None), own)]
        places += [(module, native) for module in NATIVE_FUNCTIONS]
        known = [_Named(*map(str, each)) for each in places if None not in each]
        return next((each for each in known if each.names(value)), None)


def _tensor(value: torch.Tensor) -> _Tensor | None:
    is_plain = type(value) is torch.Tensor and value.layout is torch.strided
    if not is_plain or value.device != _CPU or value.requires_grad or not value.is_contiguous():
        return None
    if value.nbytes > _MOST_BYTES or value.is_neg() or value.is_conj():
        return None
    content = value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return _Tensor(content, value.dtype, tuple(value.shape))


# -- entries


def load(text: bytes, later: Later) -> Kept | None:
    """The function that a process kept for a graph; None if there is none."""
    cache, key = disk_cache(), _key(text)
    entry = None if cache is None or key is None else cache.load(key)
    if entry is None:
        return None
    try:
        source, for_all, descriptions = pickle.loads(zlib.decompress(entry))
        runtime = runtime_of(_CPU)
        constants = {
            name: description.constant(runtime, later) for name, description in descriptions.items()
        }
        return Kept(function_of(source, "call", "graph", constants), for_all)
    except Exception:  # then it is made again
        return None


def store(text: bytes, graph: CompiledGraph) -> None:
    """Keeps the function that a graph was compiled to, if it can be described."""
    cache, key = disk_cache(), _key(text)
    if cache is None or key is None or devices(graph.traced.graph.nodes) != {_CPU}:
        return
    describe = _Descriptions(graph, runtime_of(_CPU)).of
    with suppress(_NotKeptError):
        constants = {name: describe(each) for name, each in graph.constants.items()}
        entry = graph.source, not graph.has_others, constants
        cache.store(key, zlib.compress(pickle.dumps(entry, 5), 1))


def _key(text: bytes) -> str | None:
    """Everything that a function depends on; None if it can't be kept, or has to be made because
    its stages are to be shown, verified, timed or tuned.
    """
    runtime = runtime_of(_CPU)
    version = sources() if runtime.target.keeps_code else None
    if version is None or options.strict() or is_watched() or active_recorder() is not None:
        return None
    if tuning_store().names or switched_off(_CPU.type):
        return None
    facts = (
        "function of a graph",
        version,
        torch.__version__,
        repr(runtime.target),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        sorted(options.disabled_schedulers(NAMES)),
        hashlib.sha256(text).hexdigest(),
    )
    return "\n".join(map(str, facts))
