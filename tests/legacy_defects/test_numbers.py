"""Legacy defects of dtypes and numbers."""

from __future__ import annotations

import math
import re
import warnings

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.codegen import generate
from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.errors import InputError
from pyfuser.ir.fusion import Fusion
from pyfuser.ops import builders
from tests.cuda.cubins import requires_nvrtc
from tests.cuda.emulate import cuda_kernel
from tests.cuda.examples import input_tensor
from tests.legacy_defects.running import (
    FLOATS,
    alike,
    automatic,
    compiled,
    fused,
    same_compiled,
)


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
    if dtype is torch.float64:  # the only dtype that represents a definition's numbers exactly
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
    assert len(names) >= (3 if dtype is torch.float8_e5m2 else 19)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(torch, name)(x) for name in names]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, about complex and prototypes
        torch.manual_seed(0)
        got = compiled(program)(x)
        torch.manual_seed(0)
        want = program(x)
    for name, mine, eager in zip(names, got, want, strict=True):
        # Kernels hold half precision in float32: only eager rounds logit's steps.
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
    """Eager's result, or its error: graphs that torch can't trace run unchanged."""
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


@requires_nvrtc
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
