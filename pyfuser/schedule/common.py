"""What the automatic schedulers share: memory order, mergeable axes, outputs.

Schedulers look at the *leaves* of a fusion, its inputs and outputs, because only those are in
global memory; everything between lives in registers.  Axes of different tensors are compared by
their numbers in the iteration space.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from copy import copy

from ..analysis.costs import is_expensive
from ..analysis.innermost import common_innermost
from ..analysis.iteration_space import IterationSpace
from ..analysis.mapping import producer_to_consumer
from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import (
    Expr,
    GatherOp,
    IndexedWrite,
    IotaOp,
    PointwiseOp,
    RandomOp,
    ScanOp,
    WindowOp,
    WriteOp,
)
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, ZERO, IntExpr, product
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..ops.op import EXPENSIVE
from .memory_orders import MemoryOrder, backwards
from .propagation import parallelize_like
from .rewrite import cache_before


def touched_bytes(fusion: Fusion) -> IntExpr:
    """The bytes of all inputs and outputs."""
    total: IntExpr = ZERO
    for leaf in leaves(fusion):
        total = total + product(a.extent for a in leaf.axes) * size_in_bytes(leaf.dtype)
    return total


def work_each(fusion: Fusion) -> int:
    """The cost of computing an element, in additions."""
    pointwise = (
        e for e in fusion.exprs if isinstance(e, PointwiseOp | RandomOp | ScanOp | IndexedWrite)
    )
    return sum(EXPENSIVE if is_expensive(e) else 1 for e in pointwise)


def functions_each(fusion: Fusion) -> int:
    """How many functions such as exp an element takes."""
    return sum(isinstance(e, PointwiseOp) and is_expensive(e) for e in fusion.exprs)


def prefetch_inputs(scheduled: ScheduledFusion, distance: int) -> None:
    """Makes reads of all inputs fetch ahead."""
    for tensor in scheduled.fusion.input_tensors:
        scheduled[tensor].prefetch = distance


def prefetch_rows(
    scheduled: ScheduledFusion,
    layouts: Layouts,
    row_axis: IterDomain,
    tensor: TensorView,
    axes: Sequence[IterDomain],
    count: int,
) -> None:
    """Makes an input's reads fetch so many rows ahead; an output's stores, the lines at the ends of
    its rows, of which they store parts.

    `axes` are those that the tensor had when the layouts were examined.
    """
    for axis, own in zip(axes, tensor.axes, strict=True):
        if not axis.is_broadcast and layouts.number(axis) == layouts.number(row_axis):
            schedule = scheduled[tensor]
            schedule.prefetch, schedule.along = count, own


def is_reduction(expr: Expr | None) -> bool:
    """True for sums, maxima, welford and the like."""
    return expr is not None and expr.accumulates


def reductions(fusion: Fusion) -> list[TensorView]:
    """The first output of every reduction, in order."""
    return [e.tensor_outputs[0] for e in fusion.exprs if is_reduction(e)]


def leaves(fusion: Fusion) -> list[TensorView]:
    """The tensors in global memory."""
    outputs = [v for v in fusion.outputs if isinstance(v, TensorView)]
    return list(dict.fromkeys([*fusion.input_tensors, *outputs]))


class Leaf:
    """The memory layout of one leaf, in axis numbers.

    `orders` has its own order, and the same in the axes that reshapes make of the leaf's, or make
    these of.  With `axes`, the numbers are those of the axes of a reader that correspond to the
    leaf's own; where there is none, it is -1, which forms a range with no other axis.
    """

    def __init__(
        self,
        space: IterationSpace,
        tensor: TensorView,
        axes: Mapping[IterDomain, IterDomain] | None = None,
        windowed: frozenset[int] = frozenset(),
        stepped: frozenset[int] = frozenset(),
    ) -> None:
        domain = tensor.domain
        is_output = tensor.expr is not None and axes is None
        self.tensor = tensor
        order: list[int] = []
        contiguous: set[int] = set()
        repeated: set[int] = set()
        for axis, is_range in zip(domain.allocated, domain.contiguity, strict=True):
            if axis.is_broadcast:
                continue
            of = axis if axes is None else axes.get(axis)
            number = -1 if of is None or of.is_broadcast else space.number(of)
            order.append(number)
            if number >= 0 and (is_output or is_range is True):
                contiguous.add(number)
            if is_range is None and not is_output:
                repeated.add(number)
        self.related = space.related(frozenset(order) - {-1})
        own = MemoryOrder(
            tuple(order), frozenset(contiguous), frozenset(repeated), windowed, stepped
        )
        steps = space.all_steps()
        self.orders = [own, *own.reshaped(steps), *own.reshaped(backwards(steps))]

    @property
    def own(self) -> MemoryOrder:
        """The order of the leaf's own axes."""
        return self.orders[0]

    def merges(self, outer: int, inner: int) -> bool:
        """True if the two axes are one range in memory, or the leaf has neither, nor an axis that a
        reshape makes one of them of."""
        for order in self.orders:
            if order.has(outer, inner):
                return order.merges(outer, inner)
        return outer not in self.related and inner not in self.related

    def order_in(self, axes: Container[int | None]) -> MemoryOrder:
        """The order that has most of the axes."""
        return max(self.orders, key=lambda order: sum(axis in axes for axis in order.axes))

    def ordered(self, axes: Container[int | None]) -> tuple[int, ...]:
        """Those of the axes that the leaf has, in its order."""
        return tuple(axis for axis in self.order_in(axes).axes if axis in axes)


