"""Which pointwise operations are dear: what passes and schedulers ask before they compute again.

Dearer than reading the operands once more from a private cache (some 10 cycles a vector); all other
operations are cheaper computed twice than kept.
"""

from __future__ import annotations

from ..ir.exprs import BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, PointwiseOp, SqueezeOp

EXPENSIVE = frozenset(
    """acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 erf erfc erfinv erfcinv lgamma log
    log10 log1p log2 sigmoid sin sinh silu tan tanh pow atan2 fmod remainder mod gcd""".split()  # noqa: SIM905
)


def is_expensive(expr: Expr) -> bool:
    """True for a dear pointwise operation."""
    return isinstance(expr, PointwiseOp) and expr.op in EXPENSIVE


# Several times the price of an addition, but cheaper than to read an element from memory.
_DIVISIONS = frozenset(("div", "truediv", "reciprocal", "sqrt", "rsqrt"))

# A segment_set keeps what is before it in its kernel, and random numbers differ from call to call.
_ONCE = frozenset(("segment_set", "rand_like", "randn_like"))


def recomputation_cost(expr: Expr) -> int | None:
    """What it costs to compute an expression again, in additions an element; None for dear ones."""
    match expr:
        case BroadcastOp() | ExpandOp() | SqueezeOp() | FullOp() | IotaOp():
            return 0
        case PointwiseOp() if expr.op in EXPENSIVE or expr.op in _ONCE:
            return None
        case PointwiseOp():
            return 4 if expr.op in _DIVISIONS else 1
        case _:
            return None
