"""Random numbers once more, in Python's own integers and mpmath, and definitions that make them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import to_torch
from pyfuser.ops import random_numbers

DTYPES = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16)
DISTRIBUTIONS = random_numbers.DISTRIBUTIONS
SEED, OFFSET = -0x123456789ABCDEF, (1 << 33) + 5


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    words, (low, high) = list(counter), key
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            second >> 32 ^ words[1] ^ low,
            second % 2**32,
            first >> 32 ^ words[3] ^ high,
            first % 2**32,
        ]
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return words


def words_of(seed: int, offset: int, call: int) -> list[int]:
    halves = [n % 2**64 for n in (call, offset, seed)]
    call_words, offset_words, key = ([n % 2**32, n >> 32] for n in halves)
    return philox([*call_words, *offset_words], key)


def reference(distribution: str, seed: int, offset: int, index: int, is_double: bool) -> float:
    """The number at an index, exactly except for the last rounding."""
    place = index % (2 if is_double else 4)
    words = words_of(seed, offset, index // (2 if is_double else 4))
    if distribution == "uniform":
        if is_double:
            return ((words[2 * place] << 32 | words[2 * place + 1]) >> 11) / 2.0**53
        return (words[place] >> 8) / 2.0**24
    if is_double:
        fraction = ((words[0] << 32 | words[1]) >> 11) / mpmath.mpf(2) ** 53 + 2.0**-54
        turn = (words[2] << 32 | words[3]) / mpmath.mpf(2) ** 64
    else:
        fraction = words[place & 2] / mpmath.mpf(2) ** 32 + 2.0**-33
        turn = words[(place & 2) + 1] / mpmath.mpf(2) ** 32
    function = mpmath.sin if place % 2 else mpmath.cos
    return float(mpmath.sqrt(-2 * mpmath.log(fraction)) * function(2 * mpmath.pi * turn))


def defined(
    distribution: str,
    shape: Sequence[int],
    dtype: DataType = DataType.Float,
    finish: Callable[[Any, Any], Any] = lambda ops, x: x,
) -> FusionDefinition:
    """A definition of seed and offset that returns `finish` of standard random numbers."""
    with FusionDefinition() as fd:
        seed, offset = fd.define_vector(2)
        make = getattr(fd.ops, distribution)
        x = make(0.0, 1.0, shape, rng_seed=seed, rng_offset=offset, dtype=dtype)
        fd.add_output(finish(fd.ops, x))
    return fd


def expected(distribution: str, shape: Sequence[int], dtype: DataType) -> torch.Tensor:
    """What the reference gives for SEED and OFFSET."""
    index = torch.arange(math.prod(shape)).reshape(tuple(shape))
    state = torch.tensor(SEED), torch.tensor(OFFSET)
    return random_numbers.random(distribution, *state, index, dtype).to(to_torch(dtype))
