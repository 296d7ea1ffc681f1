"""Emits any pointwise op of the op table as LLVM instructions.

The table says how an op is spelled: an instruction (`fadd`, `icmp slt`), a copy, or a routine
(`@tanh`) of `vector_math` or of this file. Ops that the table defines by other ops are expanded
here. Operands come in the compute type of one dtype, and the result is in the compute type of
another. An LLVM integer has no sign, so the dtype decides which instruction is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyfuser import dtypes
from pyfuser.devices.cpu.conversions import (
    compute_type,
    emit_cast,
    load_convert,
    storage_type,
    store_convert,
)
from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math import VECTOR_MATH, integer
from pyfuser.devices.cpu.vector_math.exponential import exp_beside_one
from pyfuser.devices.cpu.vector_math.half_precision import COMPLEMENTS, ROUTINES, routine_for
from pyfuser.devices.cpu.vector_math.half_precision.common import TIERS
from pyfuser.devices.cpu.vector_math.half_precision.division import divided_by_one_number
from pyfuser.dtypes import DataType
from pyfuser.errors import InternalError, UnsupportedError, expected
from pyfuser.ops.dtype_rules import Resolution
from pyfuser.ops.op import Number, Op
from pyfuser.ops.table import OPS, expand, refused

__all__ = [
    "compute_type",
    "emit_cast",
    "emit_op",
    "emit_refused",
    "load_convert",
    "storage_type",
    "store_convert",
]

# Rows of the op table whose definitions read exp in 1 + exp(x) only.
_ONE_PLUS_EXP = ("sigmoid", "silu")

# Whole-number routines: (writer, a, b, signed).
_INTEGER: dict[str, Callable[[FunctionWriter, Value, Value, bool], Value]] = {
    "div": integer.divide,
    "fmod": integer.modulo,
    "pow": integer.power,
    "gcd": integer.gcd,
    "bitwise_left_shift": integer.shift_left,
    "bitwise_right_shift": integer.shift_right,
    "logical_right_shift": integer.shift_right_logical,
}


def emit_op(
    w: FunctionWriter,
    op: str,
    args: Sequence[Value],
    compute: DataType,
    result: DataType,
    bits: int = 0,
) -> Value:
    """The op on operands in the compute type of `compute` (the condition of `where` is i1).

    Returns a value in the compute type of `result`.  `bits` are those of `Compute`.  Raises
    UnsupportedError for ops and dtypes that kernels can't compute.
    """
    row = OPS[op]
    if bits and compute is result is DataType.Float:
        value = _half_precision(w, op, args, bits)
        if value is not None:
            return value
    if op == "cast":
        return emit_cast(w, args[0], compute, result)
    if row.definition is None:
        return _primitive(w, row, args, compute)
    lanes = args[0].type.lanes

    def emit(inner: Op, operands: tuple[Value, ...], dtype: DataType, _: DataType) -> Value:
        if inner.name == "exp" and op in _ONE_PLUS_EXP:
            return exp_beside_one(w, *operands)
        return _primitive(w, inner, operands, dtype)

    def constant(number: Number, dtype: DataType) -> Value:
        return w.constant(number, compute_type(dtype, lanes))

    computed = dtypes.compute_dtype(compute)
    resolution = Resolution((computed,) * len(args), dtypes.compute_dtype(result))
    value = expand(row, args, resolution, emit, constant)
    if result in dtypes.REDUCED_FLOATING and not row.is_copy:
        return emit_cast(w, value, DataType.Float, result)
    return value


def _half_precision(w: FunctionWriter, op: str, args: Sequence[Value], bits: int) -> Value | None:
    """A float result that needs only `bits`; None if the usual one isn't slower."""
    routine = routine_for(ROUTINES, op, bits)
    if routine is not None:
        return routine(w, bits, *args)
    if op in ("div", "truediv") and bits <= TIERS[-1]:
        return divided_by_one_number(w, *args)
    if op == "add":
        one = w.constant(1.0, args[0].type).name
        for number, other in (args, args[::-1]):
            name, operand = w.computed_by.get(other.name, ("", other))
            routine = routine_for(COMPLEMENTS, name, bits)
            if number.name == one and routine is not None:
                return routine(w, bits, operand)
    return None


def emit_refused(w: FunctionWriter, op: str, args: Sequence[Value], compute: DataType) -> Value:
    """i1: where the check of an op refuses its operands (given as for `emit_op`)."""
    row, lanes = OPS[op], args[0].type.lanes

    def emit(inner: Op, operands: tuple[Value, ...], dtype: DataType, _: DataType) -> Value:
        return _primitive(w, inner, operands, dtype)

    def constant(number: Number, dtype: DataType) -> Value:
        return w.constant(number, compute_type(dtype, lanes))

    computed = dtypes.compute_dtype(compute)
    resolution = Resolution((computed,) * len(args), DataType.Bool)
    return refused(row, args, resolution, emit, constant)


