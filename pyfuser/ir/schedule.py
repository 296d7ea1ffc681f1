"""ScheduledFusion: how to compute it.

    scheduled ::= fusion, {tensor -> tensor_schedule}, scheduler, parameters
    tensor_schedule ::= loop domain, compute_at, memory_type

The loop transformations (split, merge, reorder, swizzle) are here because they only make axes out
of axes.  Transformations that look at several tensors (inlining, propagation) or rewrite the
computation (caches, rfactor) are in `pyfuser.schedule`.  `compute_at` is the number of outer loops
that a tensor shares with its consumers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..errors import ScheduleError, expected
from .domains import IterDomain, ParallelType, TensorDomain, constant_size, history
from .fusion import Fusion
from .scalars import IntExpr, Symbol, as_expr
from .vals import TensorView


class MemoryType(enum.Enum):
    """Where a tensor's elements are."""

    tensor = "tensor"
    local = "l"
    shared = "s"
    global_ = "g"
    symmetric = "symmetric"


setattr(MemoryType, "global", MemoryType.global_)  # the interface's name is a Python keyword


@dataclass(slots=True, eq=False)
class TensorSchedule:
    """The schedule of one tensor.

    prefetch    how far ahead reads of an input fetch: bytes, or elements of `along`
    along       an axis of an input; None: its memory
    allocation  the axes that a buffer has, outermost first, made of the logical ones; None: the
                loops inside the compute position
    padding     elements left free after each row of a buffer, a row being its innermost axis
    cache_op    how a copy's loads use the caches: "streaming", "global", "all_levels"; "": any way
    """

    tensor: TensorView
    loop: list[IterDomain]
    memory_type: MemoryType
    compute_at: int = 0
    prefetch: int = 0
    padding: int = 0
    cache_op: str = ""
    allocation: tuple[IterDomain, ...] | None = None
    along: IterDomain | None = None

    @property
    def made(self) -> list[IterDomain]:
        """The axes that the schedule makes of the logical ones: loops, and those of a buffer."""
        return [*self.loop, *(self.allocation or ())]

    def position(self, axis: int, operation: str) -> int:
        """A possibly negative axis as an index into the loop domain."""
        rank = len(self.loop)
        if not isinstance(axis, int) or not -rank <= axis < rank:
            what = f"an axis of T{self.tensor.name} in [{-rank}, {rank - 1}]"
            raise ScheduleError(expected(operation, what, repr(axis)))
        return axis % rank

    def _movable(self, position: int, operation: str) -> None:
        if position < self.compute_at:
            raise ScheduleError(
                expected(
                    operation,
                    f"an axis of T{self.tensor.name} right of its compute position "
                    f"{self.compute_at}",
                    position,
                )
            )

    def split(
        self,
        axis: int,
        factor: int | IntExpr,
        inner_split: bool = True,
        is_whole: bool = False,
        is_even: bool = False,
    ) -> None:
        """[..., a, ...] -> [..., ceildiv(a, factor), factor, ...] (or the two swapped).

        If it `is_whole`, the caller knows that a <= factor, and the other extent is 1; if it
        `is_even`, that the factor divides a.
        """
        position = self.position(axis, "split")
        self._movable(position, "split")
        is_number = isinstance(factor, IntExpr) or (isinstance(factor, int) and factor >= 1)
        if not is_number:
            what = f"axis {self.loop[position]} of T{self.tensor.name} and a factor of at least 1"
            raise ScheduleError(expected("split", what, factor))
        ids = self.tensor.fusion.ids
        self.loop[position : position + 1] = ids.split(
            self.loop[position], as_expr(factor), inner_split, is_whole, is_even
        )

    def merge(self, axis_outer: int, axis_inner: int | None = None) -> None:
        """[..., a, ..., b, ...] -> [..., a*b, ...] at the position of the leftmost of the two."""
        outer = self.position(axis_outer, "merge")
        inner = self.position(axis_outer + 1 if axis_inner is None else axis_inner, "merge")
        if outer == inner:
            what = f"two different axes of T{self.tensor.name}"
            raise ScheduleError(expected("merge", what, (outer, inner)))
        self._movable(min(outer, inner), "merge")
        a, b = self.loop[outer], self.loop[inner]
        if a.is_reduction != b.is_reduction and not (a.is_broadcast or b.is_broadcast):
            what = f"two iteration or two reduction axes of T{self.tensor.name}"
            raise ScheduleError(expected("merge", what, f"{a} and {b}"))
        merged = self.tensor.fusion.ids.merge(a, b)
        self.loop[min(outer, inner)] = merged
        del self.loop[max(outer, inner)]

    def reorder(self, old_to_new: Mapping[int, int]) -> None:
        """Moves axes: `old_to_new[old] = new`; the others keep their order."""
        if not isinstance(old_to_new, Mapping):
            what = "the new positions of axes by their old ones, {old: new}"
            raise ScheduleError(expected("reorder", what, repr(old_to_new)))
        moves = {
            self.position(old, "reorder"): self.position(new, "reorder")
            for old, new in old_to_new.items()
        }
        if len(set(moves.values())) != len(old_to_new) or len(moves) != len(old_to_new):
            what = f"each axis of T{self.tensor.name} at most once"
            raise ScheduleError(expected("reorder", what, dict(old_to_new)))
        rest = iter([axis for i, axis in enumerate(self.loop) if i not in moves])
        at = {new: self.loop[old] for old, new in moves.items()}
        reordered = [at[i] if i in at else next(rest) for i in range(len(self.loop))]
        for position in range(self.compute_at):
            if reordered[position] is not self.loop[position]:
                self._movable(position, "reorder")
        self.loop = reordered

    def swizzle(self, x: int, y: int) -> None:
        """XOR-swizzles axis y by axis x; both extents must be the same power of two."""
        px, py = self.position(x, "swizzle"), self.position(y, "swizzle")
        kinds = [(self.loop[p].iter_type, _has_elements(self.loop[p])) for p in (px, py)]
        if kinds[0] != kinds[1]:  # the other index would leave the only iteration
            what = f"two iteration or two reduction axes of T{self.tensor.name}"
            raise ScheduleError(expected("swizzle", what, f"{self.loop[px]} and {self.loop[py]}"))
        # An expanded output is stored in full, so that its loops have all elements.
        size, other = (constant_size(self.loop[p]) for p in (px, py))
        if size is None or other != size or size & (size - 1) or px == py:
            what = f"two axes of T{self.tensor.name} of one power-of-two extent"
            got = f"{self.loop[px]} and {self.loop[py]}"
            raise ScheduleError(expected("swizzle", what, got))
        self.loop[px], self.loop[py] = self.tensor.fusion.ids.swizzle(self.loop[px], self.loop[py])

    def reverse(self, axis: int) -> None:
        """Runs the loop of an axis from its last element to its first."""
        position = self.position(axis, "reverse")
        self._movable(position, "reverse")
        self.loop[position] = self.tensor.fusion.ids.reverse(self.loop[position])

    def parallelize(self, axis: int, parallel_type: ParallelType) -> None:
        """Sets how the loop of an axis runs."""
        self.loop[self.position(axis, "parallelize")].parallel_type = parallel_type

    def __str__(self) -> str:
        inline = f" ca_pos( {self.compute_at} )" if self.compute_at else ""
        padding = f" padding( {self.padding} )" if self.padding else ""
        cached = f" cache_op( {self.cache_op} )" if self.cache_op else ""
        axes = ", ".join(map(str, self.loop))
        end = f"{inline}{padding}{cached}"
        if self.allocation is not None:
            end += f" allocation( {', '.join(map(str, self.allocation))} )"
        return f"T{self.tensor.name}_{self.memory_type.value}[{axes}]{end}"


