"""What the vector math routines share: constants, polynomials, exact sums, bits, outlined helpers.

A routine takes a `FunctionWriter` and values of one type (float or double, any number of lanes)
and prints instructions with no branch. `outlined` wraps a large or branching routine into an
internal function of the module that is called instead, so that it is compiled once and its
branches stay out of the caller's loop. `widened` computes float32 through the float64 routine
and rounds once. Source: error-free transformations after Dekker (1971) and Knuth (TAOCP 2,
4.2.2).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, LLVMType, Value
from pyfuser.devices.cpu.vector_math import avx512

Routine = Callable[..., Value]

# (mantissa bits, bits of 1.0, the number that rounds to an integer when added, its bits)
_FORMATS = {
    "float": (23, 0x3F800000, 12582912.0, 0x4B400000),
    "double": (52, 0x3FF0000000000000, 6755399441055744.0, 0x4338000000000000),
}


def mantissa_bits(type: LLVMType) -> int:
    """Stored mantissa bits: 23 or 52."""
    return _FORMATS[type.element][0]


def one_bits(type: LLVMType) -> int:
    """The bits of 1.0."""
    return _FORMATS[type.element][1]


def rounding_shift(type: LLVMType) -> tuple[float, int]:
    """1.5 * 2**mantissa_bits and its bits: x + it holds round(x) in its low bits."""
    return _FORMATS[type.element][2:]


def nearest_integer(w: FunctionWriter, x: Value, factor: float) -> tuple[Value, Value]:
    """x * factor rounded to an integer: plus the rounding shift of the type, and by itself."""
    shift = w.constant(rounding_shift(x.type)[0], x.type)
    shifted = w.fma(x, w.constant(factor, x.type), shift)
    return shifted, w.fsub(shifted, shift)


def is_double(x: Value) -> bool:
    """True for double lanes, False for float lanes."""
    return x.type.element == "double"


def polynomial(w: FunctionWriter, x: Value, coefficients: Sequence[float]) -> Value:
    """c[0] + c[1] x + c[2] x^2 + ... by Horner's rule."""
    value = w.constant(coefficients[-1], x.type)
    for coefficient in coefficients[-2::-1]:
        value = w.fma(value, x, w.constant(coefficient, x.type))
    return value


def outlined(routine: Routine) -> Routine:
    """The routine as an internal function of the module, called where it is used."""
    base = f"pyfuser.{routine.__name__}"

    @functools.wraps(routine)
    def call(w: FunctionWriter, *arguments: Value) -> Value:
        name = f"{base}.{arguments[0].type.mangled}"
        if name not in w.definitions:
            w.definitions[name] = (
                ""  # reserves the position: helpers are printed in the order of first use
            )
            w.definitions[name] = _define(w, name, routine, arguments)
        return w.pure(
            arguments[0].type,
            f"call {arguments[0].type} @{name}({', '.join(a.typed for a in arguments)})",
        )

    return call


def _define(w: FunctionWriter, name: str, routine: Routine, arguments: Sequence[Value]) -> str:
    inner = FunctionWriter(has_fma=w.has_fma, has_avx512=w.has_avx512, has_bf16=w.has_bf16)
    inner.declarations, inner.definitions = w.declarations, w.definitions
    parameters = [Value(f"%a{i}", a.type) for i, a in enumerate(arguments)]
    inner.label("entry")
    inner.ret(routine(inner, *parameters))
    head = f"define internal {arguments[0].type} @{name}({', '.join(p.typed for p in parameters)})"
    body = "\n".join(inner.lines)
    # Caller and callee must agree on the widest legal vector: it decides how arguments are passed.
    width = 512 if w.has_avx512 else 256
    attributes = f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'
    return f"{head} nounwind willreturn memory(none) {attributes} {{\n{body}\n}}"


def widened(routine: Routine) -> Routine:
    """The double routine for float too: computed in double and rounded once at the end."""

    @functools.wraps(routine)
    def call(w: FunctionWriter, *arguments: Value) -> Value:
        if is_double(arguments[0]):
            return routine(w, *arguments)
        value = routine(w, *(w.fpext(a, "double") for a in arguments))
        return w.fptrunc(value, "float")

    return call


