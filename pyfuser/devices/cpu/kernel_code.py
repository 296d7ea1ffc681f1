"""What the CPU code generator passes to the device: text, and how to call the compiled code.

    slots ::= pointers of tensor parameters, then of scratch buffers, the workspace, then numbers:
              workspace bytes per thread, streaming flag, sizes and strides (kernel.symbols),
              scalars; and last the status, which a kernel that refuses the call sets

The range function of a phase takes the address of these 8-byte slots; see `threads.launcher`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.kernel import Compute, Kernel
from ...ir.kernel_queries import walk
from ...ir.scalars import IntExpr
from ...ops.random_numbers import DISTRIBUTIONS
from ...ops.table import OPS


@dataclass(frozen=True, slots=True)
class CpuKernelCode:
    """A kernel's LLVM IR text and the facts that its launches need.

    kernel       its outline
    workspace    bytes of private scratch memory per thread
    streaming    offsets (in elements) that must be multiples of `lanes` for streaming stores
    expensive    how many expensive operations it computes
    """

    kernel: Kernel
    text: str
    functions: tuple[str, ...]
    workspace: IntExpr
    streaming: tuple[tuple[IntExpr, int], ...]
    expensive: int


def expensive_operations(kernel: Kernel) -> int:
    """How many results of a kernel are expensive to compute."""
    found = {
        id(statement.output.buffer)
        for phase in kernel.phases
        for statement in walk(phase.body)
        if isinstance(statement, Compute) and _is_expensive(statement.op)
    }
    return len(found)


def _is_expensive(op: str) -> bool:
    return op in DISTRIBUTIONS or (op in OPS and OPS[op].is_expensive)


def slot_names(kernel: Kernel) -> list[str]:
    """The slots in order, by name, without the status."""
    names = [t.buffer.name for t in kernel.tensors] + [b.name for b in kernel.scratch]
    names += ["workspace", "workspace_bytes", "streaming"]
    names += [symbol.name for symbol in kernel.symbols]
    return names + [scalar.name for scalar in kernel.scalars]
