"""The 31 defects of torch's first fuser, that of FusionGroups, each as a test that it would fail.

One test a defect, by number, or in COVERED the test elsewhere that is about it.  Where a defect has
a side that `torch.compile` sees and one that a FusionDefinition sees, both are tried; eager is the
judge, and PYFUSER_STRICT forbids that torch computes what kernels should.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import re
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, fallback, interface
from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.codegen import generate
from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.errors import InputError, UnsupportedError
from pyfuser.executor import Executor
from pyfuser.interface import (
    compiled_kernel_count,
    debug_kernel_code,
    override_can_fuse_on_cpu,
    register_fusion,
    run_fusion,
)
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.scalar_queries import evaluate as evaluate_size
from pyfuser.ir.scalar_queries import substitute
from pyfuser.ops import builders
from pyfuser.ops.binding import bind_extents
from pyfuser.ops.metadata import TensorMetadata
from pyfuser.schedule.registry import scheduler
from tests.cuda.emulate import cuda_kernel
from tests.cuda.examples import input_tensor
from tests.support.folders import ROOT
from tests.support.targets import SM_90

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
CODES = {
    torch.float32: DataType.Float,
    torch.float64: DataType.Double,
    torch.float16: DataType.Half,
    torch.bfloat16: DataType.BFloat16,
}

COVERED = {
    17: "test_engine.py::test_a_failed_compilation_is_one_warning_and_right",
    22: "devices/cpu/test_op_emitter.py::test_random_numbers_are_refused",
    23: "torch_compile/test_aten_regions.py::test_dropout_has_the_bits_and_the_stream_of_eager",
    31: "test_engine.py::test_a_fork_after_use",
}
"""17: no C compiler is needed, so what can fail is LLVM.  22, 23: kernels draw no random numbers,
torch does, in eager's order."""

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC isn't installed")


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    monkeypatch.setattr(fallback, "_warned", OrderedDict())
    torch._dynamo.reset()
    yield
    override_can_fuse_on_cpu(None)


def alike(got: Any, want: Any) -> None:
    """Equal to the last bit, with NaN where NaN is, in dtype and strides too."""
    pairs = zip(got, want, strict=True) if isinstance(want, (tuple, list)) else [(got, want)]
    for mine, eager in pairs:
        torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True, check_stride=True)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="pyfuser", fullgraph=True)


def same_compiled(function: Callable[..., Any], *inputs: Any) -> None:
    alike(compiled(function)(*inputs), function(*inputs))


def fused(define: Callable[..., Any], *inputs: Any) -> list[torch.Tensor]:
    """Runs define(fd.ops, tensors...), whose results are the outputs."""
    with FusionDefinition() as fd:
        given = [
            fd.from_pytorch(x) if isinstance(x, torch.Tensor) else fd.define_scalar(dtype=kind(x))
            for x in inputs
        ]
        made = define(fd.ops, *given)
        for output in made if isinstance(made, tuple) else (made,):
            fd.add_output(output)
    return fd.execute(list(inputs))


def kind(number: object) -> DataType:
    return DataType.Int if isinstance(number, int) else DataType.Double


def test_every_defect_has_a_test() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    own = {int(number) for number in re.findall(r"(?m)^def test_(\d+)_", here)}
    assert own | set(COVERED) == set(range(1, 32))
    for place in COVERED.values():
        file, name = place.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), place


# -- memory


def test_01_the_result_of_cat_has_its_own_dtype(poison: None) -> None:
    mask, x = torch.rand(37, 5) > 0.5, torch.randn(37, 5)
    same_compiled(lambda m, x: torch.cat([x + 1, torch.where(m, x, -x)]), mask, x)
    same_compiled(lambda m, x: torch.cat([m, x > 0, x * 0.5], 1), mask, x)
    define = lambda o, m, x: o.cat([o.add(x, 1.0), o.where(m, x, o.neg(x))], 0)  # noqa: E731
    alike(fused(define, mask, x), [torch.cat([x + 1, torch.where(mask, x, -x)])])


