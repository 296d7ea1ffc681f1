"""Legacy defects of memory: places, strides, sizes, offsets."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cuda.codegen import generate
from pyfuser.executor import Executor
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.scalar_queries import evaluate as evaluate_size
from pyfuser.ir.scalar_queries import substitute
from pyfuser.ops import builders
from pyfuser.ops.binding import bind_extents
from pyfuser.ops.metadata import TensorMetadata
from tests.cuda.emulate import cuda_kernel
from tests.cuda.examples import input_tensor
from tests.legacy_defects.running import (
    alike,
    automatic,
    compiled,
    fused,
    same_compiled,
)


def test_01_the_result_of_cat_has_its_own_dtype(poison: None) -> None:
    mask, x = torch.rand(37, 5) > 0.5, torch.randn(37, 5)
    same_compiled(lambda m, x: torch.cat([x + 1, torch.where(m, x, -x)]), mask, x)
    same_compiled(lambda m, x: torch.cat([m, x > 0, x * 0.5], 1), mask, x)
    define = lambda o, m, x: o.cat([o.add(x, 1.0), o.where(m, x, o.neg(x))], 0)  # noqa: E731
    alike(fused(define, mask, x), [torch.cat([x + 1, torch.where(mask, x, -x)])])


@pytest.fixture(scope="module")
def huge() -> torch.Tensor:
    """More than 2^32 bytes, which use memory only where something is written."""
    reserve_nothing = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, not named in 3.11
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve_nothing
    try:
        return torch.frombuffer(mmap.mmap(-1, 2**32 + 4096, flags=flags), dtype=torch.uint8)
    except OSError as error:
        pytest.skip(f"no such range of addresses: {error}")


def test_02_offsets_beyond_32_bits(huge: torch.Tensor) -> None:
    """Read, written in place, and by both ends: element 1 is 2^32 bytes after element 0."""
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
    # An output lies like the input, unless the definition says how.
    (plain,) = fused(lambda o, x: o.mul(x, 2.0), image)
    (ordered,) = fused(lambda o, x: o.stride_order(o.mul(x, 2.0), [3, 2, 1, 0]), image)
    assert torch.equal(plain, image * 2) and plain.stride() == image.stride()
    assert torch.equal(ordered, image * 2) and ordered.is_contiguous()


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


@pytest.mark.parametrize("size", [2**31 - 1, 2**31 + 1, 2**32 - 1, 2**32 + 1], ids=str)
def test_27_sizes_around_32_bits(size: int) -> None:
    """All arguments of a launch for such sizes, for further inputs and for a cat."""
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
