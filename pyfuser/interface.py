"""The interface of the engine: compiled fusions, fusion nodes, and queries about them.

`CompiledFusion` is the object that the front ends hold.  `register_fusion` simplifies a definition
and stores it under a key made of its structure alone, so equal fusions share programs and kernels;
`run_fusion` runs it on a stack of values.  The MOST_REGISTERED most recently used fusions are kept,
and any other for as long as its key is referenced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

from .devices.switches import can_fuse_on, override_can_fuse_on
from .errors import InputError, UnsupportedError, expected
from .executor import Executor
from .ir.fusion import Fusion
from .ir.keys import structure_key
from .ir.scalar_queries import evaluate
from .ir.schedule import ScheduledFusion
from .kernel_builds import compiled_kernel_count
from .kernel_cache import KernelCache
from .ops.binding import bind
from .ops.metadata import device_of

# Some 10 KB each before the first run; kernels have their own bound (`kernel_cache`).
MOST_REGISTERED = 4096

_numbers = itertools.count()


class CompiledFusion:
    """A fusion that can be run; it compiles lazily what its inputs need.

    A registered one has a `number` and its `structure`.
    """

    def __init__(self, fusion: Fusion, number: int = -1, structure: str = "") -> None:
        self.number, self.structure = number, structure
        self.executor = Executor(fusion)
        self.execute = self.executor.execute
        """execute(inputs) -> outputs; a bound method, so that a call has one frame less."""

    @property
    def fusion(self) -> Fusion:
        """The definition."""
        return self.executor.fusion


class ManualKernel:
    """A fusion that runs as one kernel, as its user scheduled it."""

    def __init__(self, scheduled: ScheduledFusion, inputs: Sequence[Any]) -> None:
        bind(scheduled.fusion, inputs)
        self.executor = Executor.of_schedule(scheduled)
        self.executor.make_plan(inputs)

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs."""
        return self.executor.execute(inputs)

    def report(self, inputs: Sequence[Any]) -> str:
        """What the target's compiler reports about the kernel for these inputs."""
        resolved = self.executor.resolve(inputs)
        target = resolved.program.runtime.target
        texts = [built.code.text for built in resolved.kernels if built is not None]
        return "".join(map(target.compiler_report, texts))

    def launches(self, inputs: Sequence[Any]) -> list[dict[str, int]]:
        """The extents of the grid and block axes of each launch for these inputs; by kind."""
        sizes = bind(self.executor.fusion, inputs).sizes
        found: list[dict[str, int]] = []
        for built in self.executor.resolve(inputs).kernels:
            if built is None:
                continue
            numbers = built.kernel.numbers(sizes)
            for phase in built.kernel.phases:
                axes = phase.grid | phase.block
                found.append({kind.value: evaluate(axes[kind], numbers) for kind in axes})
        return found


class FusionKey(int):
    """The key of a registered fusion; a reference to it keeps the fusion alive."""

    fusion: CompiledFusion

    def __new__(cls, fusion: CompiledFusion) -> FusionKey:
        """The number of a registered fusion."""
        key = super().__new__(cls, fusion.number)
        key.fusion = fusion
        return key

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


_kept: KernelCache[str, CompiledFusion] = KernelCache(MOST_REGISTERED)
_living: WeakValueDictionary[str, CompiledFusion] = WeakValueDictionary()
_numbered: WeakValueDictionary[int, CompiledFusion] = WeakValueDictionary()


def register_fusion(fusion: Fusion) -> FusionKey:
    """A key for a fusion; the same structure gives the same key, from any thread.

    The definition is simplified here; if that fails, there is one warning, and torch runs it.
    """
    structure = structure_key(fusion)

    def make() -> CompiledFusion:
        made = _living.get(structure)
        if made is None:
            made = CompiledFusion(fusion, next(_numbers), structure)
            made.executor.can_be_prepared()
            _living[structure] = _numbered[made.number] = made
        return made

    return FusionKey(_kept.get_or_create(structure, make))


def registered_fusion(key: int) -> CompiledFusion:
    """The fusion registered under a key.  InputError for a number that names no fusion."""
    if isinstance(key, FusionKey):
        return key.fusion
    found = _numbered.get(key)
    if found is None:
        what = "a key from register_fusion"
        hint = f"of keys that nobody holds, those of the last {_kept.capacity} fusions work"
        raise InputError(expected("fusion", what, key, hint))
    return _kept.get_or_create(found.structure, lambda: found)  # counts as a use


def run_fusion(key: int, stack: list[Any]) -> None:
    """Takes the inputs from the end of the stack and leaves the outputs there."""
    compiled = registered_fusion(key)
    count = len(compiled.fusion.given_inputs)
    if len(stack) < count:
        raise InputError(expected("run_fusion", f"{count} inputs on the stack", len(stack)))
    inputs = stack[len(stack) - count :]
    outputs = compiled.execute(inputs)
    stack[len(stack) - count :] = outputs


def can_fuse_on_cpu() -> bool:
    """True if tensors on the CPU are computed by kernels."""
    return can_fuse_on("cpu")


def can_fuse_on_gpu() -> bool:
    """True if tensors on an NVIDIA GPU are computed by kernels."""
    return can_fuse_on("cuda")


def override_can_fuse_on_cpu(value: bool | None) -> None:
    """Switches fusing on the CPU on or off; None restores the default.

    This applies to compiled fusions and graphs too: while it is off, torch runs them; afterwards,
    their own kernels run again.  A hand-written schedule still runs as scheduled.
    """
    override_can_fuse_on("cpu", value)


def override_can_fuse_on_gpu(value: bool | None) -> None:
    """Switches fusing on NVIDIA GPUs on or off; None restores the default."""
    override_can_fuse_on("cuda", value)


def debug_kernel_code(key: int, inputs: Sequence[Any]) -> str:
    """The generated code of the kernels that a registered fusion runs for these inputs.

    InputError if the inputs don't fit the fusion; UnsupportedError if no kernel runs for them
    (fusing is switched off, or torch is better at it), so there is no code to show.
    """
    compiled = registered_fusion(key)
    bind(compiled.fusion, inputs)
    texts: list[str] = []
    if can_fuse_on(device_of(inputs).type):
        resolved = compiled.executor.resolve(inputs)
        texts = [kernel.code.text for kernel in resolved.kernels if kernel is not None]
    if not texts:
        raise UnsupportedError(f"debug_kernel_code: torch computes fusion {key} for these inputs")
    return "\n".join(texts)


def cached_spec_count() -> int:
    """The number of registered fusions that are kept."""
    return len(_kept)


__all__ = [
    "CompiledFusion",
    "ManualKernel",
    "cached_spec_count",
    "can_fuse_on",
    "can_fuse_on_cpu",
    "can_fuse_on_gpu",
    "compiled_kernel_count",
    "debug_kernel_code",
    "override_can_fuse_on",
    "override_can_fuse_on_cpu",
    "override_can_fuse_on_gpu",
    "register_fusion",
    "registered_fusion",
    "run_fusion",
]
