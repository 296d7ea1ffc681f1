"""Steps that torch computes as a whole (products, orders, attention), and random numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from pyfuser import DataType
from pyfuser.dtypes import FLOAT8
from pyfuser.ops.random_builders import RANDOM_DTYPES
from tests.support.random_tensors import Shape
from tests.support.steps.made import RandomFusion, Value
from tests.support.steps.pointwise import WIDE, Step

_PRODUCTS = (*WIDE, DataType.Half, DataType.BFloat16)


def _full(value: Value) -> bool:
    return value.rank > 0 and 0 not in value.shape


def _factor(made: RandomFusion, low: int, high: int) -> Value:
    """A small floating operand of a product: a computed value, or an input."""
    value = made.value(
        lambda v: low <= v.rank <= high and _full(v) and v.dtype in _PRODUCTS and v.fits(-9, 9)
    )
    if value is not None:
        return value
    shape = tuple(made.number(1, 9) for _ in range(low))
    return made.random_input(shape, made.one_of(_PRODUCTS))


def _operand(made: RandomFusion, shape: Shape, dtype: DataType) -> Value:
    found = made.value(lambda v: v.shape == shape and v.dtype is dtype and v.fits(-9, 9))
    return found or made.random_input(shape, dtype)


def matmul(made: RandomFusion, name: str) -> None:
    """With another matrix, a vector, or its own transposed."""
    value = _factor(made, 2, 3)
    match made.number(0, 2):
        case 0:
            order = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
            made.add(made.ops.matmul(value.tensor, made.ops.permute(value.tensor, order)))
        case 1:
            vector = _operand(made, (value.shape[-1],), value.dtype)
            made.add(made.ops.matmul(value.tensor, vector.tensor))
        case _:
            other = _operand(made, (value.shape[-1], made.number(1, 9)), value.dtype)
            made.add(made.ops.matmul(value.tensor, other.tensor))


def linear(made: RandomFusion, name: str) -> None:
    """With a weight, and with a bias or without."""
    value, count = _factor(made, 1, 3), made.number(1, 9)
    weight = _operand(made, (count, value.shape[-1]), value.dtype)
    bias = _operand(made, (count,), value.dtype).tensor if made.flag() else None
    made.add(made.ops.linear(value.tensor, weight.tensor, bias))


def scaled_mm(made: RandomFusion, name: str) -> None:
    """A product of matrices with scales, perhaps with a bias and its factor."""
    value, count = _factor(made, 2, 2), made.number(1, 9)
    other = _operand(made, (value.shape[1], count), value.dtype)
    is_whole = made.flag()
    scales = [
        made.random_input(() if is_whole else shape, DataType.Float).tensor
        for shape in ((value.shape[0], 1), (1, count))
    ]
    more: dict[str, Any] = {"alpha": 0.5} if made.flag() else {}
    if made.flag():
        more |= {"bias": made.random_input((count,), DataType.Float).tensor, "beta": 2.0}
    dtype = made.one_of((DataType.BFloat16, DataType.Half, DataType.Float))
    product = made.ops.scaled_mm(value.tensor, other.tensor, *scales, dtype=dtype, **more)
    made.add(product[0])


def grouped_mm(made: RandomFusion, name: str) -> None:
    """A product for each group of rows, of columns, or of what is summed."""
    value, count, groups = _factor(made, 2, 2), made.number(1, 9), made.number(1, 3)
    rows, summed = value.shape
    shared, first, second = made.one_of((
        (rows, (rows, summed), (groups, summed, count)),
        (count, (groups, rows, summed), (summed, count)),
        (summed, (rows, summed), (summed, count)),
    ))  # fmt: skip
    operands = [_operand(made, shape, value.dtype).tensor for shape in (first, second)]
    ends = torch.tensor(sorted(made.number(0, shared) for _ in range(groups)))
    offsets = made.input(ends.to(made.one_of((torch.int32, torch.int64))), "contiguous")
    made.add(made.ops.grouped_mm(*operands, offsets.tensor))


def attention(made: RandomFusion, name: str) -> None:
    """Attention, causal or not, with a bias or a mask or without, and its gradients."""
    heads, length, keys, width = (made.number(1, most) for most in (3, 6, 6, 8))
    dtype = made.one_of((DataType.Float, DataType.Double))
    query = _operand(made, (2, heads, length, width), dtype)
    key, value = (_operand(made, (2, heads, keys, width), dtype) for _ in range(2))
    is_causal = length == keys and made.flag()
    named: dict[str, Any] = {"dropout_p": 0.0, "is_causal": is_causal}
    if made.flag(3):
        named["scale"] = 0.25
    given = (query.tensor, key.tensor, value.tensor)
    if name == "sdpfa_bwd":
        output, sums, *state = made.ops.sdpfa_fwd(*given, **named)
        gradient = _operand(made, (2, heads, length, width), dtype).tensor
        made.add(*made.ops.sdpfa_bwd(
            gradient, *given, output, sums, named["dropout_p"], is_causal, *state,
            named.get("scale"),
        ))  # fmt: skip
        return
    if not is_causal and made.flag():
        named["bias"] = made.random_input((length, keys), dtype).tensor
    made.add(*made.ops.sdpfa_fwd(*given, **named)[:2])


def _distinct(value: Value, dim: int) -> bool:
    """True if no two numbers along a dimension are equal."""
    ordered = value.numbers.double().sort(dim).values
    return not ordered.numel() or bool((ordered.diff(dim=dim) > 0).all())


def argsort(made: RandomFusion, name: str) -> None:
    """The order of elements, and the elements in it; equal ones only if the sort is stable."""
    value = made.value(lambda v: _full(v) and v.dtype not in FLOAT8)
    if value is None:
        return
    dim, descending = made.number(0, value.rank - 1), made.flag()
    stable = not _distinct(value, dim) or made.flag()
    order = made.ops.argsort(value.tensor, dim, descending, stable)
    made.add(order, made.ops.gather(value.tensor, order, dim))


def topk(made: RandomFusion, name: str) -> None:
    """The largest or smallest elements; their places only if no two are equal."""
    value = made.value(lambda v: _full(v) and v.dtype not in (DataType.Bool, *FLOAT8))
    if value is None:
        return
    dim = made.number(0, value.rank - 1)
    k = made.scalar(made.number(1, min(value.shape[dim], 4)))
    values, indices = made.ops.topk(value.tensor, k, dim, made.flag(), True)
    made.add(*((values, indices) if _distinct(value, dim) else (values,)))


def _state(made: RandomFusion) -> dict[str, Any]:
    """A seed and an offset, or none."""
    if made.flag():
        return {}
    return {"rng_seed": made.scalar(3), "rng_offset": made.scalar(len(made.values))}


def random(made: RandomFusion, name: str) -> None:
    """Random numbers in the shape of a value."""
    value, dtype = made.value(), made.one_of(RANDOM_DTYPES[:4])
    if value is None:
        return
    sizes = [made.size(value, d) for d in range(value.rank)]
    bounds = made.one_of(((0.0, 1.0), (-1.5, 2.0), (0, 3)))
    made.add(getattr(made.ops, name)(*bounds, sizes, dtype=dtype, **_state(made)))


def random_like(made: RandomFusion, name: str) -> None:
    """Random numbers in the shape and the dtype of a value."""
    value = made.value(lambda v: v.dtype in RANDOM_DTYPES[:4])
    value = value or made.random_input((3, 5), DataType.Float)
    made.add(getattr(made.ops, name)(value.tensor))


def dropout(made: RandomFusion, name: str) -> None:
    """A value where a random number is above a probability, scaled."""
    value = made.value(lambda v: v.is_floating)
    if value is None or not math.prod(value.shape):
        return
    ops = made.ops
    sizes = [made.size(value, d) for d in range(value.rank)]
    kept = ops.gt(ops.uniform(0, 1, sizes, **_state(made)), 0.25)
    made.add(ops.mul(ops.mul(value.tensor, kept), 4 / 3))


STEPS: dict[str, Step] = {
    "argsort": argsort,
    "grouped_mm": grouped_mm,
    "linear": linear,
    "matmul": matmul,
    "normal": random,
    "rand_like": random_like,
    "randn_like": random_like,
    "scaled_mm": scaled_mm,
    "sdpfa_bwd": attention,
    "sdpfa_fwd": attention,
    "topk": topk,
    "uniform": random,
}
COMPOSITES: dict[str, Step] = {"dropout": dropout}
