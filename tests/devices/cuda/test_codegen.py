"""The CUDA C++ code generator: texts, and their results when run on the CPU.

Every kernel here runs in the SIMT harness, which finds races, divergence and accesses out of
bounds, in two orders of threads, and is compared with torch.  NVRTC compiles the same texts.
"""

from __future__ import annotations

import math

import pytest
import torch

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.codegen import Counters, generate
from pyfuser.devices.cuda.spelling import index_text, literal
from pyfuser.dtypes import KERNEL_DTYPES, DataType, is_floating, to_torch
from pyfuser.errors import ScheduleError, UnsupportedError
from pyfuser.ir.domains import ParallelType
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.kernel import Buffer
from pyfuser.ir.scalar_functions import maximum, minimum, xor
from pyfuser.ir.scalars import ONE, Symbol, as_expr, ceil_div, mod
from pyfuser.ir.schedule import MemoryType, ScheduledFusion
from pyfuser.ops import builders
from pyfuser.ops.evaluator import evaluate
from pyfuser.ops.table import OPS
from pyfuser.schedule.inlining import inline_at, inline_most
from pyfuser.schedule.propagation import parallelize_like, transform_like
from pyfuser.schedule.rewrite import cache_after
from tests.cuda.cubins import require_cubin, requires_nvrtc
from tests.cuda.emulate import cuda_kernel, run_emulated
from tests.cuda.examples import (
    BLOCK_X,
    BLOCK_Y,
    GRID_X,
    add_chain,
    flat_schedule,
    grid_sum,
    input_tensor,
    row_softmax,
    shared_sum,
    tiled_transpose,
    two_step_sum,
    vector_schedule,
    welford_rows,
)
from tests.cuda.host_compiler import requires_host_compiler
from tests.ops.resolving import takes

CLASSIC = {
    "add_chain": (add_chain, lambda a, b: a + (b + 2.0)),
    "two_step_sum": (two_step_sum, lambda a: a.sum(1)),
    "shared_sum": (shared_sum, lambda a: a.sum(1)),
    "grid_sum": (grid_sum, lambda a: a.sum() * 2.0),
    "tiled_transpose": (tiled_transpose, lambda a: a.t()),
    "row_softmax": (row_softmax, lambda a: a.softmax(1)),
}
# torch computes nothing in unsigned 64-bit integers: tests/ops/test_narrow_dtypes.py
DTYPES = sorted(set(KERNEL_DTYPES) - {DataType.Index, DataType.UInt64}, key=str)
# Empty, one element, exact multiples of the splits, primes.
SHAPES = ((0, 5), (1, 1), (3, 512), (37, 131))


def compute_alike(got: torch.Tensor, want: torch.Tensor) -> None:
    # Sums of thousands of numbers, in another order than torch's.
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if got.dtype is torch.float32 else {}
    torch.testing.assert_close(got, want, equal_nan=True, check_stride=False, **tolerance)


# ---- the classic schedules


@requires_host_compiler
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CLASSIC)
def test_classic_schedules_compute_what_torch_does(name, shape):
    make, reference = CLASSIC[name]
    torch.manual_seed(0)
    shape = (math.prod(shape),) if name == "grid_sum" else shape
    scheduled = make()
    inputs = [torch.randn(shape) for _ in scheduled.fusion.inputs]
    (got,) = run_emulated(scheduled, inputs)
    compute_alike(got, reference(*inputs))


@requires_host_compiler
@pytest.mark.parametrize("columns", [1, 127, 128, 300])
def test_welford_over_threads(columns):
    values = torch.randn(5, columns)
    mean, squares, count = run_emulated(welford_rows(), [values])
    compute_alike(mean, values.mean(1))
    compute_alike(squares, values.var(1, correction=0) * columns)
    assert count.tolist() == [columns] * 5


@requires_host_compiler
def test_sums_over_no_elements_are_zero():
    for make in (two_step_sum, shared_sum):
        (got,) = run_emulated(make(), [torch.zeros(3, 0)])
        assert got.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["add_chain", "tiled_transpose"])
def test_golden_text(name, golden):
    golden(f"cuda_{name}.cu", generate(cuda_kernel(CLASSIC[name][0](), name)).text)


@requires_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_nvrtc_compiles_every_classic_schedule(architecture):
    texts = [generate(cuda_kernel(make(), name)).text for name, (make, _) in CLASSIC.items()]
    texts.append(generate(cuda_kernel(welford_rows(), "welford_rows")).text)
    texts.append(generate(cuda_kernel(row_softmax(DataType.BFloat16), "bfloat16_softmax")).text)
    texts.append(generate(cuda_kernel(vector_sum(DataType.Half, 8), "vectors")).text)
    require_cubin(texts, architecture)