def rare_branch(w: FunctionWriter, rare: Value, usual: Value, slow: Callable[[], Value]) -> Value:
    """`usual` where no lane of `rare` is true, else per lane `slow()` or `usual`.

    Opens basic blocks, so it may only be used in outlined routines.  `usual` is computed before.
    """
    slow_block, join, before = w.fresh("rare"), w.fresh("join"), w.fresh("usual")
    w.branch(before)
    w.label(before)
    w.branch_if(w.any(rare), slow_block, join)
    w.label(slow_block)
    merged = w.select(rare, slow(), usual)
    w.branch(join)
    w.label(join)
    return w.phi(usual.type, ((merged, slow_block), (usual, before)))


def two_sum(w: FunctionWriter, a: Value, b: Value) -> tuple[Value, Value]:
    """a + b as an unevaluated sum (rounded, error), for any a and b."""
    total = w.fadd(a, b)
    b_part = w.fsub(total, a)
    a_error = w.fsub(a, w.fsub(total, b_part))
    return total, w.fadd(a_error, w.fsub(b, b_part))


def fast_two_sum(w: FunctionWriter, a: Value, b: Value) -> tuple[Value, Value]:
    """As `two_sum` where |a| >= |b| or a == 0."""
    total = w.fadd(a, b)
    return total, w.fsub(b, w.fsub(total, a))


def two_product(w: FunctionWriter, a: Value, b: Value) -> tuple[Value, Value]:
    """a * b as (rounded, error); without fma by Dekker's splitting, for |a|, |b| < 2**990."""
    product = w.fmul(a, b)
    if w.has_fma:
        return product, w.fma(a, b, w.fneg(product))
    a_high, a_low = _split(w, a)
    b_high, b_low = _split(w, b)
    error = w.fsub(w.fmul(a_high, b_high), product)
    error = w.fadd(error, w.fmul(a_high, b_low))
    error = w.fadd(error, w.fmul(a_low, b_high))
    return product, w.fadd(error, w.fmul(a_low, b_low))


def _split(w: FunctionWriter, a: Value) -> tuple[Value, Value]:
    factor = float((1 << (27 if is_double(a) else 12)) + 1)
    scaled = w.fmul(a, w.constant(factor, a.type))
    high = w.fsub(scaled, w.fsub(scaled, a))
    return high, w.fsub(a, high)


def scale_by_power(w: FunctionWriter, x: Value, shifted: Value, kept: Value | None = None) -> Value:
    """x * 2**n where `shifted` is n plus the rounding shift of the type; twice the exponent range.

    Overflows to infinity and rounds into the subnormals once: 2**n is applied as two factors.
    Lanes that `kept` doesn't have are 0 (see `before_underflow`).
    """
    type = x.type
    if avx512.applies(w, type):
        return avx512.scalef(w, x, w.fsub(shifted, w.constant(rounding_shift(type)[0], type)), kept)
    # The bits of the rounding shift are even, and shifted out of the exponent field.
    bits, width = w.bitcast(shifted, type.as_integer), mantissa_bits(type)
    half = w.ashr(bits, w.constant(1, bits.type))
    first = power_of_two(w, half, type, width)
    second = power_of_two(w, w.sub(bits, half), type, width)
    return w.fmul(w.fmul(x, first), second)


def before_underflow(
    w: FunctionWriter, x: Value, lowest: float, unit: float = 1.0
) -> tuple[Value, Value | None]:
    """The argument of a power of 2 (`unit` is one exponent) and `kept`, for `scale_by_power`.

    The power is 0 below `lowest`.  A multiplication whose result is rounded to 0 takes 60 to 100
    times as long as another, and a softmax has as many of them as masked elements.  So the
    instruction is told the lanes in which x is above, and else x is replaced by one for which both
    factors are 0.
    """
    limit = w.constant(lowest, x.type)
    if avx512.applies(w, x.type):
        return x, w.fcmp("uge", x, limit)
    far = w.constant((-2046.0 if is_double(x) else -254.0) * unit, x.type)
    return w.select(w.fcmp("olt", x, limit), far, x), None


def power_of_two(w: FunctionWriter, n: Value, type: LLVMType, width: int) -> Value:
    """2**n for an integer n in the normal exponent range; bits above the exponent don't matter."""
    bits = w.shl(n, w.constant(width, n.type))
    return w.bitcast(w.add(bits, w.constant(one_bits(type), n.type)), type)
