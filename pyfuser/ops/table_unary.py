"""The unary rows of the op table, and `cast`.

Ops that can be expressed through others without losing accuracy or speed are definitions, so code
generators don't know them.  Stated accuracies of the vector math are those of docs/design.md: 2 ulp
in Float and 4 in Double of the correctly rounded result.  Source: the ops of the nvfuser_direct
interface; special values are torch's.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pyfuser.dtypes import DataType
from pyfuser.ops import references
from pyfuser.ops.dtype_rules import DtypeRule
from pyfuser.ops.op import DIVISION, EXPENSIVE, Op
from pyfuser.ops.value_checks import PROBABILITY, TARGET_PROBABILITY


def _math(
    name: str,
    doc: str,
    reference: references.Reference,
    samples: tuple[float, float] = (-10.0, 10.0),
    ulp: tuple[int, int] = (2, 4),
    cost: int = EXPENSIVE,
    is_real: bool = False,
) -> Op:
    """A row of class F: a routine of vector math on the CPU, the C library's function in CUDA."""
    llvm, cuda = f"@{name}", name + "{f}({0})"
    ulp32, ulp64 = ulp
    return Op(
        name, 1, DtypeRule.FLOAT, reference, doc, llvm, cuda,
        samples=samples, ulp32=ulp32, ulp64=ulp64, cost=cost, is_real=is_real,
    )  # fmt: skip


def _rounding(name: str, doc: str, reference: references.Reference, cuda: str | None = None) -> Op:
    """A row that rounds floats to whole numbers and leaves integers and Bool alone."""
    return Op(
        name, 1, DtypeRule.KEEP, references.identity_on_integers(reference), doc,
        f"@{name}|copy|copy|copy", (cuda or name) + "{f}({0})", cuda_integer="{0}",
        is_stepped=True, is_real=True,
    )  # fmt: skip


def _identity(o: Any, x: Any) -> Any:
    return x


def _sigmoid(o: Any, x: Any) -> Any:
    # As in torch: 0 where exp overflows; the exact result there is subnormal.
    one = o.constant(1)
    return o.div(one, o.add(one, o.exp(o.neg(x))))


def _relu(o: Any, x: Any) -> Any:
    # x86 has this order of the comparison as a single instruction: NaN and -0 stay.
    if o.is_unsigned:
        return x
    zero = o.constant(0)
    return o.where(o.gt(zero, x), zero, x)


def _sign(o: Any, x: Any) -> Any:
    zero = o.constant(0)
    negative = zero if o.is_unsigned else o.where(o.lt(x, zero), o.constant(-1), zero)
    return o.where(o.gt(x, zero), o.constant(1), negative)


def _isfinite(o: Any, x: Any) -> Any:
    return o.lt(o.abs(x), o.constant(math.inf)) if o.is_floating else _true(o, x)


def _isinf(o: Any, x: Any) -> Any:
    return o.eq(o.abs(x), o.constant(math.inf)) if o.is_floating else _false(o, x)


def _isposinf(o: Any, x: Any) -> Any:
    return o.eq(x, o.constant(math.inf)) if o.is_floating else _false(o, x)


def _isneginf(o: Any, x: Any) -> Any:
    return o.eq(x, o.constant(-math.inf)) if o.is_floating else _false(o, x)


def _isnan(o: Any, x: Any) -> Any:
    return o.ne(x, x) if o.is_floating else _false(o, x)


def _true(o: Any, x: Any) -> Any:
    return o.constant(True, DataType.Bool)


def _false(o: Any, x: Any) -> Any:
    return o.constant(False, DataType.Bool)


