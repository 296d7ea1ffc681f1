"""Data types: element types, their sizes in bytes, and the types in which they are computed.

`DataType` has the names of the nvfuser_direct interface (`DataType.Float`, `DataType.Half`, ...).
Half, BFloat16 and the 8-bit floating types are storage types: kernels compute them in float32
(`compute_dtype`).
"""

from __future__ import annotations

import enum
import functools

import torch


class DataType(enum.Enum):
    """An element type; the value is the name it has in printed IR."""

    Double = "double"
    Float = "float"
    Half = "__half"
    BFloat16 = "__bfloat"
    Int = "int64_t"
    Int32 = "int"
    Int16 = "int16_t"
    Int8 = "int8_t"
    UInt8 = "uint8_t"
    UInt64 = "uint64_t"
    Index = "nvfuser_index_t"
    Bool = "bool"
    Float8_e4m3fn = "__e4m3"
    Float8_e5m2 = "__e5m2"
    Float8_e8m0fnu = "__e8m0"
    Float4_e2m1fn = "__e2m1"
    Float4_e2m1fn_x2 = "__e2m1_x2"
    ComplexFloat = "std::complex<float>"
    ComplexDouble = "std::complex<double>"
    Null = "null_type"

    def __repr__(self) -> str:
        return f"DataType.{self.name}"

    def __str__(self) -> str:
        return f"DataType.{self.name}"

    def __call__(self) -> DataType:
        """The dtype itself: the interface writes `tensor.dtype()`."""
        return self


_TORCH = {
    DataType.Double: torch.float64,
    DataType.Float: torch.float32,
    DataType.Half: torch.float16,
    DataType.BFloat16: torch.bfloat16,
    DataType.Int: torch.int64,
    DataType.Index: torch.int64,
    DataType.Int32: torch.int32,
    DataType.Int16: torch.int16,
    DataType.Int8: torch.int8,
    DataType.UInt8: torch.uint8,
    DataType.UInt64: torch.uint64,
    DataType.Bool: torch.bool,
    DataType.Float8_e4m3fn: torch.float8_e4m3fn,
    DataType.Float8_e5m2: torch.float8_e5m2,
    DataType.ComplexFloat: torch.complex64,
    DataType.ComplexDouble: torch.complex128,
}
if hasattr(torch, "float8_e8m0fnu"):  # torch 2.7
    _TORCH[DataType.Float8_e8m0fnu] = torch.float8_e8m0fnu
_FROM_TORCH = {v: k for k, v in _TORCH.items() if k is not DataType.Index}

_BYTES = {
    DataType.Double: 8,
    DataType.Float: 4,
    DataType.Half: 2,
    DataType.BFloat16: 2,
    DataType.Int: 8,
    DataType.Index: 8,
    DataType.UInt64: 8,
    DataType.Int32: 4,
    DataType.Int16: 2,
    DataType.Int8: 1,
    DataType.UInt8: 1,
    DataType.Bool: 1,
    DataType.Float8_e4m3fn: 1,
    DataType.Float8_e5m2: 1,
    DataType.Float8_e8m0fnu: 1,
    DataType.ComplexFloat: 8,
    DataType.ComplexDouble: 16,
}

# (largest binary exponent, significant bits, has a sign) of the values that a type holds exactly.
# Sources: IEEE 754 for the floating types; every value of an n-bit integer has at most n bits.
_RANGE = {
    DataType.Bool: (1, 1, False),
    DataType.UInt8: (8, 8, False),
    DataType.Int8: (8, 7, True),
    DataType.Int16: (16, 15, True),
    DataType.Int32: (32, 31, True),
    DataType.Int: (64, 63, True),
    DataType.UInt64: (64, 64, False),
    DataType.Float8_e4m3fn: (9, 4, True),
    DataType.Float8_e5m2: (16, 3, True),
    DataType.Half: (16, 11, True),
    DataType.BFloat16: (128, 8, True),
    DataType.Float: (128, 24, True),
    DataType.Double: (1024, 53, True),
}

