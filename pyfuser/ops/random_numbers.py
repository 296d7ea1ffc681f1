"""Random numbers: Philox 4x32-10 and what kernels make of its words; the reference, in torch.

    number = f(seed, offset, index)    index: the element's place in the op's output, row by row

Element i has words of the Philox call with key `seed` and counter (i // n, offset), where n numbers
come from one call: 4 of float32 (also rounded to half precision), 2 of float64.  So a number
depends on nothing else: not on a schedule, a device, a layout or a number of threads.

    uniform   the word's leading bits times a power of two: exactly in [0, 1).  For half precision
              the float32 is truncated, not rounded, because rounding would give 1.
    normal    Box-Muller: a pair of elements shares a radius sqrt(-2 ln u), u in (0, 1], and an
              angle, of which one takes the cosine and the other the sine.

Logarithm and sine are short series over single additions and multiplications here (`LOGARITHM`,
`SINE`), in the same order in both code generators, so that the bits agree.  Source: Salmon, Moraes,
Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..dtypes import DataType, to_torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF

# What may follow `random` in the name of an operation.
DISTRIBUTIONS = ("uniform", "normal")

# sqrt(1/2) as bits: adding and subtracting it splits a float at the nearest power of two.
HALF_ROOT = {DataType.Float: 0x3F3504F3, DataType.Double: 0x3FE6A09E667F3BCD}
MANTISSA = {DataType.Float: 23, DataType.Double: 52}

# Bits of a float32 that a half-precision type doesn't have.
DROPPED_BITS = {DataType.Half: 13, DataType.BFloat16: 16}

# ln((1 + s) / (1 - s)) = 2 s + s^3 (c1 + c2 s^2 + ...) for |s| < 0.172.
LOGARITHM = {
    DataType.Float: [2 / (2 * k + 1) for k in range(1, 6)],
    DataType.Double: [2 / (2 * k + 1) for k in range(1, 12)],
}


def _sine(terms: int) -> list[float]:
    return [
        (-1) ** k * (math.pi / 2) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(terms)
    ]


# sin(g pi / 2) = g (c0 + c1 g^2 + ...) for |g| <= 1.
SINE = {DataType.Float: _sine(7), DataType.Double: _sine(12)}


def numbers_per_call(dtype: DataType) -> int:
    """How many elements share the words of a Philox call."""
    return 2 if dtype is DataType.Double else 4


def philox(counter: Sequence[torch.Tensor], key: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The four words for a counter of four words and a key of two, all in int64 tensors."""
    a, b, c, d = counter
    k, m = key
    for _ in range(ROUNDS):
        # The product wraps to 64 bits, of which both halves are used.
        first, second = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b = ((second >> 32) & WORD) ^ b ^ k, second & WORD
        c, d = ((first >> 32) & WORD) ^ d ^ m, first & WORD
        k, m = (k + INCREMENTS[0]) & WORD, (m + INCREMENTS[1]) & WORD
    return [a, b, c, d]


def random(
    distribution: str,
    seed: torch.Tensor,
    offset: torch.Tensor,
    index: torch.Tensor,
    dtype: DataType,
) -> torch.Tensor:
    """The numbers at `index` (all int64, aligned); of a half-precision dtype as float32."""
    shared = numbers_per_call(dtype)
    call = torch.div(index, shared, rounding_mode="floor")
    counter = [word for n in (call, offset) for word in (n & WORD, (n >> 32) & WORD)]
    words = philox(counter, [seed & WORD, (seed >> 32) & WORD])
    place = index % shared
    if distribution == "uniform":
        return _uniform(words, place, dtype)
    number = _normal_double(words, place) if shared == 2 else _normal_float(words, place)
    return number.to(to_torch(dtype)).float() if dtype in DROPPED_BITS else number


def _picked(words: Sequence[torch.Tensor], place: torch.Tensor) -> torch.Tensor:
    return torch.stack([word.expand_as(place) for word in words]).gather(0, place.unsqueeze(0))[0]


def _uniform(words: Sequence[torch.Tensor], place: torch.Tensor, dtype: DataType) -> torch.Tensor:
    if dtype is DataType.Double:
        high, low = _picked(words, 2 * place), _picked(words, 2 * place + 1)
        return ((high << 21) | (low >> 11)).double() * 2.0**-53
    number = (_picked(words, place) >> 8).float() * 2.0**-24
    dropped = DROPPED_BITS.get(dtype)
    if dropped is None:
        return number
    return ((number.view(torch.int32) >> dropped) << dropped).view(torch.float32)


def _normal_float(words: Sequence[torch.Tensor], place: torch.Tensor) -> torch.Tensor:
    pair = place & 2
    fraction = _picked(words, pair).float() * 2.0**-32 + 2.0**-33
    turn = _picked(words, pair + 1) + ((1 - (place & 1)) << 30)
    turn = turn.to(torch.int32)
    beyond = (turn > 1 << 30) | (turn < -(1 << 30))
    turn = torch.where(beyond, -(1 << 31) - turn, turn)
    return _radius(fraction, DataType.Float) * _sine_of(turn.float() * 2.0**-30, DataType.Float)


def _normal_double(words: Sequence[torch.Tensor], place: torch.Tensor) -> torch.Tensor:
    first, second, third, fourth = words
    fraction = ((first << 21) | (second >> 11)).double() * 2.0**-53 + 2.0**-54
    turn = ((third << 32) | fourth) + ((1 - place) << 62)
    beyond = (turn > 1 << 62) | (turn < -(1 << 62))
    turn = torch.where(beyond, -(1 << 63) - turn, turn)
    return _radius(fraction, DataType.Double) * _sine_of(turn.double() * 2.0**-62, DataType.Double)


def _radius(fraction: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """sqrt(-2 ln x) for x in (0, 1]."""
    bits = fraction.view(torch.int64 if dtype is DataType.Double else torch.int32)
    exponent = (bits - HALF_ROOT[dtype]) >> MANTISSA[dtype]
    rest = (bits - (exponent << MANTISSA[dtype])).view(fraction.dtype) - 1
    s = rest / (rest + 2)
    square = s * s
    series = s * (square * _series(square, LOGARITHM[dtype])) + (s + s)
    logarithm = exponent.to(fraction.dtype) * math.log(2) + series
    return _square_root((logarithm * -2).double()).to(fraction.dtype)


def _square_root(x: torch.Tensor) -> torch.Tensor:
    """The correctly rounded root of float64 numbers: torch's may be off by its last bit.

    A Newton step, for which the square of the root is computed exactly, in two parts.
    """
    root = torch.sqrt(x)
    scaled = root * (2.0**27 + 1)
    high = scaled - (scaled - root)
    low = root - high
    square = root * root
    error = ((high * high - square) + 2 * high * low) + low * low
    corrected = root + ((x - square) - error) / (2 * root)
    return torch.where(root == 0, root, corrected)


def _sine_of(quarters: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """The sine of an angle in quarter turns, at most one in size."""
    return quarters * _series(quarters * quarters, SINE[dtype])


def _series(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total