_FLOAT = (
    _math("acos", "arc cosine, in radians", torch.acos, (-1.0, 1.0)),
    _math("acosh", "inverse hyperbolic cosine", torch.acosh, (1.0, 100.0)),
    _math("asin", "arc sine, in radians", torch.asin, (-1.0, 1.0)),
    _math("asinh", "inverse hyperbolic sine", torch.asinh, (-100.0, 100.0)),
    _math("atan", "arc tangent, in radians", torch.atan),
    _math("atanh", "inverse hyperbolic tangent", torch.atanh, (-1.0, 1.0)),
    _math("cos", "cosine of radians", torch.cos),
    _math("cosh", "hyperbolic cosine", torch.cosh),
    _math("exp", "e to the power x", torch.exp, (-20.0, 20.0)),
    _math("exp2", "2 to the power x", torch.exp2, (-20.0, 20.0)),
    _math("expm1", "exp(x) - 1, accurate near 0", torch.expm1),
    _math("erf", "error function", torch.erf, (-4.0, 4.0), is_real=True),
    _math("erfc", "1 - erf(x), accurate for large x", torch.erfc, (-4.0, 9.0), is_real=True),
    _math("erfinv", "inverse of erf", torch.erfinv, (-1.0, 1.0), is_real=True),
    _math("erfcinv", "inverse of erfc", references.erfcinv, (0.0, 2.0), is_real=True),
    _math(
        "lgamma", "logarithm of the magnitude of gamma", torch.lgamma, (-5.0, 50.0), is_real=True
    ),
    _math("log", "natural logarithm", torch.log, (0.0, 100.0)),
    _math("log10", "logarithm to base 10", torch.log10, (0.0, 100.0)),
    _math("log1p", "log(1 + x), accurate near 0", torch.log1p, (-1.0, 10.0)),
    _math("log2", "logarithm to base 2", torch.log2, (0.0, 100.0)),
    Op(
        "reciprocal", 1, DtypeRule.FLOAT, torch.reciprocal, "1 / x",
        definition=lambda o, x: o.div(o.constant(1), x), cost=DIVISION,
    ),
    Op(
        "rsqrt", 1, DtypeRule.FLOAT, torch.rsqrt, "1 / sqrt(x)",
        definition=lambda o, x: o.div(o.constant(1), o.sqrt(x)),
        samples=(0.0, 100.0), ulp32=2, ulp64=2, cost=DIVISION,
    ),
    Op(
        "sigmoid", 1, DtypeRule.FLOAT, torch.sigmoid, "1 / (1 + exp(-x))",
        definition=_sigmoid, samples=(-20.0, 20.0), ulp32=3, ulp64=6, cost=EXPENSIVE,
    ),
    _math("sin", "sine of radians", torch.sin),
    _math("sinh", "hyperbolic sine", torch.sinh),
    # Instructions round correctly, but the reference, torch on a CPU, is sometimes an ulp off.
    _math("sqrt", "square root", torch.sqrt, (0.0, 100.0), (1, 1), DIVISION),
    _math("tan", "tangent of radians", torch.tan),
    _math("tanh", "hyperbolic tangent", torch.tanh, (-10.0, 10.0)),
)  # fmt: skip