# ---- vectors


def vector_sum(dtype: DataType, width: int) -> ScheduledFusion:
    fusion = Fusion()
    a, b = input_tensor(fusion, 1, dtype), input_tensor(fusion, 1, dtype)
    fusion.add_output(builders.cast(fusion, builders.add(fusion, a, b), dtype))
    return vector_schedule(ScheduledFusion(fusion), 32, width)


@requires_host_compiler
@pytest.mark.parametrize("width", [2, 4, 16])
@pytest.mark.parametrize("dtype", [DataType.Half, DataType.Float, DataType.Double], ids=str)
def test_vectors_with_tails_and_misaligned_inputs(dtype, width):
    scheduled = vector_sum(dtype, width)
    source = generate(cuda_kernel(scheduled))
    for text, way in ((source.text, "aligned"), (source.for_any_address.text, "contiguous")):
        assert text.count(f"load_{way}<{width}>") == 2
        assert text.count(f"store_{way}<{width}>") == 1
    for count in (1, 64 * width, 1000):
        a, b = (torch.randn(count + 1).to(to_torch(dtype)) for _ in range(2))
        for inputs in ([a[:count], b[:count]], [a[1:], b[:count]]):
            (got,) = run_emulated(scheduled, inputs)
            compute_alike(got, inputs[0] + inputs[1])


def test_a_vectorized_loop_that_is_no_copy_is_unrolled():
    fusion = Fusion()
    a = input_tensor(fusion, 1)
    out = builders.exp(fusion, a)
    fusion.add_output(out)
    scheduled = ScheduledFusion(fusion)
    scheduled[out].split(0, 4)
    scheduled[out].parallelize(1, ParallelType.vectorize)
    text = generate(cuda_kernel(scheduled)).text
    assert "contiguous<" not in text
    assert "#pragma unroll" in text


# ---- ops and dtypes


def op_inputs(op: str, dtype: DataType, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    row = OPS[op]
    low, high = row.samples if is_floating(dtype) else (-9, 9)
    made = []
    for _ in range(row.arity):
        values = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
        if is_floating(dtype):
            special = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0]
            values[: len(special)] = torch.tensor(special, dtype=torch.float64)
        elif dtype in (DataType.UInt8, DataType.Bool):
            values = values.abs() if dtype is DataType.UInt8 else values > 0
        if row.check is not None and row.check.applies(dtype):  # without values that it refuses
            values = values.nan_to_num(0).clamp(0, 1) if is_floating(dtype) else values.abs() + 1
        made.append(values.to(to_torch(dtype)))
    return made


def every_op(dtype: DataType, count: int) -> tuple[Fusion, list[torch.Tensor], list[str]]:
    """A fusion with an output for each op of the table that takes `dtype`."""
    fusion, inputs, names = Fusion(), [], []
    for op in OPS.values():
        if not op.in_kernels or op.name in ("cast", "where", "clamp", "threshold"):
            continue
        if op.name in ("checked_class", "checked_index", "checked_place", "checked_target"):
            continue  # scalar operands
        if not takes(op, dtype):
            continue
        tensors = [input_tensor(fusion, 1, dtype) for _ in range(op.arity)]
        fusion.add_output(builders.BUILDERS[op.name](fusion, *tensors))
        inputs += op_inputs(op.name, dtype, count)
        names.append(op.name)
    return fusion, inputs, names


@requires_host_compiler
@pytest.mark.parametrize(
    "dtype", sorted(set(KERNEL_DTYPES) - {DataType.Index, DataType.UInt64}, key=str), ids=str
)
def test_every_op_of_the_table(dtype):
    fusion, inputs, names = every_op(dtype, 140)
    assert len(names) >= 74
    want = evaluate(fusion, inputs)
    scheduled = flat_schedule(ScheduledFusion(fusion), fusion.outputs)
    for name, got, expected in zip(names, run_emulated(scheduled, inputs, (0,)), want, strict=True):
        tolerance = {"rtol": 2e-6, "atol": 1e-30} if got.dtype is torch.float32 else {}
        torch.testing.assert_close(
            got, expected, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}", **tolerance
        )


