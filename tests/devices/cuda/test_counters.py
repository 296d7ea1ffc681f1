"""The emulator's counts: kernels whose numbers are known, then those of the automatic schedulers.

The numbers of a scheduler's kernel are bars: what it must meet, or, with a comment, what it does
today, which an improvement lowers.
"""

from __future__ import annotations

import pytest
import torch

from pyfuser.devices.cuda.emulator import operations
from pyfuser.devices.cuda.emulator.counters import Counts, Profile
from pyfuser.devices.cuda.emulator.harness import SimtError, compile_and_load
from pyfuser.errors import ScheduleError
from tests.cuda.emulate import run_emulated
from tests.cuda.host_compiler import requires_host_compiler
from tests.cuda.random_schedules import example

pytestmark = requires_host_compiler

COPY = """
extern "C" __global__ void copy(const float* in, float* out, int stride) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i * stride];
}
"""

VECTOR_COPY = """
extern "C" __global__ void copy(const float* in, float* out) {
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  float4 elements = *reinterpret_cast<const float4*>(in + i);
  elements.x += 1;
  *reinterpret_cast<float4*>(out + i) = elements;
}
"""

TRANSPOSE = """
extern "C" __global__ void transpose(const float* in, float* out) {
  __shared__ float tile[32 * PITCH];
  for (int row = 0; row < 32; ++row) tile[row * PITCH + threadIdx.x] = in[row * 32 + threadIdx.x];
  __syncthreads();
  for (int row = 0; row < 32; ++row) out[row * 32 + threadIdx.x] = tile[threadIdx.x * PITCH + row];
}
"""


def counted(text: str, grid: int, block: int, arguments: list, seed: int = 0) -> Counts:
    counts = Counts()
    module = compile_and_load(text, counted=True)
    module.launch(module.kernels[0], grid, block, 0, arguments, seed=seed, counts=counts)
    return counts


