"""The dtype rules of the op table against torch's: promotion, results, and what is refused."""

from __future__ import annotations

import pytest
import torch

from pyfuser import dtypes
from pyfuser.dtypes import DataType
from pyfuser.errors import DefinitionError, UnsupportedError
from pyfuser.ops.dtype_rules import DtypeRule, OperandType, Resolution, promote, resolve, upcast
from pyfuser.ops.table import OPS, REDUCTIONS
from tests.ops.resolving import CHECKED, resolve_same, takes

TORCH_DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


def _torch_operand(dtype: torch.dtype, category: str) -> object:
    if category == "scalar":
        return {torch.bool: True, torch.int64: 3, torch.float64: 1.5}[dtype]
    return torch.ones((2,) if category == "tensor" else (), dtype=dtype)


SCALARS = (torch.bool, torch.int64, torch.float64)
OPERANDS = [(d, c) for c in ("tensor", "zero_dim") for d in TORCH_DTYPES]
OPERANDS += [(d, "scalar") for d in SCALARS]


@pytest.mark.parametrize(("left", "category"), OPERANDS, ids=str)
def test_promotion_is_torchs(left: torch.dtype, category: str) -> None:
    for right, other in OPERANDS:
        if category == other == "scalar":
            continue
        wanted = dtypes.from_torch(
            torch.result_type(_torch_operand(left, category), _torch_operand(right, other))
        )
        operands = (
            OperandType(dtypes.from_torch(left), category),
            OperandType(dtypes.from_torch(right), other),
        )
        assert promote(operands) is wanted
        added = resolve(OPS["add"], operands)
        assert added.result is upcast(wanted)
        assert added.compute == (upcast(wanted),) * 2
        compared = resolve(OPS["lt"], operands)
        assert compared == Resolution((upcast(wanted),) * 2, DataType.Bool)
        if "scalar" not in (category, other):
            quotient = torch.true_divide(
                _torch_operand(left, category), _torch_operand(right, other)
            )
            divided = resolve(OPS["truediv"], operands).result
            assert divided is upcast(dtypes.from_torch(quotient.dtype))


def test_scalars_among_themselves_keep_their_dtypes() -> None:
    scalar = {d: OperandType(d, "scalar") for d in (DataType.Double, DataType.Int, DataType.Bool)}
    add = OPS["add"]
    assert resolve(add, [scalar[DataType.Double]] * 2).result is DataType.Double
    assert resolve(add, [scalar[DataType.Int], scalar[DataType.Bool]]).result is DataType.Int
    branches = [OperandType(DataType.Bool), *[scalar[DataType.Double]] * 2]
    assert resolve(OPS["where"], branches).result is DataType.Double


HALVES = (DataType.Half, DataType.BFloat16)


@pytest.mark.parametrize("half", HALVES)
def test_half_precision_is_computed_in_float(half: DataType) -> None:
    results = {
        op.name: resolve_same(op, half).result for op in OPS.values() if takes(op, half)
    }  # fmt: skip
    for op in OPS.values():
        if takes(op, half):
            assert not set(resolve_same(op, half).compute) & set(HALVES)
    kept = "ceil floor frac relu round silu trunc set segment_set abs real sign where clamp "
    kept += "threshold " + " ".join(CHECKED)
    assert {name for name, result in results.items() if result is half} == set(kept.split())
    assert all(
        result in (DataType.Float, DataType.Bool)
        for name, result in results.items()
        if name not in kept.split() and name != "cast"
    )


@pytest.mark.parametrize("dtype", [DataType.Bool, DataType.UInt8, DataType.Int])
def test_class_f_turns_integers_into_float(dtype: DataType) -> None:
    float_ops = [op for op in OPS.values() if op.rule is DtypeRule.FLOAT]
    assert len(float_ops) == 28 + 2
    for op in float_ops:
        assert resolve_same(op, dtype).result is DataType.Float
        assert resolve_same(op, DataType.Double).result is DataType.Double


def test_clamp_and_threshold_dtypes() -> None:
    def result(name: str, dtype: DataType, scalar: DataType) -> DataType:
        operands = [OperandType(dtype), *[OperandType(scalar, "scalar")] * 2]
        return resolve(OPS[name], operands).result

    assert result("clamp", DataType.Half, DataType.Double) is DataType.Half
    assert result("clamp", DataType.Int, DataType.Double) is DataType.Float
    assert result("clamp", DataType.UInt8, DataType.Int) is DataType.UInt8
    assert result("threshold", DataType.Int, DataType.Double) is DataType.Int


