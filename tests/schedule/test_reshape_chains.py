"""Chains of reshapes: each makes two axes of two, so that a search of all paths would never end."""

from __future__ import annotations

import pytest
import torch

from pyfuser import DataType, FusionDefinition, IdMappingMode, idm


@pytest.mark.parametrize("size", [6, -1])
def test_a_long_chain_of_reshapes_compiles(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        made = fd.define_tensor([size, 4], contiguity=True)
        for number in range(70):
            made = fd.ops.add(fd.ops.reshape(made, [6, 4] if number % 2 else [4, 6]), 1.0)
        fd.add_output(made)
    given = torch.randn(6, 4).round()
    (got,) = fd.execute([given])
    assert torch.equal(got, given + 70)
    model = idm.IdModel(fd.fusion)
    for mode in IdMappingMode.__members__.values():
        assert model.maybe_build_graph(mode).disjoint_val_sets()


def test_two_reshapes_of_one_tensor_by_sizes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """x has as many elements as y times the middle axis of z; -1 is then the number of y's."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        y = fd.define_tensor([-1, -1], contiguity=True)
        z = fd.define_tensor([-1, -1, -1], contiguity=True)
        x = fd.define_tensor([-1, -1, -1], contiguity=True)
        rows, halved = fd.ops.size(z, 1), fd.ops.cast(x, DataType.Half)
        fd.ops.reshape(halved, [rows, fd.ops.mul(fd.ops.size(y, 0), fd.ops.size(y, 1))])
        fd.add_output(fd.ops.cast(fd.ops.reshape(halved, [rows, -1]), DataType.Float))
    given = torch.randn(4, 6, 5).half().float()
    (got,) = fd.execute([torch.zeros(4, 5), torch.zeros(2, 6, 3), given])
    assert torch.equal(got, given.reshape(6, 20))


@pytest.mark.parametrize("order", [None, (0, 1)])
@pytest.mark.parametrize("sizes", [(16, 6), (40, 14, 5), (35, 15, 35), (10, 14), (7, 840)])
def test_unknown_sizes_of_unknown_sizes(
    sizes: tuple[int, ...], order: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each -1 is a quotient of all elements, not of what the reshape before has rounded up."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        given = fd.define_tensor([-1, -1], contiguity=True, stride_order=order or ())
        made = fd.ops.mul(given, 2.0)
        for number, size in enumerate(sizes):
            made = fd.ops.reshape(made, [-1, size] if number % 2 else [size, -1])
        fd.add_output(made)
        fd.add_output(fd.ops.sum(made, [1]))
    x = torch.randn(120, 7 * 16 * 3).round()
    x = x if order is None else x.t()
    got, total = fd.execute([x])
    expected = (x * 2).reshape(got.shape)
    assert got.shape[(len(sizes) + 1) % 2] == sizes[-1]
    assert torch.equal(got, expected) and torch.equal(total, expected.sum(1))
