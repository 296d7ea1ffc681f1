"""The op table: its definitions against its references, values against torch."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch

from pyfuser import dtypes
from pyfuser.dtypes import DataType
from pyfuser.errors import DefinitionError, UnsupportedError
from pyfuser.ops.op import Number, Op
from pyfuser.ops.table import BINARY, OPS, REDUCTIONS, SCANS, TERNARY, UNARY, expand, markdown_table
from tests.ops.resolving import CHECKED, COMPUTE_DTYPES, resolve_same, takes

UNARY_NAMES = """
acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 erf erfc erfinv erfcinv lgamma log log10
log1p log2 reciprocal rsqrt sigmoid sin sinh sqrt tan tanh ceil floor frac relu round silu trunc set
segment_set abs real imag neg signbit sign logical_not bitwise_not isfinite isinf isnan isneginf
isposinf isreal
"""
BINARY_NAMES = """
add sub mul div mod fmod remainder pow minimum maximum truediv atan2 nextafter eq ne lt le gt ge
logical_and logical_or bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
logical_right_shift gcd complex
"""
TERNARY_NAMES = "lerp where clamp threshold addcmul"
OWN = {"fmin", "fmax"}  # rows that the interface doesn't name
ONLY_FALLBACK = {"imag", "complex"}

SPECIAL_FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 20.5, -88.0, -95.0, 100.0),
    *(-100.0, -104.0, -740.0, 1e-3, 1e-40, -1e-40, 1e30, -1e30, 3e38, -3e38),
    *(math.inf, -math.inf, math.nan),
)


def exact_sigmoid(x: float) -> float:
    with mpmath.workdps(40):
        return x if math.isnan(x) else float(1 / (1 + mpmath.exp(-mpmath.mpf(x))))


def exact_silu(x: float) -> float:
    if not math.isfinite(x):
        return x if x > 0 else math.nan  # -inf * 0 is NaN, as in torch
    with mpmath.workdps(40):
        return float(x / (1 + mpmath.exp(-mpmath.mpf(x))))


def exact_rsqrt(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    with mpmath.workdps(40):
        return float(1 / mpmath.sqrt(mpmath.mpf(x))) if x > 0 else math.nan


# The definitions that round otherwise than their reference does.
EXACT = {"sigmoid": exact_sigmoid, "silu": exact_silu, "rsqrt": exact_rsqrt}


def operand_values(op: Op, dtype: DataType) -> torch.Tensor:
    """One-dimensional test values of `dtype`: the special ones, and samples of the op's range."""
    torch_dtype = dtypes.to_torch(dtype)
    if dtype is DataType.Bool:
        return torch.tensor([False, True])
    if dtypes.is_floating(dtype):
        samples = torch.linspace(*op.samples, 41, dtype=torch_dtype)
        return torch.cat([torch.tensor(SPECIAL_FLOATS, dtype=torch_dtype), samples])
    info = torch.iinfo(torch_dtype)
    numbers = [0, 1, 2, 3, 7, 31, 100, info.max, info.max - 1, info.min, info.min + 1]
    numbers += [-1, -2, -3, -7, -64] if info.min < 0 else []
    return torch.tensor(numbers, dtype=torch_dtype)


def operands_for(op: Op, compute: tuple[DataType, ...]) -> list[torch.Tensor]:
    """All combinations of test values (every fourth of them for ops of more than two operands)."""
    values = [operand_values(op, dtype) for dtype in compute]
    if op.arity > 2:
        values = [v[:: min(4, len(v) - 1)] if d is not DataType.Bool else v
                  for v, d in zip(values, compute, strict=True)]  # fmt: skip
    shape = [len(v) for v in values]
    positions = torch.arange(math.prod(shape))
    return [v[i] for v, i in zip(values, torch.unravel_index(positions, shape), strict=True)]


