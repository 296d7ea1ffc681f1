"""Random GPU schedules of small fusions: splits, merges, rfactor, caches, parallel types, inlining.

A seed gives one schedule, of which many are illegal; the tests run those that aren't.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from pyfuser.dtypes import DataType
from pyfuser.errors import ScheduleError
from pyfuser.ir.domains import ParallelType
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import MemoryType, ScheduledFusion
from pyfuser.ir.vals import TensorView
from pyfuser.ops import builders
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


def halves(fusion: Fusion) -> Inputs:
    """A sum of two kinds of halves, and a maximum over columns."""
    a, b = input_tensor(fusion, 2, DataType.BFloat16), input_tensor(fusion, 2, DataType.Half)
    fusion.add_output(builders.cast(fusion, builders.add(fusion, a, b), DataType.Half))
    fusion.add_output(builders.max(fusion, a, [1]))
    return lambda m, n: [torch.randn(m, n).bfloat16(), torch.randn(m, n).half()]


DEFINITIONS = (
    bias_and_two_outputs, row_sums, total, layer_norm, softmax, transposed_add, halves
)  # fmt: skip
SHAPES = ((5, 37), (1, 1), (16, 32), (7, 3), (3, 70), (0, 4))


def random_schedule(fusion: Fusion, source: random.Random) -> ScheduledFusion | None:
    """A schedule, or None where one of its steps isn't possible."""
    scheduled = ScheduledFusion(fusion)
    try:
        _random_steps(scheduled, source)
    except ScheduleError:
        return None
    return scheduled


def _random_steps(scheduled: ScheduledFusion, source: random.Random) -> None:
    fusion = scheduled.fusion
    for tensor in fusion.input_tensors:
        if source.random() < 0.25:
            memory = source.choice([MemoryType.local, MemoryType.shared, MemoryType.global_])
            scheduled[cache_after(scheduled, tensor)].memory_type = memory
    outputs = [value for value in fusion.outputs if isinstance(value, TensorView)]
    reduced = [t for t in fusion.tensors if t.expr is not None and t.is_reduction_result]
    reference = source.choice(reduced if reduced and source.random() < 0.8 else outputs)
    _random_transformations(scheduled, reference, source)
    axes = [i for i, axis in enumerate(scheduled[reference].loop) if axis.is_reduction]
    if len(axes) > 1 and source.random() < 0.6:
        made = rfactor(scheduled, reference, source.sample(axes, source.randint(1, len(axes) - 1)))
        reference = made if isinstance(made, TensorView) else made[0]
    transform_like(scheduled, reference)
    rank = len(scheduled[reference].loop)
    kinds = [
        ParallelType.grid_x, ParallelType.grid_y, ParallelType.block_x, ParallelType.block_y
    ]  # fmt: skip
    source.shuffle(kinds)
    for axis in source.sample(range(rank), min(rank, source.randint(1, 4))):
        scheduled[reference].parallelize(axis, kinds.pop())
    parallelize_like(scheduled, reference)
    if source.random() < 0.7:
        inline_most(scheduled)
    else:
        inline_at(scheduled, reference, source.randint(0, rank), best_effort=True)


def _random_transformations(
    scheduled: ScheduledFusion, reference: TensorView, source: random.Random
) -> None:
    loops = scheduled[reference]
    for _ in range(source.randint(0, 4)):
        rank, choice = len(loops.loop), source.random()
        if not rank:
            return
        if choice < 0.55:
            factor = source.choice([1, 2, 3, 4, 8, 16, 32])
            loops.split(source.randrange(rank), factor, source.random() < 0.8)
        elif choice < 0.75 and rank > 1:
            loops.merge(source.randrange(rank - 1))
        else:
            loops.reorder({source.randrange(rank): source.randrange(rank)})
