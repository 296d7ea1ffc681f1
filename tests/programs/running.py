"""Runs programs in eager three times in parallel: unchanged, in float64, and in float64 with noise.

The second run gives the exact results.  The third, in which each statement is rounded at random as
its dtype would be, shows how far rounding alone may move a result.  Its cotangents are rounded as
well, because the terms of a gradient may cancel.  A statement at which the three diverge (a
comparison of nearly equal numbers, a cancellation) is chaotic: the generator drops it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.programs.program import Program, Statement
from tests.support.fences import fenced

FLOATS = re.compile(r"torch\.(float32|bfloat16|float16)\b")
SUMS = re.compile(r"sum|mean|var|std|norm|loss|entropy|@|mm\b")
NORMS = re.compile(r"(layer|group|batch|instance)_norm\(")
# No intermediate result is greater, so that float16 and sums of products stay far from overflow.
GREATEST = 1e3
GREATEST_INTEGER = 1e5
# How many roundings of the coarsest dtype may have gone into a value of a tame program.
ROUNDINGS = 32


Rounding = Callable[[Tensor, str], Tensor]


class Chaotic(Exception):
    """A statement whose result can change by rounding alone, or that leaves the range of values."""


@dataclass
class Run:
    """The results of one run: outputs, gradients of the inputs that need one, inputs."""

    outputs: list[Tensor]
    gradients: list[Tensor | None]
    inputs: list[Any]
    bases: list[Tensor]
    terms: int = 1  # as many elements at most were added into one

    def groups(self) -> Iterator[tuple[str, Sequence[Tensor | None]]]:
        """The compared values, with the names of the groups."""
        yield "output", self.outputs
        yield "gradient", self.gradients
        yield "memory of input", self.bases


@dataclass
class Given:
    """Inputs of a program: the memory of each and the view of it that the function gets.

    An input may be a number, which has no memory.
    """

    bases: list[Tensor]
    views: list[Any]


def seeded(number: int) -> torch.Generator:
    """A separate generator for each tensor."""
    return torch.Generator().manual_seed(number)


NAMES: dict[str, Any] = {"torch": torch, "seed": seeded}


def given(program: Program, which: int, exact: bool) -> Given:
    """Inputs of one set of sizes; `exact` holds the same values in float64."""
    made = Given([], [])
    for each in program.inputs:
        base = eval(each.base_text(which), dict(NAMES))
        if not isinstance(base, Tensor):
            made.views.append(base)
            continue
        if exact and base.is_floating_point():
            base = base.double()
        base = fenced(base)
        view = eval(f"base{each.view_text(which)}", {**NAMES, "base": base})
        made.bases.append(base)
        made.views.append(view.detach().requires_grad_() if each.grad else view)
    return made


@contextmanager
def default_float64() -> Iterator[None]:
    """Integers that become floats become float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass
class Environment:
    """The names of a running program."""

    given: Given
    names: dict[str, Any]
    exact: bool

    @staticmethod
    def of(program: Program, which: int, exact: bool) -> Environment:
        """Before the first statement."""
        made = given(program, which, exact)
        names = [each.name for each in program.inputs]
        return Environment(made, dict(zip(names, made.views, strict=True)), exact)

    def execute(self, statement: Statement) -> None:
        """Runs one line."""
        scope = {**NAMES, **self.names}
        if not self.exact:
            exec(str(statement), scope)
        else:
            with default_float64():
                exec(FLOATS.sub("torch.float64", str(statement)), scope)
        for name in statement.targets:
            self.names[name] = scope[name]


