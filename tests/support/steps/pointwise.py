"""Steps of the op table: one row each, on operands in its domain, and casts.

A row says which operands it accepts (its dtype rule), in which range it is interesting (`samples`)
and what it refuses (`check`), so a new row joins by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pyfuser import DataType
from pyfuser.dtypes import FLOATING, INTEGERS
from pyfuser.errors import DefinitionError, UnsupportedError
from pyfuser.ops.dtype_rules import DtypeRule, OperandType, resolve
from pyfuser.ops.op import Op
from pyfuser.ops.table import OPS
from tests.support.steps.made import RandomFusion, Value, broadcast

NUMBERS: dict[str, tuple[Any, ...]] = {
    "floating": (0.5, -1.25, 2.0, 1e-3),
    "integer": (2, -3, 1, 7),
    "bool": (True, False),
}
WHOLE = (DataType.Int, DataType.Int32, DataType.Int16, DataType.Int8, DataType.UInt8)
WIDE = (DataType.Float, DataType.Double)
CASTS = (
    DataType.Float, DataType.Half, DataType.BFloat16, DataType.Double, DataType.Int,
    DataType.Int32, DataType.Int16, DataType.Int8, DataType.UInt8, DataType.UInt64, DataType.Bool,
    DataType.Index, DataType.Float8_e4m3fn, DataType.Float8_e5m2, DataType.Float8_e8m0fnu,
)  # fmt: skip
# Rules whose operands after the first are scalars, and what they stand for.
_SCALAR_RULES = (DtypeRule.KEEP_PROMOTED, DtypeRule.KEEP_FIRST)


def _accepted(rule: DtypeRule) -> tuple[DataType, ...] | None:
    """The dtypes to which an operand that a rule refuses is cast; None if it refuses none."""
    match rule:
        case DtypeRule.INTEGER:
            return WHOLE
        case DtypeRule.BITWISE:
            return (*WHOLE, DataType.Bool)
        case DtypeRule.FLOAT_RESULT | DtypeRule.TO_COMPLEX:
            return WIDE
    return None


def row(made: RandomFusion, name: str) -> None:
    """One row of the op table on values and numbers."""
    op = OPS[name]
    first = _first(made, op)
    if first is None:
        return
    if op.rule in _SCALAR_RULES:
        made.add(getattr(made.ops, name)(first.tensor, *_bounds(made, first, op)))
        return
    operands: list[Any] = [first]
    for _ in range(op.arity - 1):
        operands.append(_other(made, operands, op))
    if op.rule is DtypeRule.SELECT:
        operands[0] = _condition(made, operands)
    operands = [_divisor(made, x) if i and op.check else x for i, x in enumerate(operands)]
    if None in operands:
        return
    given = [x.tensor if isinstance(x, Value) else x for x in operands]
    if _resolves(op, operands):
        made.add(getattr(made.ops, name)(*given))


def _first(made: RandomFusion, op: Op) -> Value | None:
    value = made.value()
    if value is None:
        return None
    accepted = _accepted(op.rule)
    if accepted is not None and value.dtype not in accepted:
        value = made.value(lambda v: v.dtype in accepted) or made.cast(value, made.one_of(accepted))
    if op.arity == 1 and op.check is not None and value is not None and not value.is_floating:
        value = made.cast(value, DataType.Float)
    low, high = op.samples
    high -= (high - low) / 16 if op.check is not None else 0.0
    return None if value is None else in_range(made, value, low, high)


def in_range(made: RandomFusion, value: Value, low: float, high: float) -> Value | None:
    """The value, clamped if a floating number is outside a range."""
    if not value.is_floating or value.fits(low, high):
        return value
    if value.numbers.isnan().any():
        value = without_nan(made, value)
    inside = low + (high - low) / 16 if made.flag() else low
    clamped = made.add(made.ops.clamp(made.ops.abs(value.tensor), inside, high))
    return clamped[0] if clamped else None


def without_nan(made: RandomFusion, value: Value) -> Value:
    """The value with 1 in place of NaN."""
    is_number = made.ops.eq(value.tensor, value.tensor)
    changed = made.add(made.ops.where(is_number, value.tensor, 1.0))
    return changed[0] if changed else value


def _fits(operands: list[Any], value: Value) -> bool:
    """True if a value broadcasts with all operands."""
    return all(broadcast(other, value) for other in operands if isinstance(other, Value))


def _other(made: RandomFusion, operands: list[Any], op: Op) -> Any:
    """A further operand: a value that broadcasts with the others, or a number."""
    first = operands[0]
    accepted = _accepted(op.rule)
    if op.rule is DtypeRule.TO_COMPLEX or not made.flag(4):
        fits = made.value(
            lambda v: _fits(operands, v) and (accepted is None or v.dtype in accepted)
        )
        if fits is not None:
            return in_range(made, fits, -20.0, 20.0)
    if accepted is not None and first.dtype in INTEGERS:
        return made.scalar(made.one_of(NUMBERS["integer"]))
    if first.dtype is DataType.Bool:
        return made.scalar(made.one_of(NUMBERS["bool"]))
    kinds = ("integer", "floating") if first.is_floating else ("integer",)
    return made.scalar(made.one_of(NUMBERS[made.one_of(kinds)]))


def _bounds(made: RandomFusion, first: Value, op: Op) -> list[Any]:
    """The scalar operands of clamp and threshold."""
    kind = "floating" if first.is_floating else "integer"
    bounds = sorted(made.one_of(NUMBERS[kind]) for _ in range(op.arity - 1))
    return [made.scalar(bound) for bound in bounds]


def _condition(made: RandomFusion, operands: list[Any]) -> Value | None:
    """A Bool that broadcasts with the others; the first one is left out."""
    like: Value = operands[0]
    found = made.value(lambda v: v.dtype is DataType.Bool and _fits(operands[1:], v))
    if found is not None and made.flag():
        return found
    compared = made.add(made.ops.gt(like.tensor, made.one_of((0, 1))))
    return compared[0] if compared else None


def _divisor(made: RandomFusion, x: Any) -> Any:
    """An operand without zeros, which rows that divide refuse."""
    if not isinstance(x, Value) or (x.numbers != 0).all():
        return x
    if x.is_floating and made.flag(8):
        return x
    one = True if x.dtype is DataType.Bool else 1
    changed = made.add(made.ops.where(made.ops.ne(x.tensor, 0), x.tensor, one))
    return changed[0] if changed else None


def _resolves(op: Op, operands: list[Any]) -> bool:
    """True if the row's dtype rule accepts the operands."""
    types = []
    for x in operands:
        if isinstance(x, Value):
            types.append(OperandType(x.dtype, "tensor" if x.rank else "zero_dim"))
        elif not hasattr(x, "dtype"):
            kind = DataType.Double if isinstance(x, float) else DataType.Int
            types.append(OperandType(DataType.Bool if isinstance(x, bool) else kind, "scalar"))
        else:
            types.append(OperandType(x.dtype, "scalar"))
    try:
        resolve(op, types)
    except (DefinitionError, UnsupportedError):
        return False
    return True


