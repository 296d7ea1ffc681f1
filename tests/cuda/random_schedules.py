"""Random GPU schedules of small fusions: splits, merges, rfactor, caches, parallel types, inlining.

A seed draws `Steps`, a schedule as data, which prints as the Python that makes it.  All but a few
of the drawn steps give a legal schedule, and the others are known: `DOUBTS` has, for each thing
that can make a schedule illegal, the text of the error.  Steps without a doubt have to be accepted.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from pyfuser.dtypes import DataType
from pyfuser.errors import ScheduleError
from pyfuser.ir.domains import IterDomain, Merge, ParallelType, Split
from pyfuser.ir.exprs import ReductionOp, WelfordOp
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import MemoryType, ScheduledFusion, TensorSchedule
from pyfuser.ir.vals import TensorView
from pyfuser.ops import builders
from pyfuser.ops.binding import Binding, bind
from pyfuser.schedule.inlining import inline_at, inline_most
from pyfuser.schedule.propagation import parallelize_like, transform_like
from pyfuser.schedule.rewrite import cache_after, rfactor
from tests.cuda.examples import input_tensor

# (rows, columns) -> inputs
Inputs = Callable[[int, int], list[torch.Tensor]]


def bias_and_two_outputs(fusion: Fusion) -> Inputs:
    """x = (a + row) * relu(row), and tanh(x - a)."""
    a, row = input_tensor(fusion, 2), input_tensor(fusion, 2, broadcast=(0,))
    vector = input_tensor(fusion, 1)
    x = builders.mul(fusion, builders.add(fusion, a, row), builders.relu(fusion, vector))
    fusion.add_output(x)
    fusion.add_output(builders.tanh(fusion, builders.sub(fusion, x, a)))
    return lambda m, n: [torch.randn(m, n), torch.randn(1, n), torch.randn(n)]


def row_sums(fusion: Fusion) -> Inputs:
    """Half of the sums of a product over columns."""
    a, b = input_tensor(fusion, 2), input_tensor(fusion, 2)
    total = builders.sum(fusion, builders.mul(fusion, a, b), [1])
    fusion.add_output(builders.mul(fusion, total, 0.5))
    return lambda m, n: [torch.randn(m, n), torch.randn(m, n)]


def total(fusion: Fusion) -> Inputs:
    """The sum of everything."""
    fusion.add_output(builders.sum(fusion, input_tensor(fusion, 2), [0, 1]))
    return lambda m, n: [torch.randn(m, n)]


def layer_norm(fusion: Fusion) -> Inputs:
    """Mean, reciprocal deviation and the normalised rows."""
    a = input_tensor(fusion, 2)
    variance, mean = builders.var_mean(fusion, a, [1], 0, True)
    scale = builders.rsqrt(fusion, builders.add(fusion, variance, 1e-5))
    for output in (mean, scale, builders.mul(fusion, builders.sub(fusion, a, mean), scale)):
        fusion.add_output(output)
    return lambda m, n: [torch.randn(m, n)]


def softmax(fusion: Fusion) -> Inputs:
    """softmax over columns."""
    a = input_tensor(fusion, 2)
    highest = builders.max(fusion, a, [1], keepdim=True)
    e = builders.exp(fusion, builders.sub(fusion, a, highest))
    fusion.add_output(builders.div(fusion, e, builders.sum(fusion, e, [1], keepdim=True)))
    return lambda m, n: [torch.randn(m, n)]


def transposed_add(fusion: Fusion) -> Inputs:
    """a.T + b."""
    a, b = input_tensor(fusion, 2), input_tensor(fusion, 2)
    fusion.add_output(builders.add(fusion, builders.permute(fusion, a, [1, 0]), b))
    return lambda m, n: [torch.randn(m, n), torch.randn(n, m)]


def half_precision_sums(fusion: Fusion) -> Inputs:
    """A sum of two half-precision dtypes, and a maximum over columns."""
    a, b = input_tensor(fusion, 2, DataType.BFloat16), input_tensor(fusion, 2, DataType.Half)
    fusion.add_output(builders.cast(fusion, builders.add(fusion, a, b), DataType.Half))
    fusion.add_output(builders.max(fusion, a, [1]))
    return lambda m, n: [torch.randn(m, n).bfloat16(), torch.randn(m, n).half()]


DEFINITIONS = (
    bias_and_two_outputs, row_sums, total, layer_norm, softmax, transposed_add, half_precision_sums
)  # fmt: skip
SHAPES = ((5, 37), (1, 1), (16, 32), (7, 3), (3, 70), (0, 4))

MOST_THREADS = 1024
_UNSEEN = r"to be read by the (block|thread) that wrote it, got a read across axis"
_SHARED = (
    r"a read across blocks inside a shared loop|"
    r"shared loops that wait for each other in a circle|"
    r"loops shared with tensors on both sides of it"
)
# What can make a schedule illegal, and the text of the error.  If a reader's loop isn't known to
# be the writer's, it has to be shared, or the tensor to be in memory that the reader sees.
DOUBTS = {
    # The inner part of a split is split again into parts that stick out: an index in the padding is
    # one of the next part, too.
    "padded part": _UNSEEN,
    # Splits of one axis, merged otherwise than they were split.
    "regrouped parts": _UNSEEN,
    # Rows and columns are merged where a tensor has rows alone: other threads compute its elements.
    "merged with a broadcast": _UNSEEN,
    # rfactor takes parts of an axis, and no other tensor has a loop for the part that it leaves.
    "part left alone": _UNSEEN,
    # One block writes what all blocks read in a loop that they share.
    "broadcast in global memory": _SHARED,
    # All blocks have to be done before a result is used, which cuts shared loops in two.
    "grid reduction": f"{_SHARED}|{_UNSEEN}",
    "too many threads": f"expected at most {MOST_THREADS} threads a block",
}
_DARING = 0.12  # the probability of a doubtful step where one is possible
_FACTORS = (1, 2, 3, 4, 8, 16, 32)

# ("split", axis, factor, inner), ("merge", outer axis) or ("reorder", old, new)
Step = tuple[str | int | bool, ...]


@dataclass
class Steps:
    """A schedule as data: the steps, in order, applied to a fusion."""

    # the memory of an input's cache, by the input's number
    caches: dict[int, str] = field(default_factory=dict)
    # the tensor whose loops all others get, by its name
    reference: int = 0
    # of its loops
    transformations: list[Step] = field(default_factory=list)
    rfactored: tuple[int, ...] = ()
    parallel: dict[int, str] = field(default_factory=dict)
    # at a loop of the reference, or, with None, as far as can be
    inlined: int | None = None


@dataclass(frozen=True)
class Example:
    """The result of a seed."""

    define: Callable[[Fusion], Inputs]
    shape: tuple[int, int]
    steps: Steps
    doubts: frozenset[str] = frozenset()

    def scheduled(self) -> tuple[ScheduledFusion, Fusion, list[torch.Tensor]]:
        """The scheduled fusion, the same without schedule, and inputs."""
        fusion = Fusion()
        inputs = self.define(fusion)(*self.shape)
        original, _ = fusion.clone()
        return schedule(fusion, self.steps), original, inputs

    def explains(self, error: ScheduleError) -> bool:
        """True if one of the doubts predicts the error."""
        return any(re.search(DOUBTS[doubt], str(error)) for doubt in self.doubts)


def example(seed: int) -> Example:
    """A definition, a shape and steps."""
    source = random.Random(seed)
    define, shape = source.choice(DEFINITIONS), source.choice(SHAPES)
    fusion = Fusion()
    sizes = bind(fusion, define(fusion)(*shape))
    drawing = _Drawing(ScheduledFusion(fusion), sizes, source)
    drawing.draw()
    return Example(define, shape, drawing.steps, frozenset(drawing.doubts))


def schedule(fusion: Fusion, steps: Steps) -> ScheduledFusion:
    """Does the steps; raises ScheduleError if one of them is impossible."""
    scheduled = ScheduledFusion(fusion)
    inputs = fusion.input_tensors
    for number, memory in steps.caches.items():
        scheduled[cache_after(scheduled, inputs[number])].memory_type = MemoryType[memory]
    reference = next(t for t in fusion.tensors if t.name == steps.reference)
    for step in steps.transformations:
        _transform(scheduled[reference], step)
    if steps.rfactored:
        made = rfactor(scheduled, reference, list(steps.rfactored))
        reference = made if isinstance(made, TensorView) else made[0]
    transform_like(scheduled, reference)
    for axis, kind in steps.parallel.items():
        scheduled[reference].parallelize(axis, ParallelType[kind])
    parallelize_like(scheduled, reference)
    if steps.inlined is None:
        inline_most(scheduled)
    else:
        inline_at(scheduled, reference, steps.inlined, best_effort=True)
    return scheduled


def _transform(loops: TensorSchedule, step: Step) -> None:
    match step:
        case ("split", int(axis), int(factor), bool(inner)):
            loops.split(axis, factor, inner)
        case ("merge", int(axis)):
            loops.merge(axis)
        case ("reorder", int(old), int(new)):
            loops.reorder({old: new})


class _Drawing:
    """Draws the steps of one schedule; the reference's loops are transformed as it goes."""

    def __init__(self, scheduled: ScheduledFusion, sizes: Binding, source: random.Random) -> None:
        self.scheduled, self.sizes, self.source = scheduled, sizes, source
        self.steps = Steps()
        self.doubts: set[str] = set()
        tensors = scheduled.fusion.tensors
        self.reductions = [t for t in tensors if isinstance(t.expr, ReductionOp | WelfordOp)]
        # Rows are rows in all tensors, and an axis reduced in one of them is reduced in all.
        self.reduced_places = {
            place
            for tensor in self.reductions
            for place, axis in enumerate(tensor.domain.logical)
            if axis.is_reduction
        }

    def draw(self) -> None:
        """All steps."""
        source = self.source
        self._draw_caches()
        outputs = [v for v in self.scheduled.fusion.outputs if isinstance(v, TensorView)]
        of_reductions = self.reductions and source.random() < 0.8
        reference = source.choice(self.reductions if of_reductions else outputs)
        self.steps.reference = reference.name
        loops = self.scheduled[reference]
        for _ in range(source.randint(0, 4)):
            self._draw_transformation(loops)
        reduced = [self._is_reduced(axis, reference) for axis in loops.loop]
        self._draw_rfactor(loops)
        self._draw_parallel_types(loops.loop)
        self._draw_inlining(reference, reduced)

    def _dares(self, doubt: str) -> bool:
        """Whether something is done that may turn out to be illegal."""
        dared = self.source.random() < _DARING
        if dared:
            self.doubts.add(doubt)
        return dared

    def _draw_caches(self) -> None:
        for number, tensor in enumerate(self.scheduled.fusion.input_tensors):
            if self.source.random() >= 0.25:
                continue
            memory = self.source.choice(("local", "shared", "global_"))
            if memory == "global_" and _lacks_axes(tensor):
                memory = memory if self._dares("broadcast in global memory") else "local"
            self.steps.caches[number] = memory

    def _draw_transformation(self, loops: TensorSchedule) -> None:
        rank, choice = len(loops.loop), self.source.random()
        step: Step | None = None
        if rank and choice < 0.55:
            step = self._draw_split(loops)
        elif rank > 1 and choice < 0.75:
            step = self._draw_merge(loops)
        elif rank:
            step = ("reorder", self.source.randrange(rank), self.source.randrange(rank))
        if step is not None:
            _transform(loops, step)
            self.steps.transformations.append(step)

    def _draw_split(self, loops: TensorSchedule) -> Step:
        place = self.source.randrange(len(loops.loop))
        factors, axis = _FACTORS, loops.loop[place]
        if not _is_outermost(axis):
            size = axis.extent.value if axis.extent.is_constant else 1
            factors = tuple(factor for factor in _FACTORS if size % factor == 0)
            if self._dares("padded part"):
                factors = _FACTORS
        return ("split", place, self.source.choice(factors), self.source.random() < 0.8)

    def _draw_merge(self, loops: TensorSchedule) -> Step | None:
        """Pairs of neighbours of which every tensor reduces both or neither."""
        loop = loops.loop
        reduced = [self._is_reduced(axis, loops.tensor) for axis in loop]
        fitting = [i for i in range(len(loop) - 1) if reduced[i] == reduced[i + 1]]
        if not fitting:
            return None
        place = self.source.choice(fitting)
        regrouped = _are_regrouped(loop[place], loop[place + 1])
        return None if regrouped and not self._dares("regrouped parts") else ("merge", place)

    def _is_reduced(self, axis: IterDomain, tensor: TensorView) -> bool:
        """True for an axis made of an axis that a tensor of the fusion reduces."""
        place = tensor.domain.logical.index(_roots(axis)[0])
        return place in self.reduced_places

    def _draw_rfactor(self, loops: TensorSchedule) -> None:
        places = [i for i, axis in enumerate(loops.loop) if axis.is_reduction]
        if len(places) < 2 or self.source.random() >= 0.6:
            return
        chosen = self.source.sample(places, self.source.randint(1, len(places) - 1))
        if not _leaves_parts_alone(loops.loop, chosen) or self._dares("part left alone"):
            self.steps.rfactored = tuple(sorted(chosen))

    def _draw_parallel_types(self, loop: list[IterDomain]) -> None:
        kinds = ["grid_x", "grid_y", "block_x", "block_y"]
        self.source.shuffle(kinds)
        rank, threads = len(loop), 1
        for place in self.source.sample(range(rank), min(rank, self.source.randint(1, 4))):
            kind = kinds.pop()
            if kind.startswith("block"):
                wanted = threads * self.sizes.size(loop[place].extent)
                if wanted > MOST_THREADS and not self._dares("too many threads"):
                    continue
                threads = wanted
            self.steps.parallel[place] = kind

    def _draw_inlining(self, reference: TensorView, reduced: list[bool]) -> None:
        if self.source.random() >= 0.7:
            self.steps.inlined = self.source.randint(0, len(reduced))
        across_blocks = any(
            reduced[axis] and kind.startswith("grid") for axis, kind in self.steps.parallel.items()
        )
        is_read = any(t not in self.scheduled.fusion.outputs for t in self.reductions)
        if across_blocks and is_read and not self._dares("grid reduction"):
            self.steps.inlined = 0
        elif self.steps.inlined is not None and self._merges_what_is_broadcast(reference):
            far = self._dares("merged with a broadcast")
            self.steps.inlined = self.steps.inlined if far else None

    def _merges_what_is_broadcast(self, reference: TensorView) -> bool:
        merged = any(len(set(_roots(axis))) > 1 for axis in self.scheduled[reference].loop)
        return merged and any(map(_lacks_axes, self.scheduled.fusion.input_tensors))


