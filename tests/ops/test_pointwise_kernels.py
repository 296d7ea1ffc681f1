"""Every pointwise op of the table x dtype x memory layout, as a compiled CPU kernel, against torch.

Generated from the table: a new row is tested without a line here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import KERNEL_DTYPES, is_floating, to_torch
from pyfuser.ops.op import Op
from pyfuser.ops.table import OPS
from pyfuser.ops.value_checks import ZERO_DIVISION
from tests.ops.resolving import takes
from tests.support.accuracy import assert_close_to_oracle
from tests.support.long_cases import long

pytestmark = pytest.mark.usefixtures("poison")

ROWS, COLUMNS = 7, 37  # primes: every vector loop has a tail
# torch computes nothing in unsigned 64-bit integers: tests/ops/test_narrow_dtypes.py
DTYPES = [d for d in KERNEL_DTYPES if d not in (DataType.Index, DataType.UInt64)]
TESTED = [op for op in OPS.values() if op.in_kernels and op.name != "cast"]
# How many dtypes the ops take that don't take all.
FEWER_DTYPES = {
    "nextafter": 7, "bitwise_not": 6, "bitwise_and": 6, "bitwise_or": 6, "bitwise_xor": 6,
    "bitwise_left_shift": 5, "bitwise_right_shift": 5, "logical_right_shift": 5, "gcd": 5,
}  # fmt: skip

# Operands that must be scalars.
SCALARS = {
    "clamp": (1, 3), "threshold": (1, 2), "addcmul": (2,), "checked_class": (9,),
    "checked_index": (9, 0), "checked_place": (9, 0), "checked_target": (8, 8),
}  # fmt: skip


def samples(op: Op, dtype: DataType, seed: int) -> torch.Tensor:
    """Random operands in the op's own range, with special values among them.

    Values that the op refuses are in test_checks.py.
    """
    generator = torch.Generator().manual_seed(seed)
    torch_dtype = to_torch(dtype)
    shape = (ROWS, COLUMNS)
    if dtype is DataType.Bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not torch_dtype.is_floating_point:
        low = 0 if dtype is DataType.UInt8 or op.name.startswith("checked") else -5
        values = torch.randint(low, 9, shape, generator=generator).to(torch_dtype)
        return values.masked_fill(values == 0, 1) if op.check is ZERO_DIVISION else values
    low_end, high_end = op.samples
    values = torch.rand(shape, generator=generator, dtype=torch.float64)
    values = (values * (high_end - low_end) + low_end).to(torch_dtype)
    if op.check is not None and op.check.floating:
        return values
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -1.0])
    values.view(-1)[:: COLUMNS + 4][: len(special)] = special.to(torch_dtype)
    return values


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.stack([x, x], 2).flatten(1)[:, ::2],
    "expanded": lambda x: x[:, :1].expand(ROWS, COLUMNS),
    "misaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(ROWS, COLUMNS),
}


def define(op: Op, dtype: DataType) -> FusionDefinition:
    """One op over its inputs."""
    scalars = SCALARS.get(op.name, ())
    with FusionDefinition() as fd:
        inputs: list[object] = [
            fd.define_tensor([-1, -1], dtype=dtype) for _ in range(op.arity - len(scalars))
        ]
        if op.name == "where":
            inputs[0] = fd.ops.cast(inputs[0], DataType.Bool)
        fd.add_output(getattr(fd.ops, op.name)(*inputs, *scalars))
    return fd


@pytest.mark.parametrize("layouts", [1, long(len(LAYOUTS))])
@pytest.mark.parametrize("op", TESTED, ids=lambda op: op.name)
def test_op(op: Op, layouts: int) -> None:
    """Each dtype in so many layouts; all take their turn, and each op starts with another."""
    # near the zeros of lgamma the error is absolute: see docs/design.md
    absolute = 2e-15 if op.name == "lgamma" else 0.0
    dtypes = [dtype for dtype in DTYPES if takes(op, dtype)]
    assert len(dtypes) == FEWER_DTYPES.get(op.name, len(DTYPES)), dtypes
    turns = itertools.islice(itertools.cycle(LAYOUTS.items()), TESTED.index(op), None)
    for dtype in dtypes:
        fd = define(op, dtype)
        plain = [samples(op, dtype, seed) for seed in range(len(fd.fusion.inputs()))]
        for name, layout in itertools.islice(turns, layouts):
            # a different layout for the first operand than for the others
            inputs = [layout(x) if i or len(plain) == 1 else x for i, x in enumerate(plain)]
            outputs = fd.execute(inputs)
            try:
                assert_close_to_oracle(fd.fusion.definition, inputs, outputs, absolute=absolute)
            except AssertionError as error:
                raise AssertionError(f"{op.name} {dtype} {name}: {error}") from error


@pytest.mark.parametrize("source", DTYPES, ids=lambda d: d.name)
def test_cast(source: DataType) -> None:
    op = OPS["cast"]
    for target in DTYPES:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.cast(fd.define_tensor([-1, -1], dtype=source), target))
        values = samples(op, source, 0)
        narrows = not to_torch(target).is_floating_point and target is not DataType.Bool
        if is_floating(source) and narrows:
            # out of range is undefined in torch: see test_op_emitter for what pyfuser gives
            values = values.double().nan_to_num(0, 3, -3)
            values = values.abs() if target is DataType.UInt8 else values
            values = values.to(to_torch(source))
        (output,) = fd.execute([values])
        assert output.dtype is to_torch(target)
        reference = values.to(to_torch(target))
        assert torch.equal(output.double().nan_to_num(7), reference.double().nan_to_num(7))


@pytest.mark.parametrize("target", [DataType.Half, DataType.BFloat16])
def test_one_double_is_rounded_to_half_precision(target: DataType) -> None:
    """LLVM would call a library function to round the operand of a sign."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([], dtype=DataType.Double)
        fd.add_output(fd.ops.cast(fd.ops.tanh(x), target))
    given = torch.tensor(-0.3, dtype=torch.float64)
    assert torch.equal(fd.execute([given])[0], given.tanh().to(to_torch(target)))


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0, 5), (1, 1), (17,), (2, 3, 5, 7, 11), ()])
def test_shapes(shape: tuple[int, ...]) -> None:
    x, y = torch.randn(shape), torch.randn(shape)
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1] * len(shape), dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.mul(fd.ops.add(a, b), 2.0))
    (output,) = fd.execute([x, y])
    assert torch.equal(output, (x + y) * 2)


