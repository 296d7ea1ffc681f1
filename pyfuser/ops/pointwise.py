"""Pointwise builders: turns operands of any dtype and rank into one well-formed `PointwiseOp`.

Python numbers become constant scalars that keep the user's value and type.  Tensors get the casts
required by the dtype rules and the broadcasts required by right alignment, each as a separate
expression.  An op's tensors therefore always have one rank and the dtype in which the op is
computed; a result that would be in half precision is Float, and the cast to half precision is
explicit.  Sizes that must be equal are recorded in `fusion.equal_extents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch

from ..dtypes import (
    COMPLEX,
    DataType,
    compute_dtype,
    fits,
    fits_64_bits,
    from_torch,
    integer_text,
    is_integer,
    of_python_value,
)
from ..errors import ArgumentTypeError, DefinitionError, expected
from ..ir.bounds import proves_at_most, smaller
from ..ir.domains import IterDomain, IterType
from ..ir.exprs import BroadcastOp, PointwiseOp
from ..ir.fusion import Fusion, plain_domain
from ..ir.scalar_functions import maximum, minimum
from ..ir.scalars import Integer, IntExpr, floor_div, mod
from ..ir.vals import PythonNumber, Scalar, TensorView, Val
from .dtype_rules import OperandType, Resolution, resolve
from .op import Op
from .single_elements import aligned_singles
from .table import OPS
from .value_checks import ZERO_DIVISION

Argument = Val | PythonNumber


def as_val(fusion: Fusion, operand: Argument, op: str = "operand") -> Val:
    """A value unchanged; a Python or numpy number as a constant of its own dtype.

    Raises ArgumentTypeError for anything else, DefinitionError for a value of another fusion.
    """
    if isinstance(operand, Val):
        if operand.fusion is not fusion:
            raise DefinitionError(expected(op, "a value of this fusion", "one of another fusion"))
        return operand
    try:
        dtype = of_python_value(operand)
    except TypeError:
        if isinstance(operand, np.generic):
            return as_val(fusion, operand.item(), op)
        what = "a tensor, a scalar or a Python number"
        raise ArgumentTypeError(expected(op, what, repr(operand))) from None
    return constant(fusion, operand, dtype, op)


def require_dtype(op: str, dtype: object) -> None:
    """ArgumentTypeError if something else, such as a torch dtype, is given for a DataType."""
    if isinstance(dtype, DataType):
        return
    hint = ""
    if isinstance(dtype, torch.dtype):
        with suppress(KeyError):
            hint = f"did you mean {from_torch(dtype)}?"
    raise ArgumentTypeError(expected(op, "a DataType", repr(dtype), hint))


def as_tensor(fusion: Fusion, operand: object, op: str) -> TensorView:
    """The operand, checked to be a tensor of this fusion."""
    if not isinstance(operand, TensorView):
        raise ArgumentTypeError(expected(op, "a tensor", repr(operand)))
    as_val(fusion, operand, op)
    return operand


def as_index(fusion: Fusion, op: str, index: object) -> TensorView:
    """A tensor of positions; DefinitionError if its dtype isn't Int or Int32."""
    tensor = as_tensor(fusion, index, op)
    if tensor.dtype not in (DataType.Int, DataType.Int32):
        raise DefinitionError(expected(op, "an index of Int or Int32", tensor.dtype))
    return tensor


def constant(
    fusion: Fusion, value: PythonNumber, dtype: DataType, op: str = "define_scalar"
) -> Scalar:
    """A constant scalar; a non-negative integer can be a size.

    DefinitionError for an integer that doesn't fit into the dtype, or into 64 bits.
    """
    if isinstance(value, int) and not fits(value, dtype):
        what = f"an integer of {dtype.value if fits_64_bits(value) else '64 bits'}"
        raise DefinitionError(expected(op, what, integer_text(value)))
    is_size = is_integer(dtype) and isinstance(value, int) and value >= 0
    extent = Integer.of(int(value)) if is_size and isinstance(value, int) else None
    return fusion.new_scalar(dtype, constant=value, extent=extent)


def operand_type(value: Val) -> OperandType:
    """What the dtype rules need to know about a value."""
    if not isinstance(value, TensorView):
        return OperandType(value.dtype, "scalar")
    return OperandType(value.dtype, "tensor" if value.ndim else "zero_dim")


def resolve_expr(expr: PointwiseOp) -> Resolution:
    """The dtypes that an expression's operands are computed in.

    Tensors already have that dtype; a scalar is converted where it is used.
    """
    target = expr.output.dtype if expr.op == "cast" else None
    return resolve(OPS[expr.op], [operand_type(v) for v in expr.inputs], target)


