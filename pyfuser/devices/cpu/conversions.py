"""Conversions between dtypes in LLVM: storage <-> compute, and the `cast` op.

A kernel computes Half and BFloat16 in float, Bool in i1, and everything else in the type it is
stored in. bfloat16 is stored as i16; rounding to it is integer arithmetic, or the machine's
instruction, which flushes subnormals and therefore never sees one. Out-of-range floats become what
x86's cvtt instructions give, as in torch: the smallest integer, of which the narrow integers keep
the low bits; nothing traps. Invariant: a cast to Half or BFloat16 rounds to its values, though the
result stays in float.
"""

from __future__ import annotations

from pyfuser import dtypes
from pyfuser.devices.cpu.float8 import narrowed, widened
from pyfuser.devices.cpu.llvm_writer import FunctionWriter, LLVMType, Value
from pyfuser.dtypes import DataType
from pyfuser.errors import UnsupportedError, expected

_COMPUTE = {
    DataType.Double: "double",
    DataType.Float: "float",
    DataType.Int: "i64",
    DataType.Index: "i64",
    DataType.UInt64: "i64",
    DataType.Int32: "i32",
    DataType.Int16: "i16",
    DataType.Int8: "i8",
    DataType.UInt8: "i8",
    DataType.Bool: "i1",
}
_STORAGE = {
    **_COMPUTE,
    DataType.Half: "half",
    DataType.BFloat16: "i16",
    **dict.fromkeys(dtypes.FLOAT8, "i8"),
    DataType.Bool: "i8",
}


def compute_type(dtype: DataType, lanes: int = 1) -> LLVMType:
    """The LLVM type values of a dtype are computed in; UnsupportedError for complex."""
    element = _COMPUTE.get(dtypes.compute_dtype(dtype))
    if element is None:
        raise UnsupportedError(expected("cpu kernel", "a dtype that kernels compute", dtype))
    return LLVMType(element, lanes)


def storage_type(dtype: DataType, lanes: int = 1) -> LLVMType:
    """The LLVM type that values of a dtype have in memory."""
    compute_type(dtype)
    return LLVMType(_STORAGE[dtype], lanes)


def load_convert(w: FunctionWriter, value: Value, dtype: DataType) -> Value:
    """A value just loaded, `storage_type(dtype)`, in `compute_type(dtype)`."""
    if dtype is DataType.Half:
        result = w.fpext(value, "float")
    elif dtype is DataType.BFloat16:
        wide = w.zext(value, "i32")
        result = w.bitcast(w.shl(wide, w.constant(16, wide.type)), "float")
    elif dtype in dtypes.FLOAT8:
        result = widened(w, value, dtype)
    elif dtype is DataType.Bool:
        return w.icmp("ne", value, w.constant(0, value.type))
    else:
        return value
    w.stored_form[result.name] = dtype, value
    return result


def store_convert(w: FunctionWriter, value: Value, dtype: DataType) -> Value:
    """A computed value, `compute_type(dtype)`, as stored: half precision rounds to nearest even."""
    if dtype in dtypes.REDUCED_FLOATING:
        form, stored = w.stored_form.get(value.name, (None, value))
        if form is dtype:
            return stored
        if dtype in dtypes.FLOAT8:
            return narrowed(w, value, dtype)
        return w.fptrunc(value, "half") if dtype is DataType.Half else _bfloat16(w, value)
    if dtype is DataType.Bool:
        return w.zext(value, "i8")
    return value


_LANES = 16  # of a vector of AVX-512


def _bfloat16(w: FunctionWriter, value: Value) -> Value:
    """The upper half of a float's bits, rounded to nearest even; NaN stays a quiet NaN.

    Rounding could carry out of a NaN only if the bits that it drops were set.  What the instruction
    narrows would be widened again for a pair (`pairs.py`), across the halves of a vector.  Measured
    on a Zen 4, with the instruction against integers: Huber and smooth L1 losses, in pairs, take
    1.2 times as long; float32 rounded in the end, without pairs, 0.8 to 0.95.
    """
    if w.has_bf16 and value.type.lanes % _LANES == 0 and not w.makes_pairs:
        pieces = w.pieces(value, _LANES)
        return w.joined([_bfloat16_instruction(w, piece) for piece in pieces])
    bits = w.bitcast(value, "i32")
    sixteen = w.constant(16, bits.type)
    upper = w.lshr(bits, sixteen)
    odd = w.and_(upper, w.constant(1, bits.type))
    rounding = w.add(odd, w.constant(0x7FFF, bits.type))
    rounded = w.lshr(w.add(bits, rounding), sixteen)
    if w.has_short_nans:
        return w.truncate(rounded, "i16")
    quiet = w.or_(upper, w.constant(0x40, bits.type))
    return w.truncate(w.select(w.is_nan(value), quiet, rounded), "i16")