_KEPT = (
    _rounding("ceil", "the least whole number not below x", torch.ceil),
    _rounding("floor", "the greatest whole number not above x", torch.floor),
    Op(
        "frac", 1, DtypeRule.KEEP, references.frac, "x - trunc(x); 0 for integers",
        definition=lambda o, x: o.sub(x, o.trunc(x)), is_stepped=True, is_real=True,
    ),
    Op(
        "relu", 1, DtypeRule.KEEP, references.relu, "0 where x < 0, else x", definition=_relu,
        keeps_values=True, is_real=True,
    ),
    _rounding("round", "nearest whole number, ties to even", torch.round, "rint"),
    Op(
        "silu", 1, DtypeRule.KEEP_FLOATING, lambda x: x * torch.sigmoid(x), "x * sigmoid(x)",
        definition=lambda o, x: o.mul(x, o.sigmoid(x)), samples=(-20.0, 20.0), ulp32=4, ulp64=7,
        cost=EXPENSIVE,
    ),
    _rounding("trunc", "x without its fraction", torch.trunc),
    Op("set", 1, DtypeRule.KEEP, torch.clone, "a copy", definition=_identity, is_copy=True),
    Op(
        "segment_set", 1, DtypeRule.KEEP, torch.clone,
        "a copy that always begins a new segment", definition=_identity, is_copy=True, is_cut=True,
    ),
    Op(
        "abs", 1, DtypeRule.REAL_PART, references.through_integers(torch.abs),
        "magnitude; the smallest integer stays itself", "@abs|@abs|copy|copy",
        "fabs{f}({0})", "{0} < 0 ? -{0} : {0}", "{0}", keeps_values=True, aten="abs",
    ),
    Op("real", 1, DtypeRule.REAL_PART, torch.real, "real part", definition=_identity),
    Op("imag", 1, DtypeRule.IMAGINARY_PART, torch.imag, "imaginary part of a complex"),
    Op(
        "neg", 1, DtypeRule.PROMOTE, references.through_integers(torch.neg),
        "-x; Bool stays itself", "fneg|@neg|@neg|copy", "-{0}", "wrapping_negate({0})",
        keeps_values=True, aten="neg",
    ),
    Op(
        "sign", 1, DtypeRule.KEEP, torch.sign, "-1, 0 or 1; 0 for NaN", definition=_sign,
        is_stepped=True, is_real=True,
    ),
)  # fmt: skip

_PREDICATES = (
    Op(
        "signbit", 1, DtypeRule.PREDICATE, torch.signbit, "whether the sign bit is set",
        "@signbit", "copysign{f}(1.0{f}, {0}) < 0", "{0} < 0", "false", is_real=True,
    ),
    Op(
        "logical_not", 1, DtypeRule.LOGICAL, torch.logical_not, "is x zero",
        definition=lambda o, x: o.bitwise_xor(x, o.constant(True)),
    ),
    Op(
        "bitwise_not", 1, DtypeRule.BITWISE, torch.bitwise_not, "all bits flipped; not x for Bool",
        definition=lambda o, x: o.bitwise_xor(x, o.constant(-1)),
    ),
    Op("isfinite", 1, DtypeRule.PREDICATE, torch.isfinite, "neither infinite nor NaN",
       definition=_isfinite),
    Op("isinf", 1, DtypeRule.PREDICATE, torch.isinf, "an infinity", definition=_isinf),
    Op("isnan", 1, DtypeRule.PREDICATE, torch.isnan, "not a number", definition=_isnan),
    Op("isneginf", 1, DtypeRule.PREDICATE, torch.isneginf, "minus infinity",
       definition=_isneginf, is_real=True),
    Op("isposinf", 1, DtypeRule.PREDICATE, torch.isposinf, "plus infinity",
       definition=_isposinf, is_real=True),
    Op("isreal", 1, DtypeRule.PREDICATE, torch.isreal, "has no imaginary part", definition=_true),
)  # fmt: skip

_CHECKED = (
    Op(
        "checked_probability", 1, DtypeRule.KEEP, torch.clone, "x, checked to be a probability",
        definition=_identity, check=PROBABILITY, samples=(0.0, 1.0), is_real=True,
    ),
    Op(
        "checked_target_probability", 1, DtypeRule.KEEP, torch.clone,
        "x, checked to be a target's probability", definition=_identity, check=TARGET_PROBABILITY,
        samples=(0.0, 1.0), is_real=True,
    ),
)  # fmt: skip

UNARY = (*_FLOAT, *_KEPT, *_PREDICATES, *_CHECKED)

# Converting the operands and the result is the whole operation: the reference does nothing.
CAST = Op(
    "cast", 1, DtypeRule.CAST, torch.clone,
    "conversion to a dtype; a complex gives its real part, a float loses its fraction; to Bool, "
    "whether it isn't 0", "@cast",
    "{0}",
)  # fmt: skip
