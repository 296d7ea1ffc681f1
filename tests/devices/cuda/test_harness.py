"""The SIMT harness itself: correct kernels give correct results in every order, wrong ones fail.

Each wrong kernel is a correct one with one thing removed, so a test fails if the check does.
"""

from __future__ import annotations

import pytest
import torch

from pyfuser.devices.cuda.emulator.harness import (
    Module,
    SimtError,
    compile_and_load,
)
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = requires_host_compiler

SEEDS = (0, 1, 2, 3)

# By the order of threads, a write comes too late or a read too early.
MISSING_BARRIER = (
    r"at kernel.cu:\d+: block .*(race in shared memory: |this block has not written yet)"
)

VECTOR_ADD = """
extern "C" __global__ void __launch_bounds__(256) vector_add(
    const float* __restrict__ a, const float* b, float* out, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}
"""

BLOCK_SUM = """
extern "C" __global__ void block_sum(const float* in, float* out) {
  extern __shared__ __align__(16) float shared[];
  shared[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned half_size = blockDim.x / 2; half_size > 0; half_size /= 2) {
    __syncthreads();
    if (threadIdx.x < half_size) shared[threadIdx.x] += shared[threadIdx.x + half_size];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = shared[0];
}
"""

TRANSPOSE = """
extern "C" __global__ void transpose(const int* in, int* out, int rows, int columns) {
  __shared__ int tile[32][33];
  int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = in[row * columns + column];
  __syncthreads();
  row = blockIdx.x * 32 + threadIdx.y;
  column = blockIdx.y * 32 + threadIdx.x;
  if (row < columns && column < rows) out[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}
"""


def run_vector_add(module: Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, out = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    module.launch("vector_add", 4, 256, 0, [a, b, out, 1000], seed=seed)
    return out, a + b


def run_block_sum(module: Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.arange(4 * 1024, dtype=torch.float32) % 7
    out = torch.zeros(4)
    module.launch("block_sum", 4, 1024, 4 * 1024, [values, out], seed=seed)
    return out, values.view(4, 1024).sum(1)


def run_transpose(module: Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.arange(50 * 70, dtype=torch.int32).view(50, 70)
    out = torch.zeros(70, 50, dtype=torch.int32)
    module.launch("transpose", (3, 2), (32, 32), 0, [values, out, 50, 70], seed=seed)
    return out, values.t()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("text", "run"),
    [
        (VECTOR_ADD, run_vector_add),
        (BLOCK_SUM, run_block_sum),
        (TRANSPOSE, run_transpose),
    ],
    ids=["vector_add", "block_sum", "transpose"],
)
def test_right_kernels_are_right_in_every_order(text, run, seed):
    got, want = run(compile_and_load(text), seed)
    assert torch.equal(got, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("text", "run"),
    [(BLOCK_SUM, run_block_sum), (TRANSPOSE, run_transpose)],
    ids=["block_sum", "transpose"],
)
def test_a_missing_barrier_is_a_race_that_names_its_line(text, run, seed):
    module = compile_and_load(text.replace("__syncthreads();", ""))
    with pytest.raises(SimtError, match=MISSING_BARRIER):
        run(module, seed)


def test_a_race_between_write_and_later_read_is_found_in_either_order():
    # Without its second barrier a loop's next write races with the other threads' last read.
    text = """
    extern "C" __global__ void rotate(const int* in, int* out, int rounds) {
      __shared__ int shared[64];
      for (int i = 0; i < rounds; ++i) {
        shared[threadIdx.x] = in[i * 64 + threadIdx.x];
        __syncthreads();
        out[i * 64 + threadIdx.x] = shared[(threadIdx.x + 1) % 64];
        __syncthreads(); /* second */
      }
    }
    """
    values = torch.arange(128, dtype=torch.int32)
    out = torch.zeros_like(values)
    compile_and_load(text).launch("rotate", 1, 64, 0, [values, out, 2], seed=3)
    assert torch.equal(out.view(2, 64), values.view(2, 64).roll(-1, 1))
    broken = compile_and_load(text.replace("__syncthreads(); /* second */", ""))
    for seed in SEEDS:
        with pytest.raises(SimtError, match="race in shared memory"):
            broken.launch("rotate", 1, 64, 0, [values, out, 2], seed=seed)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "if (threadIdx.x < 40) __syncthreads();",
            "barrier divergence: .* has left the kernel",
        ),
        (
            "if (threadIdx.x < 40) {\n __syncthreads();\n } else {\n __syncthreads();\n }",
            "barrier divergence: .* waits at another barrier",
        ),
        (
            "if (threadIdx.x == 0) __syncwarp(); else __syncthreads();",
            "barrier divergence: .* waits at a warp operation",
        ),
        (
            "if (threadIdx.x == 5) return; out[0] = __shfl_down_sync(~0u, 1, 1);",
            "names lane 5 of warp 0, which has left the kernel",
        ),
        ("out[0] = __shfl_down_sync(2u, 1, 1);", "leaves out the calling lane"),
        (
            "__shared__ int s[8]; s[threadIdx.x] = 1;",
            "an index is outside of its array",
        ),
        (
            "out[threadIdx.x] = 1;",
            r"writes 4 bytes outside .* \(4 bytes past the end of buffer 0",
        ),
        (
            "out[0] = out[-1 - (int)threadIdx.x];",
            "reads 4 bytes outside .* \\(4 bytes before buffer 0",
        ),
        ("out[0] = 7 / (int)threadIdx.x;", "an integer is divided by zero"),
        (
            "reinterpret_cast<int2*>(out + 1)[0] = int2{1, 2};",
            "a load or store is not aligned",
        ),
        (
            "extern __shared__ int s[]; s[threadIdx.x + 1] = 1;",
            "writes 4 bytes outside of every buffer",
        ),
        (
            "__shared__ int s; s = threadIdx.x; __syncthreads(); out[0] = s;",
            "race in shared memory",
        ),
        ("while (atomicAdd(out, 0) == 0) {}", "spins: .* with no barrier"),
        (
            "__shared__ int s; if (threadIdx.x == 0) s = 0; __syncthreads(); atomicAdd(&s, 1);"
            " if (s) __syncwarp();",
            "race in shared memory",
        ),
        (
            "__shared__ int s; atomicAdd(&s, 1);",
            "updates byte 0 of shared memory, which this block",
        ),
        ("out[0] = threadIdx.x;", "race in global memory: .* wrote something else"),
        ("out[threadIdx.x / 2] += 1;", "race in global memory: reads byte 0, which thread"),
    ],
)
def test_what_cuda_forbids_is_an_error(body, message):
    module = compile_and_load(f'extern "C" __global__ void wrong(int* out) {{ {body} }}')
    with pytest.raises(SimtError, match=message):
        module.launch("wrong", 1, 64, 64 * 4, [torch.zeros(63, dtype=torch.int32)])


