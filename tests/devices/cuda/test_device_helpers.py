"""The device-side prelude, run on the CPU: its reductions, storage types and torch's arithmetic."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.devices.cuda.emulator.harness import Module, SimtError, compile_and_load
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = requires_host_compiler

SEEDS = (0, 1, 2, 3)


_BLOCKS = [
    *[(1, 1, 1), (64, 4, 2), (7, 5, 3), (256, 1, 1), (32, 1, 8)],
    *[(8, 16, 1), (1, 64, 1), (16, 3, 2), (4, 4, 2), (2, 7, 1)],  # some share a warp
]


@pytest.mark.parametrize("seed", (0, 7))
@pytest.mark.parametrize("block", _BLOCKS)
@pytest.mark.parametrize("dimensions", [(1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)])
def test_block_reduce_over_any_dimensions(block, dimensions, seed):
    _check_block_reduce(_block_reduce_module(dimensions), block, dimensions, seed)


@pytest.mark.parametrize("dimensions", [(1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)])
def test_block_reduce_of_a_block_whose_sizes_the_text_has(dimensions):
    for block in _BLOCKS:
        _check_block_reduce(_block_reduce_module(dimensions, block), block, dimensions, seed=7)


def _check_block_reduce(module: Module, block, dimensions, seed: int) -> None:
    x, y, z = block
    values = torch.randint(-9, 9, (z, y, x))
    total, highest = torch.zeros_like(values), torch.zeros(z, y, x)
    args = [values, total, highest]
    module.launch("reduce", 1, block, 8 * x * y * z, args, seed=seed)
    dims = [2 - i for i in range(3) if dimensions[i]]
    assert torch.equal(total, values.sum(dims, keepdim=True).expand(z, y, x))
    assert torch.equal(highest, values.amax(dims, keepdim=True).expand(z, y, x).float())


@functools.cache
def _block_reduce_module(
    dimensions: tuple[int, int, int], block: tuple[int, ...] = (0, 0, 0)
) -> Module:
    flags = ", ".join("true" if chosen else "false" for chosen in dimensions)
    flags += ", " + ", ".join(map(str, block))
    return compile_and_load(
        with_device_helpers(f"""
extern "C" __global__ void reduce(const int64_t* in, int64_t* total, float* highest) {{
  extern __shared__ __align__(16) char shared[];
  int i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  total[i] = block_reduce<{flags}>(in[i], sum_of<int64_t>(), (int64_t*)shared);
  highest[i] = block_reduce<{flags}>((float)in[i], maximum_of<float>(), (float*)shared);
}}
""")
    )


@pytest.mark.parametrize("seed", (0, 7))
@pytest.mark.parametrize("block", [(1, 1, 1), (64, 4, 2), (7, 5, 3), (256, 1, 1), (32, 1, 8)])
@pytest.mark.parametrize("dimension", range(3))
def test_block_scan_along_any_dimension(block, dimension, seed):
    x, y, z = block
    values = torch.randint(-9, 9, (z, y, x))
    sums, highest, totals = values.clone(), torch.zeros(z, y, x), values.clone()
    args = [values, sums, highest, totals]
    _block_scan_module(dimension).launch("scan", 1, block, 8 * x * y * z, args, seed=seed)
    dim = 2 - dimension
    assert torch.equal(sums, values.cumsum(dim))
    assert torch.equal(highest, values.cummax(dim)[0].float())
    assert torch.equal(totals, values.sum(dim, keepdim=True).expand(z, y, x))


@functools.cache
def _block_scan_module(dimension: int) -> Module:
    flags = ", ".join(str(place == dimension).lower() for place in range(3))
    return compile_and_load(
        with_device_helpers(f"""
extern "C" __global__ void scan(const int64_t* in, int64_t* sums, float* highest,
                                int64_t* totals) {{
  extern __shared__ __align__(16) char shared[];
  int i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  sums[i] = block_scan<{flags}>(in[i], sum_of<int64_t>(), (int64_t*)shared, totals[i]);
  float last;
  highest[i] = block_scan<{flags}>((float)in[i], maximum_of<float>(), (float*)shared, last);
}}
""")
    )


def test_a_grid_reduction_finished_by_the_last_block():
    text = with_device_helpers("""
