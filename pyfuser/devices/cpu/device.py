"""FusedKernelCPU, the CPU as a device: LLVM in the process, torch's threads, pooled memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...ir.kernel import Compute, Kernel, walk
from ...ir.scalars import IntExpr, evaluate
from ...lower.traits import DeviceTraits
from ..registry import Binding
from .codegen import generate
from .jit import (
    CompiledModule,
    ObjectCache,
    assembly,
    compile_ahead,
    compile_module,
    set_object_cache,
)
from .joint_sizes import join_sizes
from .kernel_code import CpuKernelCode
from .machine import Machine, machine
from .memory_pool import empty_strided, scratch
from .storage_check import require_memory
from .threads import launcher
from .vector_math import VECTOR_MATH

Binary = tuple[CompiledModule, Any]  # the machine code and its launch function

# Waking another thread takes some 5 us; under this many element operations one thread is done by
# then (about 4 simple operations a nanosecond from the caches).
_WORK_FOR_THREADS = 32 << 10
# The price of one element of an operation of the vector math, in simple ones.
_VECTOR_MATH_WORK = 8


@dataclass(eq=False, slots=True)
class FusedKernelCPU:
    """A built kernel."""

    kernel: Kernel
    code: CpuKernelCode
    module: CompiledModule
    launch: Any
    symbols: list[str] = field(init=False)
    work_each: int = field(init=False)

    def __post_init__(self) -> None:
        """What every binding needs, once."""
        kernel = self.kernel
        self.symbols = [symbol.name for symbol in kernel.symbols]
        heavy = {
            id(statement.output.buffer)
            for phase in kernel.phases
            for statement in walk(phase.body)
            if isinstance(statement, Compute) and statement.op in _VECTOR_MATH
        }
        self.work_each = 1 + _VECTOR_MATH_WORK * min(len(heavy), 4)

    def bind(self, sizes: Mapping[str, int]) -> Binding:
        """Threads worth their start, scratch memory, and the numbers the kernel reads."""
        kernel, code, host = self.kernel, self.code, machine()
        sizes = kernel.numbers(sizes)
        tasks = max((evaluate(p.task_count(), sizes) for p in kernel.phases), default=1)
        threads = min(host.cores, tasks) if self._work(sizes) > _WORK_FOR_THREADS else 1
        offsets, total = [], 0
        for buffer in kernel.scratch:
            offsets.append(total)
            total += -(-evaluate(buffer.bytes, sizes) // 64) * 64
        workspace = evaluate(code.workspace, sizes)
        offsets.append(total)
        total += workspace * threads
        streaming = int(self._streams(sizes))
        symbols = [sizes[name] for name in self.symbols]
        return Binding(
            self.launch, (threads,), total, tuple(offsets), (workspace, streaming, *symbols)
        )

    def _elements(self, sizes: Mapping[str, int]) -> int:
        """Elements of the largest tensor."""
        return max((_product(t.sizes, sizes) for t in self.kernel.tensors), default=1)

    def _work(self, sizes: Mapping[str, int]) -> int:
        """Element operations of a call, in simple ones."""
        return self._elements(sizes) * self.work_each

    def _streams(self, sizes: Mapping[str, int]) -> bool:
        """True when the outputs don't fit in the caches and every vector store is aligned."""
        outputs = sum(
            _product(t.sizes, sizes) * t.buffer.bytes_each
            for t in self.kernel.tensors
            if t.is_output
        )
        if outputs < machine().l3_bytes // 2:
            return False
        return all(evaluate(step, sizes) % lanes == 0 for step, lanes in self.code.streaming)


def _product(extents: tuple[IntExpr, ...], sizes: Mapping[str, int]) -> int:
    total = 1
    for extent in extents:
        total *= evaluate(extent, sizes)
    return total


_VECTOR_MATH = frozenset({*VECTOR_MATH, "sigmoid", "silu"})


class CpuDevice:
    """The device object; see `registry.Device`."""

    traits = DeviceTraits(threads_are_hardware=False)

    @property
    def machine(self) -> Machine:
        """The processor."""
        return machine()

    def keep_objects_in(self, cache: ObjectCache | None) -> None:
        """Objects are kept there between processes."""
        set_object_cache(cache)

    def generate(self, kernel: Kernel) -> CpuKernelCode:
        """LLVM IR text."""
        return generate(join_sizes(kernel))

    def compile_ahead(self, code: CpuKernelCode) -> None:
        """In another process."""
        compile_ahead(code.text)

    def compile(self, code: CpuKernelCode) -> Binary:
        """Machine code in memory."""
        module = compile_module(code.text)
        return module, launcher(module, code.functions)

    def load(self, code: CpuKernelCode, binary: Binary) -> FusedKernelCPU:
        """A callable kernel."""
        return FusedKernelCPU(code.kernel, code, *binary)

    def empty_strided(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """From the pool."""
        return empty_strided(shape, stride, dtype)

    def scratch(self, size_bytes: int) -> torch.Tensor:
        """From the pool."""
        return scratch(size_bytes)

    @property
    def require_memory(self) -> Callable[..., None]:
        """Native code."""
        return require_memory()

    def texts(self, kernel: Kernel) -> dict[str, str]:
        """llvm and asm."""
        text = self.generate(kernel).text
        return {"llvm": text, "asm": assembly(text)}


DEVICE = CpuDevice()
