"""Which pointwise operations are dear: what passes and schedulers ask before they compute again.

Dearer than reading the operands once more from a private cache (some 10 cycles a vector); all other
operations are cheaper computed twice than kept.
"""

from __future__ import annotations

from ..ir.exprs import Expr, PointwiseOp

EXPENSIVE = frozenset(
    """acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 erf erfc erfinv erfcinv lgamma log
    log10 log1p log2 sigmoid sin sinh silu tan tanh pow atan2 fmod remainder mod gcd""".split()  # noqa: SIM905
)


def is_expensive(expr: Expr) -> bool:
    """True for a dear pointwise operation."""
    return isinstance(expr, PointwiseOp) and expr.op in EXPENSIVE