def test_cast_gives_the_dtype_asked_for() -> None:
    cast = OPS["cast"]
    wanted = Resolution((DataType.Float,), DataType.BFloat16)
    assert resolve(cast, [OperandType(DataType.Half)], DataType.BFloat16) == wanted
    with pytest.raises(DefinitionError, match="cast: expected a dtype to cast to, got None"):
        resolve(cast, [OperandType(DataType.Half)])


def test_index_wins_over_other_integers() -> None:
    operands = [OperandType(DataType.Index), OperandType(DataType.Int)]
    assert resolve(OPS["add"], operands).result is DataType.Index


def test_complex_dtypes() -> None:
    complex_ = [OperandType(DataType.ComplexFloat)]
    assert resolve(OPS["abs"], complex_).result is DataType.Float
    assert resolve(OPS["imag"], complex_).result is DataType.Float
    assert resolve(OPS["exp"], complex_).result is DataType.ComplexFloat
    double = [OperandType(DataType.Double)] * 2
    assert resolve(OPS["complex"], double).result is DataType.ComplexDouble
    mixed = [OperandType(DataType.Half), OperandType(DataType.ComplexFloat, "zero_dim")]
    assert resolve(OPS["add"], mixed).result is DataType.ComplexFloat


@pytest.mark.parametrize(
    ("name", "operands", "message"),
    [
        ("nextafter", "Int Int", "nextafter: expected operands that promote to Float or Double"),
        ("imag", "Float", "imag: expected a complex operand, got DataType.Float"),
        ("complex", "Float Double", "complex: expected two operands of one dtype"),
        ("complex", "Half Half", "complex: expected two operands of one dtype"),
        ("bitwise_and", "Float Int", "bitwise_and: expected integer or Bool operands"),
        ("bitwise_not", "Float", "bitwise_not: expected integer or Bool operands"),
        ("gcd", "Bool Int", "gcd: expected integer operands, got DataType.Bool, DataType.Int"),
        ("bitwise_left_shift", "Bool Bool", "bitwise_left_shift: expected integer operands"),
        ("where", "Int Float Float", "where: Condition should be of DataType Bool"),
        ("clamp", "Float Float Float", "clamp: expected a scalar as operand 1, got a tensor"),
        ("threshold", "Float Float Float", "threshold: expected a scalar as operand 1"),
        ("add", "Float", "add: expected 2 operands, got 1"),
    ],
)
def test_error_messages(name: str, operands: str, message: str) -> None:
    types = [OperandType(DataType[dtype]) for dtype in operands.split()]
    with pytest.raises(DefinitionError, match=f"^{message}"):
        resolve(OPS[name], types)


def test_complex_takes_no_scalar_beside_a_tensor() -> None:
    operands = [OperandType(DataType.Float), OperandType(DataType.Float, "scalar")]
    message = "complex: expected two tensors or two scalars, got a tensor and a scalar"
    with pytest.raises(DefinitionError, match=message):
        resolve(OPS["complex"], operands)


def test_uint64_promotion_is_not_supported() -> None:
    operands = [OperandType(DataType.UInt64), OperandType(DataType.Int)]
    with pytest.raises(UnsupportedError, match="promotion: expected two dtypes that torch"):
        resolve(OPS["add"], operands)


def test_reduction_dtypes() -> None:
    total, greatest = REDUCTIONS["sum"], REDUCTIONS["max"]
    for dtype in (DataType.Bool, DataType.UInt8, DataType.Int32):
        assert total.resolve(dtype).result is DataType.Int
        assert greatest.resolve(dtype).result is dtype
    assert total.resolve(DataType.Half) == Resolution((DataType.Float,), DataType.Half)
    assert total.resolve(DataType.Half, DataType.Double).result is DataType.Double
    with pytest.raises(DefinitionError, match="max: expected no dtype"):
        greatest.resolve(DataType.Float, DataType.Float)


def test_what_torch_computes_for_real_numbers_only_refuses_complex_ones() -> None:
    real = {op.name for op in OPS.values() if op.is_real}
    for op in OPS.values():
        dtype = DataType.ComplexFloat
        if op.rule is DtypeRule.CAST or not (op.name in real or takes(op, dtype)):
            continue
        if op.name in real:
            with pytest.raises(DefinitionError, match=f"^{op.name}: expected real operands"):
                resolve_same(op, dtype)
        else:
            kinds = resolve_same(op, dtype).compute
            op.reference(*(torch.ones(2).to(dtypes.to_torch(kind)) for kind in kinds))
    operands = [OperandType(DataType.Float), *[OperandType(DataType.ComplexDouble, "scalar")] * 2]
    with pytest.raises(DefinitionError, match=r"^threshold: .* got DataType.Float, DataType.Comp"):
        resolve(OPS["threshold"], operands)
