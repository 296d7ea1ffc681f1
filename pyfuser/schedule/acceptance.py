"""Which scheduler accepts a fusion, from the structure of its iteration space.

A `Summary` is what the schedulers need to know about an iteration space; the `*_refusal` functions
turn a summary into a reason, or None.  The segmenter merges summaries without looking at
expressions again, and `examine` makes the summary of a whole fusion, so both get the same answer
from the same functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..analysis.costs import is_copy, is_cut
from ..analysis.iteration_space import Axes, IterationSpace, Signature, Step
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
from ..ir.scalars import ONE, IntExpr
from ..ir.vals import TensorView, Val
from ..target.target import Target
from .size_info import SizeInfo


@dataclass(slots=True)
class Summary:
    """A group of expressions as the schedulers see it.

    axes        every concrete axis of every tensor that is read or computed
    outputs     how many of the group's outputs have these axes
    signatures  the kinds of reductions, scans and scatters
    after       the axes of the tensors that depend on one of these in the group, by its kind
    terminals   how many tensors with these axes are read by nothing in the group
    steps       the splits and merges of the reshapes
    row_bytes   bytes of the widest element that is reduced or scanned
    """

    axes: set[int] = field(default_factory=set)
    outputs: Counter[Axes] = field(default_factory=Counter)
    signatures: set[Signature] = field(default_factory=set)
    after: dict[Signature, Axes] = field(default_factory=dict)
    terminals: Counter[Axes] = field(default_factory=Counter)
    steps: set[Step] = field(default_factory=set)
    row_bytes: int = 0

    @property
    def post_axes(self) -> Axes:
        """The axes of the tensors that depend on any reduction of the group."""
        return frozenset().union(*self.after.values())

    def add_after(self, signatures: Iterable[Signature], axes: Axes) -> None:
        """Notes that a tensor with these axes depends on reductions of these kinds."""
        for signature in signatures:
            self.after[signature] = self.after.get(signature, axes) | axes

    @property
    def is_ordered(self) -> bool:
        """True if the group scans or scatters elements."""
        return any(signature.is_ordered for signature in self.signatures)

    @property
    def has_rows(self) -> bool:
        """True if the group reduces or scans elements."""
        return any(not signature.is_scatter for signature in self.signatures)


def backward_closure(base: Axes, steps: Collection[Step]) -> Axes | None:
    """The axes whose indices follow from those of `base`, going up through reshapes.

    None if an axis would follow in two ways (a reshape there and back, or two reshapes of one
    axis): no single loop nest computes both.
    """
    if not steps:
        return base
    reach = set(base)
    done: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for step in sorted(steps, key=lambda s: -s.index):
        if (step.inputs, step.outputs) in done or not reach.issuperset(step.outputs):
            continue
        done.add((step.inputs, step.outputs))
        if not reach.isdisjoint(step.inputs):
            return None
        reach.update(step.inputs)
    return frozenset(reach)


# -- one function per scheduler: why a summary can't be scheduled

NO_REFERENCE = "cannot find reference tensor"
ORDERED = "a scan or scatter computes each element in turn"
NORMALIZATION = "a reduction result is broadcast back along the reduced axes (a normalization)"


def reference_axes(summary: Summary) -> Axes | None:
    """The axes of an output from which every tensor can be indexed; None if there is none."""
    for axes in sorted(summary.outputs, key=lambda a: (-len(a), sorted(a))):
        reach = backward_closure(axes, summary.steps)
        if reach is None or not summary.axes <= reach:
            continue
        # A tensor with axes from before a reshape follows only if it leads to a tensor after it.
        if all(terminal <= axes for terminal in summary.terminals):
            return axes
    return None


def pointwise_refusal(summary: Summary) -> str | None:
    """No reductions, and a reference tensor."""
    if summary.signatures:
        return NO_REFERENCE
    if reference_axes(summary) is None:
        return f"{NO_REFERENCE}: no output has the axes of all tensors"
    return None


def _single_signature(summary: Summary) -> Signature | str:
    if not summary.signatures:
        return "no reduction"
    if summary.is_ordered:
        return ORDERED
    if len({s.reduced for s in summary.signatures}) > 1:
        return "reductions over different axes"
    if len(summary.signatures) > 1:
        return "reductions of inputs with different axes"
    (signature,) = summary.signatures
    base = signature.reduced | signature.kept
    reach = backward_closure(base, summary.steps)
    if reach is None or not summary.axes <= reach:
        return "a tensor has an axis that the input of the reduction doesn't have"
    if not all(signature.kept <= axes for axes in summary.outputs):
        # Each row would compute and store the output again.
        return "an output doesn't have all axes that the reduction keeps"
    if not summary.post_axes <= base:
        return "a reduction result is reshaped or broadcast to an axis that was not reduced"
    return signature


def reduction_refusal(summary: Summary) -> str | None:
    """One kind of reduction; after it, only tensors of the reduced shape."""
    signature = _single_signature(summary)
    if isinstance(signature, str):
        return signature
    if summary.post_axes & signature.reduced:
        return NORMALIZATION
    return None


def persistent_refusal(
    summary: Summary, innermost: int, sizes: SizeInfo, extents: Sequence[IntExpr]
) -> str | None:
    """One kind of reduction, and its result is used again along the reduced axes.

    `innermost` is the number of the axis that is innermost in memory.
    """
    signature = _single_signature(summary)
    if isinstance(signature, str):
        return signature
    if not summary.post_axes & signature.reduced:
        return "no reduction result is broadcast back along the reduced axes"
    rows = sizes.elements(extents[n] for n in signature.kept)
    columns = sizes.elements(extents[n] for n in signature.reduced)
    if rows is None or columns is None:
        return None
    is_inner = innermost in signature.reduced
    if sizes.splits_columns and not is_inner:
        return "columns so long that kernels for each pass over them are faster"
    if is_inner and len(signature.reduced) > 1:
        too_long = "rows of several axes that are too few for all workers, or too long to be cached"
        return too_long if sizes.splits_rows else None
    return sizes.target.row_refusal(rows, columns, summary.row_bytes, is_inner)


def nested_refusal(summary: Summary, innermost: int, sizes: SizeInfo) -> str | None:
    """Reductions of parts of a row, whose results are reduced along the rest of the row.

    The first reduce the axis that is innermost in memory, numbered `innermost`; each of the next
    kinds reduces only axes that the one before kept.
    """
    if len(summary.signatures) < 2 or summary.is_ordered:
        return "not several kinds of reductions"
    if not sizes.nests_rows:
        return "rows whose parts are too short, or that are too few or too long for one kernel"
    first, *others = sorted(summary.signatures, key=lambda s: -len(s.reduced | s.kept))
    if innermost not in first.reduced:
        return "the first reduction isn't of the axis that is innermost in memory"
    kept = first.kept
    for signature in others:
        if signature.reduced | signature.kept != kept:
            return "a reduction isn't of the results of another"
        kept = signature.kept
    base = first.reduced | first.kept
    reach = backward_closure(base, summary.steps)
    if reach is None or not summary.axes <= reach or not summary.post_axes <= base:
        return "a tensor has an axis that the input of the first reduction doesn't have"
    is_in_rows = all(kept <= axes for axes in summary.outputs)
    return None if is_in_rows else "an output doesn't have all axes that the last reduction keeps"


def inner_outer_refusal(
    summary: Summary, innermost: int, sizes: SizeInfo, extents: Sequence[IntExpr]
) -> str | None:
    """Reductions of rows, and of all rows for each column; nothing else follows from the latter.

    `innermost` is the number of the axis that is innermost in memory: it is along the rows.
    """
    found = sorted(summary.signatures, key=lambda s: innermost not in s.reduced)
    if len(found) != 2 or summary.is_ordered:
        return "not two kinds of reductions, of rows and of columns"
    rows, columns = found
    if innermost not in rows.reduced:
        return "no reduction of the axis that is innermost in memory"
    if rows.reduced != columns.kept or rows.kept != columns.reduced:
        return "the two kinds of reductions aren't of the rows and columns of one matrix"
    if summary.steps or not summary.axes <= rows.reduced | rows.kept:
        return "a tensor has an axis that the inputs of the reductions don't have"
    if not summary.after[columns] <= columns.kept:
        return "a reduction of columns is used again along its rows"
    if not all(rows.kept <= axes or axes == columns.kept for axes in summary.outputs):
        return "an output has neither all rows nor all columns"
    elements = (sizes.elements(extents[n] for n in axes) for axes in (rows.kept, rows.reduced))
    count, length = elements
    if count is None or length is None:
        return None
    return sizes.target.inner_outer_refusal(count, length, summary.row_bytes)


def greedy_refusal(summary: Summary) -> str | None:
    """Scans, or scatters, along one axis, and tensors that one loop over theirs computes too."""
    if not summary.is_ordered:
        return "no scan or scatter"
    if not all(signature.is_ordered for signature in summary.signatures):
        return "a reduction and a scan or scatter have different loops"
    if len({s.is_scatter for s in summary.signatures}) > 1:
        return "a scan and a scatter have different loops"
    if len({s.reduced for s in summary.signatures}) > 1:
        return "scans or scatters along different axes"
    if len({s.is_reversed for s in summary.signatures}) > 1:
        return "scans in opposite directions"
    if len(summary.signatures) > 1:
        return "scans or scatters of tensors with different axes"
    (signature,) = summary.signatures
    base = signature.reduced | signature.kept
    reach = backward_closure(base, summary.steps)
    if reach is None or not summary.axes <= reach:
        return "a tensor has an axis that the scan or scatter doesn't have"
    if not all(base <= axes for axes in summary.outputs):
        return "an output doesn't have all axes of the scan or scatter"
    if not summary.post_axes <= base:
        return "the result of a scan is reshaped"
    return None


# -- whole fusions


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
