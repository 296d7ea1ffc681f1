"""TensorView: the tensor that a user defines and schedules, with the interface's methods.

It is the IR's tensor itself, with methods that act on the schedule that its fusion owns; axes and
expressions are returned as handles (`handles`).  Schedules are kept apart from the definition, so a
TensorView stays valid whatever is done to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from ..errors import DefinitionError, ScheduleError, UnsupportedError, expected, unsupported
from ..ir import domains, vals
from ..ir.domains import ParallelType
from ..ir.schedule import MemoryType, ScheduledFusion, TensorSchedule
from .arguments import with_plain_arguments
from .device_mesh import DeviceMesh
from .handles import Expr, IterDomain, Scalar, expr_handle, require_member

if TYPE_CHECKING:
    from .enums import CacheOp, LoadStoreOpType
    from .fusion import DefinedFusion


class _Scheduled(Protocol):
    @property
    def user_schedule(self) -> ScheduledFusion: ...
    @property
    def has_user_schedule(self) -> bool: ...
    def keep_definition(self) -> None: ...


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

    def definition(self) -> Expr | None:
        """The expression that computes the tensor; None for an input."""
        return None if self.expr is None else expr_handle(self.expr)

    def uses(self) -> list[Expr]:
        """The expressions that read it."""
        return [expr_handle(expr) for expr in self.uses_list]

    def size(self, dim: int) -> vals.Scalar:
        """The size of a dimension."""
        from ..ops import builders

        return builders.size(self.fusion, self, dim)

    def shape(self) -> list[vals.Scalar]:
        """The sizes of all dimensions."""
        from ..ops import builders

        return builders.shape(self.fusion, self)

    def is_symbolic(self) -> bool:
        """True: its elements aren't known before a call."""
        return True

    def has_root(self) -> bool:
        """True if the root domain differs from the logical one."""
        return self.domain.root is not None

    def axis(self, index: int) -> IterDomain:
        """An axis of the loop domain."""
        schedule = self._schedule
        return IterDomain(self.fusion, schedule.loop[schedule.position(index, "axis")])

    def _handles(self, axes: Sequence[domains.IterDomain]) -> list[IterDomain]:
        return [IterDomain(self.fusion, axis) for axis in axes]

    def get_logical_domain(self) -> list[IterDomain]:
        """The axes that its consumers see, and those that it reduces."""
        return self._handles(self.domain.logical)

    def get_loop_domain(self) -> list[IterDomain]:
        """The axes that the schedule loops over."""
        return self._handles(self._schedule.loop)

    def get_root_domain(self) -> list[IterDomain]:
        """The axes that index its producers; empty if they are the logical ones."""
        return self._handles(self.domain.root or [])

    # -- scheduling

    def split(self, axis: int, factor: int | Scalar, inner_split: bool = True) -> TensorView:
        """[..., a, ...] -> [..., ceildiv(a, factor), factor, ...], or the two swapped."""
        if isinstance(factor, Scalar) and isinstance(factor.constant, int):
            factor = factor.constant
        self._schedule.split(axis, cast("int", factor), inner_split)
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

    def reverse(self, axis: int) -> TensorView:
        """Runs the loop of an axis from its last element to its first, as a reversed scan needs."""
        self._schedule.reverse(axis)
        return self

    def swizzle1d(self, x: int, parallel_type: ParallelType) -> TensorView:
        """Rotates the tiles that several devices exchange: raises UnsupportedError."""
        raise UnsupportedError(unsupported("swizzle1d", "several devices"))

    def set_memory_type(self, memory_type: MemoryType) -> None:
        """Sets where the tensor's elements are: local, shared or global."""
        require_member("set_memory_type", MemoryType, memory_type)
        is_fixed = self in self.fusion.inputs or self in self.fusion.outputs
        if is_fixed and memory_type is not MemoryType.global_:
            what = f"T{self.name}, an input or output, in global memory"
            raise ScheduleError(expected("set_memory_type", what, memory_type.name))
        if memory_type in (MemoryType.tensor, MemoryType.symmetric):
            what = f"T{self.name} in local, shared or global memory"
            raise UnsupportedError(expected("set_memory_type", what, memory_type.name))
        self._schedule.memory_type = memory_type

    def cache_before(self, op_type: LoadStoreOpType | None = None) -> TensorView:
        """Inserts a new tensor that is computed first and copied to this one; returns it."""
        from ..schedule.rewrite import cache_before

        _check_set("cache_before", op_type)
        return cast(TensorView, cache_before(self._rewritten(), self))

    def cache_after(
        self,
        op_type: LoadStoreOpType | None = None,
        cache_op: CacheOp | None = None,
        propagate_allocation_domain: bool = True,
        cached_uses: Sequence[Expr] = (),
    ) -> TensorView:
        """Inserts a copy that the readers, or `cached_uses`, then read; returns it.

        On CUDA, the loads of a copy of an input have the cache operator, element by element. On a
        CPU there is none: it has no effect.
        """
        from ..schedule.rewrite import cache_after

        _check_set("cache_after", op_type)
        chosen = {use._expr for use in cached_uses}
        if not chosen <= set(self.uses_list):
            what = f"cached_uses among the readers of T{self.name}"
            raise ScheduleError(expected("cache_after", what, [str(use) for use in cached_uses]))
        scheduled = self._rewritten()
        made = cache_after(scheduled, self, chosen)
        if cache_op is not None and cache_op.name != "unspecified":
            scheduled[made].cache_op = cache_op.name.removesuffix("_")
        return cast(TensorView, made)

    @with_plain_arguments
    def rfactor(self, axes: Sequence[int]) -> TensorView:
        """Reduces these loop axes into a new tensor, which is returned, and the others after it."""
        from ..schedule.rewrite import rfactor

        return cast(TensorView, rfactor(self._rewritten(), self, list(axes)))

    @with_plain_arguments
    def set_allocation_domain(
        self, new_allocation_domain: Sequence[IterDomain], new_contiguity: bool
    ) -> None:
        """Sets the order of the elements in memory, outermost axis first.

        For a tensor that a kernel keeps to itself, they may be its loops instead, in any order.
        """
        for handle in new_allocation_domain:
            if not isinstance(handle, IterDomain):
                what = f"axes of T{self.name}"
                raise ScheduleError(expected("set_allocation_domain", what, repr(handle)))
        axes = [handle._axis for handle in new_allocation_domain]
        loop = self._schedule.loop
        is_own = self not in self.fusion.inputs and self not in self.fusion.outputs
        if is_own and loop != self.domain.logical and set(axes) == set(loop):
            if new_contiguity is not True or len(axes) != len(loop):
                what = "loops without gaps, each once"
                raise DefinitionError(expected("set_allocation_domain", what, axes))
            self._schedule.allocation = tuple(axis for axis in axes if not axis.is_reduction)
            return
        if set(axes) != set(self.domain.logical) or len(axes) != len(self.domain.logical):
            what = f"the logical axes of T{self.name}, each once"
            what += ", or its loops" if is_own else ""
            raise DefinitionError(expected("set_allocation_domain", what, axes))
        kept = [axis for axis in axes if not axis.is_reduction]
        self.domain.allocation = kept
        self.domain.contiguity = [None if a.is_broadcast else new_contiguity for a in kept]

    def set_device_mesh(self, mesh: DeviceMesh) -> None:
        """Says on which devices the tensor is: whole on each, unless an axis is mesh-parallel."""
        if not isinstance(mesh, DeviceMesh):
            raise DefinitionError(expected("set_device_mesh", "a DeviceMesh", mesh))
        cast("DefinedFusion", self.fusion).meshes[self] = mesh

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


# What the copies need that aren't a load and a store.
_COPIES = {
    "load_matrix": "kernels with matrix instructions (NVIDIA sm_75)",
    "cp_async": "kernels with asynchronous copies (NVIDIA sm_80)",
    "tma": "the tensor memory accelerator (NVIDIA sm_90)",
}


def _check_set(operation: str, op_type: LoadStoreOpType | None) -> None:
    from .enums import LoadStoreOpType

    if op_type is not None and not isinstance(op_type, LoadStoreOpType):
        raise ScheduleError(expected(operation, "a LoadStoreOpType", repr(op_type)))
    if op_type is not None and op_type.name != "set":
        raise UnsupportedError(unsupported(f"{operation}({op_type})", _COPIES[op_type.name]))
