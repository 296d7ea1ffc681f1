"""Random small definitions with random schedules by hand, of everything that a user can write.

A case is drawn from a list of numbers, so that smaller numbers make a smaller case.  A definition
has the steps of the random fusions.  Its schedule is a few rounds of: caches, loops of one tensor
(split, merge, reorder, swizzle, reverse), rfactor, loops like a reference's, parallel types,
memory, inlining.  Nothing keeps a schedule legal: what is refused is left out, and counted.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pyfuser import FusionDefinition, ParallelType
from pyfuser.errors import PyfuserError
from pyfuser.ir.domains import constant_size
from pyfuser.ir.schedule import TensorSchedule
from pyfuser.ir.vals import TensorView
from tests.programs.scheduled_case import ScheduledCase, names_of
from tests.support.random_fusions import IN_KERNELS, add_inputs, add_outputs, small_shape
from tests.support.steps.made import RandomFusion, Value

T = TypeVar("T")

MOST_STEPS = 6
_THREADS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_PARALLEL = (
    "grid_x", "block_x", "grid_y", "block_y", "vectorize", "unroll", "unswitch", "grid_z", "block_z"
)  # fmt: skip
_FACTORS = (2, 4, 3, 8, 1, 16, 5, 32)
_MEMORY = ("shared", "global_", "local")
# Steps whose operand a schedule by hand reads where an index says: it has to be an input.
_READS = frozenset(
    {
        "cat", "embedding_fwd", "flip", "gather", "index", "index_select", "pad", "select", "slice",
        "slice_scatter", "take_along_axis", "stack", "part beside whole", "read backwards",
    }
)  # fmt: skip
# Welford's way has no mean of what isn't finite, whatever torch says.
_MEANS = frozenset({"batch norm", "layer norm", "var", "var_mean", "welford"})
# Only automatic schedules have loops for these.
_WRITES = frozenset({"index_put", "points", "scatter"})


class Choices:
    """Numbers from a list, then from a source, or, without one, the lowest."""

    def __init__(self, given: Sequence[int] = (), source: random.Random | None = None) -> None:
        self.given, self.source = given, source
        self.taken: list[int] = []
        """The numbers, above the lowest that each could be."""

    def number(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        place = len(self.taken)
        if place < len(self.given):
            chosen = min(self.given[place], high - low)
        else:
            chosen = self.source.randint(0, high - low) if self.source is not None else 0
        self.taken.append(chosen)
        return low + chosen


class ChosenFusion(RandomFusion):
    """A random definition whose choices are numbers of a list."""

    def __init__(self, fd: FusionDefinition, choices: Choices) -> None:
        super().__init__(fd, lambda strategy: None)
        self.choices = choices
        self._of_inputs = self._is_finite = False

    def number(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return self.choices.number(low, high)

    def value(self, accept: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A value; while a read is added, mostly an input, and a finite one for what has a mean."""
        if self._of_inputs:
            found = super().value(lambda v: v.tensor.expr is None and accept(v))
            if found is not None:
                return found
        if self._is_finite:
            return super().value(lambda v: bool(v.numbers.isfinite().all()) and accept(v))
        return super().value(accept)

    def step(self) -> None:
        """One step, of those that a schedule by hand may have."""
        name, step = self.one_of(self.one_of(IN_KERNELS))
        if name in _WRITES and self.number(0, 19) != 19:
            return
        self._of_inputs = name in _READS and self.number(0, 9) != 9
        self._is_finite = name in _MEANS
        try:
            self.take(name, step)
        except RuntimeError as error:
            # An operation that checks its operands refuses one that rounding moved.
            if isinstance(error, PyfuserError):
                raise
        self._of_inputs = self._is_finite = False


@dataclass
class Drawn:
    """A case, the numbers it is made of, and the calls that were refused on the way."""

    case: ScheduledCase
    numbers: list[int]
    refusals: list[str] = field(default_factory=list)


def drawn(given: Sequence[int], seed: int | None = None) -> Drawn:
    """The case of a list of numbers, followed by those of a seed."""
    choices = Choices(given, None if seed is None else random.Random(seed))
    with contextlib.redirect_stdout(io.StringIO()), FusionDefinition() as fd:
        made = ChosenFusion(fd, choices)
        add_inputs(made, small_shape(made))
        for _ in range(made.number(1, MOST_STEPS)):
            made.step()
        add_outputs(made)
    lines = [line.strip() for line in repr(fd).splitlines()[1:] if line.strip()]
    drawing = _Drawing(choices, lines)
    drawing.draw()
    return Drawn(
        ScheduledCase(tuple(drawing.lines), tuple(made.inputs)), choices.taken, drawing.refusals
    )


