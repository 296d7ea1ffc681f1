"""The values of a tensor that torch refuses, and the errors it raises for them.

    ValueCheck ::= refuses (a definition: Bool, true where there is no value), error, floating

A row of the op table has a check if torch has one; a gather always has its own, selected by its
`op`.  Kernels only detect that something is refused (`devices`); the evaluator, which has the
tensors, finds the first such element and raises.  An error has torch's type and begins with torch's
text; pyfuser adds in parentheses the operation, the value and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyfuser.dtypes import DataType, is_floating, is_integer
from pyfuser.errors import expected

Number = bool | int | float


@dataclass(frozen=True, slots=True, eq=False)
class ValueCheck:
    """The values that a pointwise op refuses.

    refuses   (scope, *operands) -> Bool, written like the definitions of the op table
    error     (op, the operands' first refused elements) -> the exception that torch raises
    floating  True if floating operands are checked, False if integers are
    """

    refuses: Callable[..., Any]
    error: Callable[[str, tuple[Number, ...]], Exception]
    floating: bool = False

    def applies(self, dtype: DataType) -> bool:
        """True if operands computed in `dtype` are checked."""
        return is_floating(dtype) if self.floating else is_integer(dtype)


def _with_details(text: str, op: str, what: str, got: object) -> str:
    return f"{text} ({expected(op, what, got)})"


# -- divisors


def _zero_division(op: str, operands: tuple[Number, ...]) -> Exception:
    dividend = operands[0]
    text = _with_details("ZeroDivisionError", op, "a divisor other than 0", f"{dividend} / 0")
    return RuntimeError(text)


ZERO_DIVISION = ValueCheck(lambda o, a, b: o.eq(b, o.constant(0)), _zero_division)


# -- classes and probabilities


def _outside(o: Any, x: Any, size: Any) -> Any:
    """Outside [0, size)."""
    if o.is_unsigned:
        return o.ge(x, size)
    return o.bitwise_or(o.lt(x, o.constant(0)), o.ge(x, size))


def _outside_both(o: Any, x: Any, size: Any) -> Any:
    """Outside [-size, size); unsigned dtypes have no -size."""
    if o.is_unsigned:
        return o.ge(x, size)
    zero = o.constant(0)
    below = o.bitwise_and(o.lt(x, zero), o.lt(o.add(x, size), zero))
    return o.bitwise_or(below, o.ge(x, size))


def _target_error(op: str, operands: tuple[Number, ...]) -> Exception:
    target, classes = operands[:2]
    what = f"a class in [0, {classes})"
    return IndexError(_with_details(f"Target {target} is out of bounds.", "nll_loss", what, target))


def _scatter_error(op: str, operands: tuple[Number, ...]) -> Exception:
    index, size, dim = operands
    text = f"index {index} is out of bounds for dimension {dim} with size {size}"
    return RuntimeError(_with_details(text, "scatter", f"an index in [0, {size})", index))


def _index_put_error(op: str, operands: tuple[Number, ...]) -> Exception:
    index, size, dim = operands
    text = f"index {index} is out of bounds for dimension {dim} with size {size}"
    return IndexError(_with_details(text, "index", f"an index in [-{size}, {size})", index))


def _class_error(op: str, operands: tuple[Number, ...]) -> Exception:
    value, classes = operands
    text = "Class values must be smaller than num_classes."
    if value < 0:
        text = "Class values must be non-negative."
    return RuntimeError(_with_details(text, "one_hot", f"a class in [0, {classes})", value))


def _probability_error(name: str) -> Callable[[str, tuple[Number, ...]], Exception]:
    def error(op: str, operands: tuple[Number, ...]) -> Exception:
        text = f"all elements of {name} should be between 0 and 1"
        what = f"{name} in [0, 1]"
        return RuntimeError(_with_details(text, "binary_cross_entropy", what, operands[0]))

    return error


def _no_probability(o: Any, x: Any) -> Any:
    inside = o.bitwise_and(o.ge(x, o.constant(0)), o.le(x, o.constant(1)))
    return o.logical_not(inside)  # NaN isn't a probability


TARGET = ValueCheck(
    lambda o, x, classes, ignored: o.bitwise_and(_outside(o, x, classes), o.ne(x, ignored)),
    _target_error,
)
CLASS = ValueCheck(_outside, _class_error)
PLACE = ValueCheck(lambda o, x, size, dim: _outside(o, x, size), _scatter_error)
INDEX = ValueCheck(lambda o, x, size, dim: _outside_both(o, x, size), _index_put_error)
PROBABILITY = ValueCheck(_no_probability, _probability_error("input"), floating=True)
TARGET_PROBABILITY = ValueCheck(_no_probability, _probability_error("target"), floating=True)


# -- indices

# The names by which users know these builders.
_NAMES = {"embedding_fwd": "embedding"}
# The builders for which a negative index counts from the end.
_COUNTED = ("index", "index_put")


def index_error(op: str, index: int, dim: int, size: int, rank: int) -> Exception:
    """torch's error for an index out of range of a tensor's dimension, by the builder's name."""
    kind: type[Exception] = IndexError
    counted = 0 if op in _COUNTED else dim  # torch counts the dimensions that are indexed
    text = f"index {index} is out of bounds for dimension {counted} with size {size}"
    match op:
        case "gather" | "take_along_axis" | "scatter" | "scatter_add" | "scatter_reduce":
            kind = RuntimeError
        case "index_add" if rank > 1:
            kind = RuntimeError
        case "embedding_fwd" | "index_select" if size == 0:
            kind, text = RuntimeError, "index_select(): self indexing axis dim should be positive"
        case "index_select" if dim == 1:
            kind = RuntimeError
            text = f"INDICES element is out of DATA bounds, id={index} axis_dim={size}"
        case "embedding_fwd" | "index_select" | "index_add" | "embedding_dense_backward":
            text = "index out of range in self"
    first = -size if op in _COUNTED else 0
    return kind(_with_details(text, _NAMES.get(op, op), f"an index in [{first}, {size})", index))
