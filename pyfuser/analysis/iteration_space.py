"""The iteration space of some expressions: axes that one loop can iterate have the same number.

Segmentation uses it to find which reductions go together, schedulers to find which axes merge in
memory, propagation to find which axis of a tensor corresponds to one of the reference.  Reshapes
appear as steps between numbers.
Invariant: an axis number occurs at most once in a tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..ir.disjoint_sets import DisjointSets
from ..ir.domains import IdExpr, IterDomain, Split, history
from ..ir.exprs import (
    Expr,
    IndexedWrite,
    PointwiseOp,
    ReadOp,
    ReshapeOp,
    ScanOp,
    ScatterOp,
    WindowOp,
)
from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr
from ..ir.vals import TensorView, Val
from .mapping import producer_to_consumer

Axes = frozenset[int]
_AxisStep = tuple[int, tuple[IterDomain, ...], tuple[IterDomain, ...]]


@dataclass(frozen=True, slots=True)
class Step:
    """One split or merge of a reshape, over axis numbers; `index` orders them topologically."""

    index: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def _makes_axes(expr: Expr) -> bool:
    """True if a result has an axis along which all operands only broadcast.

    A reshape makes elements of an expanded axis, and so does a pointwise operation where
    preparation has put an expanded tensor in the place of a cat of equal parts.
    """
    operands = expr.tensor_inputs
    is_either = isinstance(expr, PointwiseOp | ReshapeOp)
    if not is_either or not any(t.has_expanded_axis for t in operands):
        return False
    if isinstance(expr, ReshapeOp):
        return True
    columns = zip(*(operand.axes for operand in operands), strict=True)
    axes = expr.output.domain.root_or_logical if isinstance(expr.output, TensorView) else ()
    return any(
        not axis.is_broadcast and all(own.is_broadcast for own in column)
        for axis, column in zip(axes, columns, strict=True)
    )


def windowed_input(expr: Expr) -> TensorView | None:
    """The input that an expression reads through a window: its loops are the input's along the axes
    of which the window has as many elements.
    """
    source = expr.source if isinstance(expr, WindowOp) else None
    return source if source is not None and source.expr is None else None


def _reshaped(tensor: TensorView) -> list[IterDomain]:
    """The axes that the steps of a reshape make, in their order."""
    domain = tensor.domain
    steps = history(domain.logical, domain.root or ())
    return [axis for step in steps for axis in step.outputs]


@dataclass(frozen=True, slots=True)
class Signature:
    """The axes that a reduction reduces, and the axes of its input that it keeps.

    For a scan, the axis along which it combines elements is in place of those reduced; for a
    scatter, the axes of its values whose elements may go to the same place.
    """

    reduced: Axes
    kept: Axes
    is_scan: bool = False
    is_scatter: bool = False
    is_reversed: bool = False

    @property
    def is_ordered(self) -> bool:
        """True if a kernel computes a result for each element, in the order of the elements."""
        return self.is_scan or self.is_scatter


class IterationSpace:
    """Numbers the axes of some expressions' tensors; equal numbers mean one loop.

    Broadcast axes have no number (they fit any loop).  `conflicts` has the (expression, tensor it
    reads) pairs whose mapping would give two axes of one tensor the same loop, as in `t + t.T`.
    These are left unmapped, and no kernel may compute both sides.  An *input* that is read in this
    way is `private` instead: it has no loops, and each expression that reads it indexes it by its
    own loops.
    """

    @staticmethod
    def of_fusion(fusion: Fusion) -> IterationSpace:
        """The space of all expressions of a fusion that compute tensors."""
        return IterationSpace([expr for expr in fusion.exprs if expr.tensor_outputs])

    def __init__(self, exprs: Iterable[Expr]) -> None:
        listed = list(exprs)
        self._has_new_axes = any(map(_makes_axes, listed))
        self.private: set[TensorView] = set()
        self._build(listed)
        if self.conflicts:
            readers = Counter(tensor for expr in listed for tensor in set(expr.aligned_inputs))
            computed = {tensor for expr in listed for tensor in expr.tensor_outputs}
            shared = {tensor for tensor in self._entangled if readers[tensor] > 1}
            self._make_private(listed, shared - computed)

    def _make_private(self, exprs: list[Expr], candidates: set[TensorView]) -> None:
        """Makes an input private if the other tensors then have fewer conflicts.

        An input that is merely near a conflict stays: it may be the only evidence that two chains
        that read it, such as a scheduler's copy of another, have the same loops.
        """
        self.private = candidates
        self._build(exprs)
        if len(candidates) < 2:
            return
        fewest = len(self.conflicts)
        for tensor in sorted(candidates, key=lambda each: (-len(each.axes), each.name)):
            self.private = self.private - {tensor}
            self._build(exprs)
            if len(self.conflicts) > fewest:
                self.private = self.private | {tensor}
        self._build(exprs)

    def _build(self, exprs: list[Expr]) -> None:
        self._sets: DisjointSets[IterDomain] = DisjointSets()
        self._entered: set[TensorView] = set()
        self._owners: dict[IterDomain, dict[TensorView, IterDomain]] = {}
        self._made: dict[tuple[object, ...], tuple[IterDomain, ...]] = {}
        self._first: dict[Val, Val] = {}
        self._copies: dict[tuple[object, ...], TensorView] = {}
        self._id_exprs: dict[TensorView, list[_AxisStep]] = {}
        self._numbers: dict[IterDomain, int] = {}
        self._known: dict[TensorView, Axes] = {}
        self.reshapes: list[IdExpr] = []
        self._step_count = 0
        self._steps: list[Step] | None = None
        self.extents: list[IntExpr] = []
        self.conflicts: list[tuple[Expr, TensorView]] = []
        self._entangled: set[TensorView] = set()
        for expr in exprs:
            self._add(expr)
        for expr in exprs:
            source = windowed_input(expr)
            if source is not None:
                self._join_whole_windows(expr, source)
        if len(self.reshapes) > 1:
            self._join_equal_steps()

    def _join_whole_windows(self, expr: Expr, source: TensorView) -> None:
        """Gives one number to the axis of an input and that of as many elements read from it.

        Nothing else connects the two: a norm whose halves are then rotated is one loop nest so.
        """
        if source in self.private:
            return
        axes = zip(source.axes, expr.tensor_outputs[0].domain.root_or_logical, strict=True)
        for axis, own in axes:
            is_whole = axis.size is own.size and not (axis.is_broadcast or own.is_broadcast)
            if is_whole and not self._have_a_tensor(axis, own):
                self._join(axis, own)

    def _have_a_tensor(self, a: IterDomain, b: IterDomain) -> bool:
        """True if a tensor has both axes."""
        owners, others = (self._owners.get(self._sets.find(each), {}) for each in (a, b))
        return not owners.keys().isdisjoint(others)

    def _enter(self, tensor: TensorView) -> None:
        if tensor in self._entered:
            return
        self._entered.add(tensor)
        domain = tensor.domain
        for axis in domain.logical if domain.root is None else (*domain.root, *domain.logical):
            self._owners.setdefault(axis, {})
            self._owners.setdefault(self._sets.find(axis), {})[tensor] = axis

    def _join(self, a: IterDomain, b: IterDomain) -> bool:
        """Gives both axes one number; False, with no change, if a tensor would have it twice."""
        a, b = self._sets.find(a), self._sets.find(b)
        if a is b:
            return True
        large, small = self._owners.setdefault(a, {}), self._owners.setdefault(b, {})
        if len(large) < len(small):
            a, b, large, small = b, a, small, large
        if any(tensor in large for tensor in small):
            self._entangled.update(large, small)
            return False
        large.update(small)
        self._sets.link(a, b)
        return True

    def _add(self, expr: Expr) -> None:
        for tensor in (*expr.tensor_inputs, *expr.tensor_outputs):
            self._enter(tensor)
        if isinstance(expr, ScatterOp):
            self._join_operands(expr)
        for producer in dict.fromkeys(expr.aligned_inputs):
            for consumer in expr.tensor_outputs if producer not in self.private else ():
                pairs = producer_to_consumer(expr, producer, consumer).items()
                concrete = [(p, c) for p, c in pairs if not (p.is_broadcast or c.is_broadcast)]
                fits = [self._join(p, c) for p, c in concrete]
                if not all(fits):
                    self.conflicts.append((expr, producer))
        for tensor in expr.tensor_outputs:
            if tensor.domain.root is not None:
                self._reshape(tensor)
        if self.private or self._has_new_axes or isinstance(expr, ReadOp):
            self._match_copies(expr)

    def _join_operands(self, expr: ScatterOp) -> None:
        """Makes the index's axes those of the values that they run along."""
        index, value = expr.index, expr.value
        if index in self.private or value in self.private or index is value:
            return
        for axis, place in zip(index.axes, expr.index_axes, strict=True):
            partner = value.axes[place]
            if axis.is_broadcast or partner.is_broadcast:
                continue
            if not self._join(axis, partner):
                self.conflicts.append((expr, index))

    def _match_copies(self, expr: Expr) -> None:
        """Makes the axes of a copy of an expression equal to the original's.

        A scheduler copies what it computes again; where the copies read a source, a private input
        or an expanded tensor, no tensor that both read connects their axes.  One of them may read
        the other's operand in a register.
        """
        if expr.name == "set" and expr.tensor_inputs[0].expr is not None:
            (result,), source = expr.tensor_outputs, expr.tensor_inputs[0]
            if result.domain.root is None:
                self._first[result] = self._first.get(source, source)
                return
        inputs = tuple(self._first.get(value, value) for value in expr.inputs)
        inputs = inputs[:1] if isinstance(expr, ReadOp) else inputs
        for place, tensor in enumerate(expr.tensor_outputs):
            axes = tensor.domain.root_or_logical
            shape = tuple((axis.size, axis.iter_type) for axis in (*axes, *tensor.axes))
            key = (type(expr), place, inputs, expr.attributes(), shape)
            first = self._first.setdefault(tensor, self._copies.setdefault(key, tensor))
            assert isinstance(first, TensorView)
            self._join_each(first.domain.root_or_logical, axes)
            if first is not tensor and tensor.domain.root is not None:
                self._join_each(_reshaped(first), _reshaped(tensor))

    def _join_each(self, axes: Iterable[IterDomain], copies: Iterable[IterDomain]) -> None:
        for old, new in zip(axes, copies, strict=True):
            if not (old.is_broadcast or new.is_broadcast):
                self._join(old, new)

    def _reshape(self, tensor: TensorView) -> None:
        """Records the steps from root to logical; equal steps of equal axes make equal axes."""
        assert tensor.domain.root is not None
        steps = []
        for expr in history(tensor.domain.logical, tensor.domain.root):
            for axis in expr.inputs:
                self._owners.setdefault(axis, {})
            self._join_equal_step(expr)
            self.reshapes.append(expr)
            steps.append((self._step_count, expr.inputs, expr.outputs))
            self._step_count += 1
        self._id_exprs[tensor] = steps

    def _join_equal_step(self, expr: IdExpr) -> None:
        how = (expr.factor, expr.inner_split) if isinstance(expr, Split) else ()
        made_of = (a.size if a.is_broadcast else self._sets.find(a) for a in expr.inputs)
        key = (type(expr), *made_of, *how)
        for old, new in zip(self._made.get(key, ()), expr.outputs, strict=False):
            self._join(old, new)
        self._made.setdefault(key, expr.outputs)

    def _join_equal_steps(self) -> None:
        """Does so again for steps whose axes got one number only after them."""
        self._made.clear()
        for expr in self.reshapes:
            self._join_equal_step(expr)

    def knows(self, axis: IterDomain) -> bool:
        """True for axes of the tensors' root and logical domains, and between the two."""
        return axis in self._owners

    def number(self, axis: IterDomain) -> int:
        """The number of a concrete axis."""
        representative = self._sets.find(axis)
        found = self._numbers.get(representative)
        if found is None:
            found = self._numbers[representative] = len(self._numbers)
            self.extents.append(representative.extent)
        return found

    def of(self, axes: Iterable[IterDomain]) -> Axes:
        """The numbers of the axes that are not broadcast."""
        return frozenset(self.number(axis) for axis in axes if not axis.is_broadcast)

    def related(self, axes: Axes) -> Axes:
        """The axes, what reshapes make them of, and what reshapes make of them."""
        made_of, made = set(axes), set(axes)
        for step in reversed(self.reshapes):
            if not made_of.isdisjoint(self._ordered(step.outputs)):
                made_of.update(self._ordered(step.inputs))
        for step in self.reshapes:
            if not made.isdisjoint(self._ordered(step.inputs)):
                made.update(self._ordered(step.outputs))
        return frozenset(made_of | made)

    def axes(self, tensor: TensorView) -> Axes:
        """The axes that a tensor's consumers see; none for a private input."""
        if tensor in self.private:
            return frozenset()
        found = self._known.get(tensor)
        if found is None:
            found = self._known[tensor] = self.of(tensor.axes)
        return found

    def loops(self, tensor: TensorView) -> Axes:
        """The axes of the loops that compute a tensor: its own, or those of a scatter's values."""
        expr = tensor.expr
        return self.axes(expr.value if isinstance(expr, ScatterOp) else tensor)

    def signature(self, tensor: TensorView) -> Signature | None:
        """What the definition of a tensor reduces, scans or scatters; None if it does neither."""
        if isinstance(tensor.expr, IndexedWrite):
            value = tensor.expr.value
            scattered = self.of(value.axes[place] for place in tensor.expr.scattered)
            return Signature(scattered, self.axes(value) - scattered, is_scatter=True)
        if isinstance(tensor.expr, ScanOp):
            scanned = self.of((tensor.expr.scanned,))
            return Signature(
                scanned, self.axes(tensor) - scanned, True, is_reversed=tensor.expr.is_reversed
            )
        reduced = self.of(a for a in tensor.domain.root_or_logical if a.is_reduction)
        return Signature(reduced, self.axes(tensor)) if reduced else None

    def all_steps(self) -> list[Step]:
        """The splits and merges of all reshapes."""
        if self._steps is None:
            self._steps = [
                Step(index, self._ordered(expr.inputs), self._ordered(expr.outputs))
                for index, expr in enumerate(self.reshapes)
            ]
        return self._steps

    def steps(self, tensor: TensorView) -> list[Step]:
        """The splits and merges that make the tensor's logical axes from its root."""
        return [
            Step(index, self._ordered(inputs), self._ordered(outputs))
            for index, inputs, outputs in self._id_exprs.get(tensor, ())
        ]

    def _ordered(self, axes: Iterable[IterDomain]) -> tuple[int, ...]:
        return tuple(self.number(axis) for axis in axes if not axis.is_broadcast)

    def read_along(self, expr: Expr, tensor: TensorView) -> tuple[int, ...]:
        """The axes of an expression's result along which it reads an operand, in the order of the
        operand's memory, outermost first; -1 for one that its result doesn't have.
        """
        along = producer_to_consumer(expr, tensor, expr.tensor_outputs[0])
        found = (along.get(axis) for axis in tensor.domain.allocated if not axis.is_broadcast)
        return tuple(-1 if a is None or a.is_broadcast else self.number(a) for a in found)

    def touched(self, expr: Expr) -> Axes:
        """Every concrete axis of the aligned inputs and the outputs of an expression."""
        found: Axes = frozenset()
        for tensor in expr.aligned_inputs:
            found |= self.axes(tensor)
        if isinstance(expr, ScatterOp):
            return found
        for tensor in expr.tensor_outputs:
            found |= self.of(tensor.domain.root_or_logical) | self.axes(tensor)
        return found
