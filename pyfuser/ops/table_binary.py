"""The binary and ternary rows of the op table.

Integer arithmetic wraps.  A division by zero is refused and never traps: its value is 0.  In CUDA
spellings, the variable that is assigned to narrows what C++ widened to int, and functions missing
in C++ come from the CUDA device's helpers.  Source: the ops of the nvfuser_direct interface;
special values are torch's.
"""

from __future__ import annotations

from typing import Any

import torch

from pyfuser.ops import references
from pyfuser.ops.dtype_rules import DtypeRule
from pyfuser.ops.op import DIVISION, EXPENSIVE, Op
from pyfuser.ops.value_checks import CLASS, INDEX, PLACE, TARGET, ZERO_DIVISION


def _compare(name: str, doc: str, reference: references.Reference, llvm: str, sign: str) -> Op:
    is_order = name not in ("eq", "ne")
    return Op(
        name, 2, DtypeRule.COMPARE, reference, doc, llvm, "{0} " + sign + " {1}", is_real=is_order
    )


def _remainder(o: Any, a: Any, b: Any) -> Any:
    # fmod has the sign of a; if that differs from b's, and a isn't a multiple of b, add b.
    rest = o.fmod(a, b)
    if o.is_unsigned:
        return rest
    zero = o.constant(0)
    other_sign = o.bitwise_xor(o.lt(rest, zero), o.lt(b, zero))
    return o.where(o.bitwise_and(o.ne(rest, zero), other_sign), o.add(rest, b), rest)


def _lerp(o: Any, start: Any, end: Any, weight: Any) -> Any:
    span = o.sub(end, start)
    near_start = o.lt(o.abs(weight), o.constant(0.5 if o.is_floating else 1))
    from_start = o.add(start, o.mul(weight, span))
    from_end = o.sub(end, o.mul(span, o.sub(o.constant(1), weight)))
    return o.where(near_start, from_start, from_end)


_ARITHMETIC = (
    Op(
        "add", 2, DtypeRule.PROMOTE, torch.add, "a + b; or for Bool", "fadd|add|add|or",
        "{0} + {1}", "wrapping_add({0}, {1})",
    ),
    Op(
        "sub", 2, DtypeRule.PROMOTE, references.through_integers(torch.sub),
        "a - b; exclusive or for Bool", "fsub|sub|sub|xor",
        "{0} - {1}", "wrapping_subtract({0}, {1})", aten="sub",
    ),
    Op(
        "mul", 2, DtypeRule.PROMOTE, torch.mul, "a * b; and for Bool", "fmul|mul|mul|and",
        "{0} * {1}", "wrapping_multiply({0}, {1})",
    ),
    Op(
        "div", 2, DtypeRule.PROMOTE, references.div,
        "a / b, truncated for integers", "fdiv|@div|@div|and",
        "{0} / {1}", "truncating_divide({0}, {1})", check=ZERO_DIVISION, cost=DIVISION,
        aten="div",
    ),
    Op(
        "mod", 2, DtypeRule.PROMOTE, references.fmod, "as fmod",
        definition=lambda o, a, b: o.fmod(a, b), check=ZERO_DIVISION, cost=EXPENSIVE,
        is_real=True,
    ),
    Op(
        "fmod", 2, DtypeRule.PROMOTE, references.fmod,
        "remainder with the sign of a", "@fmod", "fmod{f}({0}, {1})",
        "truncating_modulo({0}, {1})", check=ZERO_DIVISION, cost=EXPENSIVE, is_stepped=True,
        is_real=True,
    ),
    Op(
        "remainder", 2, DtypeRule.PROMOTE, references.remainder,
        "remainder with the sign of b", definition=_remainder, check=ZERO_DIVISION,
        cost=EXPENSIVE, is_stepped=True, is_real=True,
    ),
    Op(
        "pow", 2, DtypeRule.PROMOTE, references.pow_,
        "a to the power b; integers wrap, and a negative exponent gives 1, -1 or 0", "@pow",
        "pow{f}({0}, {1})", "integer_power({0}, {1})", samples=(0.0, 10.0), ulp32=2, ulp64=4,
        cost=EXPENSIVE, aten="pow",
    ),
    Op(
        "minimum", 2, DtypeRule.PROMOTE, references.minimum, "the lesser, a if equal; NaN wins",
        "@minimum|@minimum|@minimum|and", "minimum({0}, {1})", keeps_values=True, is_real=True,
    ),
    Op(
        "maximum", 2, DtypeRule.PROMOTE, references.maximum, "the greater, a if equal; NaN wins",
        "@maximum|@maximum|@maximum|or", "maximum({0}, {1})", keeps_values=True, is_real=True,
    ),
    Op(
        "fmin", 2, DtypeRule.PROMOTE, references.fmin, "the lesser; a number wins over NaN",
        "@fmin|@minimum|@minimum|and", "lesser_number({0}, {1})", keeps_values=True, is_real=True,
    ),
    Op(
        "fmax", 2, DtypeRule.PROMOTE, references.fmax, "the greater; a number wins over NaN",
        "@fmax|@maximum|@maximum|or", "greater_number({0}, {1})", keeps_values=True, is_real=True,
    ),
    Op(
        "truediv", 2, DtypeRule.FLOAT, torch.div, "a / b in floating point",
        definition=lambda o, a, b: o.div(a, b), cost=DIVISION,
    ),
    Op(
        "atan2", 2, DtypeRule.FLOAT, torch.atan2, "the angle of the point (b, a), in radians",
        "@atan2", "atan2{f}({0}, {1})", ulp32=2, ulp64=4, cost=EXPENSIVE, is_real=True,
    ),
    Op(
        "nextafter", 2, DtypeRule.FLOAT_RESULT, torch.nextafter,
        "the number after a in the direction of b", "@nextafter", "nextafter{f}({0}, {1})",
        is_stepped=True,
    ),
)  # fmt: skip

