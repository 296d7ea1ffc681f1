"""AVX-512's instructions for exponents and fractions, on vectors of one or more registers."""

from __future__ import annotations

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, LLVMType, Value

_REGISTER_BITS = 512
_CURRENT_ROUNDING = 4
_TO_FLOOR, _TO_NEAREST = 0x9, 0x8  # what `reduce` subtracts, without floating-point exceptions
# Of getmant: between 0.75 and 1.5; NaN for negative numbers, 1 for both zeros and for infinity.
_MANTISSA = 0b1111


def applies(w: FunctionWriter, type: LLVMType) -> bool:
    """True if the processor has the instructions, and a vector fills its registers."""
    return w.has_avx512 and type.lanes * type.bits % _REGISTER_BITS == 0


def scalef(w: FunctionWriter, x: Value, n: Value, kept: Value | None = None) -> Value:
    """x * 2**floor(n); 0 in the lanes that `kept` doesn't have.

    Rounded once; n may be infinite.
    """
    return _by_registers(w, "scalef", [x, n], kept=kept)


def above_floor(w: FunctionWriter, x: Value) -> Value:
    """x minus the integer below; 0 for infinities."""
    return _by_registers(w, "reduce", [x], _TO_FLOOR)


def from_nearest(w: FunctionWriter, x: Value) -> Value:
    """x minus the nearest integer; 0 for infinities."""
    return _by_registers(w, "reduce", [x], _TO_NEAREST)


def exponent_and_mantissa(w: FunctionWriter, x: Value) -> tuple[Value, Value]:
    """(k, m) for x = 2**k m, 0.75 <= m < 1.5, also for subnormal numbers.

    (-infinity, 1) for zeros, (infinity, 1) for infinity, NaN for negative numbers and NaN.
    """
    mantissa = _by_registers(w, "getmant", [x], _MANTISSA)
    exponents = (_by_registers(w, "getexp", [each]) for each in (x, mantissa))
    return w.fsub(*exponents), mantissa


def reciprocal(w: FunctionWriter, x: Value) -> Value:
    """1 / x for floats, with a relative error of at most 2**-14.

    Exact for powers of two, infinities and zeros; infinite below 2**-128.
    """
    lanes = _REGISTER_BITS // x.type.bits
    type, mask = x.type.with_lanes(lanes), LLVMType(f"i{lanes}")
    function = "llvm.x86.avx512.rcp14.ps.512"
    w.declarations.setdefault(function, f"declare {type} @{function}({type}, {type}, {mask})")
    rest = f"{type} zeroinitializer, {mask} -1"
    calls = (f"call {type} @{function}({each.typed}, {rest})" for each in w.pieces(x, lanes))
    return w.joined([w.pure(type, call) for call in calls])


def _by_registers(
    w: FunctionWriter,
    name: str,
    operands: list[Value],
    immediate: int | None = None,
    kept: Value | None = None,
) -> Value:
    element = operands[0].type
    lanes = _REGISTER_BITS // element.bits
    type, mask = element.with_lanes(lanes), LLVMType(f"i{lanes}")
    function = f"llvm.x86.avx512.mask.{name}.{'ps' if element.bits == 32 else 'pd'}.512"
    types = [str(type)] * len(operands) + ["i32 immarg"] * (immediate is not None)
    types += [str(type), str(mask), "i32 immarg"]
    w.declarations.setdefault(function, f"declare {type} @{function}({', '.join(types)})")
    columns = [w.pieces(operand, lanes) for operand in operands]
    columns.append(w.pieces(kept, lanes) if kept is not None else [])
    made = []
    for number in range(element.lanes // lanes):
        given = [column[number].typed for column in columns[:-1]]
        given += [] if immediate is None else [f"i32 {immediate}"]
        chosen = f"{mask} -1" if kept is None else w.bitcast(columns[-1][number], mask).typed
        given += [f"{type} zeroinitializer", chosen, f"i32 {_CURRENT_ROUNDING}"]
        made.append(w.pure(type, f"call {type} @{function}({', '.join(given)})"))
    return w.joined(made)