extern "C" __global__ void variance(const float* in, double* partial, float* out,
                                    unsigned* arrived) {
  extern __shared__ __align__(16) char shared[];
  welford<double>* scratch = (welford<double>*)shared;
  welford<double>* partials = (welford<double>*)partial;
  welford<double> own = {(double)in[blockIdx.x * blockDim.x + threadIdx.x], 0.0, 1};
  own = block_reduce<true, false, false>(own, welford_of<double>(), scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = own;
  if (is_last_block(arrived, gridDim.x)) {
    welford<double> share = {0.0, 0.0, 0};
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
      share = welford_of<double>()(share, partials[i]);
    }
    share = block_reduce<true, false, false>(share, welford_of<double>(), scratch);
    if (threadIdx.x == 0) out[0] = (float)(share.m2 / share.count);
  }
}
""")
    values, out = torch.randn(10, 96), torch.zeros(1)
    partial, arrived = (
        torch.zeros(30, dtype=torch.float64),
        torch.zeros(1, dtype=torch.int32),
    )
    module = compile_and_load(text)
    for seed in SEEDS:
        module.launch("variance", 10, 96, 96 * 24, [values, partial, out, arrived], seed=seed)
        torch.testing.assert_close(out[0], values.var(correction=0))
        assert arrived.item() == 0


def test_half_and_bfloat16_round_as_torch_does():
    text = with_device_helpers("""
extern "C" __global__ void round_trip(const float* in, half* h, bfloat16* b, float* from_half,
                                      float* from_bfloat16, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  h[i] = to_half(in[i]);
  b[i] = convert<bfloat16>((double)in[i]);
  from_half[i] = to_float(h[i]);
  from_bfloat16[i] = convert<float>(b[i]);
}
""")
    exact = torch.arange(-32768, 32768).to(torch.int16)
    specials = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65519.9, 65520.0, 1e-8])
    values = torch.cat(
        [
            exact.view(torch.float16).float(),
            torch.randn(2000) * 1e-5,
            torch.randn(2000),
            specials,
        ]
    )
    values = torch.cat([values, values * (1 + 2**-11), values * (1 + 3 * 2**-12)])
    n = len(values)
    half, bfloat = (
        torch.zeros(n, dtype=torch.float16),
        torch.zeros(n, dtype=torch.bfloat16),
    )
    outs = [half, bfloat, torch.zeros(n), torch.zeros(n)]
    compile_and_load(text).launch("round_trip", (n + 255) // 256, 256, 0, [values, *outs, n])
    for got, dtype in ((outs[0], torch.float16), (outs[1], torch.bfloat16)):
        torch.testing.assert_close(got, values.to(dtype), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(outs[2], half.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(outs[3], bfloat.float(), rtol=0, atol=0, equal_nan=True)


INTEGER_TYPES = {
    "int8_t": torch.int8,
    "uint8_t": torch.uint8,
    "int16_t": torch.int16,
    "int32_t": torch.int32,
    "int64_t": torch.int64,
}


def wrapping_gcd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The mathematical one; torch's own is negative for some operands with the lowest value."""
    modulus = 1 << torch.iinfo(a.dtype).bits
    wrapped = [math.gcd(x, y) % modulus for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    signed = [x - modulus if x > torch.iinfo(a.dtype).max else x for x in wrapped]
    return torch.tensor(signed, dtype=a.dtype)


INTEGER_HELPERS = {
    "truncating_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncating_modulo": torch.fmod,
    "floor_modulo": torch.remainder,
    "greatest_common_divisor": wrapping_gcd,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
}


@pytest.mark.parametrize("name", INTEGER_TYPES)
def test_integer_helpers_agree_with_torch(name):
    dtype = INTEGER_TYPES[name]
    info = torch.iinfo(dtype)
    picked = [info.min, info.min + 1, -64, -33, -7, -3, -2, -1, 1, 2, 3, 7, 8, 31, 33, 64]
    picked.append(info.max)
    edges = torch.tensor([value for value in picked if value >= info.min], dtype=dtype)
    a, b = (part.reshape(-1) for part in torch.meshgrid(edges, edges, indexing="ij"))
    # Torch raises for zero divisors, and overflows for the lowest value and -1.
    defined = (b != 0) & ((a != info.min) | (b.long() != -1))
    a, b = a[defined].contiguous(), b[defined].contiguous()
    module = compile_and_load(_two_operand_kernels(name, [*INTEGER_HELPERS, "integer_power"]))
    shifts = {"shift_left", "shift_right"}
    for helper, reference in INTEGER_HELPERS.items():
        right = b.clamp(max(-1, info.min), info.bits) if helper in shifts else b
        torch.testing.assert_close(_run(module, helper, a, right), reference(a, right), msg=helper)
    exponents = torch.tensor([2, 0, 3, 1], dtype=dtype).repeat(len(a))[: len(a)]
    torch.testing.assert_close(_run(module, "integer_power", a, exponents), a.pow(exponents))
    zero = torch.zeros_like(a)
    for helper in (
        "truncating_divide",
        "floor_divide",
        "truncating_modulo",
        "floor_modulo",
    ):
        assert not _run(module, helper, a, zero).any()


@pytest.mark.parametrize(("name", "dtype"), [("float", torch.float32), ("double", torch.float64)])
def test_floating_helpers_agree_with_torch(name, dtype):
    edges = torch.tensor([torch.nan, torch.inf, -torch.inf, -2.5, -1, -0.3, 0.3, 1, 7.25, 1e9])
    edges = edges.to(dtype)
    a, b = (part.reshape(-1) for part in torch.meshgrid(edges, edges, indexing="ij"))
    helpers = {
        "minimum": torch.minimum,
        "maximum": torch.maximum,
        "floor_modulo": torch.remainder,
    }
    module = compile_and_load(_two_operand_kernels(name, helpers))
    for helper, reference in helpers.items():
        got = _run(module, helper, a.contiguous(), b.contiguous())
        torch.testing.assert_close(got, reference(a, b), rtol=0, atol=0, equal_nan=True)


def _two_operand_kernels(name: str, helpers) -> str:
    kernel = (
        'extern "C" __global__ void run_{1}(const {0}* a, const {0}* b, {0}* out, int n) {{\n'
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) out[i] = {1}(a[i], b[i]);\n}}\n"
    )
    return with_device_helpers("".join(kernel.format(name, helper) for helper in helpers))


