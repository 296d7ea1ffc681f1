"""Binding: from a fusion and the inputs of a call to the values of its symbols and scalars.

Checks the definition's promises about its inputs (count, kind, dtype, rank, sizes, contiguity, the
recorded equalities) and raises InputError, in the words of the nvfuser_direct interface, if a call
breaks them.  The evaluator binds every call; the executor binds to make a plan.  Scalars are
computed here, on the host, in the dtypes of the op table.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..dtypes import (
    COMPLEX,
    FLOATING,
    DataType,
    fits,
    fits_64_bits,
    from_torch,
    integer_text,
    of_python_value,
    to_torch,
)
from ..errors import InputError, expected
from ..ir.domains import IterDomain
from ..ir.exprs import PointwiseOp, is_seed
from ..ir.fusion import Fusion
from ..ir.scalar_queries import evaluate
from ..ir.scalars import ONE, Integer, IntExpr, Min, Symbol
from ..ir.vals import PythonNumber, Scalar, TensorView
from .metadata import TensorLike, TensorMetadata
from .pointwise import resolve_expr
from .random_state import with_any_random_state
from .table import OPS
from .value_checks import ZERO_DIVISION

Input = torch.Tensor | TensorMetadata | PythonNumber


@dataclass(slots=True)
class Binding:
    """The sizes by the names of their symbols, and the numbers of the scalars."""

    sizes: dict[str, int] = field(default_factory=dict)
    scalars: dict[Scalar, PythonNumber] = field(default_factory=dict)

    def size(self, extent: IntExpr) -> int:
        """The value of a size.  InputError if it is a quotient by 0."""
        try:
            return evaluate(extent, self.sizes)
        except ZeroDivisionError:
            what = f"sizes by which {extent} can be computed"
            raise InputError(expected("execute", what, "a division by 0")) from None

    def scalar(self, scalar: Scalar) -> PythonNumber:
        """The value of a scalar."""
        found = self.scalars.get(scalar)
        if found is not None:
            return found
        if scalar.constant is not None:
            return scalar.constant
        if scalar.extent is None:
            raise InputError(expected("scalar", f"a value for {scalar}", "none"))
        return self.size(scalar.extent)


def bind(fusion: Fusion, inputs: Sequence[Input]) -> Binding:
    """Binds and checks the inputs of one call.  Raises InputError.

    The seed and the offset of random numbers may be missing: nothing depends on them here.
    """
    inputs = with_any_random_state(fusion, inputs)
    if len(inputs) != len(fusion.inputs):
        what = f"{len(fusion.given_inputs)} inputs"
        raise InputError(expected("execute", what, len(inputs)))
    binding = Binding()
    for position, (value, given) in enumerate(zip(fusion.inputs, inputs, strict=True)):
        if isinstance(value, TensorView):
            _bind_tensor(binding, position, value, given)
        elif isinstance(value, Scalar) and not _is_seed_in_memory(value, given):
            _bind_scalar(fusion, binding, position, value, given)
    _compute_scalars(fusion, binding)
    _check_composite_sizes(fusion, binding, inputs)
    for a, b in fusion.equal_extents:
        if binding.size(a) != binding.size(b):
            got = f"{a} = {binding.size(a)} and {b} = {binding.size(b)}"
            what = f"the sizes {a} and {b} to be equal"
            if isinstance(a, Min) and b in (a.a, a.b):
                size = a.b if a.a is b else a.a
                what, got = f"{b} to be at most {size}", f"{binding.size(b)} > {binding.size(size)}"
            op = fusion.required_by.get((a, b), "execute")
            raise InputError(expected(op, what, got, _origins(fusion, a, b)))
    return binding


def _origins(fusion: Fusion, *sizes: IntExpr) -> str:
    """Where the inputs have the symbols of some sizes, for a message."""
    found: dict[IntExpr, str] = {}
    for position, value in enumerate(fusion.inputs):
        if isinstance(value, TensorView):
            for dim, axis in enumerate(value.axes):
                found.setdefault(axis.size, f"dimension {dim} of input {position}")
        elif isinstance(value, Scalar) and value.extent is not None:
            found.setdefault(value.extent, f"input {position}")
    symbols = sorted({symbol for size in sizes for symbol in size.symbols}, key=str)
    return ", ".join(f"{symbol} is {found[symbol]}" for symbol in symbols if symbol in found)


def bind_extents(fusion: Fusion, inputs: Sequence[Input]) -> dict[str, int]:
    """The value of each symbol, by its name, with everything checked (see `bind`)."""
    return bind(fusion, inputs).sizes


@dataclass(slots=True)
class _Where:
    """The beginning of a message; the text is only made for a message."""

    position: int
    value: TensorView

    def __str__(self) -> str:
        return f"Expected input {self.position}, {self.value}, to"


def _bind_tensor(binding: Binding, position: int, value: TensorView, given: Input) -> None:
    where = _Where(position, value)
    if not isinstance(given, TensorLike):
        raise InputError(f"{where} be an at::Tensor but got {_non_tensor_text(given)}")
    if given.layout is not torch.strided:
        raise InputError(f"{where} be a dense tensor with elements, but got layout {given.layout}")
    try:
        dtype = from_torch(given.dtype)
    except KeyError:
        dtype = DataType.Null
    declared = DataType.Int if value.dtype is DataType.Index else value.dtype
    if dtype is not declared:
        got = given.dtype if dtype is DataType.Null else dtype.value
        raise InputError(
            f"{where} be bound to a tensor of dtype {value.dtype.value}, "
            f"but got a tensor of dtype {got}"
        )
    axes = value.axes
    if given.dim() != len(axes):
        raise InputError(f"{where} be of rank {len(axes)}, but got a tensor of rank {given.dim()}")
    for dim, (axis, size) in enumerate(zip(axes, given.shape, strict=True)):
        _bind_axis(binding, where, dim, axis, size)
    _check_contiguity(where, value, given)


def _bind_axis(binding: Binding, where: _Where, dim: int, axis: IterDomain, size: int) -> None:
    extent = axis.size
    if isinstance(extent, Symbol):
        known = binding.sizes.setdefault(extent.name, size)
    elif isinstance(extent, Integer):
        known = extent.value
    else:
        return
    if known != size:
        raise InputError(f"{where} be of size {known} in dimension {dim}, but got size {size}")


def _check_contiguity(
    where: _Where, value: TensorView, given: torch.Tensor | TensorMetadata
) -> None:
    """Checks that every axis declared contiguous has the stride of what is inside it.

    What lies around an expanded axis isn't checked: the axis may have any stride, and with it what
    is outside.
    """
    allocation = value.domain.allocated
    if given.numel() <= 1 or set(allocation) != set(value.axes):
        return
    dense: int | None = 1
    position = {axis: dim for dim, axis in enumerate(value.axes)}
    for axis, contiguous in zip(
        reversed(allocation), reversed(value.domain.contiguity), strict=True
    ):
        dim = position[axis]
        if contiguous is None:
            if axis.is_expanded:
                dense = None
            continue
        size, stride = given.shape[dim], given.stride(dim)
        if contiguous and size != 1 and dense is not None and stride != dense:
            raise InputError(
                f"{where} be contiguous in dimension {dim} (of stride {dense}), "
                f"but got stride {stride}; define it with contiguity=False or fd.from_pytorch(x)"
            )
        if size != 1:
            dense = stride * size


def _non_tensor_text(value: object) -> str:
    """A number, or the type of anything else: an array's elements would be too long."""
    if value is None or isinstance(value, (bool, int, float, complex)):
        return f"scalar {_number_text(value)}"
    kind = type(value)
    return (
        f"a {kind.__qualname__}"
        if kind.__module__ == "builtins"
        else f"a {kind.__module__}.{kind.__qualname__}"
    )