FLOAT8 = (DataType.Float8_e4m3fn, DataType.Float8_e5m2, DataType.Float8_e8m0fnu)
# The storage types that kernels compute in Float, the finest first.
REDUCED_FLOATING = (DataType.Half, DataType.BFloat16, *FLOAT8)
FLOATING = (DataType.Double, DataType.Float, *REDUCED_FLOATING)
SIGNED_INTEGERS = (DataType.Int, DataType.Int32, DataType.Int16, DataType.Int8, DataType.Index)
INTEGERS = (*SIGNED_INTEGERS, DataType.UInt8, DataType.UInt64)
COMPLEX = (DataType.ComplexFloat, DataType.ComplexDouble)

# The dtypes that kernels of this version compute; others run through the fallback.
KERNEL_DTYPES = (*FLOATING, *INTEGERS, DataType.Bool)


def is_floating(dtype: DataType) -> bool:
    """True for Double, Float, Half, BFloat16 and the 8-bit floating types."""
    return dtype in FLOATING


def is_integer(dtype: DataType) -> bool:
    """True for the integer types; Bool is not one."""
    return dtype in INTEGERS


def is_complex(dtype: DataType) -> bool:
    """True for ComplexFloat and ComplexDouble."""
    return dtype in COMPLEX


def is_signed(dtype: DataType) -> bool:
    """True for signed integers and floating types."""
    return dtype in SIGNED_INTEGERS or dtype in FLOATING


def is_unsigned(dtype: DataType) -> bool:
    """True for integer types without negative numbers, and for Bool."""
    return dtype is DataType.Bool or (dtype in INTEGERS and dtype not in SIGNED_INTEGERS)


def size_in_bytes(dtype: DataType) -> int:
    """Bytes of an element in memory."""
    return _BYTES[dtype]


def compute_dtype(dtype: DataType) -> DataType:
    """The type a kernel computes in: Float for narrower floating types, else the type itself."""
    return DataType.Float if dtype in REDUCED_FLOATING else dtype


def holds_every_value(target: DataType, source: DataType) -> bool:
    """True if converting from `source` to `target` loses nothing."""
    if target not in _RANGE or source not in _RANGE:
        return False
    if is_floating(source) and not is_floating(target):
        return False
    (wide, bits, sign), (narrow, source_bits, source_sign) = _RANGE[target], _RANGE[source]
    return wide >= narrow and bits >= source_bits and (sign or not source_sign)


def to_torch(dtype: DataType) -> torch.dtype:
    """The torch dtype that stores `dtype`; KeyError if torch has none."""
    return _TORCH[dtype]


def from_torch(dtype: torch.dtype) -> DataType:
    """The DataType of a torch dtype; KeyError if there is none."""
    return _FROM_TORCH[dtype]


@functools.cache
def beyond_range(dtype: DataType) -> int:
    """The byte that torch makes of a number beyond an 8-bit type's range; its versions differ."""
    return int(torch.tensor(1e30).to(to_torch(dtype)).view(torch.uint8))


def fits_64_bits(number: int) -> bool:
    """True for an integer that torch and kernels can represent."""
    return -(2**63) <= number < 2**63


@functools.cache
def integers_of(dtype: DataType) -> range:
    """The numbers of an integer type."""
    info = torch.iinfo(to_torch(dtype))
    return range(info.min, info.max + 1)


def fits(number: int, dtype: DataType) -> bool:
    """True for an integer that is one of an integer type's numbers, or of 64 bits for others."""
    return number in integers_of(dtype) if dtype in INTEGERS else fits_64_bits(number)


def integer_text(number: int) -> str:
    """An integer for a message: in digits, unless there are too many."""
    length = number.bit_length()
    return str(number) if length <= 128 else f"(an integer of {length} bits)"


def of_python_value(value: object) -> DataType:
    """The DataType of a Python scalar: Bool, Int, Double or ComplexDouble; TypeError otherwise."""
    for python_type, dtype in (
        (bool, DataType.Bool),
        (int, DataType.Int),
        (float, DataType.Double),
        (complex, DataType.ComplexDouble),
    ):
        if isinstance(value, python_type):
            return dtype
    raise TypeError(f"expected a bool, int, float or complex, got {value!r}")