def _bfloat16_instruction(w: FunctionWriter, value: Value) -> Value:
    """The same by AVX-512's conversion, which rounds and keeps NaN, but takes subnormals for 0.

    Setting the lowest bit of a subnormal's exponent adds the least normal number, whose neighbours
    are as far apart as the subnormals are: the sum rounds as the subnormal does. The bit is
    subtracted from the result, which also is right if the sum was rounded up to the next exponent.
    """
    text = f"call <16 x i1> @llvm.x86.avx512.fpclass.ps.512({value.typed}, i32 32)"
    name = "llvm.x86.avx512.fpclass.ps.512"
    w.declarations.setdefault(name, f"declare <16 x i1> @{name}(<16 x float>, i32 immarg)")
    subnormal = w.pure(value.type.with_element("i1"), text)
    bits = w.bitcast(value, "i32")
    normal = w.select(subnormal, w.or_(bits, w.constant(1 << 23, bits.type)), bits)
    bfloat = value.type.with_element("bfloat")
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    rounded = w.bitcast(w.call(bfloat, name, w.bitcast(normal, "float")), "i16")
    return w.select(subnormal, w.sub(rounded, w.constant(1 << 7, rounded.type)), rounded)


def emit_cast(w: FunctionWriter, value: Value, source: DataType, target: DataType) -> Value:
    """`value`, in source's compute type, converted to target's, with target's values."""
    result = _convert(w, value, source, target)
    if target not in dtypes.REDUCED_FLOATING or source is target:
        return result
    if not dtypes.holds_every_value(target, source):
        return load_convert(w, store_convert(w, result, target), target)
    if target is DataType.BFloat16:  # nothing to round
        bits = w.bitcast(result, "i32")
        upper = w.truncate(w.lshr(bits, w.constant(16, bits.type)), "i16")
        w.stored_form[result.name] = target, upper
    return result


def _convert(w: FunctionWriter, value: Value, source: DataType, target: DataType) -> Value:
    type = compute_type(target, value.type.lanes)
    if target is DataType.Bool:
        return _to_bool(w, value)
    if dtypes.is_floating(source):
        return _from_float(w, value, type, target is DataType.UInt64)
    signed = dtypes.is_signed(source)
    if type.is_float:
        return w.sitofp(value, type) if signed else w.uitofp(value, type)
    if type.bits < value.type.bits:
        return w.truncate(value, type)
    return w.sext(value, type) if signed else w.zext(value, type)


def _to_bool(w: FunctionWriter, value: Value) -> Value:
    if value.type.element == "i1":
        return value
    zero = w.constant(0, value.type)
    return w.fcmp("une", value, zero) if value.type.is_float else w.icmp("ne", value, zero)


def _from_float(w: FunctionWriter, value: Value, type: LLVMType, is_unsigned: bool) -> Value:
    if type.is_float:
        wider = type.bits > value.type.bits
        return w.fpext(value, type) if wider else w.fptrunc(value, type)
    wide = type.with_element("i64" if type.bits == 64 else "i32")
    limit = w.constant(2.0 ** (wide.bits - 1), value.type)
    inside = w.fcmp("olt", w.fabs(value), limit)
    # Out of range the conversion is poison, which the select doesn't choose.
    lowest = w.constant(-(1 << (wide.bits - 1)), wide)
    found = w.select(inside, w.fptosi(value, wide), lowest)
    if is_unsigned:  # the upper half of the range, shifted down and up again
        reduced = w.fsub(value, limit)
        is_upper = w.and_(w.fcmp("oge", value, limit), w.fcmp("olt", reduced, limit))
        found = w.select(is_upper, w.xor(w.fptosi(reduced, wide), lowest), found)
    return w.truncate(found, type)
