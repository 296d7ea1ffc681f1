"""Random numbers as vector instructions; `ops.random_numbers` defines them.

(seed, offset, index of the first lane or of every lane) -> one number per lane.  A word of Philox
is in the low half of an i64, and the high half is never looked at: that is the form in which
vectors are multiplied.  Lanes whose indices are consecutive share Philox calls of `n` numbers, one
more than they fill unless the first index is known to be a multiple of `n`; others make a call
each.  Invariant: only single additions and multiplications, in the reference's order, so that the
bits are the reference's on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...dtypes import DataType
from ...ops.random_numbers import (
    DROPPED_BITS,
    HALF_ROOT,
    INCREMENTS,
    LOGARITHM,
    MANTISSA,
    MULTIPLIERS,
    ROUNDS,
    SINE,
    WORD,
    numbers_per_call,
)
from .conversions import emit_cast
from .llvm_writer import I64, FunctionWriter, Value

Words = list[Value]


@dataclass(frozen=True, slots=True)
class RandomOperands:
    """The operands of random numbers: a seed and an offset, as a scalar or one per lane.

    `index` is that of every lane; or, if it is a scalar and there are more lanes, that of the
    first: the others follow it.  `is_aligned` if that one is the first of its Philox call.
    """

    seed: Value
    offset: Value
    index: Value
    lanes: int
    is_aligned: bool = False

    @property
    def is_shared(self) -> bool:
        """True if consecutive lanes share Philox calls."""
        return self.index.type.lanes != self.lanes


def emit_random(
    w: FunctionWriter, distribution: str, operands: RandomOperands, dtype: DataType
) -> Value:
    """The numbers of a distribution, in the compute type of `dtype`, with its values."""
    words = _words(w, operands, numbers_per_call(dtype))
    computed = DataType.Double if dtype is DataType.Double else DataType.Float
    if distribution == "uniform":
        value = _uniform(w, words, computed)
        return _truncated(w, value, DROPPED_BITS.get(dtype, 0))
    return emit_cast(w, _normal(w, words, computed), computed, dtype)


@dataclass(frozen=True, slots=True)
class _Words:
    """What each lane takes from its Philox call.

    `own` are the words of its element alone, `pair` those that it shares with a neighbour;
    `is_even` says which of the two it is.
    """

    own: Words
    pair: Words
    is_even: Value


def _words(w: FunctionWriter, operands: RandomOperands, shared: int) -> _Words:
    """The words of every lane: its own part of the call, and the part of its pair."""
    if operands.is_shared:
        return _shared_words(w, operands, shared)
    index = operands.index
    place = w.and_(index, w.constant(shared - 1, index.type))
    call = w.lshr(index, w.constant(shared.bit_length() - 1, index.type))
    words = _philox(w, call, operands.offset, operands.seed)
    one = w.constant(1, index.type)
    is_even = w.icmp("eq", w.and_(place, one), w.constant(0, index.type))
    if shared == 2:
        own = [w.select(is_even, words[k], words[2 + k]) for k in range(2)]
        return _Words(own, words, is_even)
    is_first = w.icmp("ult", place, w.constant(2, index.type))
    pair = [w.select(is_first, words[k], words[2 + k]) for k in range(2)]
    return _Words([w.select(is_even, *pair)], pair, is_even)


def _shared_words(w: FunctionWriter, operands: RandomOperands, shared: int) -> _Words:
    """The same for consecutive lanes: calls are in shorter vectors, whose words are interleaved."""
    lanes, calls = operands.lanes, operands.lanes // shared
    if not operands.is_aligned:
        calls = 1 << calls.bit_length()  # a power of two above it
    first = w.lshr(operands.index, w.constant(shared.bit_length() - 1, I64))
    call = w.splat(first, calls)
    call = w.add(call, w.lane_numbers(call.type))
    words = _philox(w, call, *(_narrowed(w, v, calls) for v in (operands.offset, operands.seed)))
    if shared == 4:
        words = [w.truncate(word, "i32") for word in words]
    joined = w.shufflevector(words[0], words[1], range(2 * calls))
    other = w.shufflevector(words[2], words[3], range(2 * calls))
    skipped = w.and_(operands.index, w.constant(shared - 1, I64))
    is_even = w.vector([lane % 2 == 0 for lane in range(lanes)], "i1")
    if not operands.is_aligned:
        is_even = w.xor(is_even, w.splat(_has_bit(w, skipped, 1), lanes))

    def mixed(order: Sequence[int]) -> Value:
        """In lane i, word `order[place]` of the call of its element, which has this place in it."""
        count = lanes if operands.is_aligned else lanes + shared - 1
        places = [order[i % shared] * calls + i // shared for i in range(count)]
        found = w.shufflevector(joined, other, places)
        return found if operands.is_aligned else _from(w, found, skipped, lanes)

    if shared == 2:
        own = [mixed([0, 2]), mixed([1, 3])]
        return _Words(own, [mixed([k, k]) for k in range(4)], is_even)
    pair = [mixed([0, 0, 2, 2]), mixed([1, 1, 3, 3])]
    return _Words([mixed([0, 1, 2, 3])], pair, is_even)


def _from(w: FunctionWriter, words: Value, skipped: Value, lanes: int) -> Value:
    """As many lanes as wanted, from number `skipped` on, bit by bit of this number."""
    bit = (words.type.lanes - lanes + 1) // 2
    while bit:
        left = lanes + bit - 1
        moved = w.shufflevector(words, None, range(bit, bit + left))
        kept = w.shufflevector(words, None, range(left))
        words = w.select(w.splat(_has_bit(w, skipped, bit), left), moved, kept)
        bit //= 2
    return words


def _has_bit(w: FunctionWriter, number: Value, bit: int) -> Value:
    return w.icmp("ne", w.and_(number, w.constant(bit, I64)), w.constant(0, I64))


def _narrowed(w: FunctionWriter, value: Value, lanes: int) -> Value:
    """A value that is the same in all lanes, for fewer of them."""
    if value.type.lanes == 1:
        return w.splat(value, lanes)
    first = w.extractelement(value, 0)
    return w.splat(first, lanes)


def _philox(w: FunctionWriter, call: Value, offset: Value, seed: Value) -> Words:
    """The four words of each lane's call."""
    type = call.type
    lanes = type.lanes
    half, low = w.constant(32, type), w.constant(WORD, type)

    def halves(value: Value) -> tuple[Value, Value]:
        wide = value if value.type.lanes == lanes else w.splat(value, lanes)
        return wide, w.lshr(wide, half)

    (a, b), (c, d), (k, m) = halves(call), halves(offset), halves(seed)
    for _ in range(ROUNDS):
        first = w.mul(w.and_(a, low), w.constant(MULTIPLIERS[0], type))
        second = w.mul(w.and_(c, low), w.constant(MULTIPLIERS[1], type))
        a, b = w.xor(w.xor(w.lshr(second, half), b), k), second
        c, d = w.xor(w.xor(w.lshr(first, half), d), m), first
        k = w.add(k, w.constant(INCREMENTS[0], type))
        m = w.add(m, w.constant(INCREMENTS[1], type))
    return [a, b, c, d]