@pytest.fixture(scope="module")
def huge() -> torch.Tensor:
    """More than 2^32 bytes that no memory is used for but where something is written."""
    reserve_nothing = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, not named in 3.11
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve_nothing
    try:
        return torch.frombuffer(mmap.mmap(-1, 2**32 + 4096, flags=flags), dtype=torch.uint8)
    except OSError as error:
        pytest.skip(f"no such range of addresses: {error}")


def test_02_offsets_beyond_32_bits(huge: torch.Tensor) -> None:
    """Read, written in place, and by both ends: element 1 lies 2^32 bytes behind element 0."""
    view = huge.as_strided((2,), (2**32,))
    view[0], view[1] = 1, 4
    alike(fused(lambda o, x: o.add(x, x), view), [view + view])
    same_compiled(lambda x: x * 2, view)
    compiled(lambda x: x.add_(3))(view)
    assert (huge[0].item(), huge[2**32].item()) == (4, 7)
    last = huge[2**32 - 1 : 2**32 + 2]
    last.copy_(torch.tensor([5, 6, 7]))
    same_compiled(lambda x: x + 1, last)
    across = huge.as_strided((2, 3), (2**31, 2**30))
    same_compiled(lambda x: (x.int() * 3).sum(1), across)


def test_14_a_chunk_of_lower_rank_than_its_partner() -> None:
    a, b = torch.randn(2, 6), torch.randn(4, 2, 3)

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first, second = a.chunk(2, 1)
        return (first * b - second).relu()

    same_compiled(program, a, b)
    halves = lambda o, a, b: o.sub(  # noqa: E731
        o.mul(o.broadcast(o.slice(a, [0, 0], [2, 3]), [True, False, False]), b),
        o.broadcast(o.slice(a, [0, 3], [2, 6]), [True, False, False]),
    )
    alike(fused(halves, a, b), [a[:, :3] * b - a[:, 3:]])


@pytest.mark.parametrize("shape", [(3, 0), (2, 0, 3), (0, 3), (2, 3, 0), (0,)], ids=str)
def test_15_no_elements(shape: tuple[int, ...]) -> None:
    same_compiled(lambda x: torch.tanh(x) * 2 + x, torch.randn(shape))
    ones = torch.randn(*shape[:-1], 1)
    same_compiled(lambda x, y: x * y + 1, torch.randn(shape), ones)


def test_19_strides_are_eagers() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    bias = torch.randn(3, 1, 1)
    for x in (image, image.transpose(1, 3), image[:, :, ::2]):
        same_compiled(lambda x: torch.relu(x * 2) + x, x)
    # Of the stride of an axis of size 1, tracing and eager think differently here.
    one = image[:, :1]
    result = compiled(lambda x: torch.relu(x * 2) + x)(one)
    assert torch.equal(result, torch.relu(one * 2) + one)
    assert result.stride()[::2] == (one + 0).stride()[::2]
    same_compiled(lambda x, b: x * b, image, bias)
    same_compiled(lambda x, y: x + y, image, image.contiguous())
    # A definition says itself how outputs lie, and never inherits it from the inputs' memory.
    (plain,) = fused(lambda o, x: o.mul(x, 2.0), image)
    (ordered,) = fused(lambda o, x: o.stride_order(o.mul(x, 2.0), [3, 0, 2, 1]), image)
    assert torch.equal(plain, image * 2) and plain.is_contiguous()
    assert torch.equal(ordered, image * 2) and ordered.stride() == image.stride()


