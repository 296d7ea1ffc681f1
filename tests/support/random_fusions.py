"""Random fusions for hypothesis: a definition built step by step, and inputs in random layouts.

`fusions()` draws one.  Every choice is hypothesis' own, so that a failure shrinks to few steps.  A
step picks values that fit each other: sizes are tracked as numbers beside the symbolic tensors.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import FLOATING, from_torch
from pyfuser.ir.scalars import ONE, Integer, Symbol

Draw = Callable[[st.SearchStrategy[Any]], Any]
Shape = tuple[int, ...]

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
DTYPES = (torch.float32, torch.float32, *FLOATS, *INTEGERS, torch.bool)
SIZES = (1, 1, 2, 3, 7, 16, 37, 67)
# Sizes at which rows are split over cores, accumulators unrolled, persistent buffers long.
LARGE_SIZES = (1, 9, 130, 600, 1500)
UNARY = ("neg", "relu", "abs", "tanh", "sigmoid", "sin", "floor", "silu")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "gt", "eq")
REDUCTIONS = ("sum", "max", "min", "nanmax")
CASTS = (DataType.Float, DataType.Half, DataType.BFloat16, DataType.Double)
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "misaligned", "channels_last")


@dataclass
class RandomFusion:
    """A definition, the inputs to run it with, and the values made so far with their shapes."""

    fd: FusionDefinition
    inputs: list[torch.Tensor] = field(default_factory=list)
    values: list[tuple[Any, Shape]] = field(default_factory=list)

    def add(self, tensor: Any, shape: Shape) -> None:
        """A new value, which is an output unless something reads it."""
        self.values.append((tensor, shape))

    def outputs(self) -> list[Any]:
        """The values that nothing reads."""
        made = [tensor for tensor, _ in self.values[len(self.inputs) :]]
        return [tensor for tensor in made if not tensor.uses()] or made[-1:]


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same shape in another layout of memory."""
    match layout:
        case "transposed" if x.dim() > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        case "sliced" if x.dim():
            return torch.stack([x, x], -1).flatten(-2)[..., ::2]
        case "expanded" if x.dim() and x.shape[0]:
            return x[:1].expand_as(x)
        case "misaligned":
            return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
        case "channels_last" if x.dim() == 4:
            return x.to(memory_format=torch.channels_last)
    return x


