"""The interface of statement templates to the program under construction: its values so far.

A template takes a Maker and returns the text of an expression (one new value), a Several (an
expression of several values) or an InPlace (a line that changes something); it raises Skip where
the values don't suit it.  It needn't be right for all sizes: a statement that eager refuses, or
whose result would be chaotic, is dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FLOATS = ("float32", "bfloat16", "float64", "float16")
INTEGERS = ("int64", "int32", "uint8")


class Skip(Exception):
    """No value of the program suits a template."""


@dataclass(frozen=True)
class Several:
    """An expression that unpacks into a number of values."""

    count: int
    text: str


@dataclass(frozen=True)
class InPlace:
    """A line that changes values and makes none."""

    text: str


Made = str | Several | InPlace
Template = Callable[["Maker"], Made]


@dataclass
class Maker:
    """The values of a program in one set of sizes, and a source of choices."""

    random: random.Random
    values: dict[str, Tensor]
    dynamic: bool

    def choice(self, values: Sequence[Any]) -> Any:
        """One of them."""
        if not values:
            raise Skip
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        """True that often."""
        return self.random.random() < share

    def pick(self, wanted: Callable[[Tensor], bool] = lambda _: True) -> str:
        """A value that fits, rather a recent one."""
        names = [name for name, value in self.values.items() if wanted(value)]
        if not names:
            raise Skip
        places = [self.random.randrange(len(names)) for _ in range(2)]
        return names[max(places)]

    def floating(self, rank: int = 0) -> str:
        """A floating-point value with at least this many axes."""
        return self.pick(lambda t: t.is_floating_point() and t.dim() >= rank)

    def numeric(self, rank: int = 0) -> str:
        """Any but a bool."""
        return self.pick(lambda t: t.dtype != torch.bool and t.dim() >= rank)

    def integer(self, rank: int = 0) -> str:
        """An integer value."""
        return self.pick(lambda t: is_integer(t) and t.dim() >= rank)

    def boolean(self) -> str:
        """A mask."""
        return self.pick(lambda t: t.dtype == torch.bool)

    def ranked(self, rank: int = 1) -> str:
        """Any value with at least this many axes."""
        return self.pick(lambda t: t.dim() >= rank)

    def beside(self, name: str, wanted: Callable[[Tensor], bool] = lambda _: True) -> str:
        """A value that broadcasts with another."""
        shape = self.values[name].shape
        return self.pick(lambda t: wanted(t) and broadcasts(shape, t.shape))

    def mask_for(self, name: str) -> str:
        """The text of a mask that broadcasts with a value."""
        if self.chance(0.5):
            try:
                return self.beside(name, lambda t: t.dtype == torch.bool)
            except Skip:
                pass
        other = self.beside(name, lambda t: t.dtype != torch.bool)
        return f"({other} {self.choice(('>', '<', '>=', '<=', '==', '!='))} {self.threshold()})"

    def dim(self, name: str) -> int:
        """An axis, counted from either end."""
        rank = self.values[name].dim()
        if not rank:
            raise Skip
        place = self.random.randrange(rank)
        return place - rank if self.chance(0.4) else place

    def dims(self, name: str) -> str:
        """One axis, or several as a tuple."""
        rank = self.values[name].dim()
        if rank < 2 or self.chance(0.6):
            return repr(self.dim(name))
        return repr(tuple(sorted(self.random.sample(range(rank), self.random.randint(2, rank)))))

    def extent(self, name: str, dim: int) -> int:
        """The length of an axis, which must not be empty."""
        size = self.values[name].shape[dim]
        if not size:
            raise Skip
        return size

    def size(self, name: str, dim: int) -> str:
        """The length of an axis as text: a number unless sizes change."""
        if self.dynamic or self.chance(0.1):
            return f"{name}.shape[{dim}]"
        return repr(self.values[name].shape[dim])

    def threshold(self) -> str:
        """A number between those of the inputs that are exact, or one of them."""
        return self.choice(("0", "0.1", "0.3", "-0.6", "1", "0.5", "-0.25"))

    def number(self) -> str:
        """A factor or a term."""
        return self.choice(("2", "0.5", "-1", "3", "0.3", "1.5", "-0.7", "0", "1"))

    def integer_number(self) -> str:
        """A small integer."""
        return self.choice(("1", "2", "3", "-1", "4", "7"))

    def positive(self, name: str) -> str:
        """The text of a value made positive, and away from zero."""
        term = self.choice(("0.5", "1", "0.25"))
        return self.choice((f"({name}.abs() + {term})", f"({name} ** 2 + {term})"))


def is_integer(value: Tensor) -> bool:
    """True for integers that aren't masks."""
    return not value.is_floating_point() and value.dtype != torch.bool


def broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    """True if shapes match when aligned at the right."""
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))