def test_beyond_32_bit_offsets() -> None:
    """An input whose elements lie 2^31 elements apart, by stride tricks on one small storage."""
    base = torch.arange(8, dtype=torch.int8)
    wide = base.as_strided((1, 8), (2**33, 1))
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], dtype=DataType.Int8)
        fd.add_output(fd.ops.add(t, t))
    (output,) = fd.execute([wide])
    assert torch.equal(output, wide + wide)
    expanded = torch.ones(1, dtype=torch.int8).expand(2**31 + 7)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], dtype=DataType.Int8)
        fd.add_output(fd.ops.sum(t, [0]))
    (total,) = fd.execute([expanded])
    assert total.item() == 2**31 + 7


@pytest.mark.parametrize("sizes", [(31, 7), (3, 7), (64, 16)])
def test_broadcast_output_of_static_size_beside_a_full_one(sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    with FusionDefinition() as fd:
        v, w = fd.define_tensor([rows, 1, 1]), fd.define_tensor([1, 1, columns])
        negated = fd.ops.neg(v)
        fd.add_output(negated)
        fd.add_output(fd.ops.add(negated, w))
    x, y = torch.randn(rows, 1, 1), torch.randn(1, 1, columns)
    first, second = fd.execute([x, y])
    assert torch.equal(first, -x)
    assert torch.equal(second, y - x)


def test_output_beside_an_empty_one_is_written() -> None:
    with FusionDefinition() as fd:
        bias, batch = fd.define_tensor([-1]), fd.define_tensor([-1, -1])
        negated = fd.ops.neg(bias)
        fd.add_output(negated)
        fd.add_output(fd.ops.add(fd.ops.broadcast(negated, [True, False]), batch))
    for rows in (0, 3):
        first, second = fd.execute([torch.ones(16), torch.zeros(rows, 16)])
        assert torch.equal(first, -torch.ones(16))
        assert torch.equal(second, -torch.ones(rows, 16))


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16, DataType.Float])
def test_negative_zero_scalar_after_zero(dtype: DataType) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        s = fd.define_scalar(dtype)
        fd.add_output(fd.ops.mul(x, s))
    ones = torch.ones(3)
    for value in (0.0, -0.0):
        (output,) = fd.execute([ones, value])
        assert torch.equal(output.signbit(), (ones * value).signbit())


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e30, 2.5 + 1j, 1j, -1])
@pytest.mark.parametrize("dtype", [DataType.Int, DataType.Int32, DataType.Bool, DataType.Float])
def test_numbers_of_another_kind_are_converted_as_tensors_are(
    monkeypatch: pytest.MonkeyPatch, dtype: DataType, number: complex
) -> None:
    """Constants and inputs, of a kernel; what doesn't fit into an integer is only no error."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        kind = DataType.ComplexDouble if isinstance(number, complex) else DataType.Double
        scalar = fd.define_scalar(None, kind)
        for value in (scalar, number):
            fd.add_output(fd.ops.full([3], value, dtype))
            fd.add_output(fd.ops.logical_and(x, value))
    made, is_true, again, is_still_true = fd.execute([torch.tensor([1.0, 0.0]), number])
    assert is_true.tolist() == is_still_true.tolist() == [True, False]
    if dtype in (DataType.Bool, DataType.Float) or number == -1 or isinstance(number, complex):
        plain = (
            number.real if isinstance(number, complex) and dtype is not DataType.Bool else number
        )
        wanted = torch.full((3,), plain, dtype=None if dtype is DataType.Bool else torch.float64)
        wanted = wanted.to(to_torch(dtype))
        assert torch.equal(made.nan_to_num(7), wanted.nan_to_num(7))
        assert torch.equal(again.nan_to_num(7), wanted.nan_to_num(7))


def test_equal_numbers_of_two_types_in_one_kernel() -> None:
    """A zero of float and one of double, both outside of the loops that read them."""
    with FusionDefinition() as fd:
        first, wide, second = (
            fd.define_tensor([-1], contiguity=True, dtype=dtype)
            for dtype in (DataType.Bool, DataType.Double, DataType.Bool)
        )
        zeros = [
            fd.ops.broadcast(fd.ops.full([], fd.define_scalar(0.0, dtype), dtype), [True])
            for dtype in (DataType.Float, DataType.Double)
        ]
        kept = fd.ops.cast(fd.ops.where(first, wide, zeros[1]), DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.where(second, zeros[0], kept), [0]))
    a, b = torch.arange(40) % 2 == 0, torch.arange(40) % 3 == 0
    x = torch.arange(40).double()
    (made,) = fd.execute([a, x, b])
    assert made.item() == x[a & ~b].sum().item()
