"""What the schedulers ask about a whole fusion, or a group that will be one.

`examine` makes the summary that acceptance.py judges; the other functions are about what only whole
groups need: which tensor a schedule starts from, what runs across it in memory, which outputs are
views of inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..analysis.costs import is_copy, is_cut
from ..analysis.iteration_space import IterationSpace, Signature
from ..dtypes import size_in_bytes
from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    PermuteOp,
    PointwiseOp,
    ReshapeOp,
    ScatterOp,
    SqueezeOp,
    WindowOp,
    is_shown_by_strides,
)
from ..ir.fusion import Fusion
from ..ir.scalars import ONE
from ..ir.vals import TensorView, Val
from ..target.target import Target
from .acceptance import Summary, reference_axes
from .size_info import SizeInfo


@dataclass(slots=True)
class Facts:
    """What `can_schedule` looks at: the summary, and facts that only whole groups need.

    `stored` are the outputs that another segment reads and expects to be dense.
    """

    space: IterationSpace
    summary: Summary
    exprs: list[Expr]
    inputs: list[TensorView]
    outputs: list[TensorView]
    in_place: set[Val]
    stored: set[TensorView]
    problem: str | None


def tensor_exprs(exprs: Iterable[Expr]) -> list[Expr]:
    """The expressions that compute tensors; those over scalars run on the host."""
    return [expr for expr in exprs if expr.tensor_outputs]


def reduced_bytes(expr: Expr) -> int:
    """Bytes per element of a reduction's input."""
    return size_in_bytes(expr.inputs[0].dtype)


def examine(fusion: Fusion) -> Facts:
    """The facts of a whole fusion; linear in its expressions."""
    outputs = [v for v in fusion.outputs if isinstance(v, TensorView)]
    return examine_exprs(fusion.live_exprs(), outputs, set(fusion.aliases))


def examine_exprs(
    exprs: Iterable[Expr],
    outputs: Iterable[TensorView],
    in_place: Collection[Val] = (),
    stored: Collection[TensorView] = (),
) -> Facts:
    """The facts of some expressions, given in topological order."""
    chosen = tensor_exprs(exprs)
    computed = dict.fromkeys(t for e in chosen for t in e.tensor_outputs)
    read = dict.fromkeys(t for e in chosen for t in e.tensor_inputs)
    inputs = [t for t in read if t not in computed]
    made = [t for t in dict.fromkeys(outputs) if t in computed]
    space, summary = IterationSpace(chosen), Summary()
    after: dict[TensorView, frozenset[Signature]] = {}
    nothing: frozenset[Signature] = frozenset()
    for expr in chosen:
        summary.axes |= space.touched(expr)
        before = nothing.union(*(after.get(tensor, nothing) for tensor in expr.tensor_inputs))
        for tensor in expr.tensor_outputs:
            summary.steps.update(space.steps(tensor))
            signature = space.signature(tensor)
            if signature is not None:
                summary.signatures.add(signature)
                summary.row_bytes = max(summary.row_bytes, reduced_bytes(expr))
            after[tensor] = before if signature is None else before | {signature}
            summary.add_after(after[tensor], space.loops(tensor))
    summary.outputs = Counter(space.loops(tensor) for tensor in made)
    summary.terminals = Counter(space.loops(tensor) for tensor in made if tensor not in read)
    problem = _common_problem(space, chosen)
    return Facts(space, summary, chosen, inputs, made, set(in_place), set(stored), problem)


def uncomputed(exprs: Iterable[Expr], target: Target) -> str | None:
    """Why a target can't compute all of the expressions; None if it can."""
    return next((why for expr in exprs if (why := target.refusal(expr)) is not None), None)


def _common_problem(space: IterationSpace, exprs: Sequence[Expr]) -> str | None:
    if space.conflicts:
        expr, tensor = space.conflicts[0]
        return f"{expr.name} reads T{tensor.name} along axes that another use orders differently"
    chosen = set(exprs)
    for expr in exprs:
        if expr.source is not None and expr.source.expr in chosen:
            return f"{expr.name} reads T{expr.source.name} at other positions than it is computed"
        if isinstance(expr, ScatterOp) and not chosen.isdisjoint(expr.output.uses_list):
            return f"T{expr.output.name} is complete only when the scatter ends"
        if is_cut(expr) and not chosen.isdisjoint(expr.output.uses_list):
            return f"segment_set cuts after T{expr.output.name}"
    return None if is_connected(exprs) else "the fusion is not connected"


def reads_nothing(facts: Facts, sizes: SizeInfo) -> str | None:
    """Why no kernel may read tensors without elements.

    Torch raises for a non-empty read of an empty source.  Along an expanded axis kernels read one
    element whatever its size, so if the size is 0 there is no memory to read.
    """
    missing = [t for t in facts.inputs if t.has_expanded_axis and sizes.is_empty(t)]
    if missing and not all(map(sizes.is_empty, facts.outputs)):
        return f"T{missing[0].name} is expanded to no elements"
    for expr in facts.exprs:
        source = expr.source
        is_filled = isinstance(expr, WindowOp) and len(expr.inputs) == 2
        if source is None or is_filled or sizes.is_empty(expr.tensor_outputs[0]):
            continue
        if sizes.is_empty(source):
            return f"{expr.name} reads T{source.name}, which has no elements"
    return None


