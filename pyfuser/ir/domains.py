"""IterDomain and TensorDomain: the axes of a tensor, and how loops were made out of them.

    iter_domain ::= (iteration | reduction | broadcast) extent [expanded_extent] [parallel_type]
    id_expr     ::= outer, inner = Split(input, factor) | output = Merge(outer, inner)
                  | out_x, out_y = Swizzle(x, y) | output = Reverse(input)
    domain      ::= root --reshape--> logical --schedule--> loop, allocation, contiguity

A tensor's *root* domain is what its producers index, and its *logical* domain is what its consumers
see; they differ only for reshape, permute and rfactor. Its *loop* domain is what the schedule
iterates over. Its *allocation* domain is the order of its elements in memory, outermost first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .scalars import ONE, Integer, IntExpr, ceil_div


class Statement:
    """Everything that a fusion consists of: values, expressions, and their axes."""

    __slots__ = ()


class IterType(enum.Enum):
    """What iterating over an axis means."""

    ITERATION = "i"
    REDUCTION = "r"
    BROADCAST = "b"


class ParallelType(enum.Enum):
    """How a loop runs; the value is its name in printed IR."""

    grid_x = "blockIdx.x"
    grid_y = "blockIdx.y"
    grid_z = "blockIdx.z"
    block_x = "threadIdx.x"
    block_y = "threadIdx.y"
    block_z = "threadIdx.z"
    mesh_x = "deviceIdx.x"
    mesh_y = "deviceIdx.y"
    mesh_z = "deviceIdx.z"
    mma = "mma"
    serial = "S"
    tma = "TMA"
    unroll = "UR"
    unswitch = "US"
    vectorize = "V"
    stream = "Stream"

    @property
    def is_grid(self) -> bool:
        """True for grid_x, grid_y, grid_z."""
        return self in GRID

    @property
    def is_block(self) -> bool:
        """True for block_x, block_y, block_z."""
        return self in BLOCK

    @property
    def is_thread(self) -> bool:
        """True for the grid and the block types."""
        return self in GRID or self in BLOCK


GRID = (ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z)
BLOCK = (ParallelType.block_x, ParallelType.block_y, ParallelType.block_z)


@dataclass(slots=True, eq=False)
class IterDomain:
    """One axis: its kind, its extent, and (a mark of the schedule) how its loop runs.

    `expanded_extent` is set on a broadcast axis that was expanded: the axis has one element in
    memory and this many for its readers.
    """

    name: int
    extent: IntExpr
    iter_type: IterType = IterType.ITERATION
    expanded_extent: IntExpr | None = None
    parallel_type: ParallelType = ParallelType.serial
    definition: IdExpr | None = None

    @property
    def is_reduction(self) -> bool:
        return self.iter_type is IterType.REDUCTION

    @property
    def is_broadcast(self) -> bool:
        return self.iter_type is IterType.BROADCAST

    @property
    def is_expanded(self) -> bool:
        return self.expanded_extent is not None

    @property
    def size(self) -> IntExpr:
        """The number of elements a reader sees: the expanded extent where there is one."""
        return self.extent if self.expanded_extent is None else self.expanded_extent

    def __str__(self) -> str:
        expanded = f" ex {self.expanded_extent}" if self.is_expanded else ""
        kind = f"{self.iter_type.value}{self.parallel_type.value}"
        return f"{kind}{self.name}{{{self.extent}{expanded}}}"

    __repr__ = __str__


@dataclass(slots=True, eq=False)
class Split:
    """input -> (outer, inner).  With `inner_split` the inner extent is `factor`, else the outer's.

    The other extent is ceildiv(input, factor). A split need not divide; predicates guard the rest.
    If it `is_whole`, the input is known to be no longer than the factor: the other extent is 1.
    If it `is_even`, the factor is known to divide the input.
    """

    input_id: IterDomain
    outer_id: IterDomain
    inner_id: IterDomain
    factor: IntExpr
    inner_split: bool = True
    is_whole: bool = False
    is_even: bool = False

    @property
    def inputs(self) -> tuple[IterDomain, ...]:
        return (self.input_id,)

    @property
    def outputs(self) -> tuple[IterDomain, ...]:
        return (self.outer_id, self.inner_id)

    def outer(self) -> IterDomain:
        """The outer of the two axes made."""
        return self.outer_id

    def inner(self) -> IterDomain:
        """The inner of the two axes made."""
        return self.inner_id

    def __str__(self) -> str:
        side = "" if self.inner_split else ", inner_split=False"
        whole = ", is_whole=True" if self.is_whole else ""
        even = ", is_even=True" if self.is_even else ""
        outputs = f"{self.outer_id}, {self.inner_id}"
        return f"{outputs} = split({self.input_id}, {self.factor}{side}{whole}{even})"

    def is_like(self, other: Split) -> bool:
        """True if the other splits its input in the same way."""
        known = (self.inner_split, self.is_whole, self.is_even)
        same = known == (other.inner_split, other.is_whole, other.is_even)
        return same and self.factor is other.factor

    def rest(self, extent: IntExpr) -> IntExpr:
        """How many parts of `factor` elements, or of which size, an input of this extent makes."""
        return ONE if self.is_whole else ceil_div(extent, self.factor)


@dataclass(slots=True, eq=False)
class Merge:
    """(outer, inner) -> output, with extent outer * inner."""

    outer_id: IterDomain
    inner_id: IterDomain
    output_id: IterDomain

    @property
    def inputs(self) -> tuple[IterDomain, ...]:
        return (self.outer_id, self.inner_id)

    @property
    def outputs(self) -> tuple[IterDomain, ...]:
        return (self.output_id,)

    def outer(self) -> IterDomain:
        """The outer of the two axes merged."""
        return self.outer_id

    def inner(self) -> IterDomain:
        """The inner of the two axes merged."""
        return self.inner_id

    def __str__(self) -> str:
        return f"{self.output_id} = merge({self.outer_id}, {self.inner_id})"


@dataclass(slots=True, eq=False)
class Swizzle:
    """(x, y) -> (x, x ^ y): permutes y by x to avoid shared-memory bank conflicts.

    Both extents must be the same power of two.
    """

    x_id: IterDomain
    y_id: IterDomain
    out_x_id: IterDomain
    out_y_id: IterDomain

    @property
    def inputs(self) -> tuple[IterDomain, ...]:
        return (self.x_id, self.y_id)

    @property
    def outputs(self) -> tuple[IterDomain, ...]:
        return (self.out_x_id, self.out_y_id)

    def __str__(self) -> str:
        return f"{self.out_x_id}, {self.out_y_id} = swizzle({self.x_id}, {self.y_id})"


@dataclass(slots=True, eq=False)
class Reverse:
    """input -> output, from the last element to the first."""

    input_id: IterDomain
    output_id: IterDomain

    @property
    def inputs(self) -> tuple[IterDomain, ...]:
        return (self.input_id,)

    @property
    def outputs(self) -> tuple[IterDomain, ...]:
        return (self.output_id,)

    def __str__(self) -> str:
        return f"{self.output_id} = reverse({self.input_id})"


IdExpr = Split | Merge | Swizzle | Reverse


@dataclass(slots=True, eq=False)
class TensorDomain(Statement):
    """The axes of one tensor.

    `root` is None if it equals the logical domain.  `allocation` is None if it equals the logical
    domain without reductions.  `contiguity` has an entry for each axis of the allocation domain:
    True if the axis's stride is the size of everything inside it, None for broadcast axes.
    """

    logical: list[IterDomain]
    contiguity: list[bool | None]
    root: list[IterDomain] | None = None
    allocation: list[IterDomain] | None = None
    loop: list[IterDomain] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.loop:
            self.loop = list(self.logical)

    def __call__(self) -> TensorDomain:
        """The domain itself: the interface writes `tensor.domain()`."""
        return self

    @property
    def root_or_logical(self) -> list[IterDomain]:
        return self.logical if self.root is None else self.root

    @property
    def root_and_logical(self) -> list[IterDomain]:
        return [*self.root_or_logical, *self.logical]

    @property
    def allocated(self) -> list[IterDomain]:
        """The axes that define the memory layout, outermost first, without reductions."""
        if self.allocation is not None:
            return self.allocation
        return without_reductions(self.logical)

    @property
    def memory_order(self) -> list[int]:
        """The positions of the logical axes, outermost in memory first.

        In logical order if the axes in memory aren't the logical ones (but parts of them).
        """
        axes, allocated = without_reductions(self.logical), self.allocated
        if set(axes) != set(allocated):
            return list(range(len(axes)))
        return [axes.index(axis) for axis in allocated]

    def __str__(self) -> str:
        return "[" + ", ".join(map(str, self.loop)) + "]"


def without_reductions(ids: Iterable[IterDomain]) -> list[IterDomain]:
    """The axes that remain after the reduction."""
    return [i for i in ids if i.iter_type is not IterType.REDUCTION]


def history(loop: Sequence[IterDomain], roots: Sequence[IterDomain]) -> list[IdExpr]:
    """The expressions that make `loop` out of `roots`, in an order in which they can be applied."""
    stop = set(roots)
    seen: set[int] = set()
    ordered: list[IdExpr] = []

    def visit(axis: IterDomain) -> None:
        expr = axis.definition
        if axis in stop or expr is None or id(expr) in seen:
            return
        seen.add(id(expr))
        for source in expr.inputs:
            visit(source)
        ordered.append(expr)

    for axis in loop:
        visit(axis)
    return ordered


def _joined_type(a: IterDomain, b: IterDomain) -> IterType:
    if a.is_reduction or b.is_reduction:
        return IterType.REDUCTION
    return IterType.BROADCAST if a.is_broadcast and b.is_broadcast else IterType.ITERATION


class IdFactory:
    """Makes IterDomains with fresh names, for one fusion.

    `equal` has computed sizes that the definition makes equal to others: merging [a][b] gives an
    axis of size c if a * b must be c, and so does a split.
    """

    __slots__ = ("equal", "next_name")

    def __init__(self) -> None:
        self.next_name = 0
        self.equal: dict[IntExpr, IntExpr] = {}

    def new(
        self,
        extent: IntExpr,
        iter_type: IterType = IterType.ITERATION,
        expanded_extent: IntExpr | None = None,
    ) -> IterDomain:
        """A fresh axis."""
        self.next_name += 1
        return IterDomain(self.next_name - 1, extent, iter_type, expanded_extent)

    def split(
        self,
        axis: IterDomain,
        factor: IntExpr,
        inner_split: bool = True,
        is_whole: bool = False,
        is_even: bool = False,
    ) -> tuple[IterDomain, IterDomain]:
        """Splits an axis; returns (outer, inner)."""
        rest = ONE if is_whole else self.known(ceil_div(axis.extent, factor))
        outer_extent, inner_extent = (rest, factor) if inner_split else (factor, rest)
        outer = self.new(outer_extent, axis.iter_type)
        inner = self.new(inner_extent, axis.iter_type)
        made = Split(axis, outer, inner, factor, inner_split, is_whole, is_even)
        outer.definition = inner.definition = made
        return outer, inner

    def merge(self, outer: IterDomain, inner: IterDomain) -> IterDomain:
        """Merges two axes."""
        extent = self.merged(outer.extent, inner.extent)
        merged = self.new(extent, _joined_type(outer, inner))
        merged.definition = Merge(outer, inner, merged)
        return merged

    def merged(self, outer: IntExpr, inner: IntExpr) -> IntExpr:
        """The extent of two merged axes."""
        return self.known(outer * inner)

    def known(self, extent: IntExpr) -> IntExpr:
        """The size to which the definition makes a computed size equal, or the computed one."""
        return self.equal.get(extent, extent)

    def swizzle(self, x: IterDomain, y: IterDomain) -> tuple[IterDomain, IterDomain]:
        """XOR-swizzles y by x; returns the two new axes."""
        out_x, out_y = self.new(x.extent, x.iter_type), self.new(y.extent, y.iter_type)
        out_x.definition = out_y.definition = Swizzle(x, y, out_x, out_y)
        return out_x, out_y

    def reverse(self, axis: IterDomain) -> IterDomain:
        """The axis from its last element to its first."""
        reversed_axis = self.new(axis.extent, axis.iter_type)
        reversed_axis.definition = Reverse(axis, reversed_axis)
        return reversed_axis

    def broadcast(self) -> IterDomain:
        """A broadcast axis of extent 1."""
        return self.new(ONE, IterType.BROADCAST)


def constant_size(axis: IterDomain) -> int | None:
    """The size as a number, or None if it is symbolic."""
    return axis.size.value if isinstance(axis.size, Integer) else None
