"""The shared-memory layout of the buffers of a phase.

Buffers of constant size are `__shared__` arrays; the others follow each other in one dynamic array,
whose size the host passes at launch.  The scratch memory of block reductions is one more buffer.
Invariant: every buffer starts at a multiple of 16 bytes, so any vector in it is aligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.kernel import Buffer
from ...ir.scalars import ZERO, Integer, IntExpr, ceil_div
from .spelling import index_text, type_name

ALIGNMENT = 16
SCRATCH = "reduction_scratch"
# The shared memory that a kernel may have without opting in, on every architecture (CUDA
# programming guide, table of technical specifications).  A launch may ask for more dynamic shared
# memory.
MOST_STATIC_BYTES = 48 << 10
_DYNAMIC = "dynamic_shared"


@dataclass(frozen=True, slots=True)
class SharedArray:
    """One array: its name, element type, and sizes in elements and bytes.

    `is_private` if each thread has its own part of it.
    """

    name: str
    type: str
    size: IntExpr
    bytes: IntExpr
    is_private: bool = False

    @staticmethod
    def of(buffer: Buffer) -> SharedArray:
        """The array of a buffer in shared memory."""
        return SharedArray(buffer.name, type_name(buffer.dtype), buffer.size, buffer.bytes)

    @staticmethod
    def private(buffer: Buffer, threads: IntExpr) -> SharedArray:
        """One array that holds a buffer for each thread."""
        size, space = buffer.size * threads, buffer.bytes * threads
        return SharedArray(buffer.name, type_name(buffer.dtype), size, space, True)

    @staticmethod
    def scratch(threads: IntExpr, element_bytes: int) -> SharedArray:
        """One element of the largest reduced type for each thread."""
        size = threads * element_bytes
        return SharedArray(SCRATCH, "unsigned char", size, size)


def shared_layout(arrays: Sequence[SharedArray]) -> tuple[list[str], IntExpr]:
    """The declarations, and the bytes of dynamic shared memory that they need."""
    constant = [a for a in arrays if isinstance(a.bytes, Integer)]
    if sum(a.bytes.value for a in constant) > MOST_STATIC_BYTES:
        constant = []
    lines = [
        f"__shared__ __align__({ALIGNMENT}) {a.type} {a.name}[{index_text(a.size)}];"
        for a in constant
    ]
    rest = [a for a in arrays if a not in constant]
    if rest:
        lines.append(f"extern __shared__ __align__({ALIGNMENT}) unsigned char {_DYNAMIC}[];")
    offset: IntExpr = ZERO
    for array in rest:
        place = _DYNAMIC if offset is ZERO else f"({_DYNAMIC} + {index_text(offset)})"
        lines.append(
            f"{array.type}* const {array.name} = reinterpret_cast<{array.type}*>({place});"
        )
        offset = offset + ceil_div(array.bytes, ALIGNMENT) * ALIGNMENT
    return lines, offset