def test_26_a_tensor_without_dimensions_is_read_by_itself() -> None:
    """The last element before memory that can't be read; and CUDA reads it as no vector."""
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    words = torch.frombuffer(page, dtype=torch.float32)
    at = words.data_ptr()
    edge = words[: mmap.PAGESIZE // 4]
    number = edge[-1].fill_(3.0)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(at + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    try:
        x = torch.randn(100)
        alike(fused(lambda o, n, x: (o.mul(x, n), o.add(n, n)), number, x), [x * 3, number * 2])
        same_compiled(lambda n, x: (n * x, n + n), number, x)
    finally:
        assert protect(at + mmap.PAGESIZE, mmap.PAGESIZE, 3) == 0
    fusion = Fusion()
    zero, row = input_tensor(fusion, 0), input_tensor(fusion, 1)
    fusion.add_output(builders.mul(fusion, zero, row))
    text = generate(cuda_kernel(automatic(fusion, {"i0": 4096}))).text
    assert not re.search(r"load_vector<\w+, \d+>\(T0\b", text) and "T0[0]" in text


def automatic(fusion: Fusion, sizes: dict[str, int]) -> Any:
    """The pointwise scheduler's schedule for a GPU."""

    chosen = scheduler("pointwise")
    return chosen.schedule(fusion, chosen.heuristics(fusion, sizes, SM_90))


@pytest.mark.parametrize("size", [2**31 - 1, 2**31 + 1, 2**32 - 1, 2**32 + 1], ids=str)
def test_27_sizes_around_32_bits(size: int) -> None:
    """Everything a launch is given for such sizes, for inputs beside the first and for a cat."""
    with FusionDefinition() as fd:
        one, x = (fd.define_tensor([-1], dtype=DataType.Int8) for _ in range(2))
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.cat([one, x], 0))
    executor = Executor(fd.fusion.definition)
    device = torch.device("cpu")
    inputs = [TensorMetadata((n,), (1,), torch.int8, device) for n in (4, size)]
    resolved, sizes = executor.resolve(inputs), bind_extents(executor.fusion, inputs)
    numbers = [
        evaluate_size(substitute(symbol, built.kernel.joined), sizes)
        for built in resolved.kernels
        if built is not None
        for symbol in built.kernel.symbols
    ]
    assert size in numbers and all(0 <= n < 2**63 for n in numbers)
    assert size + 4 in numbers or 4 in numbers


def test_27_a_result_of_more_than_32_bits_of_elements() -> None:
    """Every element of a cat of 2^32 + 9 is seen: tasks, loops and offsets are 64 bits wide."""
    x, y = torch.ones(1, dtype=torch.int8), torch.full((1,), 2, dtype=torch.int8)
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1], dtype=DataType.Int8, contiguity=False) for _ in range(2))
        fd.add_output(fd.ops.sum(fd.ops.cat([a, b], 0), [0]))
    (total,) = fd.execute([x.expand(2**31), y.expand(2**31 + 9)])
    assert total.item() == 2**31 + 2 * (2**31 + 9)


# -- dtypes and numbers


def test_03_integers_divide_and_exponentiate_in_float() -> None:
    a, b = torch.tensor([21, 7]), torch.tensor([2, 2])
    same_compiled(lambda a, b: a / b + 0, a, b)
    close = compiled(lambda a: a.exp() * 1)(a)
    torch.testing.assert_close(close, a.exp())
    alike(fused(lambda o, a, b: o.truediv(a, b), a, b), [a / b])


def test_04_a_tensor_without_dimensions_does_not_widen() -> None:
    x, y = torch.randn(9), torch.tensor(0.3, dtype=torch.float64)
    same_compiled(lambda x, y: x * y + 1, x, y)
    assert compiled(lambda x, y: x - y)(x, y).dtype is torch.float32


def test_05_negated_and_conjugated_views() -> None:
    v = torch._neg_view(torch.tensor([1.0, -2.0]))
    alike(fused(lambda o, v: o.sub(o.abs(v), v), v), [v.abs() - v])
    same_compiled(lambda v: v.abs() - v, torch.randn(5, dtype=torch.complex64).conj().imag)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_06_comparisons_with_a_number(dtype: torch.dtype) -> None:
    """At the number as the dtype rounds it, and one step to either side."""
    numbers = (0.1, -0.1, 0.30000000000000004, 1 / 3, 16777217.0, 65519.0, 0.0)
    rounded = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    around = [torch.nextafter(rounded, torch.full_like(rounded, e)) for e in (-math.inf, math.inf)]
    x = torch.stack([around[0], rounded, around[1]])

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            compare(x, number) & (x == x)
            for number in numbers
            for compare in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
        ]

    same_compiled(program, x)
    if dtype is torch.float64:  # the only one in which a definition's numbers are what they were
        names = ("eq", "ne", "lt", "le", "gt", "ge")
        for number in numbers:
            got = fused(lambda o, x, n=number: tuple(getattr(o, f)(x, n) for f in names), x)
            alike(got, [getattr(torch, f)(x, number) for f in names])


def test_07_halves_round_to_even() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5, 4.5])
    same_compiled(lambda x: x.round() + x, x)
    alike(fused(lambda o, x: o.add(o.round(x), x), x), [x.round() + x])


