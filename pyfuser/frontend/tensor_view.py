"""Handles: the tensors and axes that a user schedules, with the interface's methods.

A TensorView is the IR's tensor itself, with methods that act on the schedule its fusion owns;
axes are wrapped (`IterDomain`, `Split`, `Merge`), because what are attributes in the IR are methods
in the interface.  Two handles of one axis are equal.  Schedules are kept beside the definition, so
a handle stays valid whatever is done to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from ..dtypes import DataType
from ..errors import DefinitionError, ScheduleError, UnsupportedError, expected
from ..ir import domains, exprs, vals
from ..ir.domains import ParallelType
from ..ir.schedule import MemoryType, ScheduledFusion, TensorSchedule

if TYPE_CHECKING:
    from ..ir.fusion import Fusion
    from .enums import CacheOp, LoadStoreOpType


class _Scheduled(Protocol):
    @property
    def user_schedule(self) -> ScheduledFusion: ...
    @property
    def has_user_schedule(self) -> bool: ...
    def keep_definition(self) -> None: ...


class IterDomain:
    """One axis of a tensor."""

    def __init__(self, fusion: object, axis: domains.IterDomain) -> None:
        self._fusion, self._axis = fusion, axis

    def is_reduction(self) -> bool:
        """True for an axis that is reduced over."""
        return self._axis.is_reduction

    def extent(self) -> vals.Scalar:
        """The size, as a scalar of the fusion."""
        fusion = cast("Fusion", self._fusion)
        extent = self._axis.extent
        value = extent.value if extent.is_constant else None
        return fusion.new_scalar(DataType.Int, constant=value, extent=extent)

    def parallelize(self, parallel_type: ParallelType) -> None:
        """Says how the axis' loop runs."""
        self._axis.parallel_type = parallel_type

    def definition(self) -> Split | Merge | domains.Swizzle | None:
        """The split or merge that made the axis; None for an axis of the definition."""
        return _expr_handle(self._fusion, self._axis.definition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IterDomain) and self._axis is other._axis

    def __hash__(self) -> int:
        return hash(self._axis)

    def __str__(self) -> str:
        return str(self._axis)

    __repr__ = __str__