def _leading_bits(w: FunctionWriter, words: Words) -> Value:
    """The leading 53 bits of two words."""
    type = words[0].type
    high = w.and_(words[0], w.constant(WORD, type))
    low = w.and_(words[1], w.constant(WORD, type))
    return w.or_(w.shl(high, w.constant(21, type)), w.lshr(low, w.constant(11, type)))


def _uniform(w: FunctionWriter, words: _Words, dtype: DataType) -> Value:
    if dtype is DataType.Double:
        value = w.sitofp(_leading_bits(w, words.own), "double")
        return w.fmul(value, w.constant(2.0**-53, value.type))
    word = w.truncate(words.own[0], "i32")
    value = w.sitofp(w.lshr(word, w.constant(8, word.type)), "float")
    return w.fmul(value, w.constant(2.0**-24, value.type))


def _truncated(w: FunctionWriter, value: Value, bits: int) -> Value:
    """The float without its last bits."""
    if not bits:
        return value
    whole = w.bitcast(value, "i32")
    return w.bitcast(w.and_(whole, w.constant(-(1 << bits), whole.type)), "float")


def _normal(w: FunctionWriter, words: _Words, dtype: DataType) -> Value:
    """Box-Muller; the elements of a pair take the cosine and the sine of one angle."""
    if dtype is DataType.Double:
        bits = w.sitofp(_leading_bits(w, words.pair[:2]), "double")
        scale, half = w.constant(2.0**-53, bits.type), w.constant(2.0**-54, bits.type)
        turn = _whole(w, words.pair[2:])
    else:
        bits = w.uitofp(w.truncate(words.pair[0], "i32"), "float")
        scale, half = w.constant(2.0**-32, bits.type), w.constant(2.0**-33, bits.type)
        turn = w.truncate(words.pair[1], "i32")
    fraction = w.fadd(w.fmul(bits, scale), half)
    quarter = w.constant(1 << (turn.type.bits - 2), turn.type)
    turn = w.add(turn, w.select(words.is_even, quarter, w.constant(0, turn.type)))
    return w.fmul(_radius(w, fraction, dtype), _sine(w, turn, dtype))