class _Drawing:
    """Draws the calls of a schedule, each after the ones before it were done."""

    def __init__(self, choices: Choices, lines: list[str]) -> None:
        self.number = choices.number
        self.lines, self.refusals = lines, list[str]()
        self.fd = FusionDefinition()
        self.names = names_of(self.fd)

    def draw(self) -> None:
        """The definition, and then the schedule."""
        with contextlib.redirect_stdout(io.StringIO()), self.fd:
            for line in self.lines:
                exec(line, self.names)
            for _ in range(self.number(0, 2)):
                self._round()

    def _round(self) -> None:
        """A round in the order in which a user writes it, with some kinds left out."""
        kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (2, self._cache),
            (3, self._loops),
            (1, self._rfactor),
            (1, self._propagate),
            (3, self._parallelize),
            (1, self._spread),
            (2, self._memory),
            (2, self._inline),
        )
        for most, kind in kinds:
            for _ in range(self.number(0, most)):
                kind()

    # -- calls

    def _call(self, text: str) -> bool:
        """Does a call; True if it isn't refused."""
        self.names["call"] = lambda: exec(text, self.names)
        line = f"refused(lambda: {text.partition(' = ')[2] or text})"
        try:
            message = eval("refused(call)", self.names)
        except Exception:
            self.lines.append(line)  # for whoever runs the case
            return False
        if message is not None:
            self.refusals.append(message)
            return False
        self.lines.append(text)
        return True

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[self.number(0, len(choices) - 1)]

    def _tensors(self) -> dict[str, TensorView]:
        """The tensors of the fusion by the names of the lines."""
        return {name: value for name, value in self.names.items() if isinstance(value, TensorView)}

    def _tensor(self, accept: Callable[[TensorView], bool] = lambda tensor: True) -> str | None:
        """The name of a tensor, mostly a late one; None if there is none like that."""
        found = [name for name, tensor in self._tensors().items() if accept(tensor)]
        return None if not found else self._one_of(found[::-1])

    def _computed(self) -> str | None:
        return self._tensor(lambda tensor: tensor.expr is not None)

    def _some(self) -> str:
        """A list of a few tensors."""
        names = [self._computed() for _ in range(self.number(1, 3))]
        return f"[{', '.join(dict.fromkeys(name for name in names if name))}]"

    def _schedule(self, name: str) -> TensorSchedule:
        found: TensorSchedule = self.fd.fusion.user_schedule[self._tensors()[name]]
        return found

    def _axis(self, name: str) -> int | None:
        rank = len(self._schedule(name).loop)
        return self.number(0, rank - 1) if rank else None

    def _new_name(self) -> str:
        return f"made{sum(name.startswith('made') for name in self.names)}"

    # -- kinds of calls

    def _cache(self) -> None:
        name = self._tensor()
        if name is None:
            return
        tensor = self._tensors()[name]
        if tensor.expr is not None and self.number(0, 1):
            self._call(f"{self._new_name()} = {name}.cache_before()")
        elif self.number(0, 3) or not tensor.uses_list:
            self._call(f"{self._new_name()} = {name}.cache_after()")
        else:
            use = self.number(0, len(tensor.uses_list) - 1)
            call = f"cache_after(cached_uses=[{name}.uses()[{use}]])"
            self._call(f"{self._new_name()} = {name}.{call}")

    def _loops(self) -> None:
        """Some transformations of the loops of one tensor."""
        name = self._computed()
        if name is None:
            return
        for _ in range(self.number(1, 4)):
            self._transform(name)

    def _transform(self, name: str) -> None:
        loop = self._schedule(name).loop
        axis = self._axis(name)
        if axis is None:
            return
        match self.number(0, 9):
            case 0 | 1 | 2 | 3:
                inner = ", False" if self.number(0, 3) == 3 else ""
                self._call(f"{name}.split({axis}, {self._one_of(_FACTORS)}{inner})")
            case 4 | 5 if axis + 1 < len(loop):
                self._call(f"{name}.merge({axis})")
            case 6 if len(loop) > 1:
                self._call(f"{name}.merge({axis}, {self._axis(name)})")
            case 7 | 8:
                self._call(f"{name}.reorder({{{axis}: {self._axis(name)}}})")
            case 9:
                self._swizzle_or_reverse(name, axis)

    def _swizzle_or_reverse(self, name: str, axis: int) -> None:
        extents = [constant_size(each) for each in self._schedule(name).loop]
        alike = [i for i, n in enumerate(extents) if n and n == extents[axis] and i != axis]
        if alike and self.number(0, 3):
            self._call(f"{name}.swizzle({axis}, {self._one_of(alike)})")
        else:
            self._call(f"{name}.reverse({axis})")

    def _rfactor(self) -> None:
        name = self._tensor(lambda tensor: tensor.expr is not None and tensor.expr.accumulates)
        if name is None:
            return
        loop = self._schedule(name).loop
        places = [place for place, axis in enumerate(loop) if axis.is_reduction]
        if len(places) == 1 and self.number(0, 3):
            self._call(f"{name}.split({places[0]}, {self._one_of(_FACTORS)})")
            places = [places[0], places[0] + 1]
        chosen = [place for place in places if self.number(0, 1)] or places[:1]
        made = self._new_name()
        if self._call(f"{made} = {name}.rfactor({chosen})"):
            results = self.names[made]
            for place in range(len(results) if isinstance(results, tuple) else 0):
                self._call(f"{made}_{place} = {made}[{place}]")

    def _propagate(self) -> None:
        name = self._computed()
        if name is None:
            return
        match self.number(0, 5):
            case 0 | 1 | 2:
                self._call(f"fd.sched.transform_like({name})")
            case 3 | 4:
                self._call(f"fd.sched.transform_like({name}, {self._some()})")
            case 5:
                rank = len(self._schedule(name).loop)
                position, spread = self.number(0, rank), bool(self.number(0, 1))
                call = f"bounded_transform_backward({name}, {position}, {self._some()}, {spread})"
                self._call(f"fd.sched.{call}")

    def _parallelize(self) -> None:
        name = self._computed()
        axis = None if name is None else self._axis(name)
        if axis is not None:
            kind = self._one_of(_PARALLEL)
            self._call(f"{name}.axis({axis}).parallelize(ParallelType.{kind})")

    def _spread(self) -> None:
        """Parallel types like those of a tensor that has some."""
        name = self._tensor(
            lambda tensor: any(
                axis.parallel_type is not ParallelType.serial
                for axis in self.fd.fusion.user_schedule[tensor].loop
            )
        )
        if name is None:
            return
        if self.number(0, 3):
            self._call(f"fd.sched.parallelize_like({name})")
        else:
            kinds = f"{{ParallelType.{self._one_of(_THREADS)}}}" if self.number(0, 1) else "()"
            position = self.number(0, len(self._schedule(name).loop)) - 1
            call = f"parallelize_like({name}, {position}, {self._some()}, {kinds})"
            self._call(f"fd.sched.{call}")

    def _memory(self) -> None:
        fusion = self.fd.fusion.graph
        name = self._tensor(lambda t: t.expr is not None and t not in fusion.outputs)
        if name is None:
            return
        if self.number(0, 4) == 4:
            rank = len(self._schedule(name).loop)
            order = list(range(rank))
            axes = [order.pop(self.number(0, len(order) - 1)) for _ in range(rank)]
            listed = ", ".join(f"{name}.axis({axis})" for axis in axes)
            self._call(f"{name}.set_allocation_domain([{listed}], True)")
        else:
            self._call(f"{name}.set_memory_type(MemoryType.{self._one_of(_MEMORY)})")

    def _inline(self) -> None:
        name = self._computed()
        if name is None:
            return
        position = self.number(0, len(self._schedule(name).loop))
        selected = f", {self._some()}" if not self.number(0, 2) else ""
        match self.number(0, 8):
            case 0 | 1 | 2:
                self._call("fd.sched.inline_most()")
            case 3:
                self._call(f"fd.sched.inline_most({self._some()})")
            case 4 | 5 | 6:
                self._call(f"fd.sched.inline_at({name}, {position}, True{selected})")
            case 7:
                self._call(f"fd.sched.inline_at({name}, {position}, False{selected})")
            case 8:
                producer = self._computed()
                mode = self._one_of(("best_effort", "most_inlined", "standard"))
                self._call(f'fd.sched.compute_at({producer}, {name}, {position}, "{mode}")')
