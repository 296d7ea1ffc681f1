"""The pointwise scheduler: every output element is computed once, everything between in registers.

    reference output, in memory order:  [outer axes | innermost range]
    1-D:   [range]         ->  [task: chunk][serial][unroll][lanes]
    2-D:   [outer][range]  ->  [task: row][serial][unroll][lanes]
    few rows:              ->  [task: row][task: chunk][serial][unroll][lanes]

The innermost range is as many axes as are one range in memory for all inputs and outputs (the break
point: a bias along the rows makes the fusion 2-D).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import PointwiseOp
from ..ir.fusion import Fusion
from ..ir.scalars import evaluate, product
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from .acceptance import IterationSpace
from .common import (
    EXPENSIVE,
    Layouts,
    fork_outputs,
    merge_adjacent,
    merge_range,
    parallelize_positions,
)
from .inlining import inline_most
from .propagation import transform_like


@dataclass(frozen=True, slots=True)
class PointwiseParameters:
    """lanes      elements of one vector
    unroll     vectors a step, written out
    chunk      elements a task takes of the innermost range; 0: a task takes the whole row
    """

    lanes: int
    unroll: int
    chunk: int


def reference_output(fusion: Fusion) -> TensorView:
    """The output whose axes all others are found from: the one with most concrete axes."""
    outputs = [v for v in fusion.outputs if isinstance(v, TensorView)]
    space = IterationSpace([e for e in fusion.exprs if e.tensor_outputs])
    return max(outputs, key=lambda t: (len(space.axes(t)), len(t.axes)))


def widest_bytes(fusion: Fusion) -> int:
    """Bytes of the widest element that is computed."""
    dtypes = {t.dtype for t in fusion.tensors}
    return max((max(4, size_in_bytes(d)) for d in dtypes), default=4)


def unroll_factor(fusion: Fusion) -> int:
    """Few vectors a step where one keeps the machine busy for long: less code to compile."""
    work = sum(
        8 if e.op in EXPENSIVE else 1 for e in fusion.exprs if isinstance(e, PointwiseOp)
    )
    return 4 if work <= 8 else 2 if work <= 24 else 1


def heuristics(fusion: Fusion, sizes: Mapping[str, int], machine: Any) -> PointwiseParameters:
    """Lanes of the machine's vectors; chunks of half the L1 cache, so that tasks are worth it."""
    reference = reference_output(fusion)
    layouts = Layouts(fusion)
    rows, columns = _shape(reference, layouts, sizes)
    chunk = 4096
    whole_rows = rows >= 4 * machine.cores and rows * columns > 0
    if rows == 1 or (not whole_rows and columns > chunk):
        return PointwiseParameters(
            machine.lanes(widest_bytes(fusion)), unroll_factor(fusion), chunk
        )
    return PointwiseParameters(machine.lanes(widest_bytes(fusion)), unroll_factor(fusion), 0)


def _shape(
    reference: TensorView, layouts: Layouts, sizes: Mapping[str, int]
) -> tuple[int, int]:
    """(rows, elements of the innermost range)."""
    axes = ordered_axes(reference)
    inner: list[IterDomain] = axes[-1:]
    while len(inner) < len(axes) and layouts.merges(axes[-len(inner) - 1], inner[0]):
        inner.insert(0, axes[-len(inner) - 1])
    outer = axes[: len(axes) - len(inner)]
    rows, columns = product(a.size for a in outer), product(a.size for a in inner)
    return evaluate(rows, sizes), evaluate(columns, sizes)


def ordered_axes(tensor: TensorView) -> list[IterDomain]:
    """The logical axes in memory order."""
    domain = tensor.domain
    return domain.allocated if domain.allocation is not None else tensor.axes


def schedule(fusion: Fusion, parameters: PointwiseParameters) -> ScheduledFusion:
    """The loops; see the module's text."""
    copy, _ = fusion.clone()
    scheduled = ScheduledFusion(copy, scheduler="pointwise", parameters=parameters)
    fork_outputs(scheduled)
    layouts = Layouts(copy)
    reference = reference_output(copy)
    own = scheduled[reference]
    own.loop = list(ordered_axes(reference))
    if not own.loop:
        inline_most(scheduled)
        return scheduled
    inner = merge_adjacent(scheduled, reference, layouts, 0, len(own.loop))
    merge_range(scheduled, reference, 0, inner)
    has_rows = inner > 0
    kinds: dict[int, ParallelType] = {}
    position = 0
    if has_rows:
        kinds[0] = ParallelType.grid_x
        position = 1
    if parameters.chunk:
        own.split(position, parameters.chunk)
        kinds[position] = ParallelType.grid_x
        if has_rows:
            kinds[0] = ParallelType.grid_y
        position += 1
    own.split(position, parameters.lanes)
    own.split(position, parameters.unroll)
    kinds[position + 1] = ParallelType.unroll
    kinds[position + 2] = ParallelType.block_x
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    inline_most(scheduled)
    return scheduled
