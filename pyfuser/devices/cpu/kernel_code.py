"""What the CPU code generator passes to the device: text, and how to call the compiled code.

    slots ::= pointers of tensor parameters, then of scratch buffers, the workspace, then numbers:
              workspace bytes per thread, streaming flag, sizes and strides (kernel.symbols),
              scalars; and last the status, which a kernel that refuses the call sets

The range function of a phase takes the address of these 8-byte slots; see `threads.launcher`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.kernel import Kernel
from ...ir.scalars import IntExpr


@dataclass(frozen=True, slots=True)
class CpuKernelCode:
    """A kernel's LLVM IR text and the facts that its launches need.

    workspace    bytes of private scratch memory per thread
    streaming    offsets (in elements) that must be multiples of `lanes` for streaming stores
    """

    kernel: Kernel
    text: str
    functions: tuple[str, ...]
    workspace: IntExpr
    streaming: tuple[tuple[IntExpr, int], ...]


def slot_names(kernel: Kernel) -> list[str]:
    """The slots in order, by name, without the status."""
    names = [t.buffer.name for t in kernel.tensors] + [b.name for b in kernel.scratch]
    names += ["workspace", "workspace_bytes", "streaming"]
    names += [symbol.name for symbol in kernel.symbols]
    return names + [scalar.name for scalar in kernel.scalars]