@requires_host_compiler
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.Half, DataType.Int32], ids=str)
def test_scalars_casts_and_selections(dtype):
    fusion = Fusion()
    a = input_tensor(fusion, 1, dtype)
    outputs = [
        builders.where(fusion, builders.gt(fusion, a, 0), a, 2),
        builders.clamp(fusion, a, -1, 1),
        builders.threshold(fusion, a, 0, -3),
        builders.mul(fusion, a, 0.1),
        builders.cast(fusion, a, DataType.Bool),
        builders.cast(fusion, a, DataType.BFloat16),
        builders.cast(fusion, a, DataType.Int8),
    ]
    for output in outputs:
        fusion.add_output(output)
    values = (torch.randn(100) * 3).to(to_torch(dtype))
    want = evaluate(fusion, [values])
    scheduled = flat_schedule(ScheduledFusion(fusion), outputs)
    for got, expected in zip(run_emulated(scheduled, [values], (0,)), want, strict=True):
        compute_alike(got, expected)


@requires_host_compiler
def test_full_and_iota_and_scalar_inputs():
    fusion = Fusion()
    count = fusion.new_scalar(DataType.Int)
    step = fusion.new_scalar(DataType.Double)
    fusion.add_input(count)
    fusion.add_input(step)
    outputs = [
        builders.iota(fusion, count, 5, 3, DataType.Int),
        builders.iota(fusion, count, 0.5, step, DataType.Float),
        builders.full(fusion, [count], step, DataType.BFloat16),
    ]
    for output in outputs:
        fusion.add_output(output)
    want = evaluate(fusion, [77, 0.25])
    scheduled = flat_schedule(ScheduledFusion(fusion), outputs)
    for got, expected in zip(run_emulated(scheduled, [77, 0.25]), want, strict=True):
        compute_alike(got, expected)


# ---- which threads run a statement


@requires_host_compiler
def test_a_result_without_a_thread_axis_is_written_once():
    # Both are in one launch: one has no loop over block_x, the other none over grid_x.
    fusion = Fusion()
    a, b = input_tensor(fusion, 1), input_tensor(fusion, 1)
    rows, columns = builders.neg(fusion, a), builders.exp(fusion, b)
    fusion.add_output(rows)
    fusion.add_output(columns)
    scheduled = ScheduledFusion(fusion)
    scheduled[rows].parallelize(0, GRID_X)
    scheduled[columns].parallelize(0, BLOCK_X)
    text = generate(cuda_kernel(scheduled)).text
    assert "if (threadIdx_x == 0" in text
    assert "if (blockIdx_x == 0" in text
    for inputs in ([torch.randn(3), torch.randn(40)], [torch.randn(0), torch.randn(7)]):
        got = run_emulated(scheduled, inputs)
        compute_alike(got[0], -inputs[0])
        compute_alike(got[1], inputs[1].exp())


@requires_host_compiler
def test_a_block_reduction_of_fewer_threads_than_the_block_has():
    fusion = Fusion()
    a, b = input_tensor(fusion, 2), input_tensor(fusion, 1)
    total, other = builders.sum(fusion, a, [1]), builders.neg(fusion, b)
    fusion.add_output(total)
    fusion.add_output(other)
    scheduled = ScheduledFusion(fusion)
    scheduled[total].parallelize(0, BLOCK_Y)
    scheduled[total].parallelize(1, BLOCK_X)
    scheduled[other].parallelize(0, BLOCK_X)
    for columns, others in ((5, 48), (48, 5), (0, 3)):
        inputs = [torch.randn(4, columns), torch.randn(others)]
        got = run_emulated(scheduled, inputs)
        compute_alike(got[0], inputs[0].sum(1))
        compute_alike(got[1], -inputs[1])


@requires_host_compiler
def test_registers_of_symbolic_size_are_in_shared_memory():
    fusion = Fusion()
    a = input_tensor(fusion, 2)
    e = builders.exp(fusion, a)
    out = builders.div(fusion, e, builders.sum(fusion, e, [1], keepdim=True))
    fusion.add_output(out)
    scheduled = ScheduledFusion(fusion)
    scheduled[out].split(1, 16)
    transform_like(scheduled, out)
    scheduled[out].parallelize(0, GRID_X)
    scheduled[out].parallelize(2, BLOCK_X)
    parallelize_like(scheduled, out)
    inline_most(scheduled)
    source = generate(cuda_kernel(scheduled))
    (launch,) = source.launches
    geometry = launch.geometry({"i0": 3, "i1": 100})
    assert geometry is not None
    assert geometry.shared_bytes == 7 * 16 * 4
    values = torch.randn(3, 100)
    compute_alike(run_emulated(scheduled, [values])[0], values.softmax(1))