def _lacks_axes(tensor: TensorView) -> bool:
    """True for an input that all rows or all columns share."""
    return len(tensor.axes) < 2 or any(axis.is_broadcast for axis in tensor.axes)


def _roots(axis: IterDomain) -> list[IterDomain]:
    """The axes that an axis is made of."""
    if axis.definition is None:
        return [axis]
    return [root for part in axis.definition.inputs for root in _roots(part)]


def _leaves_parts_alone(loop: list[IterDomain], chosen: list[int]) -> bool:
    """True if parts of an axis are taken and a remaining part has no place among the rest."""
    roots = [set(_roots(axis)) for axis in loop]
    taken = [roots[place] for place in chosen]
    remaining = [axes for place, axes in enumerate(roots) if place not in chosen]
    parts = [axes for axes in remaining if any(axes & others for others in taken)]
    if any(len(others) > 1 and others & axes for others in taken for axes in parts):
        return True
    pairs = itertools.combinations(remaining, 2)
    return any(axes in parts and axes.isdisjoint(others) for axes, others in pairs)


def _are_regrouped(outer: IterDomain, inner: IterDomain) -> bool:
    """True for parts of one axis that weren't one part before."""
    is_one_split = isinstance(outer.definition, Split) and outer.definition is inner.definition
    return not is_one_split and not set(_roots(outer)).isdisjoint(_roots(inner))


def _is_outermost(axis: IterDomain) -> bool:
    """True if an index past the end of an axis is past the end of the axes it is made of."""
    match axis.definition:
        case Split() as split:
            return axis is split.outputs[0] and _is_outermost(split.inputs[0])
        case Merge() as merge:
            return _is_outermost(merge.inputs[0])
        case _:
            return True