def random_tensor(shape: Shape, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Multiples of 1/4 between -2 and 2: exact in every dtype, with many equal ones."""
    generator = torch.Generator().manual_seed(seed)
    quarters = torch.randint(-8, 9, shape, generator=generator)
    if dtype.is_floating_point:
        return (quarters / 4).to(dtype)
    return (quarters.abs() if dtype is torch.uint8 else quarters).to(dtype)


@st.composite
def fusions(draw: Draw, large: bool = False) -> RandomFusion:
    """A fusion of up to three inputs and eight steps, each of a kind that fits.

    `large` is for the schedulers' decisions: one or two axes, some of them long.
    """
    full = _large_shape(draw) if large else _small_shape(draw)
    # A definition prints the exception that interrupts it; hypothesis abandons examples that way.
    with contextlib.redirect_stdout(io.StringIO()), FusionDefinition() as fd:
        made = RandomFusion(fd)
        for number in range(draw(st.integers(1, 3))):
            _add_input(draw, made, full, number)
        for _ in range(draw(st.integers(1, 8))):
            step = draw(st.sampled_from(STEPS))
            value = draw(st.sampled_from(made.values))
            step(draw, made, *value)
        if len(made.values) == len(made.inputs):
            tensor, shape = made.values[0]
            made.add(fd.ops.set(tensor), shape)
        for output in made.outputs():
            fd.add_output(output)
    return made


def _small_shape(draw: Draw) -> Shape:
    rank = draw(st.integers(0, 4))
    sizes = (*SIZES, 0) if draw(st.integers(0, 9)) == 9 else SIZES
    return tuple(draw(st.sampled_from(sizes if rank < 4 else sizes[:5])) for _ in range(rank))


def _large_shape(draw: Draw) -> Shape:
    rank = draw(st.integers(1, 2))
    return tuple(draw(st.sampled_from(LARGE_SIZES)) for _ in range(rank))


def _add_input(draw: Draw, made: RandomFusion, full: Shape, number: int) -> None:
    """A tensor of the full shape, or of its last dimensions, some of which are 1."""
    kept = full[draw(st.integers(0, len(full))) if draw(st.integers(0, 4)) == 4 else 0 :]
    shape = tuple(1 if draw(st.integers(0, 5)) == 5 else size for size in kept)
    dtype = draw(st.sampled_from(DTYPES))
    x = laid_out(random_tensor(shape, dtype, number), draw(st.sampled_from(LAYOUTS)))
    symbolic = [1 if size == 1 else -1 for size in shape]
    made.inputs.append(x)
    made.add(made.fd.define_tensor(symbolic, dtype=from_torch(dtype)), shape)


def _subset(draw: Draw, count: int) -> list[int]:
    """One or more of range(count), in order."""
    chosen = draw(st.sets(st.integers(0, count - 1), min_size=1))
    return sorted(chosen)


def _unary(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    name = draw(st.sampled_from(UNARY))
    if tensor.dtype is DataType.Bool:
        name = "logical_not"
    made.add(getattr(made.fd.ops, name)(tensor), shape)


def _binary(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """With another value whose shape broadcasts, or with a number."""
    fits = [(t, s) for t, s in made.values if _fit(tensor, shape, t, s)]
    other, other_shape = draw(st.sampled_from(fits))
    if draw(st.integers(0, 3)) == 3:
        other, other_shape = draw(st.sampled_from((2, 0.5, -1.25))), ()
    bools = DataType.Bool in (tensor.dtype, getattr(other, "dtype", None))
    name = "logical_and" if bools else draw(st.sampled_from(BINARY))
    if bools and isinstance(other, (int, float)):
        return
    result = _broadcast(shape, other_shape)
    assert result is not None
    made.add(getattr(made.fd.ops, name)(tensor, other), result)


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape of a pointwise result, ranks aligned at the right; None if they don't match."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    shorter = (1,) * (len(longer) - len(shorter)) + shorter
    if any(x != y and 1 not in (x, y) for x, y in zip(longer, shorter, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(longer, shorter, strict=True))


def _fit(tensor: Any, shape: Shape, other: Any, other_shape: Shape) -> bool:
    """True if two shapes broadcast, and sizes made by reshapes aren't equal by chance."""
    if _broadcast(shape, other_shape) is None:
        return False
    pairs = zip(reversed(tensor.axes), reversed(other.axes), strict=False)
    return all(
        a.size is b.size
        or (isinstance(a.size, Symbol | Integer) and isinstance(b.size, Symbol | Integer))
        or ONE in (a.size, b.size)
        for a, b in pairs
    )


def _reduce(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    if not shape:
        return
    dims, keep = _subset(draw, len(shape)), draw(st.booleans())
    name = draw(st.sampled_from(REDUCTIONS))
    if name != "sum" and any(shape[d] == 0 for d in dims):
        name = "sum"
    result = _reduced(shape, dims, keep)
    made.add(getattr(made.fd.ops, name)(tensor, dims, keep), result)


def _var_mean(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    if not shape or tensor.dtype not in (DataType.Float, DataType.Double):
        return
    dims, keep = _subset(draw, len(shape)), draw(st.booleans())
    for made_tensor in made.fd.ops.var_mean(tensor, dims, 0, keep):
        made.add(made_tensor, _reduced(shape, dims, keep))


def _reduced(shape: Shape, dims: list[int], keep: bool) -> Shape:
    if keep:
        return tuple(1 if d in dims else size for d, size in enumerate(shape))
    return tuple(size for d, size in enumerate(shape) if d not in dims)


def _cast(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    made.add(made.fd.ops.cast(tensor, draw(st.sampled_from(CASTS))), shape)


def _permute(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    if len(shape) < 2:
        return
    order = draw(st.permutations(range(len(shape))))
    made.add(made.fd.ops.permute(tensor, list(order)), tuple(shape[d] for d in order))


def _new_dim(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """A broadcast dimension, expanded or not."""
    if len(shape) > 3 or math.prod(shape) > 200_000:
        return
    place = draw(st.integers(0, len(shape)))
    flags = [dim == place for dim in range(len(shape) + 1)]
    result = (*shape[:place], 1, *shape[place:])
    wider = made.fd.ops.broadcast(tensor, flags)
    if draw(st.booleans()):
        result = (*shape[:place], 5, *shape[place:])
        wider = made.fd.ops.expand(wider, [5 if flag else -1 for flag in flags])
    made.add(wider, result)


def _squeeze(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    ones = [d for d, axis in enumerate(tensor.axes) if axis.is_broadcast and shape[d] == 1]
    if ones:
        dims = [ones[i] for i in _subset(draw, len(ones))]
        made.add(made.fd.ops.squeeze(tensor, dims), _reduced(shape, dims, keep=False))


def _reshape(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """Flattened, or the last two dimensions merged."""
    if not shape or 0 in shape:
        return
    flat = 1
    for size in shape:
        flat *= size
    if len(shape) < 3 or draw(st.booleans()):
        made.add(made.fd.ops.reshape(tensor, [-1]), (flat,))
        return
    sizes = [tensor.size(d) for d in range(len(shape) - 2)]
    merged = made.fd.ops.reshape(tensor, [*sizes, -1])
    made.add(merged, (*shape[:-2], shape[-2] * shape[-1]))


def _where(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """tensor where it is above a number, else another value of the same shape."""
    others = [t for t, s in made.values if s == shape and _fit(tensor, shape, t, s)]
    condition = made.fd.ops.gt(tensor, draw(st.sampled_from((0, 0.5))))
    made.add(made.fd.ops.where(condition, tensor, draw(st.sampled_from(others))), shape)


def _normalise(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """(x - mean) / deviation over some axes, or a softmax, which need persistent buffers."""
    if not shape or 0 in shape or tensor.dtype not in (DataType.Float, DataType.Double):
        return
    dims, ops = _subset(draw, len(shape)), made.fd.ops
    if draw(st.booleans()):
        variance, mean = ops.var_mean(tensor, dims, 0, True)
        made.add(ops.mul(ops.sub(tensor, mean), ops.rsqrt(ops.add(variance, 0.25))), shape)
        return
    weights = ops.exp(ops.sub(tensor, ops.max(tensor, dims, True)))
    made.add(ops.div(weights, ops.sum(weights, dims, True)), shape)


def _matmul(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """x @ x.T over the last two dimensions, or a product with constants, with and without bias.

    A computed operand is limited: products of products would cancel more than float32 can hold.
    """
    if not shape or tensor.dtype is DataType.Bool or len(shape) > 3:
        return
    ops, last = made.fd.ops, len(shape) - 1
    if tensor.dtype in FLOATING and tensor not in made.fd.fusion.definition.inputs:
        tensor = ops.clamp(tensor, -2.0, 2.0)
    if len(shape) > 1 and draw(st.booleans()):
        order = [*range(last - 1), last, last - 1]
        made.add(ops.matmul(tensor, ops.permute(tensor, order)), (*shape[:-1], shape[-2]))
        return
    weight = ops.full([5, tensor.size(last)], 1, tensor.dtype)
    bias = ops.full([5], 2, tensor.dtype) if draw(st.booleans()) else None
    made.add(ops.linear(tensor, weight, bias), (*shape[:-1], 5))


def _scan(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """A scan; products of many numbers would overflow."""
    if not shape or 0 in shape:
        return
    name = draw(st.sampled_from(("cumsum", "cummax", "cummin")))
    dim = draw(st.integers(0, len(shape) - 1))
    made.add(getattr(made.fd.ops, name)(tensor, dim, reverse=draw(st.booleans())), shape)


def _index_put(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """Rows, or columns, in reverse, or combined: the first one with up to eight others.

    More would be added up one by one, in float32, with a larger error than that of a reduction.
    """
    if not shape or 0 in shape:
        return
    others = [t for t, s in made.values if s == shape and t.dtype is tensor.dtype]
    source, dim = draw(st.sampled_from(others)), draw(st.integers(0, len(shape) - 1))
    ops, count = made.fd.ops, tensor.size(dim)
    places = ops.iota(count)
    hows = ["set", "max", "min"] if tensor.dtype is not DataType.Bool else ["set"]
    hows += ["sum"] if tensor.dtype in (DataType.Float, DataType.Double, DataType.Int) else []
    how = draw(st.sampled_from(hows))
    if how == "set":
        places = ops.sub(ops.sub(count, 1), places)
    else:
        places = ops.maximum(ops.sub(places, min(shape[dim] // 2, 8)), 0)
    made.add(ops.index_put(tensor, places, source, dim, how), shape)


def _points(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """Elements, or rows, at points of two dimensions, read, or written in reverse."""
    if len(shape) < 2 or 0 in shape:
        return
    ops, dims = made.fd.ops, draw(st.permutations(range(len(shape))))[:2]
    count = min(shape[d] for d in dims)
    shortest = tensor.size(min(dims, key=lambda d: shape[d]))
    places = ops.iota(shortest)
    indices = [places, ops.neg(ops.add(places, 1))]
    kept = tuple(size for d, size in enumerate(shape) if d not in dims)
    start = dims[0] if dims[1] == dims[0] + 1 else 0
    rows = ops.index(tensor, indices, dims)
    if draw(st.booleans()):
        made.add(rows, (*kept[:start], count, *kept[start:]))
    else:
        made.add(ops.index_put(tensor, indices[::-1], rows, dims), shape)


def _triu(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    if len(shape) > 1:
        made.add(made.fd.ops.triu(tensor, draw(st.integers(-2, 2))), shape)


def _topk(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """The values only: equal elements have no certain order."""
    if not shape or 0 in shape or tensor.dtype is DataType.Bool:
        return
    dim = draw(st.integers(0, len(shape) - 1))
    k = draw(st.integers(1, min(shape[dim], 4)))
    values, _ = made.fd.ops.topk(tensor, k, dim, draw(st.booleans()), True)
    made.add(values, (*shape[:dim], k, *shape[dim + 1 :]))


def _random(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """Random multiples of 1/4, with a seed or without, in the shape of another value."""
    ops, sizes = made.fd.ops, [tensor.size(d) for d in range(len(shape))]
    state = {"rng_seed": 3, "rng_offset": len(made.values)} if draw(st.booleans()) else {}
    dtype = draw(st.sampled_from(CASTS))
    sixteenths = ops.floor(ops.mul(ops.uniform(0, 1, sizes, dtype=dtype, **state), 16.0))
    made.add(ops.sub(ops.mul(sixteenths, 0.25), 2.0), shape)


def _single(draw: Draw, made: RandomFusion, tensor: Any, shape: Shape) -> None:
    """A slice of one element along an axis, next to the whole tensor."""
    if not shape or 0 in shape or tensor.dtype is DataType.Bool:
        return
    dim = draw(st.integers(0, len(shape) - 1))
    first = draw(st.integers(0, shape[dim] - 1))
    starts: list[Any] = [0] * len(shape)
    stops = [tensor.size(d) for d in range(len(shape))]
    starts[dim], stops[dim] = first, first + 1
    made.add(made.fd.ops.maximum(tensor, made.fd.ops.slice(tensor, starts, stops)), shape)


STEPS = (
    _unary, _unary, _binary, _binary, _binary, _reduce, _reduce, _var_mean, _cast, _permute,
    _new_dim, _squeeze, _reshape, _where, _normalise, _matmul, _scan, _triu, _topk, _random,
    _index_put, _points, _single,
)  # fmt: skip
