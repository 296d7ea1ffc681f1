"""A square of numbers in vector registers, transposed.

Each shuffle is one instruction on every x86 processor: two rows are interleaved within blocks of 16
bytes, first by elements, then by pairs of them and so on; then whole blocks change places.
"""

from __future__ import annotations

from .llvm_writer import FunctionWriter, Value

_BLOCK_BITS = 128


def transposed(writer: FunctionWriter, rows: list[Value]) -> list[Value]:
    """The columns of a square: as many vectors as each has lanes (a power of two)."""
    count = len(rows)
    block = min(count, _BLOCK_BITS // rows[0].type.bits)
    made, run = list(rows), 1
    while run < block:
        made = _interleaved(writer, made, block, run)
        run *= 2
    while run < count:
        made = _exchanged(writer, made, run)
        run *= 2
    return made


def _interleaved(writer: FunctionWriter, rows: list[Value], block: int, run: int) -> list[Value]:
    """Groups of `run` rows, whose columns are runs of lanes already -> groups of twice as many.

    In a group, vector v has columns v * (block / run) on of each block.
    """
    count, half = len(rows), block // 2
    lower = [
        source + start + lane
        for start in range(0, count, block)
        for first in range(0, half, run)
        for source in (0, count)
        for lane in range(first, first + run)
    ]
    upper = [lane + half for lane in lower]
    return [
        writer.shufflevector(rows[group + number], rows[group + run + number], lanes)
        for group in range(0, count, 2 * run)
        for number in range(run)
        for lanes in (lower, upper)
    ]


def _exchanged(writer: FunctionWriter, rows: list[Value], bit: int) -> list[Value]:
    """Rows and lanes whose numbers differ in one bit, which is at least a block, change places."""
    count = len(rows)
    lower = [lane if not lane & bit else count + lane - bit for lane in range(count)]
    upper = [lane + bit if not lane & bit else count + lane for lane in range(count)]
    made = list(rows)
    for number in range(count):
        if not number & bit:
            a, b = rows[number], rows[number + bit]
            made[number] = writer.shufflevector(a, b, lower)
            made[number + bit] = writer.shufflevector(a, b, upper)
    return made