def _primitive(w: FunctionWriter, row: Op, args: Sequence[Value], compute: DataType) -> Value:
    if row.llvm is None:
        raise UnsupportedError(expected(row.name, "an op that kernels compute", "one they don't"))
    spelling = row.llvm_for(compute)
    if spelling.startswith("@"):
        return _routine(w, spelling[1:], args, compute)
    match spelling.split():
        case ["copy"]:
            return args[0]
        case ["select"]:
            return w.select(*args)
        case ["fneg"]:
            return w.fneg(*args)
        case ["fcmp", predicate]:
            return w.fcmp(predicate, *args)
        case ["icmp", predicate]:
            return w.compare(predicate, *args)
        case [opcode]:
            return w.binary(opcode, *args)
        case _:
            raise InternalError(expected(row.name, "an LLVM spelling", repr(spelling)))


def _routine(w: FunctionWriter, name: str, args: Sequence[Value], compute: DataType) -> Value:
    if dtypes.is_floating(compute):
        routine = _FLOAT.get(name) or VECTOR_MATH.get(name)
        if routine is not None:
            value = routine(w, *args)
            if name in COMPLEMENTS:
                w.computed_by[value.name] = name, args[0]
            return value
    elif compute is DataType.Bool:
        if name in _BOOL:
            return _BOOL[name](w, *args)
    else:
        signed = dtypes.is_signed(compute)
        if name in _INTEGER:
            return _INTEGER[name](w, args[0], args[1], signed)
        if name in _INTEGER_SPECIAL:
            return _INTEGER_SPECIAL[name](w, signed, *args)
    raise UnsupportedError(expected(name, "a dtype that kernels compute it in", compute))


# -- floating routines of a few instructions ------------------------------------------------


def _minimum(w: FunctionWriter, a: Value, b: Value) -> Value:
    # The machine's min gives its second operand if they are equal or either is NaN: with a in that
    # place, only a NaN in b is left to handle.  A constant bound then needs just the one
    # instruction, and in a reduction, where a is the value so far, the comparison isn't on the
    # critical path.
    return w.select(w.is_nan(b), b, w.fmin_number(b, a))


def _maximum(w: FunctionWriter, a: Value, b: Value) -> Value:
    return w.select(w.is_nan(b), b, w.fmax_number(b, a))


def _fmin(w: FunctionWriter, a: Value, b: Value) -> Value:
    return w.select(w.is_nan(a), b, w.fmin_number(b, a))


def _fmax(w: FunctionWriter, a: Value, b: Value) -> Value:
    return w.select(w.is_nan(a), b, w.fmax_number(b, a))


def _signbit(w: FunctionWriter, a: Value) -> Value:
    bits = w.bitcast(a, a.type.as_integer)
    return w.icmp("slt", bits, w.constant(0, bits.type))


def _absolute(w: FunctionWriter, a: Value) -> Value:
    return w.fabs(a)


_FLOAT: dict[str, Callable[..., Value]] = {
    "abs": _absolute,
    "ceil": FunctionWriter.ceil,
    "floor": FunctionWriter.floor,
    "trunc": FunctionWriter.ftrunc,
    "round": FunctionWriter.roundeven,
    "sqrt": FunctionWriter.sqrt,
    "minimum": _minimum,
    "maximum": _maximum,
    "fmin": _fmin,
    "fmax": _fmax,
    "signbit": _signbit,
}


# -- integer routines of a few instructions -------------------------------------------------


def _integer_negative(w: FunctionWriter, signed: bool, a: Value) -> Value:
    return w.sub(w.constant(0, a.type), a)


def _integer_absolute(w: FunctionWriter, signed: bool, a: Value) -> Value:
    return integer.magnitude(w, a) if signed else a


def _integer_signbit(w: FunctionWriter, signed: bool, a: Value) -> Value:
    if not signed:
        return w.constant(False, a.type.with_element("i1"))
    return w.icmp("slt", a, w.constant(0, a.type))


def _integer_minimum(w: FunctionWriter, signed: bool, a: Value, b: Value) -> Value:
    return w.intrinsic("smin" if signed else "umin", a.type, a, b)


def _integer_maximum(w: FunctionWriter, signed: bool, a: Value, b: Value) -> Value:
    return w.intrinsic("smax" if signed else "umax", a.type, a, b)


_INTEGER_SPECIAL: dict[str, Callable[..., Value]] = {
    "neg": _integer_negative,
    "abs": _integer_absolute,
    "signbit": _integer_signbit,
    "minimum": _integer_minimum,
    "maximum": _integer_maximum,
}


# -- the same for i1, where 1 is true -----------------------------------------------------------


def _bool_power(w: FunctionWriter, a: Value, b: Value) -> Value:
    return w.or_(a, w.not_(b))


def _bool_remainder(w: FunctionWriter, a: Value, b: Value) -> Value:
    return w.constant(False, a.type)


def _bool_signbit(w: FunctionWriter, a: Value) -> Value:
    return w.constant(False, a.type)


_BOOL: dict[str, Callable[..., Value]] = {
    "pow": _bool_power,
    "fmod": _bool_remainder,
    "signbit": _bool_signbit,
}
