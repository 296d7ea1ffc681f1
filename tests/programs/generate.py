"""Makes a program from a seed: inputs in random layouts, then statements that eager accepts."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace

import torch

from tests.programs import pointwise, reads, reductions, shapes, writes
from tests.programs.maker import FLOATS, INTEGERS, InPlace, Maker, Several, Skip
from tests.programs.program import Input, Program, Shape, Statement
from tests.programs.running import Chaotic, Lockstep, difference, references

FAMILIES = (
    (pointwise.TEMPLATES, 10), (shapes.TEMPLATES, 8), (reductions.TEMPLATES, 6),
    (reads.TEMPLATES, 4), (writes.TEMPLATES, 6),
)  # fmt: skip
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 33)
MOST_ELEMENTS = 6000
LAYOUTS = ("contiguous",) * 4 + (
    "transposed", "transposed", "expanded", "strided", "sliced", "channels_last", "misaligned",
)  # fmt: skip


def generate(seed: int, most: int = 25) -> Program:
    """The program of a seed, of up to `most` statements."""
    source = random.Random(seed)
    grad, dynamic = source.random() < 0.34, source.random() < 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(20):
            made = _Growing(source, seed, grad, dynamic)
            program = made.grow(source.randint(3, most))
            if program is not None:
                return program
    raise AssertionError(f"seed {seed}: expected a program, got none")


class _Growing:
    """A program in the making, with its environments in lockstep."""

    def __init__(self, source: random.Random, seed: int, grad: bool, dynamic: bool) -> None:
        self.random, self.dynamic = source, dynamic
        self.program = Program(seed, _inputs(source, grad, dynamic), (), ())
        self._restart()

    def _restart(self) -> None:
        """The environments after the statements so far."""
        self.steps = [Lockstep.of(self.program, n) for n in range(1 + self.dynamic)]
        for statement in self.program.statements:
            for steps in self.steps:
                steps.execute(statement)

    def grow(self, count: int) -> Program | None:
        """Adds this many statements, or gives up."""
        attempts = 0
        while len(self.program.statements) < count and attempts < 6 * count:
            attempts += 1
            statement = self._statement()
            if statement is None:
                continue
            try:
                for steps in self.steps:
                    steps.execute(statement)
                    self._require_small(steps)
            except Exception:  # Whatever eager raises: the statement isn't one.
                self._restart()
                continue
            statements = (*self.program.statements, statement)
            self.program = replace(self.program, statements=statements)
        if len(self.program.statements) < 2:
            return None
        return self._finished()

    def _require_small(self, steps: Lockstep) -> None:
        for value in steps.native.names.values():
            if value.numel() > MOST_ELEMENTS or value.dim() > 6:
                raise Chaotic("large")

    def _statement(self) -> Statement | None:
        family = self.random.choices(FAMILIES, [weight for _, weight in FAMILIES])[0][0]
        (template,) = self.random.choices(list(family), list(family.values()))
        maker = Maker(self.random, dict(self.steps[0].native.names), self.dynamic)
        try:
            made = template(maker)
        except (Skip, IndexError, RuntimeError):
            return None
        if isinstance(made, InPlace):
            return Statement((), made.text)
        first = sum(len(s.targets) for s in self.program.statements)
        number = made.count if isinstance(made, Several) else 1
        targets = tuple(f"v{first + n}" for n in range(number))
        if isinstance(made, Several):
            return Statement(targets, made.text) if number > 1 else None
        return Statement(targets, made)

    def _finished(self) -> Program | None:
        """The program with its outputs, if its gradients are tame."""
        read = {name for s in self.program.statements for name in s.reads()}
        made = [name for s in self.program.statements for name in s.targets]
        outputs = [name for name in made if name not in read or self.random.random() < 0.15]
        outputs = outputs[-10:] or made[-1:]
        if self.random.random() < 0.05:
            outputs.append(self.program.inputs[0].name)
        if not outputs:
            return None
        program = replace(self.program, outputs=tuple(outputs))
        try:
            for which in range(1 + self.dynamic):
                native, exact, _ = references(program, which)
                for ours, true in zip(native.gradients, exact.gradients, strict=True):
                    if ours is not None and true is not None and not difference(ours, true) < 1e3:
                        return None
        except RuntimeError:
            return None
        return program


def _inputs(source: random.Random, grad: bool, dynamic: bool) -> tuple[Input, ...]:
    """One to four inputs whose shapes have sizes in common."""
    rank = source.choice((0, 1, 2, 2, 2, 3, 3, 3, 4))
    sizes = [_size(source, rank) for _ in range(max(rank, 1))]
    others = [_other_size(source, size) for size in sizes] if dynamic else sizes
    main = source.choice(("float32",) * 5 + FLOATS)
    made = []
    for number in range(source.randint(1, 4)):
        full = _axes(source, rank, number)
        sets = [tuple(s[d] if d is not None else 1 for d in full) for s in (sizes, others)]
        dtype = main
        if number and source.random() < 0.35:
            dtype = source.choice((*FLOATS, *INTEGERS, "int64", "bool", "bool"))
        made.append(_input(source, f"x{number}", dtype, tuple(sets[: 1 + dynamic]), grad))
    return tuple(made)


def _size(source: random.Random, rank: int) -> int:
    if source.random() < 0.02:
        return 0
    if source.random() < 0.03 and rank < 4:
        return 130
    return source.choice(SIZES if rank < 4 else SIZES[:6])


def _other_size(source: random.Random, size: int) -> int:
    """Another length for an axis; 0 and 1 stay unchanged, because torch treats them separately."""
    return size if size < 2 else source.choice([n for n in (2, 3, 5, 6, 9, 12, 17) if n != size])


def _axes(source: random.Random, rank: int, number: int) -> list[int | None]:
    """Which sizes an input has: all, the last ones, in another order, some of them 1 (None)."""
    axes: list[int | None] = list(range(rank))
    if number and source.random() < 0.3:
        axes = axes[source.randint(0, rank) :]
    if number and source.random() < 0.15:
        source.shuffle(axes)
    return [None if source.random() < 0.1 else d for d in axes]


def _input(
    source: random.Random, name: str, dtype: str, shapes: tuple[Shape, ...], grad: bool
) -> Input:
    kind = getattr(torch, dtype)
    seed = source.randrange(1000)
    if dtype == "bool":
        base = f"torch.randint(0, 2, {{shape}}, generator=seed({seed})).bool()"
    elif not kind.is_floating_point:
        low, high = source.choice(((0, 5), (1, 5), (0, 50) if dtype == "uint8" else (-5, 6)))
        base = f"torch.randint({low}, {high}, {{shape}}, generator=seed({seed})).to(torch.{dtype})"
    elif source.random() < 0.4:
        base = f"(torch.randint(-8, 9, {{shape}}, generator=seed({seed})) / 4).to(torch.{dtype})"
    else:
        base = f"torch.randn({{shape}}, generator=seed({seed})).to(torch.{dtype})"
    given = Input(name, dtype, shapes, shapes, base, "", grad and kind.is_floating_point)
    return _laid_out(source, given)


def _laid_out(source: random.Random, given: Input) -> Input:
    """The input in a random layout that its rank allows."""
    rank = len(given.shapes[0])
    layout = source.choice(LAYOUTS)
    if layout == "transposed" and rank > 1:
        a, b = sorted(source.sample(range(rank), 2))
        bases = tuple(_swapped(shape, a, b) for shape in given.shapes)
        return replace(given, bases=bases, view=f".transpose({a}, {b})")
    if layout == "expanded" and rank:
        d = source.randrange(rank)
        bases = tuple((*s[:d], 1, *s[d + 1 :]) for s in given.shapes)
        return replace(given, bases=bases, view=".expand({shape})")
    if layout == "strided" and rank:
        bases = tuple((*s[:-1], 2 * s[-1]) for s in given.shapes)
        return replace(given, bases=bases, view="[..., ::2]")
    if layout == "sliced" and rank:
        d = source.randrange(rank)
        bases = tuple((*s[:d], s[d] + 2, *s[d + 1 :]) for s in given.shapes)
        return replace(given, bases=bases, view=f"[{', '.join([':'] * d + ['1:-1'])}]")
    if layout == "channels_last" and rank == 4:
        return replace(given, base=given.base + ".to(memory_format=torch.channels_last)")
    if layout == "misaligned":
        bases = tuple((torch.Size(s).numel() + 1,) for s in given.shapes)
        return replace(given, bases=bases, view="[1:].view({shape})")
    return given


def _swapped(shape: Shape, a: int, b: int) -> Shape:
    swapped = list(shape)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    return tuple(swapped)