def require_equal(fusion: Fusion, op: str, a: IntExpr, b: IntExpr) -> None:
    """Records that two sizes must be equal; DefinitionError if they can't be."""
    if a is b:
        return
    if a.is_constant and b.is_constant:
        raise DefinitionError(expected(op, f"axes of one size, {a}", b))
    if (a, b) not in fusion.equal_extents:
        fusion.equal_extents.append((a, b))
        fusion.required_by[(a, b)] = op


def require_at_most(
    fusion: Fusion, op: str, what: str, size: IntExpr, limit: IntExpr, where: str = ""
) -> None:
    """Records that a size is at most another; DefinitionError, which names it, if it can't be."""
    if isinstance(size, Integer) and isinstance(limit, Integer):
        if size.value > limit.value:
            raise DefinitionError(expected(op, f"{what} of at most {limit}{where}", size))
        return
    require_equal(fusion, op, smaller(limit, size), size)


def joined_axis(fusion: Fusion, op: str, axes: Sequence[IterDomain]) -> IterDomain:
    """The output axis for aligned operand axes.

    It is broadcast only if all are; its size is the first real one, a constant if there is one.
    """
    real = [axis.extent for axis in axes if not axis.is_broadcast]
    expanded = [a.expanded_extent for a in axes if a.is_broadcast and a.expanded_extent is not None]
    sizes = real + expanded
    if not sizes:
        return fusion.ids.broadcast()
    chosen = next((size for size in sizes if size.is_constant), sizes[0])
    for size in sizes:
        require_equal(fusion, op, chosen, size)
    if real:
        return fusion.ids.new(chosen)
    return fusion.ids.new(Integer.of(1), IterType.BROADCAST, chosen)


def copy_axis(fusion: Fusion, axis: IterDomain) -> IterDomain:
    """A fresh axis with the kind and the sizes of another."""
    return fusion.ids.new(axis.extent, axis.iter_type, axis.expanded_extent)


def new_tensor(fusion: Fusion, axes: Sequence[IterDomain], dtype: DataType) -> TensorView:
    """A fresh dense tensor over these axes."""
    return fusion.new_tensor(plain_domain(axes), dtype)


def cast(fusion: Fusion, operand: Argument, dtype: DataType) -> Val:
    """[...] -> [...] in `dtype`; a copy if it has that dtype."""
    require_dtype("cast", dtype)
    value = as_val(fusion, operand, "cast")
    if isinstance(value, TensorView):
        return cast_tensor(fusion, value, dtype)
    if dtype is DataType.Null:
        raise DefinitionError(expected("cast", "a dtype", dtype))
    assert isinstance(value, Scalar)
    extent = value.extent if is_integer(value.dtype) and is_integer(dtype) else None
    output = fusion.new_scalar(dtype, extent=extent)
    fusion.add_expr(PointwiseOp((value,), (output,), "cast"))
    return output


def real_scalar(fusion: Fusion, value: Val, dtype: DataType) -> Val:
    """A scalar for kernels: a complex one that is computed in another dtype is cast before them."""
    return cast(fusion, value, dtype) if value.dtype in COMPLEX and dtype not in COMPLEX else value


def cast_tensor(fusion: Fusion, tensor: TensorView, dtype: DataType) -> TensorView:
    """`cast` of a tensor."""
    if dtype is DataType.Null:
        raise DefinitionError(expected("cast", "a dtype", dtype))
    return elementwise(fusion, "set" if dtype is tensor.dtype else "cast", tensor, dtype)


def copy(fusion: Fusion, tensor: TensorView) -> TensorView:
    """The `set` of a tensor: the result of a shape op that changes nothing."""
    return elementwise(fusion, "set", tensor, tensor.dtype)


def elementwise(fusion: Fusion, op: str, tensor: TensorView, dtype: DataType) -> TensorView:
    """op(tensor) with the tensor's axes and the given dtype, no promotion."""
    output = new_tensor(fusion, [copy_axis(fusion, axis) for axis in tensor.axes], dtype)
    fusion.add_expr(PointwiseOp((tensor,), (output,), op))
    return output


def prepend_axes(fusion: Fusion, tensor: TensorView, rank: int) -> TensorView:
    """[...] -> [1, ..., 1, ...] of the given rank; the tensor itself if it has it."""
    missing = rank - tensor.ndim
    if not missing:
        return tensor
    axes = [fusion.ids.broadcast() for _ in range(missing)]
    axes += [copy_axis(fusion, axis) for axis in tensor.axes]
    output = new_tensor(fusion, axes, tensor.dtype)
    flags = (True,) * missing + (False,) * tensor.ndim
    fusion.add_expr(BroadcastOp((tensor,), (output,), flags))
    return output


