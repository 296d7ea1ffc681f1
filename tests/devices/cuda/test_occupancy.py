"""Occupancy of kernels whose numbers are known, and what ptxas reports about a kernel."""

from __future__ import annotations

import pytest

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.codegen import Geometry
from pyfuser.devices.cuda.emulator.counters import Counts, Profile
from pyfuser.devices.cuda.emulator.table import table
from pyfuser.devices.cuda.occupancy import occupancy, resident_blocks
from pyfuser.devices.cuda.ptxas_report import KernelResources, kernel_resources, parsed
from pyfuser.errors import UnsupportedError
from tests.cuda.cubins import requires_nvrtc

SHARED = """
extern "C" __global__ void rotate(const float* in, float* out) {
  __shared__ float tile[256];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[255 - threadIdx.x];
}
extern "C" __global__ void copy(const float* in, float* out) {
  out[threadIdx.x] = in[threadIdx.x];
}
"""

REPORT = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 256 bytes smem, 372 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared_bytes", "blocks", "share"),
    [
        ("sm_80", 256, 32, 0, 8, 1.0),  # as many warps as there can be
        ("sm_90", 128, 40, 512, 12, 0.75),  # 12 warps of 1280 registers in a partition's 16384
        ("sm_75", 1024, 64, 0, 1, 1.0),
        ("sm_86", 1024, 32, 0, 1, 32 / 48),
        ("sm_90", 32, 16, 0, 32, 0.5),  # as many blocks as there can be
        ("sm_90", 256, 32, 100 << 10, 2, 0.25),  # shared memory, of which a block loses 1 KiB
        ("sm_80", 128, 32, 48 << 10, 3, 12 / 64),
        ("sm_75", 512, 128, 0, 1, 0.5),
        ("sm_90a", 512, 255, 0, 0, 0.0),  # can't be launched
        ("sm_121", 64, 32, 0, 24, 1.0),  # as sm_120
    ],
)
def test_occupancy(architecture, threads, registers, shared_bytes, blocks, share):
    assert resident_blocks(architecture, threads, registers, shared_bytes) == blocks
    assert occupancy(architecture, threads, registers, shared_bytes) == pytest.approx(share)


def test_the_report_of_ptxas():
    assert parsed(REPORT) == {
        "first": KernelResources(255, 256, 16, 8, 12),
        "second": KernelResources(10),
    }


@requires_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_the_resources_of_a_kernel(architecture):
    found = kernel_resources(SHARED, architecture)
    assert set(found) == {"rotate", "copy"}
    assert (found["rotate"].shared_bytes, found["copy"].shared_bytes) == (1024, 0)
    for each in found.values():
        assert 4 <= each.registers <= 32
        assert each.stack_bytes == each.spill_stores == each.spill_loads == 0


def profile() -> Profile:
    found = Profile()
    counts = found.counts(SHARED, "rotate", Geometry((2, 1, 1), (256, 1, 1), 2048))
    assert isinstance(counts, Counts)
    return found


@requires_nvrtc
def test_a_profile_has_resources_and_occupancy():
    _, row, total = (line.split() for line in table(profile(), "sm_90").splitlines())
    assert row[:3] == ["rotate", "2", "256"]
    assert row[-4:-1] == ["0", "3072", "100%"]  # spilled, shared, occupancy
    assert total[-4:-1] == ["-"] * 3


def test_a_profile_without_nvrtc_says_what_is_missing(monkeypatch):
    def missing(*_):
        raise UnsupportedError("nvrtc: expected the packages, got none")

    monkeypatch.setattr("pyfuser.devices.cuda.emulator.table.kernel_resources", missing)
    _, row, _, complaint = table(profile(), "sm_90").splitlines()
    assert row.split()[-5:-1] == ["-"] * 4
    assert complaint.endswith("aren't known: nvrtc: expected the packages, got none")
