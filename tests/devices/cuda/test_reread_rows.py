"""Rows that are too long for the registers of a normalisation's backward pass are read again.

Next to sums of columns, a thread has no registers for its part of such a row and the conditions on
its vectors.  Each pass reads its inputs where it uses them: a block's row is in its cache.
"""

from __future__ import annotations

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.devices.cuda.emulator.counters import SECTOR_BYTES, Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.target import CudaTarget
from tests.cuda.host_compiler import requires_host_compiler
from tests.schedule.test_inner_outer_persistent import expected, layer_norm_backward

# Few multiprocessors, so that few rows are enough for this scheduler.
TARGET = CudaTarget("sm_90", multiprocessors=4)


@requires_host_compiler
@pytest.mark.parametrize(("rows", "columns"), [(32, 4400), (32, 4099)])
def test_a_row_that_is_read_again(rows: int, columns: int) -> None:
    """The results; x and dy come from memory once."""
    x, dy, weight = torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(columns)
    variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    inputs = [x, dy, mean, (variance + 1e-5).rsqrt(), weight]
    with FusionDefinition() as fd:
        layer_norm_backward(fd)
    profile = Profile()
    with emulated(TARGET, profile):
        got = fd.execute(inputs)
    for one, want in zip(got, expected(x, dy, weight), strict=True):
        torch.testing.assert_close(one.double(), want, rtol=1e-4, atol=1e-4)
    assert len(profile.launches) == 2
    counts = profile.launches[0].counts
    # x and dy are read by two passes, the second time from a cache.  NVRTC drops one of two reads
    # of dy in the same pass; the compiler here doesn't.
    passes = [each.sectors[0] * SECTOR_BYTES / x.nbytes for each in counts.buffers]
    assert sorted(round(each) for each in passes)[-2:] in ([2, 2], [2, 3])
    assert counts.bytes_read == pytest.approx(2 * x.nbytes, rel=0.03)