def torch_emit(
    op: Op, operands: tuple[torch.Tensor, ...], compute: DataType, result: DataType
) -> torch.Tensor:
    """Emits a primitive by running its reference, and checks the promised properties."""
    assert op.definition is None
    assert op.llvm_for(compute)
    assert operands[-1].dtype is dtypes.to_torch(compute)
    return op.reference(*operands).to(dtypes.to_torch(result))


def torch_constant(number: Number, dtype: DataType) -> torch.Tensor:
    return torch.tensor(number, dtype=dtypes.to_torch(dtype))


def ulps_apart(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance of `value` from `exact` (Double), in units of the last place."""
    exact = exact.double()
    rounded = exact.to(value.dtype)
    same = (value == rounded) | (value.isnan() & rounded.isnan())
    info = torch.finfo(value.dtype)
    exponent = torch.frexp(exact.abs().clamp(min=info.tiny)).exponent - 1
    unit = torch.ldexp(torch.ones_like(exact), exponent) * info.eps
    distance = ((value.double() - exact).abs() / unit).nan_to_num(nan=math.inf)
    return float(distance.masked_fill(same, 0.0).max())


def assert_same_bits(value: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal numbers, equal signs of zeros, NaN equal to NaN."""
    torch.testing.assert_close(value, wanted, rtol=0, atol=0, equal_nan=True)
    if value.is_floating_point():
        number = ~wanted.isnan()
        assert torch.equal(value.signbit()[number], wanted.signbit()[number])


def test_rows_are_the_interfaces_ops() -> None:
    for rows, names in ((UNARY, UNARY_NAMES), (BINARY, BINARY_NAMES), (TERNARY, TERNARY_NAMES)):
        assert {op.name for op in rows} - set(CHECKED) - OWN == set(names.split())
    own = len(CHECKED) + len(OWN)
    assert len(OPS) == len(UNARY) + len(BINARY) + len(TERNARY) + 1 == 51 + 29 + 5 + 1 + own
    assert {op.name for op in OPS.values() if not op.in_kernels} == ONLY_FALLBACK


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_row_has_exactly_one_spelling(op: Op) -> None:
    assert op.doc and op.samples[0] < op.samples[1]
    if op.definition is not None:
        assert not (op.llvm or op.cuda or op.cuda_integer or op.cuda_unsigned)
    elif op.in_kernels:
        names = ("x", "y", "z")[: op.arity]
        for dtype in filter(lambda d: takes(op, d), COMPUTE_DTYPES):
            compute = resolve_same(op, dtype).compute[-1]
            assert op.llvm_for(compute)
            text = op.cuda_for(compute, *names)
            assert text == "false" or all(name in text for name in names)
            assert "{" not in text


DEFINED = [op for op in OPS.values() if op.definition is not None]


@pytest.mark.parametrize("dtype", COMPUTE_DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("op", DEFINED, ids=lambda op: op.name)
def test_definition_agrees_with_reference(op: Op, dtype: DataType) -> None:
    if not takes(op, dtype):
        with pytest.raises(DefinitionError, match=f"^{op.name}: expected "):
            resolve_same(op, dtype)
        return
    resolution = resolve_same(op, dtype)
    operands = operands_for(op, resolution.compute)
    value = expand(op, operands, resolution, torch_emit, torch_constant)
    value = torch.broadcast_to(value, operands[0].shape)
    assert value.dtype is dtypes.to_torch(dtypes.compute_dtype(resolution.result))
    if op.ulp32 == 0:
        assert_same_bits(value, op.reference(*operands).to(value.dtype))
        return
    (x,) = operands
    exact = torch.tensor([EXACT[op.name](n) for n in x.double().tolist()], dtype=torch.float64)
    if op.name in ("sigmoid", "silu"):  # if exp overflows it is 0 and should be subnormal
        near = (value.double() - exact).abs() <= torch.finfo(value.dtype).tiny
        value, exact = value[~near], exact[~near]
    allowed = op.ulp32 if value.dtype is torch.float32 else op.ulp64
    assert ulps_apart(value, exact) <= allowed


@pytest.mark.parametrize(
    ("name", "counterpart"),
    [
        ("relu", torch.relu),
        ("sign", torch.sign),
        ("frac", torch.frac),
        ("isfinite", torch.isfinite),
        ("isposinf", torch.isposinf),
        ("threshold", lambda x: torch.nn.functional.threshold(x, 1.0, 3.0)),
        ("clamp", lambda x: torch.clamp(x, 1.0, 3.0)),
    ],
)
def test_special_values_are_torchs(name: str, counterpart: object) -> None:
    op = OPS[name]
    x = operand_values(op, DataType.Float)
    scalars = [torch.tensor(n) for n in (1.0, 3.0)][: op.arity - 1]
    resolution = resolve_same(op, DataType.Float)
    value = expand(op, [x, *scalars], resolution, torch_emit, torch_constant)
    assert callable(counterpart)
    torch.testing.assert_close(value, counterpart(x), rtol=0, atol=0, equal_nan=True)


def test_clamp_gives_nan_for_a_nan_bound() -> None:
    op, x = OPS["clamp"], torch.tensor([1.0, 2.0])
    operands = [x, torch.tensor(math.nan), torch.tensor(3.0)]
    resolution = resolve_same(op, DataType.Float)
    assert expand(op, operands, resolution, torch_emit, torch_constant).isnan().all()


def test_relu_keeps_minus_zero() -> None:
    value = OPS["relu"].reference(torch.tensor([-0.0]))
    assert value.signbit().all()


INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_integer_division_never_traps(dtype: torch.dtype) -> None:
    least = torch.iinfo(dtype).min
    a = torch.tensor([7, -7, 7, least, least, 0], dtype=dtype)
    b = torch.tensor([2, 2, 0, -1, 0, 0], dtype=dtype)
    assert OPS["div"].reference(a, b).tolist() == [3, -3, 0, least, 0, 0]
    assert OPS["fmod"].reference(a, b).tolist() == [1, -1, 0, 0, 0, 0]
    assert OPS["remainder"].reference(a, b).tolist() == [1, 1, 0, 0, 0, 0]


def test_float_remainders_are_torchs_and_exact_for_huge_quotients() -> None:
    a, b = operands_for(OPS["fmod"], (DataType.Float,) * 2)
    usual = ~((a / b).abs() > 1e20)
    for name in ("fmod", "remainder"):
        reference = OPS[name].reference
        assert_same_bits(reference(a, b)[usual], getattr(torch, name)(a, b)[usual])
        huge = torch.full((64,), 3e38), torch.full((64,), 1e-3)
        assert_same_bits(reference(*huge), reference(*(t.double() for t in huge)).float())
    pairs = [(1e308, 1e-308), (-1e308, 5e-324), (1e300, 0.3), (7.0, 1e308), (-0.0, 2.0)]
    a, b = (torch.tensor(column * 16, dtype=torch.float64) for column in zip(*pairs, strict=True))
    wanted = torch.tensor([math.fmod(*pair) for pair in pairs] * 16, dtype=torch.float64)
    assert_same_bits(OPS["fmod"].reference(a, b), wanted)


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_gcd_is_not_negative(dtype: torch.dtype) -> None:
    least = torch.iinfo(dtype).min
    a, b = (torch.tensor(v, dtype=dtype) for v in ([7, least, -12, 0], [least, 6, 18, 0]))
    assert OPS["gcd"].reference(a, b).tolist() == [1, 2, 6, 0]


def test_uint8_division_by_its_largest_is_a_division() -> None:
    a, b = torch.tensor([255, 200], dtype=torch.uint8), torch.tensor([255, 255], dtype=torch.uint8)
    assert OPS["div"].reference(a, b).tolist() == [1, 0]
    assert OPS["fmod"].reference(a, b).tolist() == [0, 200]


@pytest.mark.parametrize("dtype", (*INTEGER_DTYPES, torch.uint8))
def test_logical_right_shift_brings_in_zeros(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    values = [0, 1, 100, info.max, info.min, info.min + 1]
    shifts = [0, 1, 3, info.bits - 1, info.bits, -1 if info.min < 0 else 200]
    pairs = list(itertools.product(values, shifts))
    a, b = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
    wanted = [
        (v % 2**info.bits) >> s if 0 <= s < info.bits else 0 for v, s in pairs
    ]  # fmt: skip
    got = OPS["logical_right_shift"].reference(a, b)
    assert [v % 2**info.bits for v in got.tolist()] == wanted


@pytest.mark.parametrize(
    ("name", "table"),  # the results for (0,0), (0,1), (1,0), (1,1)
    [
        ("add", [0, 1, 1, 1]),
        ("sub", [0, 1, 1, 0]),
        ("mul", [0, 0, 0, 1]),
        ("div", [0, 0, 0, 1]),
        ("fmod", [0, 0, 0, 0]),
        ("remainder", [0, 0, 0, 0]),
        ("pow", [1, 0, 1, 1]),
        ("minimum", [0, 0, 0, 1]),
        ("maximum", [0, 1, 1, 1]),
        ("bitwise_and", [0, 0, 0, 1]),
        ("bitwise_or", [0, 1, 1, 1]),
        ("bitwise_xor", [0, 1, 1, 0]),
    ],
)
def test_arithmetic_on_bool(name: str, table: list[int]) -> None:
    a, b = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    value = OPS[name].reference(a, b)
    assert value.dtype is torch.bool
    assert value.int().tolist() == table


def test_erfcinv_inverts_erfc() -> None:
    x = torch.tensor([1e-300, 1e-30, 0.1, 0.9, 1.0, 1.1, 1.9], dtype=torch.float64)
    torch.testing.assert_close(torch.erfc(OPS["erfcinv"].reference(x)), x, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "dtype"), [("imag", DataType.ComplexFloat), ("isreal", DataType.ComplexFloat)]
)
def test_expansion_refuses_what_kernels_cannot_compute(name: str, dtype: DataType) -> None:
    op = OPS[name]
    with pytest.raises(UnsupportedError, match=f"^{name}: expected"):
        expand(op, [torch.ones(1)], resolve_same(op, dtype), torch_emit, torch_constant)


@pytest.mark.parametrize("dtype", COMPUTE_DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_identity_and_reference(name: str, dtype: DataType) -> None:
    reduction = REDUCTIONS[name]
    resolution = reduction.resolve(dtype)
    compute = dtypes.to_torch(resolution.compute[0])
    combine = OPS[reduction.combine].reference
    identity = torch.tensor(reduction.identity(resolution.compute[0]), dtype=compute)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (3, 4, 5), generator=generator).to(dtypes.to_torch(dtype)).to(compute)
    assert torch.equal(combine(x, identity), x)
    assert torch.equal(reduction.reference(x, ()), x)
    folded = identity.expand(4)
    for plane in x.unbind(0):
        for row in plane.unbind(-1):
            folded = combine(folded, row)
    torch.testing.assert_close(reduction.reference(x, (0, -1)), folded)
    empty = reduction.reference(x[:, :0], (1,))
    assert torch.equal(empty, identity.expand(3, 5))


def test_max_propagates_nan() -> None:
    x = torch.tensor([1.0, math.nan, 2.0])
    assert REDUCTIONS["max"].reference(x, (0,)).isnan()


def test_markdown_table_has_every_row() -> None:
    lines = markdown_table().splitlines()
    assert len(lines) == 2 + len(OPS) + 3 + len(REDUCTIONS) + 3 + len(SCANS)
    for name, line in zip(OPS, lines[2:], strict=False):
        assert line.startswith(f"| `{name}` |")
        assert line.replace("\\|", "").count("|") == 8
