"""Loops in parts: whole steps without predicates, and what is left as little code."""

from __future__ import annotations

from pyfuser import DataType, FusionDefinition
from pyfuser.ir.domains import ParallelType
from pyfuser.ir.kernel import Allocate, Compute, For
from pyfuser.ir.kernel_queries import walk
from pyfuser.kernel_builds import lowered
from pyfuser.schedule.transpose import schedule
from pyfuser.target.parameters import PointwiseParameters
from tests.support.targets import PRETENDED


def test_the_last_tiles_are_a_loop_of_tiles_most_of_which_are_whole() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, stride_order=[0, 1], dtype=DataType.Float)
        y = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.add(x, y))
    parameters = PointwiseParameters(8, 2, 128, 16)
    kernel = lowered(schedule(fd.fusion.definition, parameters), PRETENDED)
    tiles = [
        loop
        for loop in walk(kernel.phases[0].body)
        if isinstance(loop, For) and any(isinstance(s, Allocate) for s in loop.body)
    ]
    unrolled = [loop.parallel_type is ParallelType.unroll for loop in tiles]
    predicated = [
        any(isinstance(s, Compute) and s.predicate for s in walk(loop.body)) for loop in tiles
    ]
    assert unrolled == [True, False, False]
    assert predicated == [False, False, True]


def test_loops_that_fill_a_buffer_end_with_its_elements() -> None:
    """A part of a row is put together in a buffer: by as few tiles as it has columns."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, stride_order=[0, 1], dtype=DataType.Float)
        y = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.add(x, y))
    parameters = PointwiseParameters(8, 1, 128, 16, staged=True)
    kernel = lowered(schedule(fd.fusion.definition, parameters), PRETENDED)
    loops = [s for s in walk(kernel.phases[0].body) if isinstance(s, For)]
    columns = next(loop for loop in loops if loop.parallel_type is ParallelType.serial)
    sizes = {tensor.buffer.name: tensor for tensor in kernel.tensors if tensor.is_output}
    (output,) = sizes.values()
    assert output.sizes[1] in columns.stop.symbols
