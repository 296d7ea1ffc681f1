"""Tensors of the 8-bit floating types and of unsigned 64-bit integers, in kernels, bit by bit.

`make emulate` runs this file on CUDA kernels too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition, PythonProfiler
from pyfuser.dtypes import FLOAT8, from_torch, to_torch

pytestmark = pytest.mark.usefixtures("poison")

EIGHT_BITS = [to_torch(dtype) for dtype in FLOAT8]
EVERY_BYTE = torch.arange(256).to(torch.uint8)


pytestmark = pytest.mark.usefixtures("poison")


def result(define: Callable[..., object], *inputs: Tensor) -> Tensor:
    """The output of a definition over these inputs, which one kernel computes."""
    with FusionDefinition() as fd:
        fd.add_output(define(fd.ops, *map(fd.from_pytorch, inputs)))  # type: ignore[arg-type]
    with PythonProfiler() as profiler:
        (out,) = fd.execute(list(inputs))
    assert [kernel.scheduler for kernel in profiler.profile.kernel_profiles] == ["pointwise"]
    return out


def require_bits(got: Tensor, expected: Tensor) -> None:
    """Equal in every bit, but for the bits of a NaN."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    both = got.isnan() & expected.isnan()
    assert torch.equal(got.masked_fill(both, 0), expected.masked_fill(both, 0))


def floats() -> Tensor:
    """Every exponent with the mantissas around each narrow rounding, and special values."""
    upper = torch.arange(1 << 16) << 16
    near = [upper + offset for offset in (-1, 0, 1, 0x8000, 0x7FFF)]
    return torch.cat(near).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_every_byte_becomes_its_number(dtype: torch.dtype) -> None:
    given = EVERY_BYTE.view(dtype)
    got = result(lambda ops, x: ops.cast(x, DataType.Float), given)
    require_bits(got, given.to(torch.float32))


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_numbers_round_as_in_torch(dtype: torch.dtype, source: torch.dtype) -> None:
    given = floats().to(source)
    got = result(lambda ops, x: ops.cast(ops.set(x), from_torch(dtype)), given)
    expected = given.to(torch.float32).to(dtype)
    sign = 0xFF if dtype is torch.float8_e8m0fnu else 0x7F
    nan = (expected.view(torch.uint8) & sign) == sign
    bits = [each.view(torch.uint8).masked_fill(nan, 0) for each in (got, expected)]
    assert torch.equal(*bits)
    assert torch.equal(got.to(torch.float32).isnan(), expected.to(torch.float32).isnan())


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_kernel_between_two_narrow_tensors(dtype: torch.dtype) -> None:
    """Read, computed in float, rounded; a value that only moves keeps its bits."""
    given = EVERY_BYTE.view(dtype).view(16, 16).t()
    narrow = from_torch(dtype)
    got = result(lambda ops, x: ops.cast(ops.mul(ops.cast(x, DataType.Float), 0.5), narrow), given)
    expected = (given.to(torch.float32) * 0.5).to(dtype)
    require_bits(got.to(torch.float32), expected.to(torch.float32))
    sums = result(lambda ops, x: ops.add(x, x), given)
    require_bits(sums, given.to(torch.float32) * 2)


def test_one_narrow_type_from_another() -> None:
    given = EVERY_BYTE.view(torch.float8_e4m3fn)
    got = result(lambda ops, x: ops.cast(x, DataType.Float8_e5m2), given)
    expected = given.to(torch.float32).to(torch.float8_e5m2)
    require_bits(got.to(torch.float32), expected.to(torch.float32))


UNSIGNED = torch.tensor([0, 1, 2, 7, 2**31, 2**63 - 1, -(2**63), -1, -2]).view(torch.uint64)
REVERSED = UNSIGNED.view(torch.int64).flip(0).view(torch.uint64)  # torch flips no unsigned ones


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_unsigned_integers_become_others(dtype: torch.dtype) -> None:
    got = result(lambda ops, x: ops.cast(x, from_torch(dtype)), UNSIGNED)
    require_bits(got, UNSIGNED.to(dtype))


def test_unsigned_integers_are_computed_modulo_their_range() -> None:
    def define(ops: object, x: object, y: object) -> object:
        return ops.add(ops.mul(x, x), y)  # type: ignore[attr-defined]

    signed = UNSIGNED.view(torch.int64)
    got = result(define, UNSIGNED, REVERSED)
    assert torch.equal(got.view(torch.int64), signed * signed + signed.flip(0))


def test_unsigned_integers_compare_without_a_sign() -> None:
    got = result(lambda ops, x, y: ops.lt(x, y), UNSIGNED, REVERSED)
    numbers = UNSIGNED.tolist()
    assert got.tolist() == [a < b for a, b in zip(numbers, numbers[::-1], strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_the_whole_unsigned_range(dtype: torch.dtype) -> None:
    given = torch.tensor([0.0, 0.9, 5.5, 2.0**62, 2.0**63, 9.3e18, 1.2e19, 1.8e19], dtype=dtype)
    got = result(lambda ops, x: ops.cast(x, DataType.UInt64), given)
    assert torch.equal(got, given.to(torch.uint64))


@pytest.mark.parametrize("number", [3, 2**63, 2**64 - 1])
def test_unsigned_numbers_of_a_call(number: int) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Double)
        fd.add_output(fd.ops.mul(x, fd.define_scalar(dtype=DataType.UInt64)))
    assert fd.execute([torch.ones(3, dtype=torch.float64), number])[0].eq(float(number)).all()