def unlike_outputs(facts: Facts) -> str | None:
    """Why no kernel may have an output with an expanded axis beside other outputs or reductions.

    It is written element by element, in loops that correspond to no axis of another tensor.
    """
    if len(facts.outputs) == 1 and not facts.summary.signatures:
        return None
    for tensor in facts.outputs:
        if tensor.has_expanded_axis and tensor in tensor.fusion.outputs:
            return f"T{tensor.name} is expanded, but not the only result of the kernel"
    return None


def is_connected(exprs: Sequence[Expr]) -> bool:
    """True if every two expressions are connected through tensors."""
    if not exprs:
        return True
    at: dict[TensorView, list[Expr]] = {}
    for expr in exprs:
        for tensor in (*expr.tensor_inputs, *expr.tensor_outputs):
            at.setdefault(tensor, []).append(expr)
    seen, stack = {exprs[0]}, [exprs[0]]
    while stack:
        expr = stack.pop()
        for tensor in (*expr.tensor_inputs, *expr.tensor_outputs):
            fresh = [e for e in at.pop(tensor, ()) if e not in seen]
            seen.update(fresh)
            stack += fresh
    return len(seen) == len(exprs)


def reference_tensor(facts: Facts) -> TensorView | None:
    """The output that a pointwise schedule starts from; every tensor follows from its axes."""
    axes = reference_axes(facts.summary)
    if axes is None:
        return None
    return next(t for t in facts.outputs if facts.space.axes(t) == axes)


def has_transposed_input(facts: Facts) -> bool:
    """True if an input runs along another axis in memory than the reference output does."""
    reference = reference_tensor(facts)
    if reference is None:
        return False
    axes = _in_memory(facts, reference)
    read = dict.fromkeys(t for e in facts.exprs for t in e.aligned_inputs)
    orders: list[Sequence[int]] = [_in_memory(facts, t) for t in read if t in facts.inputs]
    orders += [
        facts.space.read_along(expr, tensor)
        for expr in facts.exprs
        for tensor in expr.aligned_inputs
        if tensor in facts.space.private
    ]
    return any(
        len(order) > 1 and order[-1] != axes[-1] and axes[-1] in order for order in orders if axes
    )


def _in_memory(facts: Facts, tensor: TensorView) -> list[int]:
    """The numbers of a tensor's axes, outermost in memory first."""
    return [facts.space.number(a) for a in tensor.domain.allocated if not a.is_broadcast]


def _changes_order(copy: PointwiseOp) -> bool:
    """True if a copy's axes are in another order in memory than its operand's."""
    source, result = copy.tensor_inputs[0], copy.tensor_outputs[0]
    before, after = (
        [place for place in tensor.domain.memory_order if not tensor.axes[place].is_broadcast]
        for tensor in (source, result)
    )
    return before != after


def _repeats(copy: PointwiseOp) -> bool:
    """True if a copy writes elements several times: its operand has an axis of stride 0."""
    domain = copy.tensor_inputs[0].domain
    return any(
        flag is None and not axis.is_broadcast and axis.size is not ONE
        for axis, flag in zip(domain.allocated, domain.contiguity, strict=True)
    )


def view_source(
    tensor: TensorView, inputs: Collection[Val], dense: bool = False
) -> TensorView | None:
    """The input of which a tensor is a view without moving data; None if there is none.

    With `dense` the view must have its elements in row-major order without gaps.  A copy of a
    permuted input moves data, which a kernel reads in tiles; so does one of an expanded input.  Of
    slices, only those of whole rows of a dense input are views.
    """
    passed: set[type[Expr]] = {ReshapeOp} if dense else set()
    current = tensor
    while current not in inputs:
        expr = current.expr
        match expr:
            case _ if current.domain.allocation is not None:
                return None
            case PointwiseOp() if not is_copy(expr) or _changes_order(expr) or _repeats(expr):
                return None
            case PermuteOp() | ExpandOp() if not passed.isdisjoint((ReshapeOp, WindowOp)):
                return None
            case WindowOp() if _is_of_rows(expr):
                passed.add(WindowOp)
            case BroadcastOp() | SqueezeOp():
                pass
            case PointwiseOp() | ReshapeOp() | PermuteOp() | ExpandOp():
                passed.add(type(expr))
            case _:
                return None
        current = expr.tensor_inputs[0]
    if passed.issuperset((PointwiseOp, PermuteOp)):
        return None
    domain = current.domain
    # An axis of stride 0 is dense only if it has one element.
    pairs = zip(domain.allocated, domain.contiguity, strict=True)
    is_packed = all(flag or (flag is None and axis.size is ONE) for axis, flag in pairs)
    dense = domain.allocation is None and is_packed
    return current if dense or passed.isdisjoint((ReshapeOp, WindowOp)) else None


def _is_of_rows(expr: WindowOp) -> bool:
    """True for a slice along the first axis, whose elements follow each other."""
    first, *others = expr.windows
    return (
        not any(others)
        and first is not None
        and is_shown_by_strides(expr)
        and first.step is ONE
        and not expr.tensor_outputs[0].axes[0].is_broadcast
    )