def cast(made: RandomFusion, name: str) -> None:
    """A conversion to any dtype that holds the numbers."""
    value = made.value()
    if value is not None:
        made.cast(value, made.one_of(CASTS))


def checked(made: RandomFusion, name: str) -> None:
    """The rows that check an index, or a class, and return it."""
    size = made.number(1, 9)
    index = made.positions(tuple(made.order(3)[:2]), size, name == "checked_index")
    if index is not None:
        more = {"checked_class": (), "checked_target": (-100,)}.get(name, (0,))
        made.add(getattr(made.ops, name)(index.tensor, made.scalar(size), *more))


def imaginary(made: RandomFusion, name: str) -> None:
    """A complex number and its parts."""
    real = made.value(lambda v: v.dtype in WIDE)
    real = real or made.random_input((3, 4), DataType.Float)
    other = made.value(lambda v: v.dtype is real.dtype and v.shape == real.shape)
    number = made.ops.complex(real.tensor, (other or real).tensor)
    made.add(number, made.ops.imag(made.ops.mul(number, number)), made.ops.real(number))


def gate(made: RandomFusion, name: str) -> None:
    """The gate of a network: a product with a smooth step of another value."""
    value = made.value(lambda v: v.dtype in FLOATING)
    if value is None or not math.prod(value.shape):
        return
    step = getattr(made.ops, made.one_of(("sigmoid", "tanh", "erf", "silu")))(value.tensor)
    made.add(made.ops.mul(step, value.tensor))


Step = Callable[[RandomFusion, str], None]

_SPECIAL: dict[str, Step] = {
    "cast": cast,
    **{name: checked for name in OPS if name.startswith("checked_") and OPS[name].arity > 1},
}
STEPS: dict[str, Step] = {name: _SPECIAL.get(name, row) for name in OPS if OPS[name].in_kernels}
# Complex numbers have no kernels: torch computes what has them.
COMPLEX: dict[str, Step] = {name: imaginary for name in OPS if not OPS[name].in_kernels}
COMPOSITES: dict[str, Step] = {"gate": gate}
