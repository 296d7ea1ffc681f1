"""Statements of the random programs: pointwise, comparisons, masks, casts."""

from __future__ import annotations

from tests.programs.maker import FLOATS, INTEGERS, Made, Maker, Several, is_integer

UNARY = (
    "-{x}", "{x}.abs()", "{x}.neg()", "{x}.relu()", "{x}.tanh()", "{x}.sigmoid()", "{x}.sin()",
    "{x}.cos()", "{x}.clamp(-3, 3).exp()", "{x}.square()", "{x}.erf()", "{x}.sign()",
    "{x}.floor()", "{x}.round()", "{x}.trunc()", "{x}.frac()", "{x}.atan()", "{x}.expm1()",
    "torch.nn.functional.silu({x})", "torch.nn.functional.gelu({x})",
    "torch.nn.functional.gelu({x}, approximate='tanh')", "torch.nn.functional.softplus({x})",
    "torch.nn.functional.leaky_relu({x}, 0.1)", "torch.nn.functional.elu({x})",
    "torch.nn.functional.logsigmoid({x})", "torch.nn.functional.hardtanh({x})",
    "torch.nn.functional.mish({x})", "torch.nn.functional.hardswish({x})",
    "torch.nn.functional.relu6({x})", "{x}.nan_to_num()", "{x}.clone()", "{x}.contiguous()",
    "{x}.detach()", "{x}.positive()", "{x}.isnan()", "{x}.isfinite()", "torch.zeros_like({x})",
    "torch.ones_like({x})", "torch.full_like({x}, 0.5)", "{x}.logical_not()",
)  # fmt: skip
GUARDED = (
    "{p}.sqrt()", "{p}.rsqrt()", "{p}.log()", "{p}.reciprocal()", "{p}.log2()", "{p}.log1p()",
    "1 / {p}", "{x} / {p}", "{p} ** 0.5", "{p} ** -1", "{x} / {p}.sqrt()",
)  # fmt: skip
BINARY = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} + {y} * {n}", "torch.maximum({x}, {y})",
    "torch.minimum({x}, {y})", "torch.add({x}, {y}, alpha=2)", "torch.sub({x}, {y}, alpha=2)",
    "torch.lerp({x}, {y}, 0.3)", "torch.addcmul({x}, {x}, {y}, value=0.5)", "torch.fmax({x}, {y})",
    "torch.fmin({x}, {y})", "torch.rsub({x}, {y})", "{x}.clamp(max={y})", "torch.hypot({x}, {y})",
    "torch.copysign({x}, {y})", "torch.atan2({x}, {y}.abs() + 1)", "torch.logaddexp({x}, {y})",
    "torch.heaviside({x}, {y})", "{x}.clamp(min={y})", "{x} ** 2 - {y}",
    "torch.xlogy({x}, {y}.abs() + 1)",
)  # fmt: skip
# Of a complex number z, with real results.
COMPLEX = (
    "(z * (1 + 2j)).abs()", "(z * z.conj() + z).real", "(z * z - z).imag", "(z.sgn() + z).real",
    "torch.view_as_real(z * 2j).sum(-1)", "(z * z.abs() + z.mean()).imag", "z.conj().imag * z.real",
    "torch.view_as_real(z * {x}).flatten(-2)", "(z.unsqueeze(-1) * z.flatten()[:2]).sum(-1).real",
    "(z * torch.polar({x}, {x})).real", "torch.view_as_real(z.flip(-1) * z)[..., 0]",
)  # fmt: skip
COMPARISONS = (">", "<", ">=", "<=", "==", "!=")
INTEGER_OPS = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "torch.maximum({x}, {y})", "{x} & {y}", "{x} | {y}",
    "{x} ^ {y}", "{x} // ({y}.abs() + 1)", "{x} % ({y}.abs() + 1)", "torch.minimum({x}, {y})",
    "{x} % {n}", "{x} // {n}", "{x} << 1", "{x} >> 1", "~{x}", "{x}.abs()", "{x}.clamp(1, 5)",
    "torch.div({x}, {n}, rounding_mode='floor')", "torch.div({x}, {n}, rounding_mode='trunc')",
    "torch.fmod({x}, {n})", "torch.remainder({x}, {n})", "{x} / ({y}.abs() + 1)", "{x} * {n}",
    "{x} + {n}", "{x} == {y}", "{x} < {y}", "-{x}", "{x} * 0.5", "{x}.sign()", "{x}.square()",
)  # fmt: skip
BOOLEAN_OPS = ("{x} & {y}", "{x} | {y}", "{x} ^ {y}", "~{x}", "{x}.logical_and({y})")
FLOAT_REMAINDERS = (
    "{x} % {n}",
    "torch.fmod({x}, {n})",
    "torch.div({x}, {n}, rounding_mode='floor')",
)


