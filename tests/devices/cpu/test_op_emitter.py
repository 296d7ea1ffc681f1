"""Every op of the table through the LLVM op emitter, against its reference, on special values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from pyfuser import dtypes
from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.op_emitter import (
    compute_type,
    emit_cast,
    emit_op,
    load_convert,
    storage_type,
    store_convert,
)
from pyfuser.dtypes import DataType
from pyfuser.errors import DefinitionError, UnsupportedError
from pyfuser.ops.dtype_rules import OperandType, resolve
from pyfuser.ops.table import OPS
from tests.devices.cpu import vector_math_harness as harness
from tests.ops.resolving import COMPUTE_DTYPES

FLOATS = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -2.5, 3.0, -7.0, 0.1, 100.25, -30.75, 1e-3, 1e10]
    + [-1e10, 1e38, 1e-45, -1e-45, 1e-39, np.inf, -np.inf, np.nan, 2.0, -3.0]
)


def special_values(dtype: DataType) -> np.ndarray:
    numpy_type = torch.empty(0, dtype=dtypes.to_torch(dtype)).numpy().dtype
    if dtype is DataType.Bool:
        return np.array([False, True])
    if dtypes.is_floating(dtype):
        return FLOATS.astype(numpy_type)
    info = np.iinfo(numpy_type)
    low = [info.min, info.min + 1, -100, -17, -8, -3, -2, -1] if info.min else [200, 128]
    return np.array([*low, 0, 1, 2, 3, 5, 7, 8, 12, 31, 63, 64, 100, info.max], numpy_type)


def grid(dtype: DataType, arity: int) -> list[np.ndarray]:
    values = special_values(dtype)
    if arity > 2:
        values = values[:: max(1, len(values) // 10)]
    combinations = list(itertools.product(values, repeat=arity))
    return [np.array(column, values.dtype) for column in zip(*combinations, strict=True)]


def run_emitted(body, inputs: list[np.ndarray], given: list[DataType], result: DataType):
    types = [compute_type(dtype) for dtype in given]
    text = harness.function_text(body, types, compute_type(result))
    kernel = harness.compile_text(text, len(inputs))
    numpy_type = torch.empty(0, dtype=dtypes.to_torch(result)).numpy().dtype
    return harness.run(kernel, inputs, numpy_type)


def rows_and_dtypes():
    for row, dtype in itertools.product(OPS.values(), COMPUTE_DTYPES):
        if not row.in_kernels or row.name in ("cast", "where"):
            continue
        try:
            resolution = resolve(row, [OperandType(dtype)] * row.arity)
        except DefinitionError:
            continue
        if resolution.compute == (dtype,) * row.arity:
            yield pytest.param(row, dtype, resolution.result, id=f"{row.name}-{dtype.name}")


def exact_fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # torch's vector fmod gives NaN for huge quotients; the C library's is exact.
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.fmod(a.numpy(), b.numpy()))


def exact_remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rest = exact_fmod(a, b)
    return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


FLOAT_REFERENCES = {"fmod": exact_fmod, "mod": exact_fmod, "remainder": exact_remainder}


def close_enough(got: np.ndarray, expected: np.ndarray, ulp: int) -> np.ndarray:
    same = (got == expected) & (np.signbit(got) == np.signbit(expected))
    both_nan = np.isnan(got) & np.isnan(expected)
    with np.errstate(all="ignore"):
        distance = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        near = distance <= ulp * np.spacing(np.abs(expected)).astype(np.float64)
    return same | both_nan | (near & np.isfinite(expected))


@pytest.mark.parametrize(("row", "dtype", "result"), list(rows_and_dtypes()))
def test_op_matches_its_reference(row, dtype, result):
    inputs = grid(dtype, row.arity)

    def body(w: FunctionWriter, *args: Value) -> Value:
        return emit_op(w, row.name, args, dtype, result)

    got = run_emitted(body, inputs, [dtype] * row.arity, result)
    tensors = [torch.from_numpy(array) for array in inputs]
    floating = dtypes.is_floating(dtype)
    reference = FLOAT_REFERENCES.get(row.name, row.reference) if floating else row.reference
    if dtype is DataType.Float and row.ulp32 and result is DataType.Float:
        tensors = [tensor.double() for tensor in tensors]
    expected = reference(*tensors).to(dtypes.to_torch(result)).numpy()
    if dtypes.is_floating(result):
        # In double torch's own routines are the reference, so their error counts too.
        ulp = row.ulp32 if dtype is DataType.Float else 2 * row.ulp64
        right = close_enough(got, expected, ulp)
        if row.name == "lgamma" and dtype is DataType.Double:
            # Near the zeros left of 0 the terms cancel: the error is that of the terms.
            with np.errstate(invalid="ignore"):
                right |= np.abs(got - expected) < 4e-16
    else:
        right = got == expected
    wrong = np.nonzero(~right)[0][:8]
    assert not wrong.size, [([array[i] for array in inputs], got[i], expected[i]) for i in wrong]


@pytest.mark.parametrize("dtype", COMPUTE_DTYPES, ids=lambda d: d.name)
def test_where_picks_by_a_bool(dtype):
    a, b = grid(dtype, 2)
    condition = np.arange(len(a)) % 3 == 0

    def body(w, c, x, y):
        return emit_op(w, "where", (c, x, y), dtype, dtype)

    got = run_emitted(body, [condition, a, b], [DataType.Bool, dtype, dtype], dtype)
    assert got.tobytes() == np.where(condition, a, b).tobytes()


@pytest.mark.parametrize("target", COMPUTE_DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("source", COMPUTE_DTYPES, ids=lambda d: d.name)
def test_cast_matches_torch(source, target):
    values = special_values(source)
    if dtypes.is_floating(source):
        extra = np.array([2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 300.7, -129.9, 70000.5])
        values = np.concatenate([values, extra.astype(values.dtype)])
    got = run_emitted(lambda w, x: emit_cast(w, x, source, target), [values], [source], target)
    expected = torch.from_numpy(values).to(dtypes.to_torch(target)).numpy()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16], ids=lambda d: d.name)
def test_every_half_survives_the_round_trip(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)

    def body(w, x):
        stored = w.bitcast(x, storage_type(dtype).element)
        wide = load_convert(w, stored, dtype)
        w.stored_form.clear()  # otherwise the store returns the loaded value
        return w.bitcast(store_convert(w, wide, dtype), "i16")

    got = run_emitted(body, [bits.view(np.int16)], [DataType.Int16], DataType.Int16)
    values = torch.from_numpy(bits.view(np.int16)).view(dtypes.to_torch(dtype))
    again = torch.from_numpy(got).view(dtypes.to_torch(dtype))
    nan = values.isnan()
    assert torch.equal(again.isnan(), nan)
    assert torch.equal(torch.from_numpy(got)[~nan], torch.from_numpy(bits.view(np.int16))[~nan])


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    "source", [DataType.Float, DataType.Double, DataType.Int], ids=lambda d: d.name
)
def test_cast_to_a_half_rounds_as_torch(source, dtype):
    rng = np.random.default_rng(0)
    if source is DataType.Int:
        values = rng.integers(-(1 << 40), 1 << 40, 4096) >> rng.integers(0, 40, 4096)
    else:
        bits = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
        with np.errstate(all="ignore"):
            values = bits.view(np.float32).astype(special_values(source).dtype)
            scaled = rng.uniform(-1, 1, 4096) * np.exp2(rng.uniform(-30, 17, 4096))
        values = np.concatenate([values, scaled.astype(values.dtype), special_values(source)])
    got = run_emitted(
        lambda w, x: emit_cast(w, x, source, dtype), [values], [source], DataType.Float
    )
    expected = torch.from_numpy(values).to(dtypes.to_torch(dtype)).float().numpy()
    np.testing.assert_array_equal(got, expected)


def test_a_stored_half_is_not_rounded_again():
    w = FunctionWriter(has_fma=True)
    loaded = Value("%x", storage_type(DataType.BFloat16, 16))
    assert store_convert(w, load_convert(w, loaded, DataType.BFloat16), DataType.BFloat16) == loaded


def test_complex_is_refused():
    with pytest.raises(UnsupportedError, match="cpu kernel: expected a dtype that kernels compute"):
        compute_type(DataType.ComplexFloat)
