"""Special functions: pointwise ops that are formulas of several rows of the op table.

Where a naive formula would give NaN (0 * log 0, two infinities), they give torch's values.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...dtypes import from_torch, is_floating
from ...ops.binding import convert_number
from .pointwise import all_overloads
from .region_builder import Call
from .term import Term
from .translation import Build, Table, Translation

aten = torch.ops.aten


def _xlogy(call: Call, x: Any, y: Any) -> Term:
    left, right = call.operand(x, call.dtype), call.operand(y, call.dtype)
    product = left.equals(0).choose(0.0, left * right.op("log"))
    return right.op("isnan").choose(right, product)


def _xlog1py(call: Call, x: Any, y: Any) -> Term:
    left, right = call.operand(x, call.dtype), call.operand(y, call.dtype)
    product = left.equals(0).choose(0.0, left * right.op("log1p"))
    return right.op("isnan").choose(right, product)


def _logaddexp(exponential: str) -> Build:
    def build(call: Call, a: Any, b: Any) -> Term:
        left, right = call.held(a, call.dtype), call.held(b, call.dtype)
        upper, lower = left.op("maximum", right), left.op("minimum", right)
        distance = lower - upper
        if exponential == "exp":
            spread = distance.op("exp").op("log1p")
        else:
            spread = distance.op("exp2").op("log1p") * (1 / math.log(2.0))
        same = left.equals(right) & left.op("abs").equals(math.inf)
        return same.choose(left, upper + spread)

    return build


def _hypot(call: Call, a: Any, b: Any) -> Term:
    left = call.held(a, call.dtype).op("abs")
    right = call.held(b, call.dtype).op("abs")
    upper, lower = left.op("maximum", right), left.op("minimum", right)
    # Scaled by the larger one, so that squares neither overflow nor underflow.
    ratio = lower / upper
    length = upper * (1 + ratio * ratio).op("sqrt")
    length = upper.equals(0).choose(upper, length)
    infinite = left.equals(math.inf) | right.equals(math.inf)
    return infinite.choose(call.constant(math.inf), length)


def _copysign(call: Call, a: Any, b: Any) -> Term:
    size = call.operand(a, call.dtype).op("abs")
    return call.operand(b, call.dtype).op("signbit").choose(-size, size)


def _heaviside(call: Call, x: Any, values: Any) -> Term:
    term = call.exact(x)
    step = (term > 0).choose(call.constant(1), call.constant(0))
    step = term.equals(0).choose(call.held(values, call.dtype), step)
    return step


def _logit_bounds(call: Call, eps: float | None) -> tuple[float, float] | None:
    """The bounds of logit's clamp, rounded to its dtype; None if `eps` is None or negative."""
    if eps is None or eps < 0:
        return None
    dtype = from_torch(call.meta.dtype)
    low = convert_number(eps, dtype).real
    return low, convert_number(1 - low, dtype).real


def _logit(call: Call, x: Any, eps: float | None = None) -> Term:
    term = call.held(x, call.dtype)
    bounds = _logit_bounds(call, eps)
    if bounds is not None:
        low, high = (call.constant(bound) for bound in bounds)
        term = (term < low).choose(low, (term > high).choose(high, term))
    return (term / (1 - term)).op("log")


def _logit_backward(call: Call, grad: Any, x: Any, eps: float | None = None) -> Term:
    slope, term = call.held(grad, call.dtype), call.held(x, call.dtype)
    bounds = _logit_bounds(call, eps)
    low, high = bounds or (0.0, 1.0)
    outside = (term < low) | (term > high)
    blocked = call.constant(math.nan if bounds is None else 0.0)
    return outside.choose(blocked, slope / (term * (1 - term)))


def _entr(call: Call, x: Any) -> Term:
    term = call.held(x, call.dtype)
    positive = (term > 0).choose(-term * term.op("log"), call.constant(-math.inf))
    at_zero = term.equals(0).choose(0.0, positive)
    return term.op("isnan").choose(term, at_zero)


def _sinc(call: Call, x: Any) -> Term:
    term = call.held(x, call.dtype) * math.pi
    return term.equals(0).choose(1.0, term.op("sin") / term)


def _round_decimals(call: Call, x: Any, decimals: int) -> Term:
    term = call.exact(x)
    if not is_floating(term.dtype):
        return term
    scale = float(10 ** abs(decimals))
    if decimals < 0:
        return (term / scale).op("round") * scale
    return (term * scale).op("round") / scale


def _few_decimals(node: Any, x: Any, decimals: int) -> str | None:
    return None if abs(decimals) <= 22 else f"{decimals} decimals, which no double holds"


TRANSLATIONS: Table = {
    **all_overloads(
        "xlogy", ("Tensor", "Scalar_Other", "Scalar_Self"), Translation(_xlogy, "heavy")
    ),
    **all_overloads(
        "special_xlog1py",
        ("default", "other_scalar", "self_scalar"),
        Translation(_xlog1py, "heavy"),
    ),
    **all_overloads("copysign", ("Tensor", "Scalar"), Translation(_copysign)),
    aten.logaddexp.default: Translation(_logaddexp("exp"), "heavy"),
    aten.logaddexp2.default: Translation(_logaddexp("exp2"), "heavy"),
    aten.hypot.default: Translation(_hypot),
    aten.heaviside.default: Translation(_heaviside, exact=(0,)),
    aten.logit.default: Translation(_logit, "heavy"),
    aten.logit_backward.default: Translation(_logit_backward),
    aten.special_entr.default: Translation(_entr, "heavy"),
    aten.sinc.default: Translation(_sinc, "heavy"),
    aten.round.decimals: Translation(_round_decimals, check=_few_decimals, exact=(0,)),
}