def unary(m: Maker) -> Made:
    """A function of one value."""
    return m.choice(UNARY).format(x=m.floating())


def guarded(m: Maker) -> Made:
    """A function that wants its argument away from zero."""
    x = m.floating()
    return m.choice(GUARDED).format(x=x, p=m.positive(m.beside(x, lambda t: t.is_floating_point())))


def with_number(m: Maker) -> Made:
    """Arithmetic with a number."""
    x, operator = m.numeric(), m.choice(("+", "-", "*", "+", "*"))
    return m.choice((f"{x} {operator} {m.number()}", f"{m.number()} {operator} {x}"))


def binary(m: Maker) -> Made:
    """Arithmetic of two values that broadcast."""
    x = m.floating()
    y = m.beside(x, lambda t: t.is_floating_point() or m.chance(0.2))
    return m.choice(BINARY).format(x=x, y=y, n=m.number())


def repeated(m: Maker) -> Made:
    """Arithmetic of a reshaped value with a column of another, which repeats it."""
    x, y, operator = m.floating(), m.floating(), m.choice(("+", "-", "*"))
    return f"{x}.flatten() {operator} {y}.flatten()[:3].unsqueeze(1)"


def of_complex(m: Maker) -> Made:
    """Arithmetic of complex numbers made of two values that broadcast."""
    x = m.floating(1)
    y = m.beside(x, lambda t: t.is_floating_point())
    parts = [f"{each}.to(torch.float32)" for each in (x, y)]
    made = m.choice(COMPLEX).format(x=parts[0])
    return f"(lambda z: {made})(torch.complex({', '.join(parts)}))"


def remainder(m: Maker) -> Made:
    """A remainder of a float."""
    return m.choice(FLOAT_REMAINDERS).format(x=m.floating(), n=m.choice(("0.75", "2", "-1.5")))


def integers(m: Maker) -> Made:
    """Arithmetic of integers."""
    x = m.integer()
    return m.choice(INTEGER_OPS).format(x=x, y=m.beside(x, is_integer), n=m.integer_number())


def comparison(m: Maker) -> Made:
    """A mask, from two values or a value and a number."""
    x, operator = m.pick(), m.choice(COMPARISONS)
    return f"{x} {operator} {m.beside(x) if m.chance(0.5) else m.threshold()}"


def booleans(m: Maker) -> Made:
    """Logic of masks."""
    x = m.boolean()
    return m.choice(BOOLEAN_OPS).format(x=x, y=m.beside(x, lambda t: not t.is_floating_point()))


def where(m: Maker) -> Made:
    """A choice between two values, or a value and a number."""
    x = m.pick()
    mask = m.mask_for(x)
    other = m.beside(x) if m.chance(0.6) else m.number()
    return m.choice((f"torch.where({mask}, {x}, {other})", f"torch.where({mask}, {other}, {x})"))


def masked_fill(m: Maker) -> Made:
    """A number where a mask is true."""
    x = m.numeric()
    return f"{x}.masked_fill({m.mask_for(x)}, {m.integer_number()})"


def cast(m: Maker) -> Made:
    """A value in another dtype."""
    x = m.pick()
    kind = m.choice((*FLOATS, *FLOATS, *INTEGERS, "bool", "int64"))
    source = m.values[x]
    if source.is_floating_point() and kind in INTEGERS:
        inner = m.choice((f"{x}.round()", f"({x} * 4)", x))
        return f"{inner}.abs().to(torch.{kind})" if kind == "uint8" else f"{inner}.to(torch.{kind})"
    return f"{x}.to(torch.{kind})"


def several(m: Maker) -> Made:
    """A pair made at once."""
    x = m.floating()
    return Several(2, f"{x}.sin(), {x} * {m.number()}")


TEMPLATES = {
    unary: 6, guarded: 3, with_number: 4, binary: 8, repeated: 2, of_complex: 1, remainder: 1,
    integers: 3, comparison: 3, booleans: 1, where: 4, masked_fill: 2, cast: 4, several: 1,
}  # fmt: skip
