"""How types, numbers and symbolic integers are spelt in CUDA C++.

These are the leaves of the generated text: everything here is a pure function of one dtype, number
or IntExpr.  Invariant: a literal has the bits of the number it represents, and every spelling
except a sum is an atom, which needs no parentheses.  Sizes and indices are index_t, an integer of
32 or 64 bits (index_width.py), and never negative where they are divided.
"""

from __future__ import annotations

import math

import numpy as np

from ...dtypes import DataType, is_floating
from ...errors import UnsupportedError, expected
from ...ir.kernel import Less
from ...ir.scalars import (
    ONE,
    CeilDiv,
    FloorDiv,
    Integer,
    IntExpr,
    Max,
    Min,
    Mod,
    Sum,
    Symbol,
    Xor,
    terms_of,
)
from ...ir.vals import PythonNumber
from ...ops.binding import convert_number
from .index_width import index_factors

_TYPES = {
    DataType.Double: "double",
    DataType.Float: "float",
    DataType.Half: "half",
    DataType.BFloat16: "bfloat16",
    DataType.Float8_e4m3fn: "float8_e4m3fn",
    DataType.Float8_e5m2: "float8_e5m2",
    DataType.Float8_e8m0fnu: "float8_e8m0fnu",
    DataType.Int: "int64_t",
    DataType.Index: "int64_t",
    DataType.Int32: "int32_t",
    DataType.Int16: "int16_t",
    DataType.Int8: "int8_t",
    DataType.UInt8: "uint8_t",
    DataType.UInt64: "uint64_t",
    DataType.Bool: "bool",
}


def type_name(dtype: DataType) -> str:
    """The C++ type that stores `dtype`.  UnsupportedError for complex."""
    found = _TYPES.get(dtype)
    if found is None:
        raise UnsupportedError(expected("cuda", "a dtype that kernels compute", dtype))
    return found


def literal(value: PythonNumber, dtype: DataType) -> str:
    """The number, converted to `dtype` as a tensor's would be, as an expression of its type.

    Half-precision numbers are written as floats, in which they are computed.
    """
    number = convert_number(value, dtype)
    if dtype is DataType.Bool:
        return "true" if number else "false"
    if is_floating(dtype):
        assert isinstance(number, float)
        return _floating(number, dtype)
    text = str(number) if number != -(2**63) else f"{number + 1} - 1"
    return f"{type_name(dtype)}({text})"


def _floating(number: float, dtype: DataType) -> str:
    kind = "double" if dtype is DataType.Double else "float"
    if math.isnan(number):
        return f"limits<{kind}>::nan"
    if math.isinf(number):
        return f"limits<{kind}>::{'highest' if number > 0 else 'lowest'}"
    # The shortest decimal that reads back as the same number is both exact and readable.
    text = str(np.float64(number)) if kind == "double" else f"{np.float32(number)!s}f"
    return f"({text})" if text.startswith("-") else text


def symbol_name(symbol: Symbol) -> str:
    """A symbol as an identifier: `blockIdx.x` is the variable `blockIdx_x`."""
    return symbol.name.replace(".", "_")


def index_text(expr: IntExpr) -> str:
    """A symbolic integer as an index_t expression; sums have no parentheses."""
    match expr:
        case Integer():
            return str(expr.value)
        case Symbol():
            return symbol_name(expr)
        case Sum():
            return _sum_text(expr)
        case FloorDiv():
            return f"({_atom(expr.a)} / {_atom(expr.b)})"
        case Mod():
            return f"({_atom(expr.a)} % {_atom(expr.b)})"
        case Xor():
            return f"({_atom(expr.a)} ^ {_atom(expr.b)})"
        case CeilDiv():
            return f"ceil_divide<index_t>({index_text(expr.a)}, {index_text(expr.b)})"
        case Min():
            return f"minimum<index_t>({index_text(expr.a)}, {index_text(expr.b)})"
        case Max():
            return f"maximum<index_t>({index_text(expr.a)}, {index_text(expr.b)})"
    raise TypeError(f"not an integer expression: {expr!r}")


def _atom(expr: IntExpr) -> str:
    return f"({index_text(expr)})" if isinstance(expr, Sum) else index_text(expr)


def _sum_text(expr: Sum) -> str:
    """Positive terms first, so that a difference is written as one."""
    terms = sorted(terms_of(expr), key=lambda term: term[1] < 0)
    text = ""
    for monomial, coefficient in terms:
        factors = [_atom(atom) for atom in index_factors(monomial)]
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        sign = " - " if coefficient < 0 else " + "
        text += (sign if text else sign.strip().replace("+", "")) + "*".join(factors)
    return text


def condition_text(condition: Less) -> str:
    """`a < b`; as no index is negative, `a < 1` is `a == 0`."""
    if condition.b is ONE:
        return f"{index_text(condition.a)} == 0"
    return f"{index_text(condition.a)} < {index_text(condition.b)}"


class Assignment(str):
    """The line `target = value;` or, for a new variable, `kind target = value;`, with its parts."""

    target: str
    value: str

    @staticmethod
    def of(target: str, value: str, kind: str = "") -> Assignment:
        """`kind` is the type of a variable that the line declares."""
        made = Assignment(f"{kind} {target} = {value};" if kind else f"{target} = {value};")
        made.target, made.value = target, value
        return made


class Declaration(str):
    """The line `kind name;`, with its parts; the variable has no value yet."""

    kind: str
    name: str

    @staticmethod
    def of(kind: str, name: str) -> Declaration:
        """A variable; for an array, `name` includes the brackets."""
        made = Declaration(f"{kind} {name};")
        made.kind, made.name = kind, name
        return made
