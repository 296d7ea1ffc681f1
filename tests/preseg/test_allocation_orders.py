"""Outputs inherit the memory order of the inputs; every computed value stays what it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.preseg.allocation_orders import with_inherited_orders

pytestmark = pytest.mark.usefixtures("poison")

CHANNELS_LAST = (3, 0, 2, 1)


def image(fd: FusionDefinition, order: Sequence[int] | None = CHANNELS_LAST) -> Any:
    return fd.define_tensor([-1] * 4, contiguity=True, dtype=DataType.Float, stride_order=order)


def channels_last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


def test_pointwise_results_are_stored_like_their_input() -> None:
    with FusionDefinition() as fd:
        x, bias = image(fd), fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        y = fd.ops.add(x, fd.ops.broadcast(bias, [True, False, True, True]))
        fd.add_output(fd.ops.relu(y))
        fd.add_output(fd.ops.gt(y, 0.0))
    x, bias = channels_last(2, 5, 3, 4), torch.randn(5)
    relu, positive = fd.execute([x, bias])
    want = x + bias.view(5, 1, 1)
    assert torch.equal(relu, want.relu()) and torch.equal(positive, want > 0)
    assert relu.stride() == positive.stride() == x.stride()


def test_normalisations_and_permutations() -> None:
    with FusionDefinition() as fd:
        x = image(fd)
        fd.add_output(fd.ops.sub(x, fd.ops.max(x, [2, 3], keepdim=True)))
        fd.add_output(fd.ops.exp(fd.ops.permute(x, [0, 2, 3, 1])))
        fd.add_output(fd.ops.sum(x, [2]))
    x = channels_last(2, 5, 3, 4)
    shifted, permuted, summed = fd.execute([x])
    torch.testing.assert_close(shifted, x - x.amax((2, 3), True))
    torch.testing.assert_close(permuted, x.permute(0, 2, 3, 1).exp())
    torch.testing.assert_close(summed, x.sum(2), check_stride=False)
    assert shifted.stride() == x.stride() and permuted.is_contiguous()
    assert summed.stride() == (20, 1, 5)  # [n, c, w] stored as n, w, c


def test_what_a_definition_states_stays() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.neg(image(fd))
        fd.add_output(fd.ops.stride_order(y, [3, 2, 1, 0]))
        fd.add_output(fd.ops.stride_order(y, [0, 1, 2, 3]))
    x = channels_last(2, 5, 3, 4)
    row_major, column_major = fd.execute([x])
    assert torch.equal(row_major, -x) and row_major.is_contiguous()
    assert torch.equal(column_major, -x) and column_major.stride() == (1, 2, 10, 30)


def test_inputs_that_differ_and_row_major_inputs_change_nothing() -> None:
    for orders in ([CHANNELS_LAST, None], [None, None]):
        with FusionDefinition() as fd:
            x, y = (image(fd, order) for order in orders)
            fd.add_output(fd.ops.add(x, y))
        definition = fd.fusion.definition
        assert with_inherited_orders(definition) is definition
        given = [channels_last(2, 5, 3, 4) if o else torch.randn(2, 5, 3, 4) for o in orders]
        (total,) = fd.execute(given)
        assert torch.equal(total, given[0] + given[1]) and total.is_contiguous()


def test_axes_that_the_input_lacks_keep_the_output_row_major() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float, stride_order=(0, 1))
        y = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        wide = fd.ops.broadcast(x, [False, False, True])
        fd.add_output(fd.ops.mul(wide, y))
    x, y = torch.randn(4, 3).t(), torch.randn(5)
    (outer,) = fd.execute([x, y])
    assert torch.equal(outer, x[:, :, None] * y) and outer.is_contiguous()


def test_an_update_keeps_the_memory_of_its_input() -> None:
    with FusionDefinition() as fd:
        x = image(fd)
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        fd.add_output(fd.ops.mul(y, 2.0))
    x = channels_last(2, 5, 3, 4)
    want = x + 1
    (doubled,) = fd.execute([x])
    assert torch.equal(x, want) and torch.equal(doubled, want * 2)
    assert doubled.stride() == x.stride()


def test_the_definition_prints_as_it_was_written() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(image(fd)))
    before = repr(fd)
    fd.execute([channels_last(2, 5, 3, 4)])
    assert repr(fd) == before and "stride_order(" not in before
