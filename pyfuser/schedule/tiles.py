"""A matrix and its tiles: what the schedules of inputs that run across each other share.

    matrix:   [outer][rows][columns]
    tasks:    [outer][task: tile of rows][task: chunk of columns][rows][columns]
    squares:  [tasks][columns][rows][columns of a line: unroll][rows: unroll][columns: lanes]

The transposed inputs lie along the rows in memory, everything else along the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.domains import IterDomain, ParallelType
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import PointwiseParameters
from .common import Layouts, merge_range, ordered_axes, range_to
from .propagation import parallelize_like, transform_like

# Tasks of a processor follow each other along the rows.
TASKS = (ParallelType.grid_z, ParallelType.grid_x, ParallelType.grid_y)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The axes of a tensor in memory order, and which of them are its rows and columns."""

    axes: Sequence[IterDomain]
    rows: Sequence[IterDomain]
    columns: Sequence[IterDomain]

    @staticmethod
    def of(tensor: TensorView, row_axis: IterDomain, layouts: Layouts) -> Matrix:
        """Rows that end with `row_axis` and columns that end with the last axis, each as many as
        form one range of memory in all leaves."""
        axes = ordered_axes(tensor)
        real = [axis for axis in axes if not axis.is_broadcast]
        return Matrix(axes, range_to(row_axis, real, layouts), range_to(real[-1], real, layouts))

    def along(self, of: Mapping[IterDomain, IterDomain]) -> Matrix:
        """The same of another tensor."""
        return Matrix(*([of[a] for a in each] for each in (self.axes, self.rows, self.columns)))

    def split_into_tasks(
        self,
        scheduled: ScheduledFusion,
        tensor: TensorView,
        tile: int,
        chunk: int,
        kinds: Sequence[ParallelType] = TASKS,
    ) -> int:
        """Makes these the tensor's loops; returns the position of the rows inside a task.

        `kinds` are those of the loops over outer axes, tiles and chunks.  Broadcast axes are outer:
        a tensor may have one that corresponds to no loop.
        """
        own, first = scheduled[tensor], self.merge(scheduled, tensor)
        own.split(first, tile)
        own.split(first + 2, chunk)
        own.reorder({first + 1: first + 2})
        for position, kind in enumerate(kinds[-first - 2 :]):
            own.parallelize(position, kind)
        return first + 2

    def merge(self, scheduled: ScheduledFusion, tensor: TensorView) -> int:
        """Makes [outer][rows][columns] the tensor's loops; returns the position of the rows."""
        own = scheduled[tensor]
        outer = [a for a in self.axes if a not in self.rows and a not in self.columns]
        own.loop = [*outer, *self.rows, *self.columns]
        merge_range(scheduled, tensor, len(outer) + len(self.rows), len(own.loop))
        merge_range(scheduled, tensor, len(outer), len(own.loop) - 1)
        merge_range(scheduled, tensor, 0, len(outer))
        return 1 if outer else 0


def split_into_squares(
    scheduled: ScheduledFusion, tensor: TensorView, inside: int, parameters: PointwiseParameters
) -> None:
    """Cuts what is inside a tensor's tasks into squares, with the lanes along the columns."""
    own = scheduled[tensor]
    own.split(inside, parameters.lanes)
    own.split(inside + 2, parameters.lanes)
    own.split(inside + 2, parameters.unroll)
    # [rows][rows: unroll][columns][columns of a line][columns: lanes]
    own.reorder({inside: inside + 1, inside + 1: inside + 3, inside + 2: inside})
    for position in (inside + 2, inside + 3):
        own.parallelize(position, ParallelType.unroll)
    own.parallelize(inside + 4, ParallelType.block_x)


def read_along_rows(scheduled: ScheduledFusion, square: TensorView, inside: int) -> None:
    """Makes the copy of a transposed input a square that is read along the input's memory."""
    own = scheduled[square]
    own.memory_type = MemoryType.shared
    own.reorder({inside + 3: inside + 4})
    own.parallelize(inside + 3, ParallelType.unroll)
    own.parallelize(inside + 4, ParallelType.block_x)


def loop_like(scheduled: ScheduledFusion, reference: TensorView, tensors: list[TensorView]) -> None:
    """Gives some tensors the reference's loops, and their kinds."""
    if tensors:  # none stands for all, for what this calls
        transform_like(scheduled, reference, tensors)
        parallelize_like(scheduled, reference, tensors=tensors)
