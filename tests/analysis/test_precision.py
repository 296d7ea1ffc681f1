"""How many bits results need: the rules of `analysis/precision`, one small fusion for each."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pyfuser import DataType, FusionDefinition
from pyfuser.analysis.precision import ALL_BITS, needed_bits, own_bits
from pyfuser.frontend.tensor_view import TensorView
from pyfuser.ir.exprs import PointwiseOp

Build = Callable[[FusionDefinition, TensorView, TensorView], TensorView]


def bits_of(op: str, build: Build, dtype: DataType = DataType.BFloat16) -> int:
    """The bits to which the only `op` of a fusion is computed if the result is cast to `dtype`."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.cast(build(fd, x, y), dtype))
    needed = needed_bits(fd.fusion.definition)
    (expr,) = (e for e in fd.fusion.definition.exprs if isinstance(e, PointwiseOp) and e.op == op)
    return own_bits(expr, needed[expr.tensor_outputs[0]])


KEPT: dict[str, tuple[str, int, Build]] = {
    "cast": ("exp", 11, lambda fd, x, y: fd.ops.exp(x)),
    "mul": ("sigmoid", 12, lambda fd, x, y: fd.ops.mul(fd.ops.sigmoid(x), y)),
    "two products": ("exp", 13, lambda fd, x, y: fd.ops.div(fd.ops.mul(y, fd.ops.exp(x)), y)),
    "relu, neg": ("silu", 11, lambda fd, x, y: fd.ops.neg(fd.ops.relu(fd.ops.silu(x)))),
    "where": ("exp", 11, lambda fd, x, y: fd.ops.where(fd.ops.gt(y, 0.0), fd.ops.exp(x), y)),
    "maximum": ("exp", 11, lambda fd, x, y: fd.ops.maximum(y, fd.ops.exp(x))),
    "positive addition": ("exp", 11, lambda fd, x, y: fd.ops.add(fd.ops.exp(x), fd.ops.abs(y))),
    "negative addition": (
        "exp",
        11,
        lambda fd, x, y: fd.ops.add(fd.ops.neg(fd.ops.exp(x)), fd.ops.minimum(y, 0.0)),
    ),
    "opposite signs": (
        "exp",
        11,
        lambda fd, x, y: fd.ops.sub(fd.ops.minimum(x, -0.0), fd.ops.exp(y)),
    ),
    "log of a sigmoid": (
        "log1p",
        12,
        lambda fd, x, y: fd.ops.sub(
            fd.ops.minimum(x, 0.0), fd.ops.log1p(fd.ops.exp(fd.ops.neg(fd.ops.abs(x))))
        ),
    ),
    "negative sum": (
        "exp",
        12,
        lambda fd, x, y: fd.ops.sum(fd.ops.mul(fd.ops.exp(x), fd.ops.neg(fd.ops.abs(y))), [1]),
    ),
    "square": ("exp", 11, lambda fd, x, y: fd.ops.add(fd.ops.exp(x), fd.ops.mul(y, y))),
    "positive sum": ("exp", 11, lambda fd, x, y: fd.ops.sum(fd.ops.exp(x), [1])),
    "softplus": ("exp", 12, lambda fd, x, y: fd.ops.log1p(fd.ops.exp(x))),
    "tanh itself": ("tanh", 12, lambda fd, x, y: fd.ops.tanh(x)),
    "into tanh": ("exp", 12, lambda fd, x, y: fd.ops.tanh(fd.ops.exp(x))),
    "complement": ("add", 12, lambda fd, x, y: fd.ops.mul(fd.ops.add(fd.ops.tanh(x), 1.0), y)),
}
EXACT: dict[str, tuple[str, Build]] = {
    "add": ("exp", lambda fd, x, y: fd.ops.add(fd.ops.exp(x), y)),
    "negative constant": ("exp", lambda fd, x, y: fd.ops.add(fd.ops.exp(x), -1.0)),
    "sub": ("exp", lambda fd, x, y: fd.ops.sub(fd.ops.exp(x), fd.ops.abs(y))),
    "a difference of negative numbers": (
        "exp",
        lambda fd, x, y: fd.ops.sub(fd.ops.minimum(y, 0.0), fd.ops.neg(fd.ops.exp(x))),
    ),
    "a sum of opposite signs": (
        "exp",
        lambda fd, x, y: fd.ops.add(fd.ops.minimum(y, 0.0), fd.ops.exp(x)),
    ),
    "a sum with an integer that may have wrapped around": (
        "exp",
        lambda fd, x, y: fd.ops.add(
            fd.ops.exp(x), fd.ops.cast(fd.ops.cast(fd.ops.abs(y), DataType.Int8), DataType.Float)
        ),
    ),
    "a NaN as a constant": ("exp", lambda fd, x, y: fd.ops.add(fd.ops.exp(x), math.nan)),
    "exp": ("sigmoid", lambda fd, x, y: fd.ops.exp(fd.ops.sigmoid(x))),
    "log": ("exp", lambda fd, x, y: fd.ops.log(fd.ops.exp(x))),
    "comparison": ("exp", lambda fd, x, y: fd.ops.where(fd.ops.gt(fd.ops.exp(x), y), x, y)),
    "floor": ("exp", lambda fd, x, y: fd.ops.floor(fd.ops.exp(x))),
    "integer": ("exp", lambda fd, x, y: fd.ops.cast(fd.ops.exp(x), DataType.Int)),
    "sum of both signs": ("tanh", lambda fd, x, y: fd.ops.sum(fd.ops.tanh(x), [1])),
    "variance": ("exp", lambda fd, x, y: fd.ops.var(fd.ops.exp(x), [1])),
    "product over an axis": ("exp", lambda fd, x, y: fd.ops.prod(fd.ops.exp(x), [1])),
    "1 - tanh": ("tanh", lambda fd, x, y: fd.ops.sub(1.0, fd.ops.tanh(x))),
    "inside a complement": ("tanh", lambda fd, x, y: fd.ops.add(1.0, fd.ops.tanh(x))),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_passes_relative_errors_on(name):
    op, bits, build = KEPT[name]
    assert bits_of(op, build) == bits
    assert bits_of(op, build, DataType.Half) == bits + 3


@pytest.mark.parametrize("name", EXACT)
def test_what_needs_all_bits(name):
    op, build = EXACT[name]
    assert bits_of(op, build) == 0


def test_float_output_needs_all_bits():
    assert bits_of("exp", KEPT["cast"][2], DataType.Float) == 0


def test_a_value_read_twice_needs_the_larger_number():
    def build(fd: FusionDefinition, x: TensorView, y: TensorView) -> TensorView:
        power = fd.ops.exp(x)
        fd.add_output(fd.ops.cast(power, DataType.BFloat16))
        return fd.ops.sub(power, y)

    assert bits_of("exp", build) == 0


def test_a_rounded_value_that_is_used_again_isnt_rounded_differently():
    def build(fd: FusionDefinition, x: TensorView, y: TensorView) -> TensorView:
        rounded = fd.ops.cast(fd.ops.exp(x), DataType.BFloat16)
        fd.add_output(rounded)
        return fd.ops.sub(fd.ops.cast(rounded, DataType.Float), y)

    assert bits_of("exp", build) == 0


def test_inputs_of_what_needs_all_bits():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Float)
        fd.add_output(fd.ops.exp(x))
    assert needed_bits(fd.fusion.definition)[x] == ALL_BITS