class ReadLeaf(Leaf):
    """The layout of the source of a read, in the axis numbers of the read's output.

    An axis that is read through a window is no longer one range with the axis outside it; if it is
    read in steps, nor with the axis inside it. The axis that an index points into (-1)
    forms a range with no other axis; the axes of the index are in its place.
    """

    def __init__(
        self, space: IterationSpace, expr: WindowOp | GatherOp, source: TensorView
    ) -> None:
        roots = expr.tensor_outputs[0].domain.root_or_logical
        places: Sequence[int | None] = range(len(roots))
        self.expr = expr
        windowed: set[int] = set()
        stepped: set[int] = set()
        self.pointing: list[int] = []
        if isinstance(expr, GatherOp):
            places = expr.source_axes
            index = (axis for place, axis in enumerate(roots) if place not in places)
            self.pointing = [space.number(axis) for axis in index if not axis.is_broadcast]
        else:
            for axis, window in zip(roots, expr.windows, strict=True):
                if window is None or axis.is_broadcast:
                    continue
                windowed.add(space.number(axis))
                if window.step is not ONE or window.every is not ONE:
                    stepped.add(space.number(axis))
        pairs = zip(source.axes, places, strict=True)
        partners = {axis: roots[place] for axis, place in pairs if place is not None}
        super().__init__(space, source, partners, frozenset(windowed), frozenset(stepped))

    def ordered(self, axes: Container[int | None]) -> tuple[int, ...]:
        own = self.order_in(axes).axes
        placed = (self.pointing if axis == -1 else [axis] for axis in own)
        return tuple(dict.fromkeys(axis for part in placed for axis in part if axis in axes))


class Positions:
    """Values that depend only on their position: a count, or whether it is inside a window.

    If a count's axis is merged, its index is a remainder or a quotient of the loop's index, which
    takes a division per element in vector lanes. For a window, this is only so for the inner axis.
    """

    def __init__(self, space: IterationSpace, expr: WindowOp | IotaOp) -> None:
        axes = expr.tensor_outputs[0].domain.root_or_logical
        self.inner: set[int] = set()
        self.outer: set[int] = set()
        windows = expr.windows if isinstance(expr, WindowOp) else (None,) * len(axes)
        for axis, window in zip(axes, windows, strict=True):
            is_counted = isinstance(expr, IotaOp)
            if axis.is_broadcast or (window is None and not is_counted):
                continue
            self.inner.add(space.number(axis))
            if window is None or window.step is not ONE or window.every is not ONE:
                self.outer.add(space.number(axis))

    def merges(self, outer: int, inner: int) -> bool:
        """True if a merged loop finds its position without a division."""
        return inner not in self.inner and outer not in self.outer


def private_inputs(fusion: Fusion) -> set[TensorView]:
    """The inputs that are read along two axes of the loops, which a copy would have but once."""
    if all(len(tensor.uses_list) < 2 for tensor in fusion.input_tensors):
        return set()
    return IterationSpace.of_fusion(fusion).private


