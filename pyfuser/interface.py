"""The interface of the engine: compiled fusions, fusion nodes, and what can be asked about them.

`CompiledFusion` is what the front ends hold.  `register_fusion` stores a definition under a key
made of its structure alone, so that equal fusions share programs and kernels; `run_fusion` runs it
on a stack of values.  What can be fused where can be overridden, for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from .compiler import compiled_kernel_count
from .devices.registry import device
from .errors import InputError, UnsupportedError, expected
from .executor import Executor
from .ir.domains import history
from .ir.fusion import Fusion
from .ir.schedule import ScheduledFusion
from .ir.vals import Scalar, TensorView, Val
from .ops.binding import bind

_registered: dict[str, int] = {}
_fusions: dict[int, CompiledFusion] = {}
_overrides: dict[str, bool] = {}
_lock = threading.Lock()


class CompiledFusion:
    """A fusion that can be run; compiles when and as far as its inputs ask for it."""

    def __init__(self, fusion: Fusion) -> None:
        self.executor = Executor(fusion)
        self.execute = self.executor.execute
        """execute(inputs) -> outputs; a bound method, so that a call has one frame less."""

    @property
    def fusion(self) -> Fusion:
        """The definition."""
        return self.executor.fusion


class ManualKernel:
    """A fusion that runs as one kernel, the way its user scheduled it."""

    def __init__(self, scheduled: ScheduledFusion, inputs: Sequence[Any]) -> None:
        bind(scheduled.fusion, inputs)
        self.executor = Executor.of_schedule(scheduled)
        self.executor.make_plan(inputs)

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs."""
        return self.executor.execute(inputs)


def structure_key(fusion: Fusion) -> str:
    """Text that two fusions share exactly when they compute the same thing.

    The definition as people read it, and what it leaves out: how tensors lie in memory, where
    reshaped axes come from, dtypes of constants, which outputs are written over inputs.
    """
    values = list(fusion.inputs)
    for expr in fusion.exprs:
        values += [*expr.inputs, *expr.outputs]
    parts = [str(fusion)]
    parts += [f"{a} == {b}" for a, b in fusion.equal_extents]
    parts += [_hidden_facts(value) for value in dict.fromkeys(values)]
    parts += [f"{output.name} over {target.name}" for output, target in fusion.aliases.items()]
    parts += [
        f"{position} hidden"
        for position, output in enumerate(fusion.outputs)
        if output in fusion.hidden_outputs
    ]
    return "\n".join(parts)


def _hidden_facts(value: Val) -> str:
    """What identifies a value and isn't printed with it."""
    if not isinstance(value, TensorView):
        constant = value.constant if isinstance(value, Scalar) else None
        return f"{value} {value.dtype} {constant!r}"
    domain = value.domain
    transforms = [str(e) for e in history(domain.logical, domain.root_or_logical)]
    memory = f"{domain.allocated} {domain.contiguity} {value.is_cpu_scalar}"
    return f"T{value.name} {domain.root_or_logical} {transforms} {domain.logical} {memory}"


def register_fusion(fusion: Fusion) -> int:
    """A key for a fusion; the same structure gives the same key, from any thread."""
    text = structure_key(fusion)
    with _lock:
        key = _registered.get(text)
        if key is None:
            key = _registered[text] = len(_registered)
            _fusions[key] = CompiledFusion(fusion)
        return key


def registered_fusion(key: int) -> CompiledFusion:
    """The fusion registered under a key.  InputError for a key that nobody was given."""
    found = _fusions.get(key)
    if found is None:
        raise InputError(expected("fusion", "a key from register_fusion", key))
    return found


def run_fusion(key: int, stack: list[Any]) -> None:
    """Takes the inputs from the end of the stack and leaves the outputs there."""
    compiled = registered_fusion(key)
    count = len(compiled.fusion.inputs)
    if len(stack) < count:
        raise InputError(expected("run_fusion", f"{count} inputs on the stack", len(stack)))
    inputs = stack[len(stack) - count :]
    outputs = compiled.execute(inputs)
    stack[len(stack) - count :] = outputs


def can_fuse_on(device_type: str) -> bool:
    """True when there is a device for tensors of this type and nobody has switched it off."""
    override = _overrides.get(device_type)
    if override is not None:
        return override
    try:
        device(device_type)
    except NotImplementedError:
        return False
    return True


def can_fuse_on_cpu() -> bool:
    """True when tensors on the CPU are computed by kernels."""
    return can_fuse_on("cpu")


def can_fuse_on_gpu() -> bool:
    """True when tensors on an NVIDIA GPU are computed by kernels."""
    return can_fuse_on("cuda")


def override_can_fuse_on_cpu(value: bool | None) -> None:
    """Switches fusing on the CPU on or off; None gives the decision back."""
    override_can_fuse_on("cpu", value)


def override_can_fuse_on_gpu(value: bool | None) -> None:
    """Switches fusing on NVIDIA GPUs on or off; None gives the decision back."""
    override_can_fuse_on("cuda", value)


def debug_kernel_code(key: int, inputs: Sequence[Any]) -> str:
    """The generated code of the kernels that a registered fusion runs for these inputs.

    InputError where the inputs don't fit the fusion; UnsupportedError where no kernel runs for
    them, so that there is no code to show.
    """
    resolved = registered_fusion(key).executor.resolve(inputs)
    texts = [
        "\n".join(
            text
            for stage, text in resolved.program.device.texts(k.kernel).items()
            if stage in ("llvm", "cuda")
        )
        for k in resolved.kernels
        if k is not None
    ]
    if not texts:
        raise UnsupportedError(f"debug_kernel_code: torch computes fusion {key} for these inputs")
    return "\n".join(texts)


def override_can_fuse_on(device_type: str, value: bool | None) -> None:
    """Switches fusing on a device on or off; None gives the decision back."""
    with _lock:
        if value is None:
            _overrides.pop(device_type, None)
        else:
            _overrides[device_type] = value


def cached_spec_count() -> int:
    """The number of registered fusions."""
    return len(_registered)


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
