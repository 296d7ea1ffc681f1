"""Steps that reduce, scan and normalise."""

from __future__ import annotations

import math

from pyfuser import DataType
from pyfuser.ops.table import REDUCTIONS, SCANS
from tests.support.steps.made import RandomFusion, Value
from tests.support.steps.pointwise import WIDE, Step

# A product of more elements overflows.
_MOST_FACTORS = 24


def _full(value: Value) -> bool:
    return value.rank > 0 and math.prod(value.shape) > 0


def reduction(made: RandomFusion, name: str) -> None:
    """Over some dimensions, or over all of them, kept or not, in a dtype or not."""
    value = made.value(lambda v: v.rank > 0)
    if value is None:
        return
    dims = made.some_of(value.rank)
    count = math.prod(value.shape[d] for d in dims)
    if (name not in ("sum", "prod") and not count) or (name == "prod" and count > _MOST_FACTORS):
        return
    function, keep = getattr(made.ops, name), made.flag()
    if len(dims) == 1 and made.flag(3):
        made.add(function(value.tensor, dim=dims[0] - value.rank, keepdim=keep))
    elif REDUCTIONS[name].widens and made.flag(3):
        dtypes = (*WIDE, DataType.Half) if value.is_floating else (*WIDE, DataType.Int)
        made.add(function(value.tensor, dims, keep, made.one_of(dtypes)))
    else:
        made.add(function(value.tensor, dims, keep))


def _wide(made: RandomFusion) -> Value | None:
    """A value of Float or Double with elements."""
    found = made.value(lambda v: v.dtype in WIDE and _full(v))
    if found is not None:
        return found
    other = made.value(_full)
    return None if other is None else made.cast(other, made.one_of(WIDE))


def variance(made: RandomFusion, name: str) -> None:
    """var and var_mean, with a correction that leaves something to divide by."""
    value = _wide(made)
    if value is None:
        return
    dims = made.some_of(value.rank)
    count = math.prod(value.shape[d] for d in dims)
    correction = made.scalar(made.number(0, min(count - 1, 1)))
    results = getattr(made.ops, name)(value.tensor, dims, correction, made.flag())
    made.add(*(results if isinstance(results, tuple) else (results,)))


def welford(made: RandomFusion, name: str) -> None:
    """Mean, squared deviations and count."""
    value = _wide(made)
    if value is not None:
        made.add(*made.ops.welford(value.tensor, made.some_of(value.rank)))


def scan(made: RandomFusion, name: str) -> None:
    """From either end, with an initial number or without."""
    value = made.value(_full)
    if value is None or value.dtype is DataType.UInt64:
        return
    dim = made.number(0, value.rank - 1)
    if name == "cumprod" and value.shape[dim] > _MOST_FACTORS:
        return
    init = made.scalar(made.one_of((1, 2))) if made.flag(3) else None
    made.add(getattr(made.ops, name)(value.tensor, dim, init, reverse=made.flag()))


def _affine(made: RandomFusion, tensor: object, value: Value, dim: int) -> None:
    """Times a weight, plus a bias, along a dimension."""
    result, flags = tensor, [d != dim for d in range(value.rank)]
    if made.flag():
        for name in ("mul", "add"):
            vector = made.random_input((value.shape[dim],), value.dtype)
            wide = made.ops.broadcast(vector.tensor, flags) if any(flags) else vector.tensor
            result = getattr(made.ops, name)(result, wide)
    made.add(result)


def layer_norm(made: RandomFusion, name: str) -> None:
    """Layer norm over the last dimensions."""
    value = _wide(made)
    if value is None:
        return
    ops, first = made.ops, made.number(0, value.rank - 1)
    variance, mean = ops.var_mean(value.tensor, list(range(first, value.rank)), 0, True)
    normal = ops.mul(ops.sub(value.tensor, mean), ops.rsqrt(ops.add(variance, 0.25)))
    _affine(made, normal, value, value.rank - 1)


def rms_norm(made: RandomFusion, name: str) -> None:
    """A root mean square norm over the last dimension."""
    value = _wide(made)
    if value is None:
        return
    ops, last = made.ops, value.rank - 1
    squares = ops.sum(ops.mul(value.tensor, value.tensor), [last], True)
    mean = ops.div(squares, made.size(value, last))
    normal = ops.mul(value.tensor, ops.rsqrt(ops.add(mean, 0.125)))
    _affine(made, normal, value, last)


def batch_norm(made: RandomFusion, name: str) -> None:
    """Batch norm of one dimension by the statistics of the others, and running statistics."""
    value = _wide(made)
    if value is None or value.rank < 2:
        return
    ops, channel = made.ops, made.number(0, value.rank - 1)
    dims = [d for d in range(value.rank) if d != channel]
    variance, mean = ops.var_mean(value.tensor, dims, 0, False)
    flags = [d in dims for d in range(value.rank)]
    centred = ops.sub(value.tensor, ops.broadcast(mean, flags))
    scale = ops.broadcast(ops.rsqrt(ops.add(variance, 0.5)), flags)
    running = made.random_input((value.shape[channel],), value.dtype)
    made.add(ops.add(ops.mul(running.tensor, 0.875), ops.mul(mean, 0.125)))
    _affine(made, ops.mul(centred, scale), value, channel)


def softmax(made: RandomFusion, name: str) -> None:
    """Softmax or its logarithm."""
    value = _wide(made)
    if value is None or not value.fits(-50, 50):
        return
    ops, dims = made.ops, [made.number(0, value.rank - 1)]
    centred = ops.sub(value.tensor, ops.max(value.tensor, dims, True))
    powers = ops.exp(centred)
    total = ops.sum(powers, dims, True)
    if name == "softmax":
        made.add(ops.div(powers, total))
    else:
        made.add(ops.sub(centred, ops.log(total)))


STEPS: dict[str, Step] = {
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(SCANS, scan),
    "var": variance,
    "var_mean": variance,
    "welford": welford,
}
COMPOSITES: dict[str, Step] = {
    "layer norm": layer_norm,
    "rms norm": rms_norm,
    "batch norm": batch_norm,
    "softmax": softmax,
    "log-softmax": softmax,
}
