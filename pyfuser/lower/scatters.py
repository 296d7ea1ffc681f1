"""Scatters in loops: which loops may write one element several times, and whether threads do.

Values whose indices are equal go to one element, in the order of the loops over the scattered axes.
If hardware threads run such a loop, they write concurrently; tasks and vector lanes of a CPU may
not.
"""

from __future__ import annotations

from ..errors import ScheduleError, expected
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import WriteOp
from ..ir.scalars import ONE
from ..ir.vals import TensorView
from .loops import Loop, LoopStructure


def is_concurrent(structure: LoopStructure, tensor: TensorView) -> bool:
    """True if threads share the loops over the scattered axes of a write."""
    return any(loop.parallel_type.is_thread for loop in scattered_loops(structure, tensor))


def check_order(structure: LoopStructure, tensor: TensorView, threads_are_hardware: bool) -> None:
    """Raises ScheduleError if tasks or vector lanes would write one element."""
    for loop in scattered_loops(structure, tensor):
        kind = loop.parallel_type
        if kind is ParallelType.vectorize or (kind.is_thread and not threads_are_hardware):
            what = f"the scattered axes of T{tensor.name} to be loops"
            raise ScheduleError(expected("parallelize", what, kind.name))


def scattered_loops(structure: LoopStructure, tensor: TensorView) -> list[Loop]:
    """The loops of a write that are made of its scattered axes."""
    assert isinstance(tensor.expr, WriteOp)
    roots = tensor.domain.root_or_logical
    scattered = {roots[place] for place in tensor.expr.scattered}
    own = enumerate(structure.scheduled[tensor].loop)
    loops = [structure.loop(tensor, place) for place, axis in own if _made_of(axis, scattered)]
    return [loop for loop in loops if loop.extent is not ONE]


def _made_of(axis: IterDomain, wanted: set[IterDomain]) -> bool:
    if axis in wanted:
        return True
    made = axis.definition
    return made is not None and any(_made_of(source, wanted) for source in made.inputs)
