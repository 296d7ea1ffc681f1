"""Rounding to bfloat16 by a kernel gives torch's bits; a NaN stays some NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition


def patterns() -> list[Tensor]:
    """Float32 numbers: all upper halves, each with lower halves around the places of rounding."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = [0, 1, 2, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF]
    edges = np.concatenate([upper | np.uint32(low) for low in lower])
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    subnormal = random & np.uint32(0x807FFFFF)
    bits = (edges, random, subnormal)
    return [torch.from_numpy(b.view(np.int32)).view(torch.float32) for b in bits]


@pytest.mark.parametrize("extra", [0, 5], ids=["whole vectors", "with a tail"])
def test_bits_are_those_of_torch(extra):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Float, contiguity=[True])
        fd.add_output(fd.ops.cast(x, DataType.BFloat16))
    for numbers in patterns():
        numbers = torch.cat([numbers, numbers[:extra]])
        (got,) = fd.execute([numbers])
        wanted = numbers.bfloat16()
        assert torch.equal(got.isnan(), wanted.isnan())
        known = ~wanted.isnan()
        assert torch.equal(got.view(torch.int16)[known], wanted.view(torch.int16)[known])
