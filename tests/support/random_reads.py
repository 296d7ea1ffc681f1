"""Random chains of reads: slices, flips, pads, cats and gathers between pointwise operations.

Each chain is built twice in parallel, as a fusion and with torch.  Kernels, the evaluator and the
simplified definition must agree with torch, whatever could be moved to the inputs and whatever
became a separate segment.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.nn import functional

from pyfuser import FusionDefinition
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run as simplified


class Chain:
    """A value of a fusion and the tensor that torch computes for it; steps replace both."""

    def __init__(self, fd: FusionDefinition, source: random.Random) -> None:
        self.ops, self.fd, self.random = fd.ops, fd, source
        self.inputs: list[torch.Tensor] = []
        self.pool: list[tuple[Any, torch.Tensor]] = []

    def input(self, value: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """A new input."""
        self.inputs.append(value)
        return self.fd.from_pytorch(value), value

    def step(self) -> None:
        """Adds a value made of earlier ones."""
        x, want = self.random.choice(self.pool)
        kinds = [self.slice, self.pad, self.cat, self.pointwise, self.permute, self.pick, self.sum]
        kinds += [self.spread, self.flip]
        made, result = self.random.choice(kinds)(x, want)
        if 0 < result.numel() < 4000:
            self.pool.append((made, result))

    def slice(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        bounds = [sorted(self.random.randint(0, n) for _ in range(2)) for n in want.shape]
        bounds = [b if b[0] < b[1] else [0, n] for b, n in zip(bounds, want.shape, strict=True)]
        steps = [self.random.choice([1, 1, 1, 2]) for _ in bounds]
        made = self.ops.slice(x, [b[0] for b in bounds], [b[1] for b in bounds], steps)
        places = [slice(*b, step) for b, step in zip(bounds, steps, strict=True)]
        return made, want[tuple(places)]

    def flip(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        dims = self.random.sample(range(want.ndim), self.random.randint(1, want.ndim))
        return self.ops.flip(x, dims), want.flip(dims)

    def pad(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        widths = [self.random.choice([0, 0, 1, 5, -1]) for _ in range(2 * want.ndim)]
        if any(n <= 2 for n in want.shape):
            widths = [abs(w) for w in widths]
        value = self.random.choice([0.0, 1.5])
        return self.ops.pad(x, widths, value), functional.pad(want, widths, value=value)

    def spread(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        dim, step = self.random.randrange(want.ndim), self.random.choice([1, 2, 3])
        start = self.random.randint(0, 3)
        shape = list(want.shape)
        shape[dim] = start + step * (shape[dim] - 1) + 1 + self.random.randint(0, step - 1)
        base, tensor = self.input(torch.randn(shape))
        stop = shape[dim]
        made = self.ops.slice_scatter(base, x, dim, start, stop, step)
        return made, torch.slice_scatter(tensor, want, dim, start, stop, step)

    def cat(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        dim = self.random.randrange(want.ndim)
        alike = [
            (y, other)
            for y, other in self.pool
            if [n for d, n in enumerate(other.shape) if d != dim]
            == [n for d, n in enumerate(want.shape) if d != dim]
        ]
        parts = [(x, want), *(self.random.choice(alike) for _ in range(self.random.randint(1, 2)))]
        return self.ops.cat([y for y, _ in parts], dim), torch.cat([t for _, t in parts], dim)

    def pointwise(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        alike = [(y, other) for y, other in self.pool if other.shape == want.shape]
        y, other = self.random.choice(alike)
        return self.random.choice(
            [
                lambda: (self.ops.neg(x), -want),
                lambda: (self.ops.tanh(x), want.tanh()),
                lambda: (self.ops.add(x, y), want + other),
                lambda: (self.ops.mul(x, 0.5), want * 0.5),
            ]
        )()

    def permute(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return self.ops.permute(x, [1, 0]), want.t()

    def pick(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        dim = self.random.randrange(want.ndim)
        if self.random.random() < 0.5:
            count = self.random.choice([1, 3, want.shape[dim]])
            index, values = self.input(torch.randint(0, want.shape[dim], (count,)))
            return self.ops.index_select(x, index, dim), want.index_select(dim, values)
        shape = [self.random.choice([1, 4]) if d == dim else n for d, n in enumerate(want.shape)]
        index, values = self.input(torch.randint(0, want.shape[dim], shape))
        return self.ops.take_along_axis(x, index, dim), want.gather(dim, values)

    def sum(self, x: Any, want: torch.Tensor) -> tuple[Any, torch.Tensor]:
        dim = self.random.randrange(want.ndim)
        return self.ops.sum(x, [dim], True), want.sum(dim, keepdim=True)


def check_chain(seed: int) -> None:
    """Makes the chain of a seed and compares all ways to compute it."""
    torch.manual_seed(seed)
    source = random.Random(seed)
    with FusionDefinition() as fd:
        chain = Chain(fd, source)
        for shape in ((7, 18), (18, 7), (7, 18)):
            chain.pool.append(chain.input(torch.randn(shape)))
        for _ in range(source.randint(2, 9)):
            chain.step()
        results = chain.pool[3:][-2:] or [(fd.ops.neg(chain.pool[0][0]), -chain.pool[0][1])]
        for made, _ in results:
            fd.add_output(made)
    graph = fd.fusion.definition
    for got in (
        evaluate(graph, chain.inputs),
        evaluate(simplified(graph), chain.inputs),
        fd.execute(chain.inputs),
    ):
        for a, (_, b) in zip(got, results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, check_stride=False)