@dataclass
class Lockstep:
    """The three environments of one program and one set of sizes, statement by statement."""

    native: Environment
    exact: Environment
    noisy: Environment
    noise: torch.Generator = field(default_factory=lambda: seeded(0))
    epsilon: float = 0.0
    terms: int = 1

    @staticmethod
    def of(program: Program, which: int) -> Lockstep:
        """Before the first statement."""
        steps = [Environment.of(program, which, exact) for exact in (False, True, True)]
        made = Lockstep(*steps)
        for base in made.native.given.bases:
            made._see(base)
        return made

    def execute(self, statement: Statement) -> None:
        """Runs one line in all three; raises torch's error, or Chaotic."""
        if NORMS.search(statement.text):
            self._require_spread(statement)
        known = {storage(v) for v in self.native.names.values() if isinstance(v, Tensor)}
        for environment in (self.native, self.exact, self.noisy):
            environment.execute(statement)
        for name in statement.targets:
            value = self.native.names[name]
            if not isinstance(value, Tensor):
                raise Chaotic("not a tensor")
            self._see(value)
            self.terms = max(self.terms, self._added(statement, value))
            if storage(value) not in known:
                self._disturb(name)
        for name in statement.targets or self.native.names:
            self._require_tame(name)

    def _require_spread(self, statement: Statement) -> None:
        """Chaotic for a norm of rows that spread less than their mean is rounded.

        Eager's moving mean of a constant row is exact; a sum that is divided need not be.
        """
        plain = Environment(self.exact.given, dict(self.exact.names), exact=True)
        shaken = Environment(self.exact.given, dict(self.exact.names), exact=True)
        for name in statement.reads() & plain.names.keys():
            value = plain.names[name]
            if isinstance(value, Tensor) and value.is_floating_point():
                noise = torch.rand(value.shape, generator=seeded(0), dtype=torch.float64) - 0.5
                plain.names[name] = value.detach().clone()  # it may be a running mean
                shaken.names[name] = value.detach() * (1 + self.epsilon * noise)
        for environment in (plain, shaken):
            environment.execute(statement)
        for name in statement.targets:
            value, other = (each.names[name].detach() for each in (plain, shaken))
            allowed = ROUNDINGS * self.epsilon * max(scale_of(value), 1e-3)
            if not difference(other, value) <= allowed:
                raise Chaotic(name)

    def _added(self, statement: Statement, result: Tensor) -> int:
        """How many elements a statement may have added into one of its result's."""
        read = [self.native.names.get(name) for name in statement.reads()]
        most = max((x.numel() for x in read if isinstance(x, Tensor)), default=1)
        return most // max(result.numel(), 1) if SUMS.search(statement.text) else 1

    def _see(self, value: Tensor) -> None:
        if value.is_floating_point():
            self.epsilon = max(self.epsilon, torch.finfo(value.dtype).eps)

    def _disturb(self, name: str) -> None:
        """Rounds a value at random, unless it is one that no rounding has touched."""
        native, exact, noisy = (e.names[name] for e in (self.native, self.exact, self.noisy))
        if not native.is_floating_point() or _untouched(native, exact):
            return
        epsilon = torch.finfo(native.dtype).eps
        signs = torch.empty_like(noisy, requires_grad=False).uniform_(-1, 1, generator=self.noise)
        self.noisy.names[name] = noisy * (1 + epsilon * signs)

    def _require_tame(self, name: str) -> None:
        if not isinstance(self.native.names[name], Tensor):
            return
        native, exact, noisy = (
            e.names[name].detach() for e in (self.native, self.exact, self.noisy)
        )
        if native.shape != exact.shape or not native.numel():
            return
        if not native.is_floating_point():
            if not (torch.equal(native, exact) and torch.equal(native, noisy)):
                raise Chaotic(name)
            if native.abs().max() > GREATEST_INTEGER if native.dtype != torch.bool else False:
                raise Chaotic(name)
            return
        scale = scale_of(exact)
        if not scale <= GREATEST:
            raise Chaotic(name)
        allowed = ROUNDINGS * self.epsilon * max(scale, 1e-3)
        for other in (native, noisy):
            if not difference(other, exact) <= allowed:
                raise Chaotic(name)

    def finish(self, program: Program) -> tuple[Run, Run, Run]:
        """Outputs and gradients of the three."""
        shaken = finished(
            program, self.noisy.given, self._outputs(program, self.noisy), self._cotangent_noise()
        )
        shaken.terms = self.terms
        return (
            finished(program, self.native.given, self._outputs(program, self.native)),
            finished(program, self.exact.given, self._outputs(program, self.exact)),
            shaken,
        )

    def _cotangent_noise(self) -> Rounding:
        """Rounds cotangents at random: gradients whose terms cancel show by it."""

        def rounded(cotangent: Tensor, output: str) -> Tensor:
            dtype = self.native.names[output].dtype
            if not dtype.is_floating_point:  # an integer, that is in float64 a number like others
                return cotangent
            epsilon = torch.finfo(dtype).eps
            signs = torch.empty_like(cotangent).uniform_(-1, 1, generator=self.noise)
            return cotangent * (1 + epsilon * signs)

        return rounded

    def _outputs(self, program: Program, environment: Environment) -> list[Tensor]:
        return [environment.names[name] for name in program.outputs]


def _untouched(native: Tensor, exact: Tensor) -> bool:
    """True if a value involves no rounding; in float64 if it needs few digits."""
    wide = native.double()
    return torch.equal(wide, exact.double()) and torch.equal(wide.float().double(), wide)


def storage(value: Tensor) -> int:
    """The address at which the memory of a tensor begins."""
    return value.untyped_storage().data_ptr()


def scale_of(value: Tensor) -> float:
    """The greatest absolute value."""
    return value.abs().max().item() if value.numel() else 0.0


def difference(a: Tensor, b: Tensor) -> float:
    """The greatest difference of two tensors of one shape; NaN if one of them has NaN."""
    if not a.numel():
        return 0.0
    return (a.detach().double() - b.detach().double()).abs().max().item()


def finished(
    program: Program, made: Given, outputs: Sequence[Tensor], rounded: Rounding | None = None
) -> Run:
    """Outputs with the gradients of the inputs, from cotangents that are the same in every run.

    `rounded` transforms the cotangent of an output, by its name.
    """
    gradients: list[Tensor | None] = []
    leaves = [view for view, each in zip(made.views, program.inputs, strict=True) if each.grad]
    wanted = [(n, out) for n, out in enumerate(outputs) if out.requires_grad]
    if leaves and wanted:
        cotangents = [
            torch.randint(-8, 9, out.shape, generator=seeded(n)).div(4).to(out.dtype)
            for n, out in wanted
        ]
        if rounded is not None:
            names = [program.outputs[n] for n, _ in wanted]
            cotangents = [rounded(c, name) for c, name in zip(cotangents, names, strict=True)]
        gradients = list(
            torch.autograd.grad([out for _, out in wanted], leaves, cotangents, allow_unused=True)
        )
    return Run(list(outputs), gradients, made.views, made.bases)


def references(program: Program, which: int) -> tuple[Run, Run, Run]:
    """A whole program in eager, in float64, and in float64 with noise."""
    steps = Lockstep.of(program, which)
    for statement in program.statements:
        steps.execute(statement)
    return steps.finish(program)
