"""Torch references of ops that torch spells differently, or refuses for some dtypes.

Each is a function of tensors of one compute dtype (a tensor or, for a scalar, a 0-dim tensor) and
defines an op of the table.  Where torch traps, pyfuser returns a value: the smallest integer
divided by -1 wraps, and arithmetic on Bool is integer arithmetic converted back to Bool.  Where
torch raises, there is a value too, which is only visible to computations before the op's check is
known to refuse: an integer divided by zero is 0.  Source: the ops of the nvfuser_direct interface,
and torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Reference = Callable[..., torch.Tensor]


def through_integers(reference: Reference) -> Reference:
    """A reference that also takes Bool: computed in int8, then converted back to Bool."""

    def wrapped(*operands: torch.Tensor) -> torch.Tensor:
        if all(t.dtype is torch.bool for t in operands):
            return reference(*(t.to(torch.int8) for t in operands)).to(torch.bool)
        return reference(*operands)

    return wrapped


def identity_on_integers(reference: Reference) -> Reference:
    """A rounding reference: integers and Bool are already whole."""

    def wrapped(x: torch.Tensor) -> torch.Tensor:
        return reference(x) if x.is_floating_point() else x.clone()

    return wrapped


def first(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """`x` itself."""
    return x.clone()


def _minus_one(x: torch.Tensor) -> torch.Tensor:
    """Where `x` is -1; nowhere for unsigned types, in which -1 would wrap to the largest."""
    return x == -1 if x.dtype.is_signed else torch.zeros_like(x, dtype=torch.bool)


@through_integers
def div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """C division: true for floats, truncated for integers; by zero is 0 for integers."""
    if a.is_floating_point() or a.is_complex():
        return a / b
    zero, minus_one = b == 0, _minus_one(b)
    # The smallest integer / -1 traps in hardware, so it is a negation, which wraps.
    quotient = torch.div(a, b.masked_fill(zero | minus_one, 1), rounding_mode="trunc")
    return torch.where(minus_one, -a, quotient).masked_fill(zero, 0)


def _float_fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """fmod, exact for every quotient; torch's own gives NaN where a / b overflows.

    A Float quotient fits in Double.  A Double one is reduced first, by multiples of b that are
    powers of two times b (an infinite one changes nothing); no step has a quotient above 2**700.
    """
    rest, divisor = a.double(), b.double()
    multiples = [divisor]
    if a.dtype is torch.float64:
        step = 2.0**700
        multiples += [divisor * step, divisor * step * step]
    for multiple in reversed(multiples):
        rest = torch.fmod(rest, multiple)
    return rest.to(a.dtype)


@through_integers
def fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The remainder with the sign of `a`; by zero is 0 for integers, NaN for floats."""
    if a.is_floating_point():
        return _float_fmod(a, b)
    return torch.fmod(a, b.masked_fill((b == 0) | _minus_one(b), 1))


@through_integers
def remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The remainder with the sign of `b`; by zero is 0 for integers, NaN for floats."""
    if a.is_floating_point():
        rest = _float_fmod(a, b)
        return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    return torch.remainder(a, b.masked_fill((b == 0) | _minus_one(b), 1))


@through_integers
def pow_(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Power; of integers it wraps, and a negative exponent gives 1, -1 or 0."""
    return torch.pow(a, b)


def logical_right_shift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Shift right, shifting in zeros; 0 if `b` is negative or at least the width."""
    bits = 8 * a.element_size()
    inside = (b >= 0) & (b < bits) if b.dtype.is_signed else b < bits
    b = b.masked_fill(~inside, 0)
    if not a.dtype.is_signed:
        return (a >> b).masked_fill(~inside, 0)
    # Clearing the copies of the sign bit makes the arithmetic shift a logical one.  If b is 0 there
    # are none: torch gives 0 for a left shift by the whole width.
    sign_copies = torch.bitwise_left_shift(torch.full_like(a, -1), bits - b)
    return torch.bitwise_and(a >> b, sign_copies.bitwise_not()).masked_fill(~inside, 0)


def gcd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Never negative, except for the smallest integer's own, which wraps."""
    return torch.gcd(a, b).abs()


