"""The 8-bit floating types in LLVM: one byte in memory, float in arithmetic.

e4m3fn and e5m2 have a sign and round to nearest even; e4m3fn has no infinity, so what is too large
becomes its largest number or NaN, whichever it does in torch.  e8m0fnu is a power of two without a
sign.  All is integer arithmetic on the float's bits (OCP 8-bit floating point specification; OCP
microscaling formats for e8m0).
"""

from __future__ import annotations

import struct

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, LLVMType, Value
from pyfuser.dtypes import DataType, beyond_range

_BIAS = 127  # of a float's exponent
_MANTISSA = 23
_INFINITY = 0x7F800000

# Mantissa bits, the exponent's bias, the least magnitude that is certainly too large.
_FORMATS = {
    DataType.Float8_e4m3fn: (3, 7, 480.0),
    DataType.Float8_e5m2: (2, 15, 65536.0),
}
_NAN = 0x7F


def widened(w: FunctionWriter, value: Value, dtype: DataType) -> Value:
    """The float that a byte stands for."""
    if dtype is DataType.Float8_e5m2:  # the upper half of a half's bits
        wide = w.zext(value, "i16")
        half = w.bitcast(w.shl(wide, w.constant(8, wide.type)), "half")
        return w.fpext(half, "float")
    bits = w.zext(value, "i32")
    integer = bits.type
    if dtype is DataType.Float8_e8m0fnu:
        shifted = w.shl(bits, w.constant(_MANTISSA, integer))
        least = w.constant(1 << (_MANTISSA - 1), integer)  # 2**-127 is subnormal
        power = w.select(w.icmp("eq", bits, w.constant(0, integer)), least, shifted)
        nan = w.constant(_INFINITY | 1 << 22, integer)
        return w.bitcast(
            w.select(w.icmp("eq", bits, w.constant(0xFF, integer)), nan, power), "float"
        )
    magnitude = w.and_(bits, w.constant(0x7F, integer))
    # Read as a float's exponent and mantissa, the number is too small by the difference of biases.
    small = w.bitcast(w.shl(magnitude, w.constant(20, integer)), "float")
    exact = w.bitcast(w.fmul(small, w.constant(2.0**120, small.type)), "i32")
    is_nan = w.icmp("eq", magnitude, w.constant(0x7F, integer))
    found = w.select(is_nan, w.constant(_INFINITY | 1 << 22, integer), exact)
    sign = w.shl(w.and_(bits, w.constant(0x80, integer)), w.constant(24, integer))
    return w.bitcast(w.or_(found, sign), "float")


def narrowed(w: FunctionWriter, value: Value, dtype: DataType) -> Value:
    """The byte nearest to a float."""
    bits = w.bitcast(value, "i32")
    magnitude = w.and_(bits, w.constant(0x7FFFFFFF, bits.type))
    if dtype is DataType.Float8_e8m0fnu:
        return _power(w, magnitude)
    mantissa, bias, limit = _FORMATS[dtype]
    integer = bits.type
    shift = _MANTISSA - mantissa
    rebias = (_BIAS - bias) << _MANTISSA
    normal = _rounded(w, w.sub(magnitude, w.constant(rebias, integer)), shift)
    # Below the normal numbers the last bit of a sum with this number is the format's last bit.
    anchor = (_BIAS - bias + shift + 1) << _MANTISSA
    summed = w.fadd(w.bitcast(magnitude, "float"), _float_of_bits(w, anchor, value.type))
    subnormal = w.sub(w.bitcast(summed, "i32"), w.constant(anchor, integer))
    least = w.constant(rebias + (1 << _MANTISSA), integer)
    found = w.select(w.icmp("ult", magnitude, least), subnormal, normal)
    greatest = w.constant(beyond_range(dtype), integer)
    is_greater = w.icmp("uge", magnitude, w.constant(_bits_of(limit), integer))
    is_greater = w.or_(is_greater, w.icmp("ugt", found, greatest))
    found = w.select(is_greater, greatest, found)
    is_nan = w.icmp("ugt", magnitude, w.constant(_INFINITY, integer))
    found = w.select(is_nan, w.constant(_NAN, integer), found)
    sign = w.and_(w.lshr(bits, w.constant(24, integer)), w.constant(0x80, integer))
    return w.truncate(w.or_(found, sign), "i8")


def _rounded(w: FunctionWriter, bits: Value, shift: int) -> Value:
    """The upper bits, rounded to nearest even."""
    count = w.constant(shift, bits.type)
    odd = w.and_(w.lshr(bits, count), w.constant(1, bits.type))
    return w.lshr(w.add(bits, w.add(odd, w.constant((1 << (shift - 1)) - 1, bits.type))), count)


def _power(w: FunctionWriter, magnitude: Value) -> Value:
    """The nearest power of two as its exponent; halfway goes up, except from the smallest."""
    integer = magnitude.type
    exponent = w.lshr(magnitude, w.constant(_MANTISSA, integer))
    fraction = w.and_(magnitude, w.constant((1 << _MANTISSA) - 1, integer))
    half = w.constant(1 << (_MANTISSA - 1), integer)
    above = w.icmp("ugt", fraction, half)
    tie = w.icmp("eq", fraction, half)
    goes_up = w.or_(above, w.and_(tie, w.icmp("ne", exponent, w.constant(0, integer))))
    found = w.add(exponent, w.zext(goes_up, "i32"))
    is_special = w.icmp("uge", magnitude, w.constant(_INFINITY, integer))
    return w.truncate(w.select(is_special, w.constant(0xFF, integer), found), "i8")


def _float_of_bits(w: FunctionWriter, bits: int, type: LLVMType) -> Value:
    return w.bitcast(w.constant(bits, type.with_element("i32")), "float")


def _bits_of(number: float) -> int:
    return int.from_bytes(struct.pack("<f", number), "little")