def test_08_fmod_in_double() -> None:
    x, y = torch.tensor([1e300, 5.3, -7.5]).double(), torch.tensor([7, 0.1, 2.0]).double()
    x[1], y[1] = 5.3, 0.1
    same_compiled(lambda x, y: torch.fmod(x, y) + 0, x, y)
    alike(fused(lambda o, x, y: o.fmod(x, y), x, y), [torch.fmod(x, y)])


def test_09_literals_keep_every_bit() -> None:
    x = torch.tensor([1.0, -3.0]).double()
    for number in (0.30000000000000004, 0.1 + 0.7, 5e-324, 1.7976931348623157e308):
        same_compiled(lambda x, n=number: x.abs() * n, x)
        alike(fused(lambda o, x, n=number: o.mul(x, n), x), [x * number])


def test_10_a_float_argument_keeps_every_bit() -> None:
    x = torch.tensor([0.0, 1.0]).double()
    program = compiled(lambda x, s: x.abs() + s)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], dtype=DataType.Double)
        fd.add_output(fd.ops.add(t, fd.define_scalar(dtype=DataType.Double)))
    for s in (0.1, 1 / 3, 1e-300, 0.30000000000000004):
        assert program(x, s).tolist() == [s, 1 + s]
        assert fd.execute([x, s])[0].tolist() == [s, 1 + s]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_11_remainder(dtype: torch.dtype) -> None:
    numbers = [1, -1, 1e-20, -1e-9, 3.3, 0.0, -0.0, math.inf, -math.inf, math.nan, 0.1, -5.5]
    x = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    a, b = x[:, None].expand(12, 12), x[None].expand(12, 12)
    same_compiled(lambda a, b: torch.remainder(a, b) + 0, a, b)


def test_12_cat_of_one() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    same_compiled(lambda x, y: torch.cat([x * y]), x, y)
    alike(fused(lambda o, x, y: o.cat([o.mul(x, y)], 0), x, y), [x * y])


def test_13_negative_dimensions() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    same_compiled(lambda x, y: torch.cat([x * y, x], dim=-1), x, y)
    same_compiled(lambda x: [c * 2 for c in x.chunk(2, dim=-1)], x)
    alike(fused(lambda o, x, y: o.cat([o.neg(x), y], -2), x, y), [torch.cat([-x, y], -2)])


_NAMES = (
    "abs acos asinh ceil cos digamma erf erfinv exp expm1 floor frac lgamma log log1p logit "
    "neg reciprocal round rsqrt sigmoid sign sin sqrt square tanh trunc isnan isinf rand_like"
)
UNARY = tuple(_NAMES.split())
DTYPES = (
    *FLOATS,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.float8_e5m2,
)


def accepts(name: str, x: torch.Tensor) -> bool:
    try:
        getattr(torch, name)(x)
    except RuntimeError:  # NotImplementedError is one
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_16_every_op_on_every_dtype(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused or left to torch, never an exception: whatever eager takes is computed."""
    monkeypatch.delenv("PYFUSER_STRICT")
    torch.manual_seed(0)
    x = (torch.rand(4, 5) * 0.8 + 0.1).to(dtype)
    names = [name for name in UNARY if accepts(name, x)]

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(torch, name)(x) for name in names]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, about complex and prototypes
        torch.manual_seed(0)
        got = compiled(program)(x) if names else []
        torch.manual_seed(0)
        want = program(x)
    for name, mine, eager in zip(names, got, want, strict=True):
        # Kernels hold halves in float32: logit's steps are rounded by eager alone.
        loose = {"rtol": 0.02, "atol": 0.01} if dtype in FLOATS[2:] else {}
        text = lambda m, n=name: f"{n}: {m}"  # noqa: E731
        torch.testing.assert_close(mine, eager, equal_nan=True, msg=text, **loose)


def layouts() -> dict[str, torch.Tensor]:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    return {
        "sparse": x.to_sparse(),
        "csr": x.to_sparse_csr(),
        "mkldnn": x.to_mkldnn() if torch.backends.mkldnn.is_available() else x,
        "quantised": torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["sparse", "csr", "mkldnn", "quantised"])
def test_16_layouts_that_kernels_cannot_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's result, or its error: graphs that torch cannot trace run as they are."""
    monkeypatch.delenv("PYFUSER_STRICT")
    x = layouts()[name]
    want = torch.relu(x)
    got = torch.compile(lambda x: torch.relu(x), backend="pyfuser")(x)
    torch.testing.assert_close(as_dense(got), as_dense(want))
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([-1, -1], dtype=DataType.Float)))
    with pytest.raises(InputError, match="Expected input 0"):
        fd.execute([x]) if name != "mkldnn" or x.is_mkldnn else fd.execute([1])