def test_shared_memory_is_not_initialised_by_an_earlier_block():
    text = """
    extern "C" __global__ void peek(float* out) {
      __shared__ float shared[32];
      if (blockIdx.x == 0) shared[threadIdx.x] = 1.0f;
      out[blockIdx.x * 32 + threadIdx.x] = shared[threadIdx.x];
    }
    """
    module = compile_and_load(text)
    module.launch("peek", 1, 32, 0, [torch.zeros(32)])
    with pytest.raises(SimtError, match="reads byte 0 of shared memory, which this block has not"):
        module.launch("peek", 2, 32, 0, [torch.zeros(64)])


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_that_touch_the_same_memory_race(seed):
    text = """
    extern "C" __global__ void sums(const float* in, float* out, float* all) {
      if (threadIdx.x == 0) out[blockIdx.x] = in[0];  /* the same for all */
      if (threadIdx.x == 0) WHERE = blockIdx.x;
    }
    """
    arguments = [torch.ones(1), torch.zeros(3), torch.zeros(3)]
    right = compile_and_load(text.replace("WHERE", "all[blockIdx.x]"))
    right.launch("sums", 3, 32, 0, arguments, seed=seed)
    wrong = compile_and_load(text.replace("WHERE", "all[0]"))
    with pytest.raises(SimtError, match=r"kernel.cu:4: .*race in global memory: writes byte 0"):
        wrong.launch("sums", 3, 32, 0, arguments, seed=seed)
    reading = compile_and_load(text.replace("WHERE", "out[(blockIdx.x + 1) % 3]"))
    with pytest.raises(SimtError, match="race in global memory"):
        reading.launch("sums", 3, 32, 0, arguments, seed=seed)


def test_a_launch_after_a_failed_one_works():
    module = compile_and_load(VECTOR_ADD)
    with pytest.raises(SimtError, match="outside of every buffer"):
        module.launch("vector_add", 4, 256, 0, [torch.zeros(8)] * 3 + [1000])
    got, want = run_vector_add(module, 1)
    assert torch.equal(got, want)


