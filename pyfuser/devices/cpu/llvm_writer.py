"""A small typed writer of LLVM IR text: one method per instruction, one SSA name per result.

The CPU code generator, the vector math and the op emitter all print through `FunctionWriter`. It
turns typed calls (`writer.fadd(a, b)`) into lines of one function's body and collects what the
module must contain besides: `declarations` (name -> `declare` line) and `definitions` (name -> text
of an internal helper function; large vector math is called, not inlined). Invariants: the text is
deterministic (names are counted, so equal calls give equal text and the disk cache hits); no
fast-math flag is ever printed; `llvm.fma` is printed only for a machine that has the instruction.
Equal pure instructions in one basic block are printed once. Source: the LLVM Language Reference;
opaque pointers and `splat (...)` constants (LLVM 19 or newer).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyfuser.devices.cpu.llvm_instructions import InstructionWriter
from pyfuser.devices.cpu.llvm_types import (
    BFLOAT,
    DOUBLE,
    FLOAT,
    HALF,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    LLVMType,
    Value,
)
from pyfuser.errors import InternalError, expected

__all__ = [
    "BFLOAT",
    "DOUBLE",
    "FLOAT",
    "HALF",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "PTR",
    "FunctionWriter",
    "LLVMType",
    "Value",
]

# `a predicate b` is `b mirrored a`.
_MIRRORED = {
    "eq": "eq",
    "ne": "ne",
    "slt": "sgt",
    "sgt": "slt",
    "sle": "sge",
    "sge": "sle",
}


class FunctionWriter(InstructionWriter):
    """Collects the lines of one function's body: the instructions, the lanes and the memory."""

    __slots__ = ()

    # -- lanes ------------------------------------------------------------------------------------

    def splat(self, scalar: Value, lanes: int) -> Value:
        """A vector whose lanes are all `scalar`; the scalar itself for one lane."""
        if lanes == 1:
            return scalar
        type = scalar.type.with_lanes(lanes)
        if not scalar.name.startswith("%"):
            return Value(f"splat ({scalar.typed})", type)
        first = self.pure(type, f"insertelement {type} poison, {scalar.typed}, i32 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        made = self.pure(type, f"shufflevector {first.typed}, {type} poison, {zeros}")
        self.computed_by[made.name] = "splat", scalar
        return made

    def shared_by_lanes(self, vector: Value) -> Value | None:
        """The scalar that all lanes of a vector are; None if they may differ, and for a scalar."""
        function, scalar = self.computed_by.get(vector.name, ("", vector))
        if function == "splat":
            return scalar
        start = f"splat ({vector.type.element} "
        if not vector.name.startswith(start):
            return None
        return Value(vector.name.removeprefix(start).removesuffix(")"), vector.type.with_lanes(1))

    def extractelement(self, vector: Value, index: int | Value) -> Value:
        """One lane as a scalar."""
        text = f"i32 {index}" if isinstance(index, int) else index.typed
        return self.pure(vector.type.with_lanes(1), f"extractelement {vector.typed}, {text}")

    def insertelement(self, vector: Value, scalar: Value, index: int | Value) -> Value:
        """The vector with one lane replaced."""
        text = f"i32 {index}" if isinstance(index, int) else index.typed
        return self.pure(vector.type, f"insertelement {vector.typed}, {scalar.typed}, {text}")

    def shufflevector(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """The lanes selected from a, then b; -1 is a lane that is never read."""
        mask = ", ".join("i32 poison" if lane < 0 else f"i32 {lane}" for lane in lanes)
        second = f"{a.type} poison" if b is None else b.typed
        type = a.type.with_lanes(len(lanes))
        return self.pure(type, f"shufflevector {a.typed}, {second}, <{len(lanes)} x i32> <{mask}>")

    def pieces(self, vector: Value, lanes: int) -> list[Value]:
        """The vector in pieces of so many lanes; itself if it has no more."""
        if vector.type.lanes <= lanes:
            return [vector]
        starts = range(0, vector.type.lanes, lanes)
        return [self.shufflevector(vector, None, range(s, s + lanes)) for s in starts]

    def joined(self, pieces: Sequence[Value]) -> Value:
        """One vector of equally long pieces, whose number is a power of two."""
        while len(pieces) > 1:
            both = range(2 * pieces[0].type.lanes)
            pairs = zip(pieces[::2], pieces[1::2], strict=True)
            pieces = [self.shufflevector(a, b, both) for a, b in pairs]
        return pieces[0]

    def positions_from(self, first: Value, lanes: int) -> Value:
        """<first, first + 1, ...>"""
        numbers = self.lane_numbers(first.type.with_lanes(lanes))
        made = self.add(self.splat(first, lanes), numbers)
        if lanes > 1:
            self.computed_by[made.name] = "positions", first
        return made

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """`icmp`; positions are compared with what all lanes share as their distance from it, in
        32 bits: vectors of 64 take twice as many instructions."""
        if predicate not in _MIRRORED:
            return self.icmp(predicate, a, b)
        for one, each, how in ((a, b, predicate), (b, a, _MIRRORED[predicate])):
            function, first = self.computed_by.get(one.name, ("", one))
            other = self.shared_by_lanes(each)
            if function == "positions" and other is not None:
                return self._compare_distance(how, first, other, one.type.lanes)
        return self.icmp(predicate, a, b)

    def _compare_distance(self, predicate: str, first: Value, other: Value, lanes: int) -> Value:
        """How the positions from the first on compare with another number."""
        type = other.type
        distance = self.intrinsic("ssub.sat", type, other, first)
        most = self.intrinsic("smin", type, distance, self.constant(lanes, type))
        inside = self.intrinsic("smax", type, most, self.constant(-1, type))
        numbers = self.lane_numbers(I32.with_lanes(lanes))
        return self.icmp(predicate, numbers, self.splat(self.truncate(inside, "i32"), lanes))

    def lane_numbers(self, type: LLVMType) -> Value:
        """<0, 1, 2, ...> of an integer vector type (0 for a scalar)."""
        if type.lanes == 1:
            return self.constant(0, type)
        return self.vector(range(type.lanes), type.element)

    def reduce(self, name: str, vector: Value, start: Value | None = None) -> Value:
        """`llvm.vector.reduce.<name>`: add mul and or xor smax smin umax umin fmax fmin fmaximum
        fminimum; fadd and fmul take `start` and are strictly in order (see `reduce_tree`)."""
        if vector.type.lanes == 1:
            return vector
        arguments = (vector,) if start is None else (start, vector)
        function = f"llvm.vector.reduce.{name}.{vector.type.mangled}"
        return self.call(vector.type.with_lanes(1), function, *arguments)

    def reduce_tree(self, vector: Value, combine: str) -> Value:
        """Halves the vector by the instruction `combine` (fadd, ...) until one lane is left."""
        lanes = vector.type.lanes
        if lanes & (lanes - 1):
            raise InternalError(expected("reduce_tree", "a power of two of lanes", lanes))
        while lanes > 2:
            lanes //= 2
            vector = self.binary(combine, *self.pieces(vector, lanes))
        if lanes == 1:
            return vector
        return self.binary(combine, self.extractelement(vector, 0), self.extractelement(vector, 1))

    def any(self, mask: Value) -> Value:
        """i1: some lane is true."""
        return self.reduce("or", mask)

    def all(self, mask: Value) -> Value:
        """i1: every lane is true."""
        return self.reduce("and", mask)

    # -- memory -----------------------------------------------------------------------------------

    def element_pointer(self, base: Value, element: str, index: Value) -> Value:
        """The address of base[index] for elements of a type."""
        if index.name == "0":
            return base
        type = PTR.with_lanes(index.type.lanes)
        return self.pure(type, f"getelementptr {element}, {base.typed}, {index.typed}")

    def load(self, type: LLVMType, pointer: Value, align: int, suffix: str = "") -> Value:
        """Loads; `align` in bytes; `suffix` is metadata (`, !alias.scope !1`)."""
        return self.instruction(type, f"load {type}, ptr {pointer.name}, align {align}{suffix}")

    def prefetch(self, pointer: Value, distance: int) -> None:
        """Prefetches the data `distance` bytes after an address into the second cache level."""
        ahead = self.element_pointer(pointer, "i8", self.constant(distance, I64))
        self._prefetch(ahead, "i32 0, i32 2")

    def prefetch_to_write(self, pointer: Value) -> None:
        """Prefetches the cache line at an address into the first cache level, to write into it."""
        self._prefetch(pointer, "i32 1, i32 3")

    def _prefetch(self, pointer: Value, kind: str) -> None:
        name = "llvm.prefetch.p0"
        arguments = "ptr, i32 immarg, i32 immarg, i32 immarg"
        self.declarations.setdefault(name, f"declare void @{name}({arguments})")
        self.lines.append(f"  call void @{name}({pointer.typed}, {kind}, i32 1)")

    def store(self, value: Value, pointer: Value, align: int, suffix: str = "") -> None:
        """Stores; `suffix` is metadata (`, !nontemporal !0`)."""
        self.lines.append(f"  store {value.typed}, ptr {pointer.name}, align {align}{suffix}")

    def alloca(self, type: LLVMType, count: int, align: int) -> Value:
        """Stack memory for `count` elements; belongs in the entry block."""
        # an array type, not a count of elements: LLVM's sroa splits only the former
        return self.instruction(PTR, f"alloca [{count} x {type}], align {align}")

    def masked_load(self, type: LLVMType, pointer: Value, mask: Value, align: int) -> Value:
        """Loads the lanes of the mask; the others are 0."""
        name = f"llvm.masked.load.{type.mangled}.p0"
        declaration = f"declare {type} @{name}(ptr, i32 immarg, <{type.lanes} x i1>, {type})"
        self.declarations.setdefault(name, declaration)
        zero = "zeroinitializer"
        return self.instruction(
            type,
            f"call {type} @{name}(ptr {pointer.name}, i32 {align}, {mask.typed}, {type} {zero})",
        )

    def masked_store(self, value: Value, pointer: Value, mask: Value, align: int) -> None:
        """Stores the lanes of the mask."""
        type = value.type
        name = f"llvm.masked.store.{type.mangled}.p0"
        declaration = f"declare void @{name}({type}, ptr, i32 immarg, <{type.lanes} x i1>)"
        self.declarations.setdefault(name, declaration)
        self.lines.append(
            f"  call void @{name}({value.typed}, ptr {pointer.name}, i32 {align}, {mask.typed})"
        )

    def gather(self, type: LLVMType, pointers: Value, mask: Value, align: int) -> Value:
        """Loads each lane from its own address; lanes outside the mask are 0."""
        lanes = type.lanes
        name = f"llvm.masked.gather.{type.mangled}.v{lanes}p0"
        declaration = f"declare {type} @{name}(<{lanes} x ptr>, i32 immarg, <{lanes} x i1>, {type})"
        self.declarations.setdefault(name, declaration)
        operands = f"{pointers.typed}, i32 {align}, {mask.typed}, {type} zeroinitializer"
        return self.instruction(type, f"call {type} @{name}({operands})")

    def scatter(self, value: Value, pointers: Value, mask: Value, align: int) -> None:
        """Stores each lane to its own address, in lane order."""
        type, lanes = value.type, value.type.lanes
        name = f"llvm.masked.scatter.{type.mangled}.v{lanes}p0"
        declaration = f"declare void @{name}({type}, <{lanes} x ptr>, i32 immarg, <{lanes} x i1>)"
        self.declarations.setdefault(name, declaration)
        operands = f"{value.typed}, {pointers.typed}, i32 {align}, {mask.typed}"
        self.lines.append(f"  call void @{name}({operands})")
