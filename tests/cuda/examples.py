"""Scheduled fusions for the tests of the CUDA device: definitions with GPU schedules.

Each function returns a ScheduledFusion; its first line says what it computes.  The schedules are
the classic ones: they show the use of each parallel type and each kind of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyfuser.dtypes import DataType
from pyfuser.ir.domains import ParallelType, TensorDomain
from pyfuser.ir.exprs import ReductionOp, WelfordOp
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import MemoryType, ScheduledFusion
from pyfuser.ir.vals import TensorView
from pyfuser.ops import builders
from pyfuser.schedule.inlining import inline_at, inline_most
from pyfuser.schedule.propagation import parallelize_like, transform_like
from pyfuser.schedule.rewrite import cache_after, cache_before, rfactor

GRID_X, GRID_Y = ParallelType.grid_x, ParallelType.grid_y
BLOCK_X, BLOCK_Y = ParallelType.block_x, ParallelType.block_y
UNROLL, VECTORIZE = ParallelType.unroll, ParallelType.vectorize


def input_tensor(
    fusion: Fusion,
    rank: int,
    dtype: DataType = DataType.Float,
    broadcast: Sequence[int] = (),
    contiguous: bool = True,
) -> TensorView:
    """A fresh symbolic input; the axes of `broadcast` have size 1."""
    axes = [
        fusion.ids.broadcast() if i in broadcast else fusion.ids.new(fusion.new_extent())
        for i in range(rank)
    ]
    flags = [None if axis.is_broadcast else contiguous for axis in axes]
    tensor = fusion.new_tensor(TensorDomain(axes, flags), dtype)
    fusion.add_input(tensor)
    return tensor


def flat_schedule(
    scheduled: ScheduledFusion, references: Sequence[TensorView], threads: int = 128
) -> ScheduledFusion:
    """All axes merged, then [grid_x, block_x], everything inlined."""
    for reference in references:
        loops = scheduled[reference]
        while len(loops.loop) > 1:
            loops.merge(0, 1)
        loops.split(0, threads)
        transform_like(scheduled, reference)
        loops.parallelize(0, GRID_X)
        loops.parallelize(1, BLOCK_X)
        parallelize_like(scheduled, reference)
    inline_most(scheduled)
    return scheduled


def vector_schedule(scheduled: ScheduledFusion, threads: int, width: int) -> ScheduledFusion:
    """A one-dimensional fusion as [grid_x, block_x, width]: loads and stores are vectors."""
    fusion = scheduled.fusion
    outputs = [value for value in fusion.outputs if isinstance(value, TensorView)]
    loads = [cache_after(scheduled, tensor) for tensor in fusion.input_tensors]
    copies = [cache_before(scheduled, tensor) for tensor in outputs]
    reference = outputs[0]
    scheduled[reference].split(0, width)
    scheduled[reference].split(0, threads)
    transform_like(scheduled, reference)
    scheduled[reference].parallelize(0, GRID_X)
    scheduled[reference].parallelize(1, BLOCK_X)
    parallelize_like(scheduled, reference)
    for tensor in (*loads, *outputs):
        scheduled[tensor].parallelize(2, VECTORIZE)
    inline_most(scheduled, [tensor for tensor in fusion.tensors if tensor not in copies])
    inline_at(scheduled, reference, 2, tensors=copies)
    return scheduled


def add_chain() -> ScheduledFusion:
    """t0 + (t1 + 2): merged, split by 128 and 4; grid_x, unroll, block_x; inlined at 1."""
    fusion = Fusion()
    t0, t1 = input_tensor(fusion, 2), input_tensor(fusion, 2)
    t2 = builders.add(fusion, t1, 2.0)
    t3 = builders.add(fusion, t0, t2)
    fusion.add_output(t3)
    scheduled = ScheduledFusion(fusion)
    loops = scheduled[t3]
    loops.merge(0, 1)
    loops.split(0, 128)
    loops.split(0, 4)
    transform_like(scheduled, t3)
    for axis, kind in enumerate((GRID_X, UNROLL, BLOCK_X)):
        loops.parallelize(axis, kind)
    inline_at(scheduled, t3, 1)
    parallelize_like(scheduled, t3)
    return scheduled


def two_step_sum() -> ScheduledFusion:
    """sum over columns: a part for each of 128 threads (rfactor), then the block."""
    fusion = Fusion()
    t0 = input_tensor(fusion, 2)
    t1 = builders.sum(fusion, t0, [1])
    fusion.add_output(t1)
    scheduled = ScheduledFusion(fusion)
    scheduled[t1].split(1, 128)
    t2 = rfactor(scheduled, t1, [1])
    assert isinstance(t2, TensorView)
    for tensor, axis in ((t1, 1), (t2, 2)):
        scheduled[tensor].parallelize(0, GRID_X)
        scheduled[tensor].parallelize(axis, BLOCK_X)
    inline_most(scheduled)
    return scheduled


def shared_sum() -> ScheduledFusion:
    """sum over columns of a row that was copied to shared memory."""
    fusion = Fusion()
    t0 = input_tensor(fusion, 2)
    t1 = builders.sum(fusion, t0, [1])
    fusion.add_output(t1)
    scheduled = ScheduledFusion(fusion)
    row = cache_after(scheduled, t0)
    scheduled[row].memory_type = MemoryType.shared
    for tensor in (row, t1):
        scheduled[tensor].split(1, 64)
    t2 = rfactor(scheduled, t1, [1])
    assert isinstance(t2, TensorView)
    for tensor, axis in ((t1, 1), (t2, 2), (row, 2)):
        scheduled[tensor].parallelize(0, GRID_X)
        scheduled[tensor].parallelize(axis, BLOCK_X)
    inline_at(scheduled, t1, 1)
    return scheduled


def grid_sum() -> ScheduledFusion:
    """2 * sum of all elements, over grid_x and block_x, finished by the last block."""
    fusion = Fusion()
    t0 = input_tensor(fusion, 1)
    t1 = builders.sum(fusion, t0, [0])
    t2 = builders.mul(fusion, t1, 2.0)
    fusion.add_output(t2)
    scheduled = ScheduledFusion(fusion)
    scheduled[t1].split(0, 128)
    scheduled[t1].split(0, 4)
    t3 = rfactor(scheduled, t1, [1])
    assert isinstance(t3, TensorView)
    for tensor, axis in ((t1, 1), (t3, 2)):
        scheduled[tensor].parallelize(0, GRID_X)
        scheduled[tensor].parallelize(axis, BLOCK_X)
    return scheduled


def tiled_transpose() -> ScheduledFusion:
    """t0 transposed through a tile of 32 x 32 in shared memory."""
    fusion = Fusion()
    t0 = input_tensor(fusion, 2)
    t1 = builders.permute(fusion, t0, [1, 0])
    fusion.add_output(t1)
    scheduled = ScheduledFusion(fusion)
    tile = cache_after(scheduled, t0)
    scheduled[tile].memory_type = MemoryType.shared
    for tensor in (tile, t1):
        loops = scheduled[tensor]
        loops.split(0, 32)
        loops.split(2, 32)
        loops.reorder({0: 0, 2: 1, 1: 2})
    scheduled[tile].reorder({0: 1, 1: 0})
    for tensor in (tile, t1):
        for axis, kind in enumerate((GRID_X, GRID_Y, BLOCK_Y, BLOCK_X)):
            scheduled[tensor].parallelize(axis, kind)
    inline_at(scheduled, t1, 2)
    return scheduled


def row_softmax(dtype: DataType = DataType.Float, width: int = 4) -> ScheduledFusion:
    """softmax of each row: rows on grid_x, columns on block_x, a row in the block's registers.

    Each thread has 3 pieces of `width` elements: there are about columns / 3 / width threads.
    """
    fusion = Fusion()
    t0 = input_tensor(fusion, 2, dtype)
    x = builders.cast(fusion, t0, DataType.Float)
    highest = builders.max(fusion, x, [1], keepdim=True)
    e = builders.exp(fusion, builders.sub(fusion, x, highest))
    total = builders.sum(fusion, e, [1], keepdim=True)
    out = builders.cast(fusion, builders.div(fusion, e, total), dtype)
    fusion.add_output(out)
    scheduled = ScheduledFusion(fusion)
    scheduled[out].split(1, width)
    scheduled[out].split(1, 3, inner_split=False)
    return _rows(scheduled, out)


def _rows(scheduled: ScheduledFusion, reference: TensorView) -> ScheduledFusion:
    """[grid_x, pieces, block_x, elements] for all; reductions over block_x are cut by rfactor."""
    transform_like(scheduled, reference)
    kinds = (GRID_X, ParallelType.serial, BLOCK_X)
    computed = [expr.tensor_outputs[0] for expr in scheduled.fusion.exprs]
    for tensor in computed:
        for axis, kind in zip(scheduled[tensor].loop, kinds, strict=False):
            axis.parallel_type = kind
    for tensor in computed:
        if isinstance(tensor.expr, ReductionOp | WelfordOp):
            rfactor(scheduled, tensor, [1, 3])
    inline_most(scheduled)
    return scheduled


def welford_rows() -> ScheduledFusion:
    """(mean, sum of squared deviations, count) of each row, over block_x."""
    fusion = Fusion()
    outputs = builders.welford(fusion, input_tensor(fusion, 2), [1])
    for output in outputs:
        fusion.add_output(output)
    scheduled = ScheduledFusion(fusion)
    scheduled[outputs[0]].split(1, 4)
    scheduled[outputs[0]].split(1, 32)
    for axis, kind in ((0, GRID_X), (2, BLOCK_X), (3, UNROLL)):
        scheduled[outputs[0]].parallelize(axis, kind)
    rfactor(scheduled, outputs[0], [1, 3])
    inline_most(scheduled)
    return scheduled
