"""Counts how often a kernel's statements run, and how often each would run on its own.

Fusing may recompute a value, but never asymptotically more often. `excess` names the tensor whose
recomputation exceeds the bound, so that the segmenter can store it and cut after it.

A statement runs once for each element that its tensor's loops visit.  Along an axis that the tensor
broadcasts, it runs again for each element of the reader whose loop it shares; in a kernel of many
tasks, a statement outside the grid's loops runs once per task.  Copies between registers aren't
counted, because no instruction remains of them.  Vector lanes and unrolled iterations past the end
of an axis aren't counted either; they never grow with the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..analysis.costs import is_copy
from ..ir.domains import ParallelType, history
from ..ir.exprs import Expr, IndexedWrite, PointwiseOp, RandomOp, ReadOp, ScanOp, ScatterOp
from ..ir.fusion import Fusion
from ..ir.kernel import Kernel, Runs
from ..ir.scalar_queries import evaluate
from ..ir.scalars import ONE, IntExpr, product
from ..ir.vals import TensorView
from .indexing import Indexer

# A kernel may run up to this many times as many statements as its operations run unfused.
MOST_REPEATED = 4
# Even a launch with nothing to do takes about as long as this many statements of one lane.
_LAUNCH = 1 << 14
# Sizes may grow after a decision: the repetition may then grow by a constant factor at most.
_GROWTH, _MOST_REPEATED_GROWN = 64, 16


@dataclass(frozen=True, slots=True)
class Excess:
    """Why a kernel does too much work, and the tensor to blame: storing it ends the repetition."""

    tensor: TensorView
    reason: str


def computes(expr: Expr) -> bool:
    """True for expressions that need instructions: not for views and copies."""
    if isinstance(expr, PointwiseOp):
        return not is_copy(expr)
    return expr.accumulates or isinstance(expr, ReadOp | RandomOp | ScanOp | IndexedWrite)


def count_runs(
    indexer: Indexer, tensors: list[TensorView], grid: Mapping[ParallelType, IntExpr]
) -> list[Runs]:
    """The counts of one phase's statements."""
    found = []
    for tensor in tensors:
        expr = tensor.expr
        assert expr is not None
        if tensor is not expr.tensor_outputs[0]:
            continue
        is_kept = tensor in indexer.scheduled.fusion.outputs or indexer.buffer_extents(tensor)
        if computes(expr) or is_kept:
            found.append(
                Runs(tensor.name, _iterations(indexer, tensor) * _tasks(indexer, tensor, grid))
            )
    return found


def _iterations(indexer: Indexer, tensor: TensorView) -> IntExpr:
    """The number of elements that a tensor's loops visit."""
    loop, roots = indexer.scheduled[tensor].loop, tensor.domain.root_or_logical
    steps = history(loop, roots)
    made = {axis for step in steps for axis in step.outputs}
    used = dict.fromkeys(axis for step in steps for axis in step.inputs)
    leaves = [axis for axis in dict.fromkeys((*used, *loop)) if axis not in made]
    extents = indexer.structure.extents[tensor]
    return product(extents.get(axis, axis.extent) for axis in leaves)


def _tasks(indexer: Indexer, tensor: TensorView, grid: Mapping[ParallelType, IntExpr]) -> IntExpr:
    """How many tasks run the statement in full."""
    own = {loop.parallel_type for loop in indexer.structure.loops(tensor)}
    missing = [extent for kind, extent in grid.items() if kind not in own]
    return product(missing) if missing else ONE


def unfused_runs(fusion: Fusion) -> dict[int, IntExpr]:
    """How often each statement of a fusion runs on its own, by the name of its tensor."""
    found = {}
    for expr in fusion.live_exprs():
        for tensor in expr.tensor_outputs[:1]:
            is_output = tensor in fusion.outputs
            if computes(expr) or is_output:
                writes = expr.value.axes if isinstance(expr, ScatterOp) else None
                axes = writes or tensor.domain.root_or_logical
                found[tensor.name] = product(a.size if is_output else a.extent for a in axes)
    return found


def _at(count: IntExpr, sizes: Mapping[str, int]) -> int:
    """A count at some sizes; nothing runs if an axis is cut into no parts."""
    try:
        return evaluate(count, sizes)
    except ZeroDivisionError:
        return 0


def total_runs(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """How many statements a kernel runs at these sizes."""
    return sum(_at(runs.count, sizes) for runs in kernel.runs)


def is_too_much(fusion: Fusion, runs: int, sizes: Mapping[str, int]) -> bool:
    """True if a fusion shouldn't run this many statements at these sizes."""
    least = sum(_at(count, sizes) for count in unfused_runs(fusion).values())
    return runs > MOST_REPEATED * least + _LAUNCH


def excess(fusion: Fusion, kernel: Kernel, sizes: Mapping[str, int]) -> Excess | None:
    """The excess of a kernel over the bound at these sizes, or as they grow; None within it."""
    alone = unfused_runs(fusion)
    grown = {name: max(size, 1) * _GROWTH for name, size in sizes.items()}
    for at, most, free in ((sizes, MOST_REPEATED, _LAUNCH), (grown, _MOST_REPEATED_GROWN, 0)):
        once = {name: _at(count, at) for name, count in alone.items()}
        total, least = total_runs(kernel, at), sum(once.values())
        if total > most * least + free:
            runs = {r.tensor: _at(r.count, at) for r in kernel.runs}
            tensor = _culprit(fusion, runs, once)
            if tensor is not None:
                what = f"T{tensor.name} would be recomputed so often that {total} statements run"
                return Excess(tensor, f"{what} instead of {least}")
    return None


def _culprit(fusion: Fusion, runs: Mapping[int, int], once: Mapping[int, int]) -> TensorView | None:
    """The last tensor of the chain that is recomputed most; None if it is a copy."""
    best: tuple[int, TensorView] | None = None
    repeats: dict[TensorView, int] = {}
    for expr in fusion.live_exprs():
        before = sum(repeats.get(tensor, 0) for tensor in dict.fromkeys(expr.aligned_inputs))
        for tensor in expr.tensor_outputs:
            own = runs.get(tensor.name, 0) - once.get(tensor.name, 0)
            is_repeated = own > once.get(tensor.name, own)
            repeats[tensor] = own + before if is_repeated else 0 if computes(expr) else before
            is_last = tensor in fusion.outputs and not tensor.uses_list
            if is_repeated and not is_last and (best is None or repeats[tensor] > best[0]):
                best = repeats[tensor], tensor
    return None if best is None else best[1]
