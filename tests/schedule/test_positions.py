"""Positions in masks and distances: how wide the kernels around them are."""

from __future__ import annotations

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.schedule.pointwise import widest_bytes


def masked(of_input: bool) -> FusionDefinition:
    """x where the column isn't beyond the row, or beyond a length that is an input; else 0."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        rows, columns = (fd.ops.iota(fd.ops.size(x, n), 0, 1, DataType.Int) for n in (0, 1))
        limit = fd.define_tensor([-1], True, DataType.Int) if of_input else rows
        limit = fd.ops.broadcast(limit, [False, True])
        columns = fd.ops.broadcast(columns, [True, False])
        fd.add_output(fd.ops.where(fd.ops.le(columns, limit), x, 0.0))
    return fd


@pytest.mark.parametrize("of_input", [False, True])
def test_positions_are_as_wide_as_what_is_moved(of_input: bool) -> None:
    fd, x = masked(of_input), torch.randn(40, 70)
    assert widest_bytes(fd.fusion.definition) == (8 if of_input else 4)
    given = [x, torch.arange(40)] if of_input else [x]
    assert torch.equal(fd.execute(given)[0], x.tril())


def test_positions_that_are_stored_count() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        places = fd.ops.iota(fd.ops.size(x, 0), 3, 2, DataType.Int)
        fd.add_output(fd.ops.mul(x, places))
        assert widest_bytes(fd.fusion.definition) == 4
        fd.add_output(places)
    assert widest_bytes(fd.fusion.definition) == 8
    x = torch.randn(70)
    product, places = fd.execute([x])
    assert torch.equal(places, torch.arange(3, 143, 2))
    torch.testing.assert_close(product, x * places)