def _number_text(value: object) -> str:
    """A number as the interface's messages print it: complex ones as (real,imag)."""
    if isinstance(value, int):
        return integer_text(value)
    if isinstance(value, complex):
        return f"({value.real:g},{value.imag:g})"
    return str(value)


def _is_seed_in_memory(value: Scalar, given: Input) -> bool:
    """True for a seed that only the kernels read (ops.random_state)."""
    is_number = isinstance(given, TensorLike) and not given.dim() and given.dtype is torch.int64
    return is_number and is_seed(value)


def _bind_scalar(
    fusion: Fusion, binding: Binding, position: int, value: Scalar, given: Input
) -> None:
    if isinstance(given, TensorLike):
        dtype = from_torch(given.dtype).value
        raise InputError(
            f"Expected input {position}, {value}, to be a scalar but got {dtype} tensor "
            f"of rank {given.dim()}"
        )
    converted = _converted(given, value.dtype)
    if converted is None:
        raise InputError(
            f"Scalar value {_number_text(given)} is not compatible with the expected data type: "
            f"{value.dtype.value}."
        )
    binding.scalars[value] = converted
    _bind_size_of(fusion, binding, value, converted)


def plain_number(value: Any) -> Any:
    """A number of numpy as Python's; anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _converted(given: object, dtype: DataType) -> PythonNumber | None:
    """The number as a Python number of the dtype's kind; None if that would lose information."""
    given = plain_number(given)
    try:
        if dtype in COMPLEX:
            return complex(given) if isinstance(given, (bool, int, float, complex)) else None
        if dtype in FLOATING:
            return float(given) if isinstance(given, (bool, int, float)) else None
    except OverflowError:
        return None
    if dtype is DataType.Bool:
        return given if isinstance(given, bool) else None
    return int(given) if isinstance(given, (bool, int)) and fits(given, dtype) else None


