"""Integer routines that LLVM has no safe instruction for: div, fmod, pow, gcd, shifts.

LLVM's division traps (or is undefined) for a zero divisor and for the smallest integer over -1;
here the first gives 0 and the second wraps. Shifts by the width or more, or by negative amounts,
give what torch gives. pow (by squaring) and gcd (by division) loop until every lane is done. Each
routine takes `signed`, because an LLVM integer has no sign.
"""

from __future__ import annotations

from collections.abc import Callable

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import outlined


def _safe_divisor(w: FunctionWriter, a: Value, b: Value, signed: bool) -> Value:
    """b, and 1 in the lanes whose division would trap."""
    one, zero = w.constant(1, b.type), w.constant(0, b.type)
    bad = w.icmp("eq", b, zero)
    if signed:
        lowest = w.constant(-(1 << (b.type.bits - 1)), b.type)
        overflows = w.and_(w.icmp("eq", a, lowest), w.icmp("eq", b, w.constant(-1, b.type)))
        bad = w.or_(bad, overflows)
    return w.select(bad, one, b)


def divide(w: FunctionWriter, a: Value, b: Value, signed: bool) -> Value:
    """a / b truncated; 0 for b == 0."""
    quotient = w.binary("sdiv" if signed else "udiv", a, _safe_divisor(w, a, b, signed))
    zero = w.constant(0, a.type)
    return w.select(w.icmp("eq", b, zero), zero, quotient)


def modulo(w: FunctionWriter, a: Value, b: Value, signed: bool) -> Value:
    """a - b * divide(a, b) with the sign of a; 0 for b == 0, since a % 1 is 0."""
    return w.binary("srem" if signed else "urem", a, _safe_divisor(w, a, b, signed))


def _is_outside(w: FunctionWriter, b: Value) -> Value:
    return w.icmp("uge", b, w.constant(b.type.bits, b.type))


def shift_left(w: FunctionWriter, a: Value, b: Value, signed: bool) -> Value:
    """a << b; 0 for b outside the width."""
    return _shift(w, "shl", a, b)


def shift_right_logical(w: FunctionWriter, a: Value, b: Value, signed: bool) -> Value:
    """a >> b, zeros shifted in; 0 for b outside the width."""
    return _shift(w, "lshr", a, b)


def _shift(w: FunctionWriter, opcode: str, a: Value, b: Value) -> Value:
    # The shift of an outside lane is poison, which the select doesn't choose.
    return w.select(_is_outside(w, b), w.constant(0, a.type), w.binary(opcode, a, b))


def shift_right(w: FunctionWriter, a: Value, b: Value, signed: bool) -> Value:
    """a >> b, keeping the sign; a b outside the width shifts by all of it."""
    if not signed:
        return shift_right_logical(w, a, b, signed)
    last = w.constant(b.type.bits - 1, b.type)
    return w.ashr(a, w.select(_is_outside(w, b), last, b))


def _loop(
    w: FunctionWriter,
    start: tuple[Value, ...],
    step: Callable[..., tuple[Value, ...]],
    counter: int,
) -> tuple[Value, ...]:
    """Applies `step` until the value at position `counter` is 0 in every lane."""
    head, body, done, before = (w.fresh(name) for name in ("head", "body", "done", "before"))
    w.branch(before)
    w.label(before)
    w.branch(head)
    w.label(head)
    names = [f"%{w.fresh('next')}" for _ in start]
    current = tuple(
        w.phi(v.type, ((v, before), (Value(name, v.type), body)))
        for v, name in zip(start, names, strict=True)
    )
    left = w.icmp("ne", current[counter], w.constant(0, current[counter].type))
    w.branch_if(w.any(left), body, done)
    w.label(body)
    for name, value in zip(names, step(*current), strict=True):
        w.emit(f"  {name} = freeze {value.typed}")
    w.branch(head)
    w.label(done)
    return current


def _power_of_magnitude(w: FunctionWriter, base: Value, exponent: Value) -> Value:
    one = w.constant(1, base.type)

    def step(result: Value, square: Value, rest: Value) -> tuple[Value, Value, Value]:
        odd = w.icmp("ne", w.and_(rest, one), w.constant(0, rest.type))
        multiplied = w.select(odd, w.mul(result, square), result)
        return multiplied, w.mul(square, square), w.lshr(rest, one)

    return _loop(w, (one, base, exponent), step, 2)[0]


@outlined
def unsigned_power(w: FunctionWriter, a: Value, b: Value) -> Value:
    """a ** b, wrapping."""
    return _power_of_magnitude(w, a, b)


@outlined
def signed_power(w: FunctionWriter, a: Value, b: Value) -> Value:
    """a ** b, wrapping; for b < 0 it is 1 for 1, 1 or -1 for -1, else 0."""
    zero, one, minus_one = (w.constant(n, a.type) for n in (0, 1, -1))
    negative = w.icmp("slt", b, zero)
    value = _power_of_magnitude(w, a, w.select(negative, zero, b))
    odd = w.icmp("ne", w.and_(b, one), zero)
    of_minus_one = w.select(odd, minus_one, one)
    inverse = w.select(w.icmp("eq", a, minus_one), of_minus_one, zero)
    inverse = w.select(w.icmp("eq", a, one), one, inverse)
    return w.select(negative, inverse, value)


def _euclid(w: FunctionWriter, a: Value, b: Value) -> Value:
    def step(divisor: Value, dividend: Value) -> tuple[Value, Value]:
        finished = w.icmp("eq", divisor, w.constant(0, divisor.type))
        rest = modulo(w, dividend, divisor, False)
        return rest, w.select(finished, dividend, divisor)

    return _loop(w, (a, b), step, 0)[1]


@outlined
def unsigned_gcd(w: FunctionWriter, a: Value, b: Value) -> Value:
    """Greatest common divisor; gcd(0, 0) is 0."""
    return _euclid(w, a, b)


@outlined
def signed_gcd(w: FunctionWriter, a: Value, b: Value) -> Value:
    """Greatest common divisor of the magnitudes, which are exact as unsigned numbers."""
    return _euclid(w, magnitude(w, a), magnitude(w, b))


def magnitude(w: FunctionWriter, a: Value) -> Value:
    """|a|; the smallest integer stays itself."""
    zero = w.constant(0, a.type)
    return w.select(w.icmp("slt", a, zero), w.sub(zero, a), a)


def power(w: FunctionWriter, a: Value, b: Value, signed: bool) -> Value:
    """a ** b of integers as torch has it."""
    return signed_power(w, a, b) if signed else unsigned_power(w, a, b)


def gcd(w: FunctionWriter, a: Value, b: Value, signed: bool) -> Value:
    """Greatest common divisor."""
    return signed_gcd(w, a, b) if signed else unsigned_gcd(w, a, b)