def _run(module: Module, helper: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(a)
    grid = (len(a) + 127) // 128
    module.launch(f"run_{helper}", grid, 128, 0, [a, b.contiguous(), out, len(a)])
    return out


def test_vector_loads_and_stores():
    text = with_device_helpers("""
extern "C" __global__ void copy(const half* in, half* out) {
  store_vector<half, 8>(out + 8 * threadIdx.x, load_vector<half, 8>(in + 8 * threadIdx.x));
}
""")
    values = torch.randn(32 * 8).half()
    out = torch.zeros_like(values)
    module = compile_and_load(text)
    module.launch("copy", 1, 32, 0, [values, out])
    assert torch.equal(out, values)
    with pytest.raises(SimtError, match="not aligned"):
        module.launch("copy", 1, 16, 0, [values[1:], out])


def test_casts_go_as_torchs_do():
    text = with_device_helpers("""
extern "C" __global__ void cast(const float* in, int8_t* narrow, int64_t* wide, bool* truth,
                                half* h) {
  int i = threadIdx.x;
  narrow[i] = convert<int8_t>(in[i]);
  wide[i] = convert<int64_t>(in[i]);
  truth[i] = convert<bool>(in[i]);
  h[i] = convert<half>(convert<bool>(in[i]));
}
""")
    values = torch.tensor([0.0, -0.0, 0.4, -1.9, 127.5, 300.0, -129.0, torch.inf, torch.nan])
    dtypes = (torch.int8, torch.int64, torch.bool, torch.float16)
    outs = [torch.zeros(len(values), dtype=dtype) for dtype in dtypes]
    compile_and_load(text).launch("cast", 1, len(values), 0, [values, *outs])
    finite = values.isfinite()
    assert torch.equal(outs[0][finite], values[finite].to(torch.int8))
    assert torch.equal(outs[1][finite], values[finite].to(torch.int64))
    assert torch.equal(outs[2], values.to(torch.bool))
    assert torch.equal(outs[3], values.to(torch.bool).half())
