"""Buffers whose elements lie in memory as the user's loops do, in any order of these."""

from __future__ import annotations

import itertools

import pytest
import torch

from pyfuser import DefinitionError, FusionDefinition, MemoryType, ParallelType, TensorView


def scheduled(fd: FusionDefinition) -> TensorView:
    """The negative of an input, whose loops are split, before its exponential."""
    x = fd.define_tensor([-1, -1], contiguity=True)
    negative = fd.ops.neg(x)
    result = fd.ops.exp(negative)
    fd.add_output(result)
    result.split(1, 4)
    fd.sched.transform_like(result)
    result.axis(0).parallelize(ParallelType.grid_x)
    fd.sched.parallelize_like(result)
    return negative


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("position", [1, 2])
def test_every_order(order: tuple[int, ...], shared: bool, position: int) -> None:
    with FusionDefinition() as fd:
        negative = scheduled(fd)
        if shared:
            negative.set_memory_type(MemoryType.shared)
        loops = negative.get_loop_domain()
        negative.set_allocation_domain([loops[i] for i in order], True)
        fd.sched.inline_at(negative, position, best_effort=True)
    for shape in ((7, 10), (1, 1), (3, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(fd.manual_execute([x])[0], (-x).exp())


def test_loops_are_each_there_once() -> None:
    with FusionDefinition() as fd:
        negative = scheduled(fd)
        loops = negative.get_loop_domain()
        with pytest.raises(DefinitionError, match="loops without gaps, each once"):
            negative.set_allocation_domain(loops, False)
        with pytest.raises(DefinitionError, match="each once, or its loops"):
            negative.set_allocation_domain(loops[:2], True)