_COMPARISONS = (
    _compare("eq", "a == b", torch.eq, "fcmp oeq|icmp eq|icmp eq|icmp eq", "=="),
    _compare("ne", "a != b", torch.ne, "fcmp une|icmp ne|icmp ne|icmp ne", "!="),
    _compare("lt", "a < b", torch.lt, "fcmp olt|icmp slt|icmp ult|icmp ult", "<"),
    _compare("le", "a <= b", torch.le, "fcmp ole|icmp sle|icmp ule|icmp ule", "<="),
    _compare("gt", "a > b", torch.gt, "fcmp ogt|icmp sgt|icmp ugt|icmp ugt", ">"),
    _compare("ge", "a >= b", torch.ge, "fcmp oge|icmp sge|icmp uge|icmp uge", ">="),
)

_BITS = (
    Op(
        "logical_and", 2, DtypeRule.LOGICAL, torch.logical_and, "are both non-zero",
        definition=lambda o, a, b: o.bitwise_and(a, b),
    ),
    Op(
        "logical_or", 2, DtypeRule.LOGICAL, torch.logical_or, "whether one of them is non-zero",
        definition=lambda o, a, b: o.bitwise_or(a, b),
    ),
    Op(
        "bitwise_and", 2, DtypeRule.BITWISE, torch.bitwise_and, "and of the bits",
        "-|and|and|and", "{0} & {1}",
    ),
    Op(
        "bitwise_or", 2, DtypeRule.BITWISE, torch.bitwise_or, "or of the bits",
        "-|or|or|or", "{0} | {1}",
    ),
    Op(
        "bitwise_xor", 2, DtypeRule.BITWISE, torch.bitwise_xor, "exclusive or of the bits",
        "-|xor|xor|xor", "{0} ^ {1}",
    ),
    Op(
        "bitwise_left_shift", 2, DtypeRule.INTEGER, torch.bitwise_left_shift,
        "a << b; 0 for b outside the width", "@bitwise_left_shift",
        None, "shift_left({0}, {1})",
    ),
    Op(
        "bitwise_right_shift", 2, DtypeRule.INTEGER, torch.bitwise_right_shift,
        "a >> b, the sign kept; b outside the width shifts by all of it", "@bitwise_right_shift",
        None, "shift_right({0}, {1})",
    ),
    Op(
        "logical_right_shift", 2, DtypeRule.INTEGER, references.logical_right_shift,
        "a >> b, shifting in zeros; 0 for b outside the width", "@logical_right_shift",
        None, "shift_right_logical({0}, {1})",
    ),
    Op(
        "gcd", 2, DtypeRule.INTEGER, references.gcd, "greatest common divisor; gcd(0, 0) is 0",
        "@gcd", None, "greatest_common_divisor({0}, {1})", cost=EXPENSIVE,
    ),
    Op("complex", 2, DtypeRule.TO_COMPLEX, torch.complex, "a + b * i"),
)  # fmt: skip

_CHECKED = (
    Op(
        "checked_class", 2, DtypeRule.KEEP_FIRST, references.first,
        "a, checked to be one of b classes", definition=lambda o, x, classes: x, check=CLASS,
        is_real=True,
    ),
)  # fmt: skip

BINARY = (*_ARITHMETIC, *_COMPARISONS, *_BITS, *_CHECKED)

TERNARY = (
    Op(
        "lerp", 3, DtypeRule.PROMOTE, references.lerp, "from a to b by the weight c",
        definition=_lerp,
    ),
    Op(
        "where", 3, DtypeRule.SELECT, torch.where, "b where a is true, else c", "select",
        "{0} ? {1} : {2}",
    ),
    Op(
        "clamp", 3, DtypeRule.KEEP_PROMOTED, references.clamp,
        "a raised to the scalar b, then lowered to the scalar c; NaN wins",
        definition=lambda o, x, low, high: o.minimum(o.maximum(x, low), high), is_real=True,
    ),
    Op(
        "threshold", 3, DtypeRule.KEEP_FIRST, references.threshold,
        "the scalar c where a is at most the scalar b, else a",
        definition=lambda o, x, bound, value: o.where(o.le(x, bound), value, x), is_real=True,
    ),
    Op(
        "checked_index", 3, DtypeRule.KEEP_FIRST, references.first,
        "a, checked to be an index, perhaps from the end, into dimension c of size b (a scalar)",
        definition=lambda o, x, size, dim: x, check=INDEX, is_real=True,
    ),
    Op(
        "checked_place", 3, DtypeRule.KEEP_FIRST, references.first,
        "a, checked to be an index into dimension c of size b (a scalar)",
        definition=lambda o, x, size, dim: x, check=PLACE, is_real=True,
    ),
    Op(
        "checked_target", 3, DtypeRule.KEEP_FIRST, references.first,
        "a, checked to be one of b classes, or c (scalars)",
        definition=lambda o, x, classes, ignored: x, check=TARGET, is_real=True,
    ),
    Op(
        "addcmul", 4, DtypeRule.PROMOTE, references.addcmul, "a + b * (c * alpha)",
        definition=lambda o, a, b, c, alpha: o.add(a, o.mul(b, o.mul(c, alpha))),
    ),
)  # fmt: skip
