"""A random fusion while it is built: its definition, inputs and values, and hypothesis' choices.

A step takes values from here, appends operations to the definition, and adds the results.  Every
choice is hypothesis' own, so that a failure shrinks to few steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import FLOATING, INTEGERS, from_torch, is_signed, to_torch
from pyfuser.ir.scalars import ONE
from pyfuser.ir.vals import TensorView
from tests.support.random_tensors import LAYOUTS, Shape, laid_out, random_tensor
from tests.support.steps.known import KnownValues

Draw = Callable[[st.SearchStrategy[Any]], Any]
T = TypeVar("T")

# Results that are larger than this, and than the first input, aren't read: fusions are small.
MOST_ELEMENTS = 20_000

integers = functools.lru_cache(maxsize=None)(st.integers)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the definition, and its numbers in float64."""

    tensor: TensorView
    numbers: torch.Tensor

    @property
    def shape(self) -> Shape:
        return tuple(self.numbers.shape)

    @property
    def rank(self) -> int:
        return self.numbers.dim()

    @property
    def dtype(self) -> DataType:
        return self.tensor.dtype

    @property
    def is_floating(self) -> bool:
        return self.dtype in FLOATING

    def fits(self, low: float, high: float) -> bool:
        """True if all numbers are in a range (NaN isn't)."""
        x = self.numbers
        return not x.numel() or bool(((x >= low) & (x <= high)).all())


class RandomFusion:
    """A definition, the inputs to run it with, and the values made so far."""

    def __init__(self, fd: FusionDefinition, draw: Draw) -> None:
        self.fd, self.ops, self.draw = fd, fd.ops, draw
        self.known = KnownValues(fd.fusion.graph)
        self.values: list[Value] = []
        self.updates: dict[int, Value] = {}
        """By the position of an input, the value to which it is updated in place."""
        self.drawn: list[str] = []
        """The steps that added something, in order."""

    def take(self, name: str, step: Callable[[RandomFusion, str], None]) -> None:
        """Takes a step of a name."""
        before = len(self.values)
        step(self, name)
        inputs = self.fd.fusion.inputs()
        if any(value.tensor not in inputs for value in self.values[before:]):
            self.drawn.append(name)

    @property
    def inputs(self) -> list[Any]:
        """The arguments of a call, with seed and offset if the definition has random numbers."""
        state = [0] * len(self.fd.fusion.graph.random_state)
        return [*self.known.inputs, *state]

    # -- choices

    def number(self, low: int, high: int) -> int:
        """An integer in [low, high]; shrinks to low."""
        chosen: int = self.draw(integers(low, high))
        return chosen

    def one_of(self, choices: Sequence[T]) -> T:
        """One of these; shrinks to the first."""
        return choices[self.number(0, len(choices) - 1)]

    def flag(self, one_in: int = 2) -> bool:
        """True once in so many times; shrinks to False."""
        return self.number(1, one_in) == one_in

    def some_of(self, count: int) -> list[int]:
        """One or more of range(count), in order."""
        chosen = self.number(1, 2**count - 1)
        return [i for i in range(count) if chosen >> i & 1]

    def order(self, count: int) -> list[int]:
        """range(count) in some order."""
        rest = list(range(count))
        return [rest.pop(self.number(0, len(rest) - 1)) for _ in range(count)]

    def value(self, accept: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """One of the values that a step accepts, mostly a late one; None if there is none."""
        found = [value for value in self.values if accept(value)]
        if not found:
            return None
        return found[-1] if self.flag() else self.one_of(found)

    # -- values

    def add(self, *tensors: Any) -> list[Value]:
        """Adds results that can be relied on and aren't large."""
        added = []
        for tensor in tensors:
            numbers = self.known.of(tensor)
            most = max(MOST_ELEMENTS, 2 * self.values[0].numbers.numel())
            if numbers is not None and numbers.numel() <= most:
                added.append(Value(tensor, numbers))
        self.values += added
        return added

    def input(self, x: torch.Tensor, layout: str | None = None) -> Value:
        """A new input with these numbers, in some layout, described in one of three ways."""
        x = laid_out(x, self.one_of(LAYOUTS) if layout is None else layout)
        match self.number(0, 3):
            case 0:
                tensor = self.fd.from_pytorch(x)
            case 1:
                tensor = self.fd.from_pytorch(x, static_sizes=True)
            case _:
                symbolic = [1 if size == 1 else -1 for size in x.shape]
                tensor = self.fd.define_tensor(symbolic, dtype=from_torch(x.dtype))
        self.known.give(tensor, x)
        made = Value(tensor, self.known.wide.values[tensor])
        self.values.append(made)
        return made

    def random_input(self, shape: Shape, dtype: DataType) -> Value:
        """A new input of small multiples of 1/4."""
        seed = len(self.known.inputs)
        return self.input(random_tensor(shape, to_torch(dtype), seed))

    def scalar(self, number: float, dtype: DataType | None = None) -> Any:
        """A number as it is, as a constant, or as an input."""
        match self.number(0, 3):
            case 0 | 1:
                return number
            case 2:
                return self.fd.define_scalar(number)
        inferred = DataType.Int if isinstance(number, int) else DataType.Double
        inferred = DataType.Bool if isinstance(number, bool) else inferred
        made = self.fd.define_scalar(dtype=dtype or inferred)
        self.known.give(made, number)
        return made

    def size(self, value: Value, dim: int) -> Any:
        """The size of a dimension, as a number or as the definition's own."""
        return self.ops.size(value.tensor, dim) if self.flag() else value.shape[dim]

    def cast(self, value: Value, dtype: DataType) -> Value | None:
        """The value in another dtype; None if it doesn't hold the value."""
        if value.dtype is dtype:
            return value
        if value.is_floating and dtype in INTEGERS and not value.fits(*_range(dtype)):
            return None
        made = self.add(self.ops.cast(value.tensor, dtype))
        return made[0] if made else None

    def positions(self, shape: Shape, size: int, negative: bool = False) -> Value | None:
        """An index of this shape into a dimension of this size: an input, or computed."""
        if not size:
            return None
        generator = torch.Generator().manual_seed(len(self.known.inputs))
        first = -size if negative else 0
        x = torch.randint(first, size, shape, generator=generator)
        layout = self.one_of(("contiguous", "transposed", "sliced", "misaligned"))
        index = self.input(x.to(self.one_of((torch.int64, torch.int32))), layout)
        if self.flag(3):
            made = self.add(self.ops.remainder(self.ops.add(index.tensor, 1), size))
            return made[0] if made and made[0].dtype in _INDICES else index
        return index


_INDICES = (DataType.Int, DataType.Int32)


def _range(dtype: DataType) -> tuple[float, float]:
    bits = torch.iinfo(to_torch(dtype)).bits
    if is_signed(dtype):
        return -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    return 0.0, 2.0 ** min(bits, 63) - 1


def broadcast(a: Value, b: Value) -> bool:
    """True if two shapes broadcast, ranks aligned at the right; a size of 1 must be a constant."""
    columns = zip(
        a.tensor.axes[::-1], a.shape[::-1], b.tensor.axes[::-1], b.shape[::-1], strict=False
    )
    return all(m == n or ONE in (x.size, y.size) for x, m, y, n in columns)
