"""Scans in loops: which loops follow the scanned axis, and where the running result is kept.

The running result of a scan is set to the identity right before the outermost of these loops.  It
has an element for each iteration of the other loops inside, because each of these is a row of its
own.  A scan is computed in order: its loops are the parts of the scanned axis, outermost first.  A
reversed scan begins at the last element, so its loops are the parts of the reversed axis.

    T1[i, s] = cumsum(T0) in loops [i][s / 4][s % 4]:
    for i { running = 0   for s / 4 { for s % 4 { T1[..] = (running sum= T0[..]) } } }
"""

from __future__ import annotations

from ..errors import ScheduleError, expected
from ..ir.domains import IdExpr, IterDomain, Merge, ParallelType, Reverse, Split, history
from ..ir.exprs import ScanOp
from ..ir.scalars import ONE
from ..ir.vals import TensorView
from .loops import LoopStructure


def scanned_positions(structure: LoopStructure, tensor: TensorView) -> list[int]:
    """The positions of the loops that are made of the scanned axis, outermost first.

    Raises ScheduleError unless they run through the axis in order.
    """
    assert isinstance(tensor.expr, ScanOp)
    scanned, loop = tensor.expr.scanned, structure.scheduled[tensor].loop
    extents = structure.extents[tensor]
    made_by = {axis: expr for expr in _history(tensor, loop) for axis in expr.inputs}

    def parts(axis: IterDomain) -> list[IterDomain]:
        match made_by.get(axis):
            case None:
                return [axis]
            case Split(outer_id=outer, inner_id=inner):
                return [*parts(outer), *parts(inner)]
            case Merge(outer_id=outer, inner_id=inner, output_id=merged) if any(
                extents[each] is ONE for each in (outer, inner) if each is not axis
            ):
                return parts(merged)
            case _:
                what = f"the scanned axis of T{tensor.name} to be split only"
                raise ScheduleError(expected("schedule", what, f"axis {axis} in another"))

    is_reversed, whole = False, scanned
    while isinstance(made := made_by.get(whole), Reverse):
        is_reversed, whole = not is_reversed, made.output_id
    wanted = parts(whole)
    if is_reversed is not tensor.expr.is_reversed:
        way = "last to its first" if tensor.expr.is_reversed else "first to its last"
        what = f"loops over the scanned axis of T{tensor.name} from its {way} element"
        raise ScheduleError(expected("schedule", what, "the other direction"))
    positions = [loop.index(axis) for axis in wanted]
    several = [p for p in positions if structure.loop(tensor, p).extent is not ONE]
    if several != sorted(several):
        what = f"the loops over the scanned axis of T{tensor.name} in the order of its elements"
        raise ScheduleError(expected("schedule", what, [str(loop[p]) for p in several]))
    for position in several:
        _check_order(structure, tensor, position, several[-1])
    return sorted(positions)


def _history(tensor: TensorView, loop: list[IterDomain]) -> list[IdExpr]:
    roots = tensor.domain.root_or_logical
    return [*history(tensor.domain.logical, roots), *history(loop, tensor.domain.logical)]


def _check_order(structure: LoopStructure, tensor: TensorView, position: int, last: int) -> None:
    """The iterations of a loop over a scanned axis have an order; threads only in the innermost."""
    kind = structure.loop(tensor, position).parallel_type
    in_lanes = kind is ParallelType.vectorize or kind.is_block
    if kind.is_grid or (in_lanes and position != last):
        axis = structure.scheduled[tensor].loop[position]
        what = f"axis {axis} of T{tensor.name}, which is scanned, to be a loop"
        hint = "only its innermost part may run in threads of a block"
        raise ScheduleError(expected("parallelize", what, kind.name, hint))


def running_positions(
    structure: LoopStructure, tensor: TensorView, threads_are_hardware: bool
) -> list[int]:
    """The positions of the loops for which the running result has elements of its own."""
    scanned = scanned_positions(structure, tensor)
    found = []
    for position in range(scanned[0], len(structure.scheduled[tensor].loop)):
        loop = structure.loop(tensor, position)
        kind = loop.parallel_type
        is_own = kind.is_grid or (kind.is_block and threads_are_hardware)
        if position not in scanned and loop.extent is not ONE and not is_own:
            found.append(position)
    return found
