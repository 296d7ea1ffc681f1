"""The types, values and exact literals of LLVM IR text that `llvm_writer` prints.

`LLVMType` and `Value` are small and frozen; a `Value` is an SSA name or a literal with its type.
`literal` turns a Python number into the text of the element type's value nearest to it (ties to
even), so a constant never depends on how LLVM parses decimals. Source: the LLVM Language
Reference.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass, field

_BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "half": 16,
    "bfloat": 16,
    "float": 32,
    "double": 64,
    "ptr": 64,
}
_MANGLED = {
    "half": "f16",
    "bfloat": "bf16",
    "float": "f32",
    "double": "f64",
    "ptr": "p0",
}
_FLOATS = frozenset(("half", "bfloat", "float", "double"))


@dataclass(frozen=True, slots=True)
class LLVMType:
    """A scalar (`lanes == 1`) or a vector of float, double, half, bfloat, i<n> or ptr."""

    element: str
    lanes: int = 1
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        vector = f"<{self.lanes} x {self.element}>"
        object.__setattr__(self, "text", self.element if self.lanes == 1 else vector)

    def __str__(self) -> str:
        return self.text

    def with_element(self, element: str) -> LLVMType:
        """The type with the same lanes and another element."""
        return _type(element, self.lanes)

    def with_lanes(self, lanes: int) -> LLVMType:
        """The type with the same element and another number of lanes."""
        return _type(self.element, lanes)

    @property
    def is_float(self) -> bool:
        """True for half, bfloat, float and double elements."""
        return self.element in _FLOATS

    @property
    def bits(self) -> int:
        """Bits of one element (a pointer has 64)."""
        return _BITS[self.element]

    @property
    def as_integer(self) -> LLVMType:
        """The integer type of the same width and lanes."""
        return _type(f"i{_BITS[self.element]}", self.lanes)

    @property
    def mangled(self) -> str:
        """The name in an intrinsic's suffix: `v16f32`, `i64`, `p0`."""
        name = _MANGLED.get(self.element, self.element)
        return name if self.lanes == 1 else f"v{self.lanes}{name}"


@functools.lru_cache(maxsize=1024)
def _type(element: str, lanes: int) -> LLVMType:
    return LLVMType(element, lanes)


# Not `frozen`: a kernel creates thousands, and that makes creation slower. Never assigned to.
@dataclass(slots=True, unsafe_hash=True)
class Value:
    """An operand: an SSA name (`%v12`) or a literal constant, and its type."""

    name: str
    type: LLVMType

    @property
    def typed(self) -> str:
        """`<type> <name>`, as an operand is printed where its type is needed."""
        return f"{self.type.text} {self.name}"


I1, I8, I16, I32, I64 = (LLVMType(name) for name in ("i1", "i8", "i16", "i32", "i64"))
FLOAT, DOUBLE, HALF, BFLOAT = (LLVMType(name) for name in ("float", "double", "half", "bfloat"))
PTR = LLVMType("ptr")


@functools.lru_cache(maxsize=4096)
def literal(number: float, sign_of_zero: bool, element: str) -> str:
    """The exact literal of a number in an element type; `sign_of_zero` only splits the cache."""
    del sign_of_zero
    if element == "i1":
        return "true" if number else "false"
    if element == "ptr":
        return "null"
    if element not in _FLOATS:
        bits = _BITS[element]
        return str((int(number) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)))
    number = float(number)
    if element == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', number))[0]:04X}"
    if element in ("float", "bfloat"):
        number = _round_to_float32(number)
    if element == "bfloat":
        return f"0xR{_bfloat16_bits(number):04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def _round_to_float32(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _bfloat16_bits(number: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
    if math.isnan(number):
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