class _AxisExpr:
    """Common form of the handles of Split and Merge."""

    def __init__(self, fusion: object, expr: domains.Split | domains.Merge) -> None:
        self._fusion, self._expr = fusion, expr

    def outer(self) -> IterDomain:
        """The outer of the two axes."""
        return IterDomain(self._fusion, self._expr.outer_id)

    def inner(self) -> IterDomain:
        """The inner of the two axes."""
        return IterDomain(self._fusion, self._expr.inner_id)

    def input(self, index: int) -> IterDomain:
        """An axis it reads."""
        return IterDomain(self._fusion, self._expr.inputs[index])

    def output(self, index: int) -> IterDomain:
        """An axis it makes."""
        return IterDomain(self._fusion, self._expr.outputs[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AxisExpr) and self._expr is other._expr

    def __hash__(self) -> int:
        return hash(self._expr)

    def __str__(self) -> str:
        return str(self._expr)


class Split(_AxisExpr):
    """One axis that became two."""


class Merge(_AxisExpr):
    """Two axes that became one."""


def _expr_handle(
    fusion: object, expr: domains.IdExpr | None
) -> Split | Merge | domains.Swizzle | None:
    match expr:
        case domains.Split():
            return Split(fusion, expr)
        case domains.Merge():
            return Merge(fusion, expr)
        case _:
            return expr


class TensorView(vals.TensorView):
    """A tensor, and the methods that schedule it.  They change it in place and return it."""

    __slots__ = ()

    @property
    def _scheduled(self) -> ScheduledFusion:
        return cast(_Scheduled, self.fusion).user_schedule

    @property
    def _schedule(self) -> TensorSchedule:
        return self._scheduled[self]

    def _rewritten(self) -> ScheduledFusion:
        """The schedule, for a method that changes the computation as well."""
        cast(_Scheduled, self.fusion).keep_definition()
        return self._scheduled

    # -- reading

    def definition(self) -> exprs.Expr | None:
        """The expression that computes the tensor; None for an input."""
        return self.expr

    def uses(self) -> list[exprs.Expr]:
        """The expressions that read it."""
        return list(self.uses_list)

    def size(self, dim: int) -> vals.Scalar:
        """The size of a dimension."""
        from ..ops import builders

        return builders.size(self.fusion, self, dim)

    def shape(self) -> list[vals.Scalar]:
        """The sizes of all dimensions."""
        from ..ops import builders

        return builders.shape(self.fusion, self)

    def has_root(self) -> bool:
        """True where a root domain differs from the logical one."""
        return self.domain.root is not None

    def axis(self, index: int) -> IterDomain:
        """An axis of the loop domain."""
        schedule = self._schedule
        return IterDomain(self.fusion, schedule.loop[schedule.position(index, "axis")])

    def _handles(self, axes: Sequence[domains.IterDomain]) -> list[IterDomain]:
        return [IterDomain(self.fusion, axis) for axis in axes]

    def get_logical_domain(self) -> list[IterDomain]:
        """The axes its consumers see, and those it reduces."""
        return self._handles(self.domain.logical)

    def get_loop_domain(self) -> list[IterDomain]:
        """The axes the schedule loops over."""
        return self._handles(self._schedule.loop)

    def get_root_domain(self) -> list[IterDomain]:
        """The axes its producers are indexed with; empty where they are the logical ones."""
        return self._handles(self.domain.root or [])

    # -- scheduling

    def split(self, axis: int, factor: int, inner_split: bool = True) -> TensorView:
        """[..., a, ...] -> [..., ceildiv(a, factor), factor, ...], or the two swapped."""
        self._schedule.split(axis, factor, inner_split)
        return self

    def inner_split(self, axis: int, factor: int) -> TensorView:
        """A split whose inner axis has `factor` elements."""
        return self.split(axis, factor, True)

    def outer_split(self, axis: int, factor: int) -> TensorView:
        """A split whose outer axis has `factor` elements."""
        return self.split(axis, factor, False)

    def merge(self, axis_o: int, axis_i: int | None = None) -> TensorView:
        """[..., a, ..., b, ...] -> [..., a*b, ...]; the axis after `axis_o` by default."""
        self._schedule.merge(axis_o, axis_i)
        return self

    def reorder(self, old2new: Mapping[int, int] | None = None) -> TensorView:
        """Moves axes: `old2new[old] = new`; the others keep their order."""
        self._schedule.reorder(old2new or {})
        return self

    def swizzle(self, x: int, y: int) -> TensorView:
        """XOR-swizzles axis y by axis x."""
        self._schedule.swizzle(x, y)
        return self

    def swizzle1d(self, x: int, parallel_type: ParallelType) -> TensorView:
        """Not supported yet: raises UnsupportedError."""
        raise UnsupportedError(expected("swizzle1d", "a swizzle of two axes", parallel_type))

    def set_memory_type(self, memory_type: MemoryType) -> None:
        """Where the tensor's elements are: local, shared or global."""
        is_fixed = self in self.fusion.inputs or self in self.fusion.outputs
        if is_fixed and memory_type is not MemoryType.global_:
            what = f"T{self.name}, an input or output, in global memory"
            raise ScheduleError(expected("set_memory_type", what, memory_type.name))
        self._schedule.memory_type = memory_type

    def cache_before(self, op_type: LoadStoreOpType | None = None) -> TensorView:
        """Computes the tensor into a new one that it then copies; returns the new one."""
        from ..schedule.rewrite import cache_before

        _check_set("cache_before", op_type)
        return cast(TensorView, cache_before(self._rewritten(), self))

    def cache_after(
        self,
        op_type: LoadStoreOpType | None = None,
        cache_op: CacheOp | None = None,
        propagate_allocation_domain: bool = True,
        cached_uses: Sequence[exprs.Expr] = (),
    ) -> TensorView:
        """Copies the tensor into a new one that its readers then read; returns the new one."""
        from ..schedule.rewrite import cache_after

        _check_set("cache_after", op_type)
        if cached_uses:
            what = "no cached_uses: all readers read the cache"
            raise UnsupportedError(expected("cache_after", what, f"{len(cached_uses)} of them"))
        return cast(TensorView, cache_after(self._rewritten(), self))

    def rfactor(self, axes: Sequence[int]) -> TensorView:
        """Reduces these loop axes into a new tensor, which it returns, and the others after."""
        from ..schedule.rewrite import rfactor

        return cast(TensorView, rfactor(self._rewritten(), self, list(axes)))

    def set_allocation_domain(
        self, new_allocation_domain: Sequence[IterDomain], new_contiguity: bool
    ) -> None:
        """The order of the elements in memory, outermost axis first."""
        axes = [handle._axis for handle in new_allocation_domain]
        if set(axes) != set(self.domain.logical) or len(axes) != len(self.domain.logical):
            what = f"the logical axes of T{self.name}, each once"
            raise DefinitionError(expected("set_allocation_domain", what, axes))
        kept = [axis for axis in axes if not axis.is_reduction]
        self.domain.allocation = kept
        self.domain.contiguity = [None if a.is_broadcast else new_contiguity for a in kept]

    def set_device_mesh(self, mesh: object) -> None:
        """Not supported yet: raises UnsupportedError."""
        raise UnsupportedError(expected("set_device_mesh", "one device", mesh))

    def __str__(self) -> str:
        owner = cast(_Scheduled, self.fusion)
        if not owner.has_user_schedule or self not in owner.user_schedule.schedules:
            return f"{self.label()}{self.domain}"
        schedule = self._schedule
        inline = f" ca_pos( {schedule.compute_at} )" if schedule.compute_at else ""
        loop = ", ".join(map(str, schedule.loop))
        prefix, _, dtype = self.label().split("_", 2)
        return f"{prefix}_{schedule.memory_type.value}_{dtype}[{loop}]{inline}"

    __repr__ = __str__


def _check_set(operation: str, op_type: LoadStoreOpType | None) -> None:
    if op_type is not None and op_type.name != "set":
        raise UnsupportedError(expected(operation, "LoadStoreOpType.set", op_type))
