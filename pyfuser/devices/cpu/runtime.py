"""The CPU as a runtime: LLVM in the process, torch's threads, pooled memory."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...ir.scalar_functions import maximum
from ...ir.scalar_queries import substitute
from ...ir.scalars import ONE, ZERO, IntExpr, as_expr, ceil_div, mod, product, terms_of
from ...ops.op import EXPENSIVE
from ..runtime import LaunchCode, LaunchWriter, LoadedKernel, ObjectCache, Runtime
from ..tensor_memory import EmptyStrided, RequireMemory
from . import torch_generator
from .host import host
from .jit import CompiledModule, compile_ahead, compile_module, set_object_cache
from .kernel_code import CpuKernelCode
from .memory_pool import pool
from .storage_check import require_memory
from .target import CpuTarget
from .threads import Launch, launcher

Binary = tuple[CompiledModule, Launch]  # the machine code and its launch function

# Waking another thread takes some 5 us; with less than this many element operations, one thread is
# done by then (about 4 simple operations a nanosecond from the caches).
_WORK_FOR_THREADS = 32 << 10
_STATEMENTS_OF_WORK = 16  # that take as long as moving an element (measured on a Granite Rapids)

_ALIGNMENT = 64  # of scratch buffers, and of outputs that are stored past the caches; in bytes


@dataclass(slots=True, eq=False)
class FusedKernelCPU(LoadedKernel):
    """A kernel as machine code; `kernel_code` documents its argument slots."""

    code: CpuKernelCode
    target: CpuTarget
    module: CompiledModule
    launch: Launch

    def launch_code(self) -> tuple[object, LaunchCode]:
        """`launch`, which has the addresses of the kernel's functions and nothing else of it."""
        return self.launch, LaunchCode(self.code.text, self.code.functions)

    def write_launch(self, writer: LaunchWriter) -> None:
        """One call: as many threads as pay off, addresses, scratch memory, numbers, scalars."""
        kernel, code = self.kernel, self.code
        threads = self._threads(writer)
        scratch, scratch_bytes = self._scratch()
        workspace = self._number(writer, code.workspace)
        size = _sum(self._number(writer, scratch_bytes), _product(workspace, threads))
        _, base = writer.scratch(size)
        arguments = [threads]
        arguments += [writer.address(tensor) for tensor in kernel.tensors]
        for offset in (*scratch, scratch_bytes):
            arguments.append(base if base == "0" else _sum(base, self._number(writer, offset)))
        arguments += [workspace, self._streaming(writer)]
        arguments += [self._number(writer, symbol) for symbol in kernel.symbols]
        arguments += [writer.scalar(parameter) for parameter in kernel.scalars]
        launch = writer.constant("launch", self.launch)
        writer.call(f"{launch}({', '.join(arguments)})")

    def _number(self, writer: LaunchWriter, expr: IntExpr) -> str:
        """The text of a number; for a symbol that stands for a product, of the product."""
        return writer.size(substitute(expr, self.kernel.joined))

    def _threads(self, writer: LaunchWriter) -> str:
        """As many threads as have tasks; one if it is done before others have woken up."""
        cores = self.target.processor.cores
        tasks = _largest(phase.task_count() for phase in self.kernel.phases)
        if cores == 1 or tasks is ONE:
            return "1"
        runs = [each.count for each in self.kernel.runs]
        alike = max(Counter(runs).values(), default=0)  # statements on the same elements
        work = 1 + EXPENSIVE * min(self.code.expensive, 4) + alike // _STATEMENTS_OF_WORK
        few = _WORK_FOR_THREADS // work  # elements
        counts = [product(tensor.sizes) for tensor in self.kernel.tensors]
        counts += runs  # more for what is only added up
        elements = self._number(writer, _largest(_not_in_others(counts)))
        text = self._number(writer, tasks)
        most = f"{cores} if {text} > {cores} else {text}"
        if text.isdigit():
            most = str(min(cores, int(text)))
        if elements.isdigit():
            return (most if text.isdigit() else f"({most})") if int(elements) > few else "1"
        if text.isdigit():
            return f"({most} if {elements} > {few} else 1)"
        return f"(1 if {elements} <= {few} else {most})"

    def _scratch(self) -> tuple[list[IntExpr], IntExpr]:
        """The offsets of the scratch buffers, and the bytes of all of them."""
        offsets: list[IntExpr] = []
        total: IntExpr = ZERO
        for buffer in self.kernel.scratch:
            offsets.append(total)
            total = total + ceil_div(buffer.bytes, _ALIGNMENT) * _ALIGNMENT
        return offsets, total

    def _streaming(self, writer: LaunchWriter) -> str:
        """1 if the outputs don't fit in the caches and every vector store is aligned.

        An output may be in the caller's memory, which begins anywhere.
        """
        outputs: IntExpr = ZERO
        written = [tensor for tensor in self.kernel.tensors if tensor.is_output]
        for tensor in written:
            outputs = outputs + product(tensor.sizes) * tensor.buffer.bytes_each
        most = self.target.processor.l3_bytes // 2
        terms = terms_of(outputs)
        if len(terms) == 1:  # elements instead of bytes: a number that is already known
            ((monomial, bytes_each),) = terms
            outputs, most = product(monomial), -(-most // bytes_each)
        size = self._number(writer, outputs)
        conditions = [] if size.isdigit() and int(size) >= most else [f"{size} >= {most}"]
        for step, lanes in self.code.streaming:
            rest = mod(substitute(step, self.kernel.joined), as_expr(lanes))
            if rest is not ZERO:
                conditions.append(f"{writer.size(rest)} == 0")
        if size.isdigit() and int(size) < most:
            return "0"
        conditions += [f"{writer.address(tensor)} % {_ALIGNMENT} == 0" for tensor in written]
        return f"({' and '.join(conditions)})" if conditions else "1"


def _largest(exprs: Iterable[IntExpr]) -> IntExpr:
    """The largest of some numbers; 1 if there are none."""
    return functools.reduce(maximum, dict.fromkeys(exprs) or (ONE,))


def _not_in_others(counts: Iterable[IntExpr]) -> list[IntExpr]:
    """The numbers that aren't factors of others, which are as large."""
    distinct = list(dict.fromkeys(counts))
    factors = {count: _factors(count) for count in distinct}
    return [
        count
        for count in distinct
        if not any(factors[count] < factors[other] for other in distinct)
    ]


def _factors(count: IntExpr) -> Counter[IntExpr | int]:
    """What a product is made of; a sum is one factor."""
    terms = terms_of(count)
    if len(terms) != 1:
        return Counter([count])
    ((monomial, coefficient),) = terms
    return Counter([*monomial, coefficient] if coefficient != 1 else monomial)


def _sum(a: str, b: str) -> str:
    """The text of a + b."""
    if a.isdigit() and b.isdigit():
        return str(int(a) + int(b))
    return b if a == "0" else a if b == "0" else f"{a} + {b}"


def _product(a: str, b: str) -> str:
    """The text of a * b."""
    if a.isdigit() and b.isdigit():
        return str(int(a) * int(b))
    return "0" if "0" in (a, b) else f"{a} * {b}"


class CpuRuntime(Runtime):
    """The processor of this process; `target` may name one with fewer instructions than it has."""

    def __init__(self, target: CpuTarget | None = None) -> None:
        self._target = target or CpuTarget(host())

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def target(self) -> CpuTarget:
        return self._target

    @property
    def empty_strided(self) -> EmptyStrided:
        """The pool's function."""
        return pool().empty_strided

    @property
    def require_memory(self) -> RequireMemory:
        """Native code."""
        return require_memory()

    @property
    def library_functions(self) -> Mapping[Any, Callable[..., Any]]:
        """torch's random numbers, drawn faster."""
        return torch_generator.FUNCTIONS

    def synchronize(self) -> None:
        """Does nothing: a launch returns when the kernel has run."""

    def keep_objects_in(self, cache: ObjectCache | None) -> None:
        """Sets where objects are kept between processes."""
        set_object_cache(cache)

    def compile_ahead(self, code: Any) -> None:
        """Begins the compilation in another process."""
        compile_ahead(code.text, self.target.processor)

    def compile(self, code: Any) -> Binary:
        """Machine code in memory."""
        module = compile_module(code.text, processor=self.target.processor)
        return module, launcher(module, code.functions)

    def launch_function(self, binary: Binary) -> Launch:
        """Made with the machine code."""
        return binary[1]

    def load(self, code: Any, binary: Any) -> FusedKernelCPU:
        """A kernel with its launch function."""
        return FusedKernelCPU(code, self.target, *binary)


def runtime(device: torch.device) -> Runtime:
    """The runtime of the CPU; there is only one."""
    del device
    return CpuRuntime()