def erfcinv(x: torch.Tensor) -> torch.Tensor:
    """The inverse of erfc, through the normal quantile, in Double."""
    quantile: torch.Tensor = torch.special.ndtri(x.double() / 2)
    # The inverse of 1 is 0, and not -0.
    return torch.div(quantile, -math.sqrt(2.0)).add(0.0).to(x.dtype)


def frac(x: torch.Tensor) -> torch.Tensor:
    """The part that truncation drops; 0 for integers, NaN for the infinities."""
    return x - torch.trunc(x) if x.is_floating_point() else torch.zeros_like(x)


def relu(x: torch.Tensor) -> torch.Tensor:
    """0 where `x` is negative; NaN stays NaN."""
    return torch.where(x < 0, torch.zeros_like(x), x)


def threshold(x: torch.Tensor, threshold: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`value` where `x` is at most `threshold`; NaN stays NaN."""
    return torch.where(x <= threshold, value, x)


def minimum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The lesser; a NaN wins; `a` if both are equal, also for zeros of different signs.

    torch returns `a` or `b` there, depending on its loop; its clamp always keeps its input.
    """
    return torch.where((b < a) | _is_nan(b), b, a)


def maximum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The greater; a NaN wins; `a` if both are equal."""
    return torch.where((b > a) | _is_nan(b), b, a)


def fmin(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The lesser; the other one if one is NaN; `a` if both are equal."""
    return torch.where((b < a) | _is_nan(a), b, a)


def fmax(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The greater; the other one if one is NaN; `a` if both are equal."""
    return torch.where((b > a) | _is_nan(a), b, a)


def _is_nan(x: torch.Tensor) -> torch.Tensor:
    return x != x


def clamp(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """`x` raised to `low`, then lowered to `high`; a NaN among the three gives NaN."""
    return minimum(maximum(x, low), high)


@through_integers
def lerp(start: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """From `start` to `end` by `weight`, counted from the end that is nearer."""
    span = end - start
    near_start = weight.abs() < 0.5
    return torch.where(near_start, start + weight * span, end - span * (1 - weight))


@through_integers
def addcmul(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """`a + b * (c * alpha)`, in that order of operations."""
    return a + b * (c * alpha)


def _reduce(fold: Reference, x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Folds one dimension after another, last one first, so that positions stay valid."""
    for dim in sorted((d % x.dim() for d in dims), reverse=True):
        x = fold(x, dim)
    return x


def sum_(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The sum over `dims`, in the dtype of `x`; `()` reduces nothing."""
    return torch.sum(x, dims, dtype=x.dtype) if dims else x.clone()


def prod(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The product over `dims`, in the dtype of `x`; `()` reduces nothing."""
    return _reduce(lambda t, dim: torch.prod(t, dim, dtype=t.dtype), x, dims)


def _extremum(
    fold: Reference, x: torch.Tensor, dims: tuple[int, ...], empty: object
) -> torch.Tensor:
    dims = tuple(d % x.dim() for d in dims)
    if any(x.shape[d] == 0 for d in dims):
        kept = [size for d, size in enumerate(x.shape) if d not in dims]
        return torch.full(kept, empty, dtype=x.dtype)  # type: ignore[call-overload, no-any-return]
    return fold(x, dims) if dims else x.clone()


def lowest(dtype: torch.dtype) -> bool | int | float:
    """The least number of `dtype`."""
    if dtype is torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> bool | int | float:
    """The greatest number of `dtype`."""
    if dtype is torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def max_(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The maximum over `dims`; NaN wins; over nothing it is the lowest number."""
    return _extremum(torch.amax, x, dims, lowest(x.dtype))


def min_(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The minimum over `dims`; NaN wins; over nothing it is the highest number."""
    return _extremum(torch.amin, x, dims, highest(x.dtype))


def nanmax(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The maximum over `dims` of what isn't NaN; over nothing it is the lowest number."""
    return max_(torch.where(_is_nan(x), lowest(x.dtype), x), dims) if dims else x.clone()


def nanmin(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The minimum over `dims` of what isn't NaN; over nothing it is the highest number."""
    return min_(torch.where(_is_nan(x), highest(x.dtype), x), dims) if dims else x.clone()


def cummax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The values of torch.cummax."""
    return torch.cummax(x, dim)[0]


def cummin(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The values of torch.cummin."""
    return torch.cummin(x, dim)[0]
