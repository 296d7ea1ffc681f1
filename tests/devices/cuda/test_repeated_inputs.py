"""Rows that read the same elements of an input are neighbours, unless the second cache keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.devices.cuda.emulator.counters import SECTOR_BYTES, Profile
from pyfuser.devices.cuda.emulator.runtime import SM_90, emulated
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = [requires_host_compiler, pytest.mark.usefixtures("strict")]

SMALL_CACHE = replace(SM_90, l2_bytes=1 << 10)
BATCH, HEADS, QUERIES = 2, 3, 5
# The mask's axes of [batch, heads, queries]; 1 where it has none.
MASKS = {
    "all": (1, 1, QUERIES),
    "heads": (BATCH, 1, QUERIES),
    "batch": (1, HEADS, QUERIES),
    "batch and queries": (1, HEADS, 1),
}


def masked_softmax(mask_shape: tuple[int, ...]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 4, contiguity=True)
        sizes = [1 if size == 1 else -1 for size in mask_shape]
        mask = fd.define_tensor(sizes, contiguity=[None if n == 1 else True for n in sizes])
        masked = fd.ops.add(x, mask)
        power = fd.ops.exp(fd.ops.sub(masked, fd.ops.max(masked, [3], keepdim=True)))
        fd.add_output(fd.ops.div(power, fd.ops.sum(power, [3], keepdim=True)))
    return fd


def row_sums(mask_shape: tuple[int, ...]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 4, contiguity=True)
        sizes = [1 if size == 1 else -1 for size in mask_shape]
        mask = fd.define_tensor(sizes, contiguity=[None if n == 1 else True for n in sizes])
        fd.add_output(fd.ops.sum(fd.ops.mul(x, mask), [3]))
    return fd


CASES: dict[str, tuple[Callable[..., FusionDefinition], Callable[..., torch.Tensor]]] = {
    "softmax": (masked_softmax, lambda x, mask: (x + mask).softmax(3)),
    "sums": (row_sums, lambda x, mask: (x * mask).sum(3)),
}


@pytest.mark.parametrize("columns", [64, 100, 20000])
@pytest.mark.parametrize("lacked", MASKS)
@pytest.mark.parametrize("case", CASES)
def test_results_in_either_order(case: str, lacked: str, columns: int) -> None:
    define, reference = CASES[case]
    shape = (*MASKS[lacked], columns)
    x, mask = torch.randn(BATCH, HEADS, QUERIES, columns), torch.randn(shape)
    for target in (SM_90, SMALL_CACHE):
        with emulated(target):
            (got,) = define(shape).execute([x, mask])
        wanted = reference(x.double(), mask.double())
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


def test_an_input_that_the_cache_keeps_changes_nothing() -> None:
    x, mask = torch.randn(2, 3, 8, 64), torch.randn(1, 1, 8, 64)
    for l2_bytes, together in ((2 * mask.nbytes, False), (2 * mask.nbytes - 1, True)):
        with emulated(replace(SM_90, l2_bytes=l2_bytes)) as runtime:
            masked_softmax(mask.shape).execute([x, mask])
        (kernel,) = runtime.kernels
        stored = [each for each in kernel.code.text.splitlines() if "store_aligned" in each]
        assert stored  # by its row's number, if rows are in the order of memory
        assert all(("%" in each) == together for each in stored)


def test_neighbours_read_an_input_once() -> None:
    """Of 8 heads, in a cache that has room for some rows of the mask, but not for all."""
    x, mask = torch.randn(1, 8, 256, 1024), torch.randn(1, 1, 256, 1024)
    target = replace(SM_90, l2_bytes=mask.nbytes, multiprocessors=4)
    profile = Profile()
    with emulated(target, profile):
        masked_softmax(mask.shape).execute([x, mask])
    (launch,) = profile.launches
    missed = [buffer.missed[0] for buffer in launch.counts.buffers if buffer.bytes == mask.nbytes]
    assert SECTOR_BYTES * sum(missed) == mask.nbytes