def as_dense(x: torch.Tensor) -> torch.Tensor:
    if x.is_quantized:
        return x.dequantize()
    return x if x.layout is torch.strided and not x.is_mkldnn else x.to_dense()


def test_21_a_sparse_tensor_first(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, x = torch.eye(3).to_sparse(), torch.randn(3, 3)
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1, -1], dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.mul(a, b))
    for inputs in ([sparse, x], [x, sparse]):
        with pytest.raises(InputError, match="be a dense tensor with elements"):
            fd.execute(inputs)


@needs_nvrtc
@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16], ids=str)
@pytest.mark.parametrize("op", ["sigmoid", "reciprocal", "silu", "tanh"])
def test_24_halves_are_not_computed_in_double(op: str, dtype: DataType) -> None:
    fusion = Fusion()
    value = builders.cast(fusion, input_tensor(fusion, 1, dtype), DataType.Float)
    computed = getattr(builders, op)(fusion, value)
    fusion.add_output(builders.cast(fusion, computed, dtype))
    text = generate(cuda_kernel(automatic(fusion, {"i0": 4096}))).text
    ptx = nvrtc.compile_to_ptx(with_device_helpers(text), "sm_90")
    assert ".entry kernel" in ptx
    assert re.findall(r"\b(?:div|rcp|mul|add|fma)\.[\w.]*f64", ptx) == []


def test_25_and_of_integers_is_bitwise() -> None:
    a, b = torch.tensor([6, 12, 2]), torch.tensor([3, 10, 5])
    same_compiled(lambda a, b: (a & b, a | b, a ^ b), a, b)
    ops = lambda o, a, b: (o.bitwise_and(a, b), o.bitwise_or(a, b))  # noqa: E731
    alike(fused(ops, a, b), [a & b, a | b])


# -- caches, threads, switches