def _bind_size_of(fusion: Fusion, binding: Binding, scalar: Scalar, number: PythonNumber) -> None:
    extent = scalar.extent
    if not isinstance(extent, Symbol) or extent.name in binding.sizes:
        return
    if not isinstance(number, int) or number < 0:
        what = f"a size of at least 0 for {scalar} (or an index, or the width of a pad)"
        raise InputError(expected(fusion.required_by.get(scalar, "execute"), what, number))
    binding.sizes[extent.name] = number


def _compute_scalars(fusion: Fusion, binding: Binding) -> None:
    for expr in fusion.exprs:
        output = expr.outputs[0]
        if not isinstance(output, Scalar) or not isinstance(expr, PointwiseOp):
            continue
        operands = [binding.scalar(value) for value in expr.inputs if isinstance(value, Scalar)]
        number = evaluate_scalar(expr, operands)
        binding.scalars[output] = number
        _bind_size_of(fusion, binding, output, number)


_EXACT: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


def evaluate_scalar(expr: PointwiseOp, operands: Sequence[PythonNumber]) -> PythonNumber:
    """A scalar expression's value for numbers as operands."""
    result = expr.output.dtype
    exact = _EXACT.get(expr.op)
    if exact is not None and result in (DataType.Int, DataType.Double):
        kind = int if result is DataType.Int else float
        a, b = (kind(operand.real) for operand in operands)
        number = exact(a, b)
        if isinstance(number, float) or fits_64_bits(number):
            return number
    if expr.op == "cast":
        return convert_number(operands[0], result)
    if expr.op in ("div", "truediv") and result is DataType.Double and operands[1] != 0:
        return float(operands[0].real) / float(operands[1].real)
    resolution, check = resolve_expr(expr), OPS[expr.op].check
    is_checked = check is ZERO_DIVISION and check.applies(resolution.compute[-1])
    if is_checked and int(operands[1].real) == 0:
        raise ZERO_DIVISION.error(expr.op, (operands[0].real, 0))
    tensors = [
        torch.tensor(convert_number(operand, dtype), dtype=to_torch(dtype))
        for operand, dtype in zip(operands, resolution.compute, strict=True)
    ]
    made: PythonNumber = OPS[expr.op].reference(*tensors).to(to_torch(result)).item()
    return made


def convert_number(value: PythonNumber, dtype: DataType) -> PythonNumber:
    """The number as a value of `dtype`: rounded, truncated or wrapped as a tensor would be.

    A complex number gives its real part, or whether it isn't 0.  InputError for an integer that
    neither 64 bits nor a double can hold.
    """
    if isinstance(value, complex) and dtype not in COMPLEX:
        value = bool(value) if dtype is DataType.Bool else value.real
    try:
        # Conversions that don't need a tensor: plans convert the scalars of every call.
        if not isinstance(value, complex):
            if dtype is DataType.Double:
                return float(value)
            if dtype is DataType.Float:
                return ctypes.c_float(value).value
            if dtype is DataType.Int and isinstance(value, int) and fits_64_bits(value):
                return int(value)
        if isinstance(value, int) and not fits_64_bits(value):
            if dtype in (*FLOATING, *COMPLEX):
                value = float(value)
            elif value in range(2**63, 2**64):
                value -= 2**64  # the same bits, which are a scalar's of UInt64
        widest = to_torch(of_python_value(value))
        converted: PythonNumber = torch.tensor(value, dtype=widest).to(to_torch(dtype)).item()
    except (OverflowError, ValueError):  # torch raises the latter for an integer
        what = f"a number that fits into {dtype.value}"
        raise InputError(expected("execute", what, _number_text(value))) from None
    return converted


def _check_composite_sizes(fusion: Fusion, binding: Binding, inputs: Sequence[Input]) -> None:
    """Checks the sizes that are expressions of others (inputs that another kernel computed)."""
    for position, (value, given) in enumerate(zip(fusion.inputs, inputs, strict=True)):
        if not isinstance(value, TensorView) or not isinstance(given, TensorLike):
            continue
        for dim, (axis, size) in enumerate(zip(value.axes, given.shape, strict=True)):
            extent = axis.size
            if extent is ONE or isinstance(extent, (Symbol, Integer)):
                continue
            if any(symbol.name not in binding.sizes for symbol in extent.symbols):
                continue
            if binding.size(extent) != size:
                raise InputError(
                    f"Expected input {position}, {value}, to be of size {binding.size(extent)} "
                    f"in dimension {dim}, but got size {size}"
                )