def _whole(w: FunctionWriter, words: Words) -> Value:
    type = words[0].type
    low = w.and_(words[1], w.constant(WORD, type))
    return w.or_(w.shl(words[0], w.constant(32, type)), low)


def _radius(w: FunctionWriter, fraction: Value, dtype: DataType) -> Value:
    """sqrt(-2 ln x) for x in (0, 1]."""
    type = fraction.type
    bits = w.bitcast(fraction, type.as_integer)
    width = w.constant(MANTISSA[dtype], bits.type)
    exponent = w.ashr(w.sub(bits, w.constant(HALF_ROOT[dtype], bits.type)), width)
    mantissa = w.bitcast(w.sub(bits, w.shl(exponent, width)), type.element)
    rest = w.fsub(mantissa, w.constant(1.0, type))
    s = w.fdiv(rest, w.fadd(rest, w.constant(2.0, type)))
    square = w.fmul(s, s)
    tail = w.fmul(square, _series(w, square, LOGARITHM[dtype]))
    series = w.fadd(w.fmul(s, tail), w.fadd(s, s))
    scaled = w.fmul(w.sitofp(exponent, type.element), w.constant(math.log(2), type))
    return w.sqrt(w.fmul(w.fadd(scaled, series), w.constant(-2.0, type)))


def _sine(w: FunctionWriter, turn: Value, dtype: DataType) -> Value:
    """The sine of an angle: a signed integer, of which 2 ** bits are a whole turn."""
    type, bits = turn.type, turn.type.bits
    quarter = 1 << (bits - 2)
    above = w.icmp("sgt", turn, w.constant(quarter, type))
    below = w.icmp("slt", turn, w.constant(-quarter, type))
    mirrored = w.sub(w.constant(-(1 << (bits - 1)), type), turn)
    turn = w.select(w.or_(above, below), mirrored, turn)
    wide = w.sitofp(turn, "double" if dtype is DataType.Double else "float")
    quarters = w.fmul(wide, w.constant(2.0 ** -(bits - 2), wide.type))
    return w.fmul(quarters, _series(w, w.fmul(quarters, quarters), SINE[dtype]))


def _series(w: FunctionWriter, x: Value, coefficients: Sequence[float]) -> Value:
    total = w.constant(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        total = w.fadd(w.fmul(total, x), w.constant(coefficient, x.type))
    return total