class Layouts:
    """The layouts of all leaves of a fusion, and (as `reads`) of the sources of reads."""

    def __init__(self, fusion: Fusion) -> None:
        self.space = IterationSpace.of_fusion(fusion)
        self._enter(fusion, fusion.exprs)

    def among(self, fusion: Fusion, exprs: Sequence[Expr]) -> Layouts:
        """The layouts of what some of the expressions read and write, with the same numbers."""
        part = copy(self)
        part._enter(fusion, exprs)
        return part

    def _enter(self, fusion: Fusion, exprs: Sequence[Expr]) -> None:
        touched = {t for e in exprs for t in (*e.aligned_inputs, *e.tensor_outputs)}
        self.leaves = [Leaf(self.space, tensor) for tensor in leaves(fusion) if tensor in touched]
        self.reads = [
            ReadLeaf(self.space, expr, expr.source)
            for expr in exprs
            if isinstance(expr, WindowOp | GatherOp) and expr.source is not None
        ]
        self.private = [
            Leaf(self.space, tensor, producer_to_consumer(expr, tensor, expr.tensor_outputs[0]))
            for expr in exprs
            for tensor in dict.fromkeys(expr.aligned_inputs)
            if tensor in self.space.private
        ]
        """Inputs that each reader indexes by its own loops, once for each reader."""
        self.counted = [
            Leaf(self.space, tensor)
            for expr in exprs
            if isinstance(expr, RandomOp)
            for tensor in expr.tensor_outputs
        ]
        """Tensors whose elements are numbered row by row, as if in memory."""
        self.positions = [
            Positions(self.space, expr)
            for expr in exprs
            if isinstance(expr, IotaOp) or (isinstance(expr, WindowOp) and expr.source is None)
        ]

    def number(self, axis: IterDomain) -> int | None:
        """The number of an axis; None for broadcasts."""
        return None if axis.is_broadcast else self.space.number(axis)

    def merges(self, outer: IterDomain, inner: IterDomain) -> bool:
        """True if two axes may be merged without harm to any leaf's accesses."""
        a, b = self.number(outer), self.number(inner)
        if a is None or b is None:
            return True
        in_memory = (*self.leaves, *self.reads, *self.private, *self.counted)
        is_range = all(leaf.merges(a, b) for leaf in in_memory)
        return is_range and all(each.merges(a, b) for each in self.positions)

    def apart(self, outer: IterDomain, inner: IterDomain) -> int:
        """How many leaves have both axes, with gaps or other axes between them."""
        a, b = self.number(outer), self.number(inner)
        if a is None or b is None:
            return 0
        orders = [leaf.order_in((a, b)) for leaf in self.leaves]
        return sum(
            order.has(a, b) and order.repeated.isdisjoint((a, b)) and not order.merges(a, b)
            for order in orders
        )

    def memory_order(self, axes: Sequence[IterDomain]) -> list[IterDomain]:
        """The axes, outermost first, in the order of most of the leaves that have most of them.

        Other axes come where other leaves have them.  An axis along which all leaves run that have
        it is innermost, if there is one, rather than one across which some run.
        """
        numbers = {self.number(axis): axis for axis in axes}
        orders = Counter(leaf.ordered(numbers) for leaf in (*self.leaves, *self.reads))
        found: list[int] = []
        for order in sorted(orders, key=lambda order: (-len(order), -orders[order])):
            _join_order(found, order)
        last = common_innermost(found[-1:], orders)
        found.sort(key=lambda number: number in last)
        known = [numbers[n] for n in found]
        rest = [axis for axis in axes if axis not in known]
        return [*rest, *known]


def _join_order(found: list[int], order: Sequence[int]) -> None:
    """Inserts the axes of an order that are missing, beside the ones that are found: before what
    follows them, or after what comes before them."""
    for position, number in enumerate(order):
        if number in found:
            continue
        after = [found.index(n) for n in order[position + 1 :] if n in found]
        before = [found.index(n) + 1 for n in order[:position] if n in found]
        place = min(after) if after else max(before, default=0)
        found.insert(place, number)


def first_of_range(axes: Sequence[IterDomain], last: int, layouts: Layouts) -> int:
    """The position of the first of the axes, in memory order, that form one range up to `last` in
    all leaves.  An axis that broadcasts belongs to any range, but joins no others to it."""
    if last <= 0:
        return last
    first, inner = last, axes[last]
    while first > 0 and layouts.merges(axes[first - 1], inner):
        first -= 1
        inner = inner if axes[first].is_broadcast else axes[first]
    return first


def range_to(axis: IterDomain, axes: list[IterDomain], layouts: Layouts) -> list[IterDomain]:
    """The axes, of some in memory order, that form one range up to `axis` in all leaves."""
    last = axes.index(axis)
    return axes[first_of_range(axes, last, layouts) : last + 1]


def ordered_axes(tensor: TensorView) -> list[IterDomain]:
    """The logical axes in memory order."""
    domain = tensor.domain
    return domain.allocated if domain.allocation is not None else tensor.axes


def fork_outputs(scheduled: ScheduledFusion) -> None:
    """Makes outputs copies of registers: nothing is read from or accumulated in global memory."""
    fusion = scheduled.fusion
    for output in dict.fromkeys(fusion.outputs):
        if not isinstance(output, TensorView) or output.expr is None:
            continue
        if isinstance(output.expr, WriteOp):
            continue
        if not output.uses_list and not is_reduction(output.expr):
            continue
        readers = list(output.uses_list)
        register = cache_before(scheduled, output)
        scheduled[register].memory_type = MemoryType.local
        for expr in readers:
            fusion.replace_input(expr, output, register)


def merge_adjacent(
    scheduled: ScheduledFusion, tensor: TensorView, layouts: Layouts, start: int, stop: int
) -> int:
    """Merges loops [start, stop) from the right as far as all leaves allow; returns the new start
    of the innermost merged range."""
    schedule = scheduled[tensor]
    axes = schedule.loop[start:stop]
    inner = start + first_of_range(axes, len(axes) - 1, layouts)
    for position in reversed(range(inner, stop - 1)):
        schedule.merge(position)
    return inner


def merge_range(scheduled: ScheduledFusion, tensor: TensorView, start: int, stop: int) -> None:
    """Merges loops [start, stop) into one."""
    for _ in range(stop - start - 1):
        scheduled[tensor].merge(start)


def parallelize_positions(
    scheduled: ScheduledFusion,
    reference: TensorView,
    kinds: dict[int, ParallelType],
    tensors: Sequence[TensorView] | None = None,
) -> None:
    """Marks loops of the reference and the same loops of every other (or the given) tensors."""
    for position, kind in kinds.items():
        scheduled[reference].parallelize(position, kind)
    parallelize_like(scheduled, reference, tensors=tensors)
