"""Vectorized loops as vector loads and stores.

A vectorize loop that copies consecutive elements between memory and registers -> one call of
`load_contiguous` or `store_contiguous` (device_helpers.cuh), which use vectors if the address is
aligned.  If the loop has a predicate, the call runs under the predicate of the last element, and
the loop itself runs otherwise.  Any other vectorize loop is just unrolled.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.domains import ParallelType
from ...ir.kernel import Access, Compute, For, Less
from ...ir.scalar_queries import coefficient_of, substitute
from ...ir.scalars import ONE, ZERO, Integer, IntExpr, Symbol
from ...ir.schedule import MemoryType
from .expressions import is_private_array
from .spelling import index_text


@dataclass(frozen=True, slots=True)
class VectorCopy:
    """The call, and the condition under which all of its elements are in bounds."""

    call: str
    conditions: tuple[Less, ...]


def vector_copy(loop: For) -> VectorCopy | None:
    """The copy that a loop performs, or None for a loop that isn't a contiguous copy."""
    if loop.parallel_type is not ParallelType.vectorize or not isinstance(loop.stop, Integer):
        return None
    match loop.body:
        case [Compute(op="set", output=output, inputs=(Access() as source,)) as statement]:
            pass
        case _:
            return None
    conditions = _whole(statement.predicate, loop.index, loop.stop)
    if conditions is None or output.buffer.dtype is not source.buffer.dtype:
        return None
    to, start = _address(output, loop.index), _address(source, loop.index)
    if to is None or start is None or any(map(is_private_array, (output.buffer, source.buffer))):
        return None
    is_local = [a.buffer.memory is MemoryType.local for a in (output, source)]
    if is_local[0] == is_local[1]:
        return None
    name = "load_contiguous" if is_local[0] else "store_contiguous"
    return VectorCopy(f"{name}<{loop.stop}>({to}, {start});", conditions)


def _address(access: Access, index: Symbol) -> str | None:
    """The address of element 0, or None if the elements aren't consecutive."""
    if coefficient_of(access.index, index) is not ONE:
        return None
    first = substitute(access.index, {index: ZERO})
    name = access.buffer.name
    return name if first is ZERO else f"&{name}[{index_text(first)}]"


def _whole(predicate: tuple[Less, ...], index: Symbol, stop: IntExpr) -> tuple[Less, ...] | None:
    """The predicate at the last index if that is the strictest; None if this isn't known."""
    conditions = []
    for condition in predicate:
        coefficient = coefficient_of(condition.a, index)
        growing = isinstance(coefficient, Integer) and coefficient.value >= 0
        if not growing or index in condition.b.symbols:
            return None
        conditions.append(Less(substitute(condition.a, {index: stop - 1}), condition.b))
    return tuple(conditions)