@requires_host_compiler
def test_a_bias_that_one_row_of_threads_copies_is_read_after_a_barrier():
    fusion = Fusion()
    a, bias = input_tensor(fusion, 2), input_tensor(fusion, 2, broadcast=(0,))
    out = builders.add(fusion, a, bias)
    fusion.add_output(out)
    scheduled = ScheduledFusion(fusion)
    tile = cache_after(scheduled, bias)
    scheduled[tile].memory_type = MemoryType.shared
    for tensor in (out, tile):
        scheduled[tensor].split(1, 16)
        scheduled[tensor].reorder({1: 0})
        scheduled[tensor].parallelize(0, GRID_X)
        scheduled[tensor].parallelize(2, BLOCK_X)
    scheduled[out].parallelize(1, BLOCK_Y)
    inline_at(scheduled, out, 1)
    assert generate(cuda_kernel(scheduled)).text.count("__syncthreads();") == 1
    inputs = [torch.randn(5, 40), torch.randn(1, 40)]
    compute_alike(run_emulated(scheduled, inputs)[0], inputs[0] + inputs[1])


@requires_host_compiler
def test_strided_expanded_and_transposed_inputs():
    fusion = Fusion()
    a, b = input_tensor(fusion, 2, contiguous=False), input_tensor(fusion, 2, contiguous=False)
    out = builders.sub(fusion, a, b)
    fusion.add_output(out)
    scheduled = flat_schedule(ScheduledFusion(fusion), [out])
    inputs = [torch.randn(11, 7).t(), torch.randn(14, 22)[::2, ::2]]
    compute_alike(run_emulated(scheduled, inputs)[0], inputs[0] - inputs[1])
    inputs = [torch.randn(7, 1).expand(7, 11), torch.randn(11).expand(7, 11)]
    compute_alike(run_emulated(scheduled, inputs)[0], inputs[0] - inputs[1])


# ---- launches


def test_a_launch_is_bound_to_sizes():
    (launch,) = generate(cuda_kernel(grid_sum(), "total")).launches
    geometry = launch.geometry({"i0": 1025})
    assert geometry is not None
    assert (geometry.grid, geometry.block) == ((3, 1, 1), (128, 1, 1))
    empty = launch.geometry({"i0": 0})
    assert empty is not None and empty.grid == (1, 1, 1), "the result is still written"
    *others, counters = launch.parameters
    assert [p.name for p in others if isinstance(p, Buffer | Symbol)] == ["T0", "T2", "i0", "T4"]
    assert counters == Counters(ONE)


def test_a_launch_of_too_many_threads_is_refused():
    (launch,) = generate(cuda_kernel(row_softmax(), "softmax")).launches
    assert launch.geometry({"i0": 1, "i1": 3 * 4 * 1024}) is not None
    with pytest.raises(
        ScheduleError, match=r"softmax \(writes .*\): expected at most 1024 threads"
    ):
        launch.geometry({"i0": 1, "i1": 3 * 4 * 1024 + 1})


def test_kernels_are_readable():
    text = generate(cuda_kernel(add_chain(), "add_chain")).text
    assert "// T2 = add(T1, 2.0)" in text
    assert "const float* __restrict__ T0,  // [i0, i1] by strides [i1, 1]" in text
    assert max(map(len, text.splitlines())) < 120


# ---- spelling


def test_literals_have_the_bits_of_their_numbers():
    assert literal(0.1, DataType.Float) == "0.1f"
    assert literal(0.1, DataType.Double) == "0.1"
    assert literal(-2, DataType.Float) == "(-2.0f)"
    assert literal(math.nan, DataType.Float) == "limits<float>::nan"
    assert literal(-math.inf, DataType.Double) == "limits<double>::lowest"
    assert literal(3, DataType.Int8) == "int8_t(3)"
    assert literal(-(2**63), DataType.Int) == "int64_t(-9223372036854775807 - 1)"
    assert literal(0.1, DataType.BFloat16) == "0.100097656f"
    assert literal(2.5, DataType.Bool) == "true"


def test_index_expressions():
    i, j, n = Symbol.of("i", as_expr(8)), Symbol.of("j"), Symbol.of("n")
    thread = Symbol.of(ParallelType.block_x.value)
    assert index_text(n - i * 4) == "n - i*4"
    assert index_text(mod(thread + j, n) * 4) == "((j + threadIdx_x) % n)*4"
    assert index_text(ceil_div(n, 4)) == "ceil_divide<index_t>(n, 4)"
    assert index_text(minimum(n, maximum(j, 0))) == "minimum<index_t>(n, maximum<index_t>(j, 0))"
    assert index_text(xor(i, j)) == "(i ^ j)"


def test_a_complex_tensor_is_refused():
    fusion = Fusion()
    a = input_tensor(fusion, 1, DataType.ComplexFloat)
    fusion.add_output(builders.set(fusion, a))
    with pytest.raises(UnsupportedError, match="cuda: expected a dtype that kernels compute"):
        generate(cuda_kernel(ScheduledFusion(fusion)))
