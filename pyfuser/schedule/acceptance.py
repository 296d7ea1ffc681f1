"""Which scheduler accepts a fusion, from the structure of its iteration space.

A `Summary` is what the schedulers need to know about an iteration space; the `*_refusal` functions
turn a summary into a reason, or None.  The segmenter merges summaries without looking at
expressions again, and facts.py makes the summary of a whole fusion, so both get the same answer
from the same functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..analysis.iteration_space import Axes, Signature, Step
from ..ir.scalars import IntExpr
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


def nested_refusal(
    summary: Summary, innermost: int, sizes: SizeInfo, extents: Sequence[IntExpr]
) -> str | None:
    """Reductions of parts of a row, whose results are reduced along the rest of the row.

    The first reduce the axis that is innermost in memory, numbered `innermost`; each of the next
    kinds reduces only axes that the one before kept.
    """
    if len(summary.signatures) < 2 or summary.is_ordered:
        return "not several kinds of reductions"
    too_few = "rows whose parts are too short, or that are too few or too long for one kernel"
    if not sizes.nests_rows:
        return too_few
    first, *others = sorted(summary.signatures, key=lambda s: -len(s.reduced | s.kept))
    if innermost not in first.reduced:
        return "the first reduction isn't of the axis that is innermost in memory"
    kept = first.kept
    for signature in others:
        if signature.reduced | signature.kept != kept:
            return "a reduction isn't of the results of another"
        kept = signature.kept
    rows = sizes.elements(extents[n] for n in kept)
    if rows is not None and rows < sizes.target.workers:
        return too_few  # the definition has other rows, which are enough
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