def test_warp_operations():
    text = """
    extern "C" __global__ void warp(int* out, double* wide) {
      int lane = threadIdx.x, i = threadIdx.x;
      out[i] = __shfl_down_sync(0xffffffffu, lane, 4);
      out[32 + i] = __shfl_up_sync(0xffffffffu, lane, 3, 16);
      out[64 + i] = __shfl_xor_sync(0xffffffffu, lane, 5);
      out[96 + i] = __shfl_sync(0xffffffffu, lane, 9, 8);
      out[128 + i] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
      out[160 + i] = __syncthreads_count(lane < 11) + 100 * __any_sync(0xffffffffu, lane == 7);
      if (lane < 16) out[192 + i] = __shfl_down_sync(0x0000ffffu, lane, 1, 16);
      wide[i] = __shfl_xor_sync(0xffffffffu, lane + 0.5, 1);
    }
    """
    out, wide = (
        torch.zeros(7, 32, dtype=torch.int32),
        torch.zeros(32, dtype=torch.float64),
    )
    compile_and_load(text).launch("warp", 1, 32, 0, [out, wide], seed=5)
    lanes = range(32)
    assert out[0].tolist() == [i + 4 if i + 4 < 32 else i for i in lanes]
    assert out[1].tolist() == [i - 3 if i % 16 >= 3 else i for i in lanes]
    assert out[2].tolist() == [i ^ 5 for i in lanes]
    assert out[3].tolist() == [i // 8 * 8 + 1 for i in lanes]
    ballot = sum(1 << i for i in lanes if i % 3 == 0)
    assert out[4].tolist() == [ballot] * 32
    assert out[5].tolist() == [111] * 32
    assert out[6].tolist() == [min(i + 1, 15) if i < 16 else 0 for i in lanes]
    assert wide.tolist() == [(i ^ 1) + 0.5 for i in lanes]


def test_atomics_over_threads_and_blocks():
    text = """
    extern "C" __global__ void count(int* total, float* sum, int* highest, unsigned* ticket) {
      __shared__ int block_total;
      if (threadIdx.x == 0) block_total = 0;
      __syncthreads();
      atomicAdd(&block_total, 1);
      atomicMax(highest, (int)(blockIdx.x * 100 + threadIdx.x));
      __syncthreads();
      if (threadIdx.x == 0) {
        atomicAdd(total, block_total);
        atomicAdd(sum, 0.5f);
        atomicInc(ticket, 2);
      }
    }
    """
    total, highest, ticket = (torch.zeros(1, dtype=torch.int32) for _ in range(3))
    sums = torch.zeros(1)
    compile_and_load(text).launch("count", 5, 64, 0, [total, sums, highest, ticket], seed=9)
    assert (total.item(), sums.item(), highest.item(), ticket.item()) == (
        320,
        2.5,
        463,
        2,
    )


def test_inverse_error_functions_of_the_harness():
    text = """
    extern "C" __global__ void inverse(const double* in, double* out, double* complement) {
      int i = threadIdx.x;
      out[i] = erfinv(in[i]);
      complement[i] = erfcinv(1 - in[i]);
    }
    """
    values = torch.tensor([-1, -0.999, -0.5, -1e-12, 0, 0.1, 0.9, 1, 2], dtype=torch.float64)
    out, complement = torch.zeros_like(values), torch.zeros_like(values)
    compile_and_load(text).launch("inverse", 1, len(values), 0, [values, out, complement])
    torch.testing.assert_close(out, torch.erfinv(values), equal_nan=True)
    torch.testing.assert_close(complement, torch.erfinv(values), equal_nan=True, atol=1e-12, rtol=0)


def test_scalars_are_passed_by_the_kernels_own_types():
    text = """
    struct Pair { int first; float second; };
    extern "C" __global__ void scalars(double* out, float f, double d, bool b, signed char c,
                                       long long l, Pair p) {
      out[0] = f; out[1] = d; out[2] = b; out[3] = c; out[4] = l; out[5] = p.first + p.second;
    }
    """
    module = compile_and_load(text)
    kinds = [("p", 8), ("f", 4), ("f", 8), ("i", 1), ("i", 1), ("i", 8), ("s", 8)]
    assert module.signature("scalars") == kinds
    out = torch.zeros(6, dtype=torch.float64)
    pair = torch.tensor([3]).int().numpy().tobytes() + torch.tensor([0.25]).numpy().tobytes()
    module.launch("scalars", 1, 1, 0, [out, 0.5, 0.1, True, -3, -(2**40), pair])
    assert out.tolist() == [0.5, 0.1, 1, -3, -(2**40), 3.25]


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (("nothing", 1, 1, 0, []), "expected one of .*vector_add"),
        (("vector_add", 1, 1, 0, []), "expected 4 arguments, got 0"),
        (("vector_add", 1, 1025, 0, []), "expected a block of 1 to 1024 threads"),
        (("vector_add", (1, 65536), 1, 0, []), "expected a grid"),
        (("vector_add", 1, 1, 2**20, []), "shared memory"),
        (
            ("vector_add", 1, 1, 0, [1, 2, 3, 4]),
            "expected argument 0 of kind p8, got 1",
        ),
    ],
)
def test_a_wrong_launch_says_what_is_wrong(launch, message):
    with pytest.raises(SimtError, match=message):
        compile_and_load(VECTOR_ADD).launch(*launch)


def test_text_that_does_not_compile_shows_the_compilers_log():
    with pytest.raises(SimtError, match=r"kernel.cu:1:.*nonsense"):
        compile_and_load('extern "C" __global__ void wrong(int* out) { nonsense; }')
    with pytest.raises(SimtError, match="expected a __global__ void function"):
        compile_and_load("int x;")
