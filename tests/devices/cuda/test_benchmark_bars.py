"""The benchmark set on an H100, by the emulator's counts and the model of its second cache.

Each case of `make bench-gpu` at its first size: its kernels move at most 1.05 times the bytes that
its algorithm has to move, have no bank conflicts, and move vectors.  An algorithm has to move its
inputs and outputs once; where it has to move more, the case is listed with the reason.
"""

from __future__ import annotations

import pytest

from benchmarks.cases import Case
from benchmarks.gpu_kernels import ALL_CASES
from benchmarks.predictions import H100, profile_of
from pyfuser.devices.cuda.emulator.caches import memory_sectors
from pyfuser.devices.cuda.emulator.counters import SECTOR_BYTES
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = [
    requires_host_compiler,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHAPE = (16384, 4096)
AIM = 1.05
# Tensors of 256 MiB that the algorithm moves, and those that are its inputs and outputs.
FLOORS = {
    # A channel's images, 4 MiB, fit in no memory of a multiprocessor: they are read by the moments
    # and by what normalises them.
    "batch norm": (3, 2),
    "batch norm, channels last": (3, 2),
    # So are x and the gradient: by the sums, and by the result.
    "batch norm, backward": (5, 3),
    # torch draws the mask of the dropout, a byte for each element, which isn't among the inputs.
    "dropout + layer norm": (3.25, 3),
    # So does it here.
    "attention softmax": (2.5, 2.25),
    # Three times: x and y are read, and the softmax of each row is stored, with moments of columns
    # (their parts, written and read, are a quarter of a tensor); it is read by what normalises it.
    "many segments": (11.75, 3),
}
# Of consecutive float32 elements, one for each thread.  The mean is a little less where a result is
# one element of a row, or all threads read a weight, and half in tiles of 16 columns.
LEAST_SECTORS_PER_REQUEST = 3.9
NARROW = {"transpose (1, 2)": 2.6, "group norm": 3.3, "group norm + SiLU": 3.3}


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_the_benchmark_set_keeps_to_its_bars(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    profile, needed = profile_of(case, *SHAPE, "float32", most_blocks=64)
    assert profile.launches
    moved = sum(memory_sectors(launch, H100) for launch in profile.launches)
    floor, counted = FLOORS.get(case.name, (1, 1))
    assert SECTOR_BYTES * moved <= AIM * floor / counted * needed
    assert profile.total.bank_conflicts == 0
    least = NARROW.get(case.name, LEAST_SECTORS_PER_REQUEST)
    assert profile.total.sectors_per_request >= least