def pointwise(fusion: Fusion, op: str, *operands: Argument) -> Val:
    """One row of the op table on aligned elements: a tensor if any operand is one, else a scalar.

    Raises DefinitionError if the op doesn't accept these dtypes or sizes.
    """
    row = OPS[op]
    values = [as_val(fusion, operand, op) for operand in operands]
    resolution = resolve(row, [operand_type(v) for v in values])
    if not any(isinstance(value, TensorView) for value in values):
        return _scalar_pointwise(fusion, row, values, resolution.result)
    if OPS[op].is_copy:
        return elementwise(fusion, op, as_tensor(fusion, values[0], op), values[0].dtype)
    return _tensor_pointwise(fusion, row, values, resolution)


def _tensor_pointwise(
    fusion: Fusion, op: Op, values: list[Val], resolution: Resolution
) -> TensorView:
    rank = max(value.ndim for value in values if isinstance(value, TensorView))
    ready: list[Val] = []
    made: dict[tuple[Val, DataType], TensorView] = {}
    for value, dtype in zip(values, resolution.compute, strict=True):
        if not isinstance(value, TensorView):
            ready.append(real_scalar(fusion, value, dtype))
            continue
        aligned = made.get((value, dtype))
        if aligned is None:
            converted = value if value.dtype is dtype else cast_tensor(fusion, value, dtype)
            aligned = made[value, dtype] = prepend_axes(fusion, converted, rank)
        ready.append(aligned)
    tensors = [value for value in ready if isinstance(value, TensorView)]
    singles = dict(zip(tensors, aligned_singles(fusion, tensors), strict=True))
    ready = [singles.get(v, v) if isinstance(v, TensorView) else v for v in ready]
    columns = zip(*(tensor.axes for tensor in singles.values()), strict=True)
    axes = [joined_axis(fusion, op.name, column) for column in columns]
    output = new_tensor(fusion, axes, compute_dtype(resolution.result))
    fusion.add_expr(PointwiseOp(tuple(ready), (output,), op.name))
    if output.dtype is not resolution.result:
        return cast_tensor(fusion, output, resolution.result)
    return output


# The integer ops that are exact on symbolic sizes, which are never negative.
_SIZE_OPS: dict[str, Callable[[IntExpr, IntExpr], IntExpr]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": floor_div,
    "mod": mod,
    "fmod": mod,
    "remainder": mod,
    "minimum": minimum,
    "maximum": maximum,
}


def _scalar_pointwise(fusion: Fusion, op: Op, values: list[Val], result: DataType) -> Scalar:
    output = fusion.new_scalar(result, extent=_size_of_result(op.name, values, result))
    fusion.add_expr(PointwiseOp(tuple(values), (output,), op.name))
    return output


def _size_of_result(op: str, values: Sequence[Val], result: DataType) -> IntExpr | None:
    """The size that results from an op on sizes; None if it isn't exact or may be negative."""
    if not is_integer(result):
        return None
    sizes = [value.extent for value in values if isinstance(value, Scalar)]
    if op == "maximum" and any(size is not None for size in sizes):
        sizes = [_difference(value) for value in values]
    if OPS[op].is_copy:
        return sizes[0]
    if op not in (*_SIZE_OPS, "sub") or len(sizes) != 2:
        return None
    a, b = sizes
    if a is None or b is None:
        return None
    if OPS[op].check is ZERO_DIVISION and b is Integer.of(0):
        return None
    if op == "sub":
        return a - b if proves_at_most(b, a) else None
    return _SIZE_OPS[op](a, b)


def _difference(value: Val) -> IntExpr | None:
    """A size, or the difference of two, which may be negative."""
    if not isinstance(value, Scalar) or value.extent is not None:
        return value.extent if isinstance(value, Scalar) else None
    match value.expr:
        case PointwiseOp(op="sub", inputs=(Scalar(extent=IntExpr() as a), Scalar(extent=b))):
            return None if b is None else a - b
        case _:
            return None


def size_of_scalar(fusion: Fusion, op: str, entry: Argument) -> IntExpr:
    """A number or an integer scalar as a size; a scalar that isn't one yet gets a symbol.

    A floating scalar is cast to Int first.  Raises DefinitionError for a negative number,
    ArgumentTypeError for one that isn't whole.
    """
    value = as_val(fusion, entry, op)
    if not isinstance(value, Scalar):
        raise DefinitionError(expected(op, "a size", "a tensor"))
    if isinstance(value.constant, float) and not value.constant.is_integer():
        raise ArgumentTypeError(expected(op, "a whole number", value.constant))
    if not is_integer(value.dtype):
        converted = cast(fusion, value, DataType.Int)
        assert isinstance(converted, Scalar)
        value = converted
    if value.constant is not None and value.extent is None:
        raise DefinitionError(expected(op, "a size of at least 0", value.constant))
    if value.extent is None:
        value.extent = fusion.new_extent()
        fusion.required_by[value] = op
    return value.extent
