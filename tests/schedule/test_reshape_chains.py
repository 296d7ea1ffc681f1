"""Chains of reshapes: each makes two axes of two, so that a search of all paths would never end."""

from __future__ import annotations

import pytest
import torch

from pyfuser import FusionDefinition, IdMappingMode, idm


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