def doubled(number: float) -> Fusion:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Float)
        fd.add_output(fd.ops.mul(x, number))
    return fd.fusion.definition


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs work(0) ... work(count - 1) at once; raises what the first of them raised."""
    start = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_18_registration_from_many_threads() -> None:
    """One key a structure, which works in every thread from the moment that it is there."""
    keys: list[list[int]] = [[] for _ in range(8)]

    def work(thread: int) -> None:
        for number in range(12):
            scale = 2.0 + (number + thread) % 12
            key = register_fusion(doubled(scale))
            keys[thread].append((number + thread) % 12)
            keys[thread].append(key)
            stack: list[Any] = [torch.ones(3 + thread)]
            run_fusion(key, stack)
            assert torch.equal(stack[0], torch.full((3 + thread,), scale))

    in_threads(8, work)
    found = [dict(zip(each[::2], each[1::2], strict=True)) for each in keys]
    assert all(each == found[0] for each in found) and len(set(found[0].values())) == 12


def contiguous(rank: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1] * rank, contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(fd.ops.tanh(fd.ops.mul(x, y)), fd.ops.mul(x, 20.25)))
    return fd


def new_kernels(fd: FusionDefinition, *inputs: torch.Tensor) -> int:
    before = compiled_kernel_count()
    fd.execute(list(inputs))
    return compiled_kernel_count() - before


def test_20_one_kernel_for_contiguous_tensors_of_every_rank() -> None:
    shapes = [(720,), (24, 30), (6, 4, 30), (6, 4, 5, 6), (2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6)]
    counts = []
    for shape in shapes:
        x, y = torch.randn(shape), torch.randn(shape)
        counts.append(new_kernels(contiguous(len(shape)), x, y))
        (got,) = contiguous(len(shape)).execute([x, y])
        torch.testing.assert_close(got, torch.tanh(x * y) + x * 20.25)
    assert counts == [1, 0, 0, 0, 0, 0]


def test_20_strides_of_axes_of_one_element_do_not_matter() -> None:
    fd, data = contiguous(2), torch.randn(1000)
    new_kernels(fd, data[:12].view(4, 3), data[:12].view(4, 3))
    for shape, strides in (
        ((1, 3), (3, 1)),
        ((1, 3), (77, 1)),
        ((3, 1), (1, 1)),
        ((3, 1), (1, 55)),
        ((1, 1), (5, 9)),
    ):
        x = data.as_strided(shape, strides)
        assert new_kernels(fd, x, x) == 0
        assert torch.equal(fd.execute([x, x])[0], fd.execute([x.clone(), x.clone()])[0])


def test_20_rows_and_their_sums_share_kernels_too() -> None:
    """What is merged leaves only its product: rows of a bias, rows of a sum."""
    counts = []
    for shape in ((600, 50), (20, 30, 50), (4, 5, 30, 50)):
        rank = len(shape)
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1] * rank, contiguity=True)
            b = fd.define_tensor([-1], contiguity=True)
            wide = fd.ops.broadcast(b, [True] * (rank - 1) + [False])
            fd.add_output(fd.ops.sum(fd.ops.mul(x, fd.ops.exp(wide)), [rank - 1]))
        x, b = torch.randn(shape), torch.randn(50)
        counts.append(new_kernels(fd, x, b))
        torch.testing.assert_close(fd.execute([x, b])[0], (x * b.exp()).sum(-1))
    assert counts[1:] == [0, 0]


def test_29_no_code_is_shown_while_fusing_is_off() -> None:
    """An error instead of the inputs; run_fusion computes, and gives kernels back afterwards."""
    key, x = register_fusion(doubled(29.5)), torch.randn(7)
    override_can_fuse_on_cpu(False)
    before = compiled_kernel_count()
    with pytest.raises(UnsupportedError, match="debug_kernel_code: torch computes fusion"):
        debug_kernel_code(key, [x])
    stack: list[Any] = [x]
    run_fusion(key, stack)
    assert torch.equal(stack[0], x * 29.5) and stack[0] is not x
    assert compiled_kernel_count() == before
    override_can_fuse_on_cpu(None)
    assert "kernel" in debug_kernel_code(key, [x])
    run_fusion(key, stack)
    assert compiled_kernel_count() == before + 1


def test_28_a_number_on_the_cpu_beside_tensors_of_another_device(other_device: Any) -> None:
    """It is copied to the device, once a call; kernels run, in definitions and in graphs."""
    x, number = torch.empty(3, 4, device="meta"), torch.tensor(2.0)
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(number), fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(fd.ops.sin(b), a))
    (got,) = fd.execute([number, x])
    assert (got.device, got.shape) == (x.device, x.shape)
    (launch,) = other_device.launches
    assert number.data_ptr() not in launch
    other_device.launches.clear()
    program = compiled(lambda n, x: (torch.sin(x) * n, n + 1))
    scaled, sum_ = program(number, x)
    assert (scaled.device, scaled.shape) == (x.device, x.shape)
    assert sum_.item() == 3 and sum_.device.type == "cpu"
    (launch,) = other_device.launches
    assert number.data_ptr() not in launch
    with pytest.raises(InputError, match="expected all tensors on cpu, got one on meta"):
        fd.execute([torch.ones(3, 4), x])


def test_30_switches_and_registrations_from_many_threads() -> None:
    """Switched off and on by some while others register and run: always the right result."""
    key = register_fusion(doubled(30.5))

    def work(thread: int) -> None:
        for number in range(40):
            if thread < 2:
                override_can_fuse_on_cpu((False, None)[(number + thread) % 2])
            else:
                stack: list[Any] = [torch.ones(1 + number % 5)]
                run_fusion(key, stack)
                assert torch.equal(stack[0], torch.full((1 + number % 5,), 30.5))
                interface.can_fuse_on_cpu()

    in_threads(6, work)
    override_can_fuse_on_cpu(None)
    before = compiled_kernel_count()
    run_fusion(key, [torch.ones(3)])
    assert compiled_kernel_count() - before <= 1
