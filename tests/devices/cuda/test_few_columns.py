"""Normalisations of few long columns: one kernel if a block fits in its multiprocessor."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.devices.cuda.emulator.counters import Profile
from pyfuser.devices.cuda.emulator.runtime import SM_90, emulated
from tests.cuda.host_compiler import requires_host_compiler

ROWS, COLUMNS = 2048, 16


def normalised_columns() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        variance, mean = fd.ops.var_mean(x, [0], 0, True)
        scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
        fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), scale))
    return fd


@requires_host_compiler
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    ("rows_that_fit", "least_blocks"),
    [(ROWS, [COLUMNS // 8]), (ROWS - 1, [COLUMNS // 8 + 1] * 2)],
    ids=["fit", "don't fit"],
)
def test_more_kernels_have_more_blocks(rows_that_fit: int, least_blocks: list[int]) -> None:
    target = replace(SM_90, multiprocessors=132, l1_bytes=rows_that_fit * 32)
    profile, x = Profile(), torch.randn(ROWS, COLUMNS)
    with emulated(target, profile):
        (got,) = normalised_columns().execute([x])
    wide = x.double()
    scale = (wide.var(0, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(got.double(), (wide - wide.mean(0)) * scale, rtol=1e-4, atol=1e-4)
    blocks = [math.prod(launch.geometry.grid) for launch in profile.launches]
    assert len(blocks) == len(least_blocks)
    assert all(n >= least for n, least in zip(blocks, least_blocks, strict=True)), blocks


@pytest.mark.parametrize(
    ("columns", "length", "is_inner", "is_taken"),
    [
        (64, 8192, False, True),
        (64, 8193, False, False),
        (8 * 131, 8193, False, False),
        (8 * 132 - 7, 8193, False, True),
        (64, 65536, True, True),
        (64, 65537 * 4, True, False),
        (132, 65537 * 4, True, True),
    ],
)
def test_a_column_block_has_a_sector_of_each_row(
    columns: int, length: int, is_inner: bool, is_taken: bool
) -> None:
    target = replace(SM_90, multiprocessors=132, l1_bytes=256 << 10)
    assert (target.row_refusal(columns, length, 4, is_inner) is None) == is_taken