def _has_elements(axis: IterDomain) -> bool:
    """False for a broadcast axis, and what is made of it, unless it is expanded."""
    if axis.definition is None:
        return axis.is_expanded or not axis.is_broadcast
    return any(map(_has_elements, axis.definition.inputs))


@dataclass(eq=False)
class ScheduledFusion:
    """A fusion with a schedule for each of its tensors.

    `scheduler` and `parameters` say which scheduler made the schedule and what it decided; None
    stands for a user, who may also say how many registers a hardware thread gets at most. A
    multiprocessor has registers for `least_blocks` of its blocks of hardware threads.
    """

    fusion: Fusion
    schedules: dict[TensorView, TensorSchedule] = field(default_factory=dict)
    scheduler: str | None = None
    parameters: object = None
    most_registers: int | None = None
    least_blocks: int = 1

    @property
    def is_by_hand(self) -> bool:
        """True for a user's schedule, which is followed exactly, and refused if it's wrong."""
        return self.scheduler is None

    def __getitem__(self, tensor: TensorView) -> TensorSchedule:
        """The schedule of a tensor; unscheduled at first: loop = logical, inputs global."""
        found = self.schedules.get(tensor)
        if found is None:
            is_global = tensor in self.fusion.inputs or tensor in self.fusion.outputs
            memory = MemoryType.global_ if is_global else MemoryType.local
            found = TensorSchedule(tensor, list(tensor.domain.logical), memory)
            self.schedules[tensor] = found
        return found

    def domain(self, tensor: TensorView) -> TensorDomain:
        """The tensor's domain with the loop domain of this schedule."""
        d = tensor.domain
        return TensorDomain(d.logical, d.contiguity, d.root, d.allocation, self[tensor].loop)

    @contextmanager
    def kept_on_error(self) -> Iterator[None]:
        """Loops, parallel types and compute positions are what they were if the body raises."""
        before = {
            tensor: (list(each.loop), [axis.parallel_type for axis in each.loop], each.compute_at)
            for tensor, each in self.schedules.items()
        }
        try:
            yield
        except ScheduleError:
            for tensor in self.schedules.keys() - before.keys():
                del self.schedules[tensor]
            for tensor, (loop, kinds, position) in before.items():
                each = self.schedules[tensor]
                each.loop, each.compute_at = loop, position
                for axis, kind in zip(loop, kinds, strict=True):
                    axis.parallel_type = kind
            raise

    def clone(self, extents: Mapping[Symbol, IntExpr] | None = None) -> ScheduledFusion:
        """A copy over a copy of the fusion, with sizes substituted."""
        fusion, cloner = self.fusion.clone(extents)
        copy = replace(self, fusion=fusion, schedules={})
        for tensor, schedule in self.schedules.items():
            if tensor not in cloner.values:
                continue
            target = cloner.values[tensor]
            assert isinstance(target, TensorView)
            cloner.histories(schedule.made, tensor.domain.logical)
            allocation = schedule.allocation
            copy.schedules[target] = TensorSchedule(
                target,
                cloner.axis_list(schedule.loop),
                schedule.memory_type,
                schedule.compute_at,
                schedule.prefetch,
                schedule.padding,
                schedule.cache_op,
                None if allocation is None else tuple(cloner.axis_list(allocation)),
                None if schedule.along is None else cloner.axis(schedule.along),
            )
        return copy

    def transforms(self) -> str:
        """For each tensor: its logical axes, the splits, merges and swizzles, and its loops."""
        lines = []
        for tensor in self.fusion.tensors:
            loop, logical = self[tensor].loop, tensor.domain.logical
            lines += [str(self[tensor]), f"  logical: [{', '.join(map(str, logical))}]"]
            lines += [f"    {expr}" for expr in history(loop, logical)]
            lines.append(f"  loop: [{', '.join(map(str, loop))}]")
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [f"scheduler: {self.scheduler or 'user'}"]
        if self.parameters is not None:
            lines.append(f"parameters: {self.parameters}")
        lines += [str(self[t]) for t in self.fusion.tensors]
        return "\n".join(lines) + "\n\n" + str(self.fusion)