def in_memory(counts: Counts) -> tuple[int, int, int, int]:
    return (
        *(counts.read_requests, counts.read_sectors),
        *(counts.write_requests, counts.write_sectors),
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_a_coalesced_copy(seed):
    counts = counted(COPY, 4, 256, [torch.randn(1024), torch.zeros(1024), 1], seed)
    assert in_memory(counts) == (32, 128, 32, 128)
    assert (counts.bytes_read, counts.bytes_written) == (4096, 4096)
    assert counts.sectors_per_request == 4
    assert counts.overhead == counts.cached_overhead == counts.share_of_roof == 1


def test_a_copy_by_vectors_has_a_quarter_of_the_requests():
    counts = counted(VECTOR_COPY, 1, 256, [torch.randn(1024), torch.zeros(1024)])
    assert in_memory(counts) == (8, 128, 8, 128)
    assert (counts.sectors_per_request, counts.overhead) == (16, 1)


def test_a_copy_that_is_not_aligned_to_sectors():
    counts = counted(COPY, 4, 256, [torch.randn(1025)[1:], torch.zeros(1024), 1])
    assert in_memory(counts) == (32, 5 * 32, 32, 128)
    assert counts.distinct_sectors == 129 + 128


def test_a_strided_copy_reads_sectors_in_part():
    counts = counted(COPY, 1, 256, [torch.randn(512), torch.zeros(256), 2])
    assert in_memory(counts) == (8, 64, 8, 32)
    assert counts.bytes_needed == 2048
    assert counts.overhead == counts.cached_overhead == 1.5


def test_a_column_is_a_sector_for_each_element():
    counts = counted(COPY, 1, 64, [torch.randn(64, 100), torch.zeros(64), 100])
    assert in_memory(counts) == (2, 64, 2, 8)


def test_reading_twice_counts_twice_unless_cached():
    text = """
    extern "C" __global__ void twice(const float* in, volatile float* out) {
      for (int i = 0; i < 3; ++i) out[threadIdx.x] = in[threadIdx.x];
    }
    """
    counts = counted(text, 1, 32, [torch.randn(32), torch.zeros(32)])
    assert in_memory(counts) == (3, 12, 3, 12)
    assert (counts.overhead, counts.cached_overhead) == (3, 1)


@pytest.mark.parametrize(("pitch", "conflicts"), [(32, 31), (33, 0), (34, 1)])
def test_bank_conflicts_of_a_transpose(pitch, conflicts):
    text = TRANSPOSE.replace("PITCH", str(pitch))
    counts = counted(text, 1, 32, [torch.randn(32, 32), torch.zeros(32, 32)])
    assert in_memory(counts) == (32, 128, 32, 128)
    assert counts.shared_requests == 64
    assert counts.bank_conflicts == 32 * conflicts  # the requests that write have none
    assert counts.barriers == 1


@pytest.mark.parametrize(
    ("index", "conflicts"),
    [
        ("tile[0].x", 0),  # one word, for all lanes
        ("tile[threadIdx.x].x", 3),  # 4 words in each of 8 banks
        ("tile[threadIdx.x]", 0),  # 8 lanes at a time
        ("tile[threadIdx.x * 2]", 4),  # 2-way in each of 4 groups
    ],
)
def test_bank_conflicts_of_vectors(index, conflicts):
    text = f"""
    extern "C" __global__ void read(float* out, float4* whole) {{
      __shared__ float4 tile[64];
      for (int i = 0; i < 64; i += 32) tile[i + threadIdx.x] = whole[threadIdx.x];
      __syncthreads();
      auto value = {index};
      if constexpr (sizeof(value) == 16) *(float4*)&whole[threadIdx.x] = *(float4*)&value;
      else out[threadIdx.x] = *(float*)&value;
    }}
    """
    counts = counted(text, 1, 32, [torch.zeros(32), torch.zeros(32, 4)])
    assert (counts.shared_requests, counts.bank_conflicts) == (2 + 1, conflicts)


def test_lanes_meet_again_after_a_branch_and_in_a_function():
    text = """
    __noinline__ float element(const float* in, int i) { return in[i]; }
    extern "C" __global__ void branches(const float* in, float* out) {
      float sum = 0;
      if (threadIdx.x % 2) sum += element(in, threadIdx.x);
      sum += element(in + 64, threadIdx.x);
      for (int i = 0; i < 3; ++i) if (threadIdx.x < 32 - i) sum += in[128 + 32 * i + threadIdx.x];
      out[threadIdx.x] = sum;
    }
    """
    counts = counted(text, 1, 32, [torch.randn(256), torch.zeros(32)])
    assert in_memory(counts) == (5, 4 + 4 + 4 + 4 + 4, 1, 4)


def test_atomics_and_warp_operations():
    text = """
    extern "C" __global__ void sum(const float* in, float* out) {
      __shared__ float total;
      float own = in[threadIdx.x];
      for (int i = 16; i; i /= 2) own += __shfl_down_sync(~0u, own, i);
      if (threadIdx.x == 0) total = 0;
      __syncthreads();
      if (threadIdx.x % 32 == 0) atomicAdd(&total, own);
      __syncthreads();
      if (threadIdx.x == 0) atomicAdd(out, total);
    }
    """
    counts = counted(text, 2, 64, [torch.ones(64), torch.zeros(1)])
    assert (counts.atomics, counts.warp_operations, counts.barriers) == (2 * 3, 2 * 2 * 5, 4)
    assert in_memory(counts) == (4, 16, 0, 0)
    assert counts.shared_requests == 4


@pytest.mark.parametrize("seed", range(12))
def test_counts_do_not_depend_on_the_order_of_threads(seed):
    torch.manual_seed(seed)
    totals = []
    try:
        scheduled, _, inputs = example(seed).scheduled()
        for order in (0, 1):
            profile = Profile()
            run_emulated(scheduled, inputs, (order,), profile)
            totals.append(profile.total)
    except ScheduleError:
        return
    first, second = ([getattr(each, name) for name, *_ in Counts._fields_] for each in totals)
    assert first == second
    assert totals[0].overhead >= totals[0].cached_overhead >= 1


BRANCH = """
extern "C" __global__ void branch(const float* in, float* out, int n) {
  float x = in[threadIdx.x];
  BEFORE
  if (CONDITION) {
    for (int i = 0; i < n; ++i) x = x * x + 1;
  }
  out[64 * blockIdx.x + threadIdx.x] = x;
}
"""


def of_branch(condition: str, n: int = 3, before: str = "") -> Counts:
    text = BRANCH.replace("CONDITION", condition).replace("BEFORE", before)
    return counted(text, 2, 64, [torch.randn(64), torch.zeros(128), n])


@pytest.mark.parametrize("before", ["", "__syncthreads();"])
@pytest.mark.parametrize(
    ("condition", "divergent"),
    [
        ("true", 0),
        ("threadIdx.x / 32 == 1", 0),  # whole warps
        ("threadIdx.x % 2 == 1", 4),  # every warp, of two blocks
        ("threadIdx.x < 40", 2),  # the second warp
        ("blockIdx.x == 1 && threadIdx.x == 33", 1),
    ],
)
def test_divergent_branches(condition, divergent, before):
    assert of_branch(condition, before=before).divergent_branches == divergent


def test_a_loop_diverges_each_time_that_lanes_leave_it():
    text = """
    extern "C" __global__ void loop(float* out) {
      for (int i = 0; i < threadIdx.x; ++i) out[threadIdx.x] += 1;
    }
    """
    assert counted(text, 1, 32, [torch.zeros(32)]).divergent_branches == 31


def test_a_short_condition_is_predicated():
    text = """
    extern "C" __global__ void guarded(const float* in, float* out, int n) {
      float x = in[threadIdx.x];
      if (x != x || x > 1) x = 1;
      if (threadIdx.x < n) out[threadIdx.x] = x;
    }
    """
    assert counted(text, 1, 64, [torch.randn(64), torch.zeros(64), 40]).divergent_branches == 0


@pytest.mark.skipif(not operations.is_counted(), reason="operations are x86-64's")
def test_operations_of_a_thread():
    """A multiplication, an addition, and the loop's addition, comparison and branch."""
    few, more, many = (of_branch("true", n).operations_per_thread for n in (10, 20, 30))
    assert many - more == more - few == 10 * 5
    half = of_branch("threadIdx.x % 2 == 1", 20).operations_per_thread
    assert few < half < more
    assert 4 <= of_branch("false").operations_per_thread <= 20


def test_only_a_text_compiled_for_it_is_counted():
    with pytest.raises(SimtError, match="counted=True"):
        compile_and_load(COPY).launch("copy", 1, 1, 0, [torch.ones(1)] * 2 + [1], counts=Counts())
