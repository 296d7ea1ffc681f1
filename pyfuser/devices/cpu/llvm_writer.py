"""A small typed writer of LLVM IR text: one method an instruction, one SSA name a result.

The CPU code generator, the vector math and the op emitter all print through `FunctionWriter`. It
turns typed calls (`writer.fadd(a, b)`) into lines of one function's body and collects what the
module must hold beside it: `declarations` (name -> `declare` line) and `definitions` (name ->
text of an internal helper function; large vector math is called, not inlined). Invariants: text
is deterministic (names are counted, so equal calls give equal text and the disk cache hits); no
fast-math flag is ever printed; `llvm.fma` is printed only for a machine that has the
instruction. Equal pure instructions in one basic block are printed once. Source: the LLVM
Language Reference; opaque pointers and `splat (...)` constants (LLVM 19 or newer).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    literal,
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


class FunctionWriter:
    """Collects the lines of one function's body.

    `lines` may be replaced by another list at any time (to hoist code); the memory of what was
    already computed is dropped whenever that happens, and at every label, so a remembered value
    always stands earlier in the same basic block.
    """

    __slots__ = (
        "_count",
        "_seen",
        "_seen_lines",
        "declarations",
        "definitions",
        "has_avx512",
        "has_fma",
        "lines",
        "stored_form",
    )

    def __init__(self, *, has_fma: bool, has_avx512: bool = False) -> None:
        self.has_fma = has_fma
        self.has_avx512 = has_avx512
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        # Name of a float value -> the narrower stored value that it was widened from, exactly.
        self.stored_form: dict[str, Value] = {}
        self._count = 0
        self._seen: dict[str, Value] = {}
        self._seen_lines = self.lines

    # -- lines ------------------------------------------------------------------------------------

    def fresh(self, prefix: str = "v") -> str:
        """A name not used before in this function, without its `%`."""
        self._count += 1
        return f"{prefix}{self._count}"

    def emit(self, text: str) -> None:
        """Adds a line as it is."""
        self.lines.append(text)

    def forget(self) -> None:
        """Drops the memory of computed values: what follows may not be dominated by them."""
        self._seen = {}
        self._seen_lines = self.lines

    def instruction(self, type: LLVMType, text: str) -> Value:
        """`%v<n> = <text>`, always printed (loads, calls with effects, phis)."""
        self._count += 1
        value = Value(f"%v{self._count}", type)
        self.lines.append(f"  {value.name} = {text}")
        return value

    def pure(self, type: LLVMType, text: str) -> Value:
        """As `instruction`, but an equal text in the same basic block gives the earlier value."""
        if self._seen_lines is not self.lines:
            self.forget()
        value = self._seen.get(text)
        if value is None:
            value = self._seen[text] = self.instruction(type, text)
        return value

    def label(self, name: str) -> None:
        """Opens the basic block `name`."""
        self.lines.append(f"{name}:")
        self.forget()

    def branch(self, target: str) -> None:
        """Ends the block with a jump."""
        self.lines.append(f"  br label %{target}")

    def branch_if(
        self, condition: Value, then: str, otherwise: str, likely: str = ""
    ) -> None:
        """Ends the block with a conditional jump; `likely` is a `, !prof !n` suffix if wanted."""
        self.lines.append(
            f"  br i1 {condition.name}, label %{then}, label %{otherwise}{likely}"
        )

    def phi(self, type: LLVMType, incoming: Iterable[tuple[Value, str]]) -> Value:
        """A phi of (value, block) pairs; must stand first in its block."""
        pairs = ", ".join(f"[ {value.name}, %{block} ]" for value, block in incoming)
        return self.instruction(type, f"phi {type} {pairs}")

    def ret(self, value: Value | None = None) -> None:
        """Ends the function."""
        self.lines.append("  ret void" if value is None else f"  ret {value.typed}")

    # -- constants --------------------------------------------------------------------------------

    def constant(self, number: float, type: LLVMType) -> Value:
        """An exact literal (rounded to the type); a splat for vectors; integers wrap."""
        negative_zero = number == 0 and str(number).startswith("-")
        text = literal(number, negative_zero, type.element)
        if type.lanes == 1:
            return Value(text, type)
        return Value(f"splat ({type.element} {text})", type)

    def vector(self, numbers: Sequence[float], element: str) -> Value:
        """A vector literal with one number a lane."""
        scalar = LLVMType(element)
        parts = ", ".join(self.constant(number, scalar).typed for number in numbers)
        return Value(f"<{parts}>", LLVMType(element, len(numbers)))

    def undefined(self, type: LLVMType) -> Value:
        """A value nobody reads."""
        return Value("poison", type)

    # -- arithmetic -------------------------------------------------------------------------------

    def binary(self, opcode: str, a: Value, b: Value) -> Value:
        """`opcode a, b`; the type is a's."""
        return self.pure(a.type, f"{opcode} {a.type} {a.name}, {b.name}")

    def fadd(self, a: Value, b: Value) -> Value:
        """a + b"""
        return self.binary("fadd", a, b)

    def fsub(self, a: Value, b: Value) -> Value:
        """a - b"""
        return self.binary("fsub", a, b)

    def fmul(self, a: Value, b: Value) -> Value:
        """a * b"""
        return self.binary("fmul", a, b)

    def fdiv(self, a: Value, b: Value) -> Value:
        """a / b"""
        return self.binary("fdiv", a, b)

    def frem(self, a: Value, b: Value) -> Value:
        """C fmod: a call of the C library a lane; prefer the vector math."""
        return self.binary("frem", a, b)

    def fneg(self, a: Value) -> Value:
        """-a"""
        return self.pure(a.type, f"fneg {a.typed}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the machine has the instruction, else twice."""
        if self.has_fma:
            return self.intrinsic("fma", a.type, a, b, c)
        return self.fadd(self.fmul(a, b), c)

    def add(self, a: Value, b: Value) -> Value:
        """a + b, wrapping."""
        if b.name == "0":
            return a
        if a.name == "0":
            return b
        return self.binary("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """a - b, wrapping."""
        return a if b.name == "0" else self.binary("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """a * b, wrapping."""
        if b.name == "1" or a.name == "0":
            return a
        if a.name == "1" or b.name == "0":
            return b
        return self.binary("mul", a, b)

    def shl(self, a: Value, b: Value) -> Value:
        """a << b; b must be under the width."""
        return self.binary("shl", a, b)

    def lshr(self, a: Value, b: Value) -> Value:
        """Logical a >> b; b must be under the width."""
        return self.binary("lshr", a, b)

    def ashr(self, a: Value, b: Value) -> Value:
        """Arithmetic a >> b; b must be under the width."""
        return self.binary("ashr", a, b)

    def and_(self, a: Value, b: Value) -> Value:
        """a & b"""
        return self.binary("and", a, b)

    def or_(self, a: Value, b: Value) -> Value:
        """a | b"""
        return self.binary("or", a, b)

    def xor(self, a: Value, b: Value) -> Value:
        """a ^ b"""
        return self.binary("xor", a, b)

    def not_(self, a: Value) -> Value:
        """~a (of i1: logical not)."""
        return self.binary(
            "xor", a, self.constant(-1 if a.type.bits > 1 else True, a.type)
        )

    def fcmp(self, predicate: str, a: Value, b: Value) -> Value:
        """Compare floats (oeq, une, olt, uno, ...) to i1."""
        return self.pure(
            a.type.with_element("i1"), f"fcmp {predicate} {a.type} {a.name}, {b.name}"
        )

    def icmp(self, predicate: str, a: Value, b: Value) -> Value:
        """Compare integers or pointers (eq, ne, slt, ult, ...) to i1."""
        return self.pure(
            a.type.with_element("i1"), f"icmp {predicate} {a.type} {a.name}, {b.name}"
        )

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """condition ? a : b, per lane (a scalar condition picks whole vectors)."""
        if a.name == b.name:
            return a
        return self.pure(a.type, f"select {condition.typed}, {a.typed}, {b.typed}")

    def is_nan(self, a: Value) -> Value:
        """True in the lanes that are NaN."""
        return self.fcmp("uno", a, a)

    # -- conversions: the target is an element name or a type with the same lanes -----------------

    def convert(self, opcode: str, a: Value, target: LLVMType | str) -> Value:
        """`opcode a to target`; nothing where the type is already right."""
        element = target if isinstance(target, str) else target.element
        if element == a.type.element:
            return a
        type = a.type.with_element(element)
        return self.pure(type, f"{opcode} {a.typed} to {type}")

    def bitcast(self, a: Value, target: LLVMType | str) -> Value:
        """The same bits under another type; a `LLVMType` may also change the number of lanes."""
        if isinstance(target, LLVMType):
            if target == a.type:
                return a
            return self.pure(target, f"bitcast {a.typed} to {target}")
        return self.convert("bitcast", a, target)

    def truncate(self, a: Value, target: LLVMType | str) -> Value:
        """The low bits of an integer."""
        return self.convert("trunc", a, target)

    def zext(self, a: Value, target: LLVMType | str) -> Value:
        """Zero extension."""
        return self.convert("zext", a, target)

    def sext(self, a: Value, target: LLVMType | str) -> Value:
        """Sign extension."""
        return self.convert("sext", a, target)

    def fpext(self, a: Value, target: LLVMType | str) -> Value:
        """A float in a wider type, exactly."""
        return self.convert("fpext", a, target)

    def fptrunc(self, a: Value, target: LLVMType | str) -> Value:
        """A float in a narrower type, rounded to nearest even."""
        return self.convert("fptrunc", a, target)

    def sitofp(self, a: Value, target: LLVMType | str) -> Value:
        """Signed integer to float."""
        return self.convert("sitofp", a, target)

    def uitofp(self, a: Value, target: LLVMType | str) -> Value:
        """Unsigned integer (or i1) to float."""
        return self.convert("uitofp", a, target)

    def fptosi(self, a: Value, target: LLVMType | str) -> Value:
        """Float to signed integer where the caller knows that it fits."""
        return self.convert("fptosi", a, target)

    def fptosi_saturating(self, a: Value, target: LLVMType | str) -> Value:
        """Float to signed integer, saturating, NaN gives 0."""
        return self._saturating("fptosi", a, target)

    def fptoui_saturating(self, a: Value, target: LLVMType | str) -> Value:
        """Float to unsigned integer, saturating, NaN gives 0."""
        return self._saturating("fptoui", a, target)

    def _saturating(self, kind: str, a: Value, target: LLVMType | str) -> Value:
        type = a.type.with_element(
            target if isinstance(target, str) else target.element
        )
        return self.call(type, f"llvm.{kind}.sat.{type.mangled}.{a.type.mangled}", a)

    # -- calls and intrinsics ---------------------------------------------------------------------

    def call(self, type: LLVMType, function: str, *arguments: Value) -> Value:
        """A pure call of a declared function (arguments by value); equal calls are made once."""
        if function not in self.declarations:
            types = ", ".join(str(argument.type) for argument in arguments)
            self.declarations[function] = f"declare {type} @{function}({types})"
        operands = ", ".join([argument.typed for argument in arguments])
        return self.pure(type, f"call {type} @{function}({operands})")

    def call_void(self, function: str, *arguments: Value) -> None:
        """A call for its effect."""
        if function not in self.declarations:
            types = ", ".join(str(argument.type) for argument in arguments)
            self.declarations[function] = f"declare void @{function}({types})"
        operands = ", ".join([argument.typed for argument in arguments])
        self.lines.append(f"  call void @{function}({operands})")

    def intrinsic(self, name: str, type: LLVMType, *arguments: Value) -> Value:
        """`llvm.<name>` overloaded on the result type alone."""
        return self.call(type, f"llvm.{name}.{type.mangled}", *arguments)

    def sqrt(self, a: Value) -> Value:
        """Correctly rounded square root."""
        return self.intrinsic("sqrt", a.type, a)

    def fabs(self, a: Value) -> Value:
        """|a|, also of NaN."""
        return self.intrinsic("fabs", a.type, a)

    def floor(self, a: Value) -> Value:
        """Rounded down."""
        return self.intrinsic("floor", a.type, a)

    def ceil(self, a: Value) -> Value:
        """Rounded up."""
        return self.intrinsic("ceil", a.type, a)

    def ftrunc(self, a: Value) -> Value:
        """Rounded towards zero."""
        return self.intrinsic("trunc", a.type, a)

    def roundeven(self, a: Value) -> Value:
        """Rounded to nearest, ties to even."""
        return self.intrinsic("roundeven", a.type, a)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        """|magnitude| with the sign of `sign`."""
        return self.intrinsic("copysign", magnitude.type, magnitude, sign)

    def fmin_number(self, a: Value, b: Value) -> Value:
        """`a < b ? a : b`: the machine's min, which gives b where either is NaN."""
        return self.select(self.fcmp("olt", a, b), a, b)

    def fmax_number(self, a: Value, b: Value) -> Value:
        """`a > b ? a : b`: the machine's max, which gives b where either is NaN."""
        return self.select(self.fcmp("ogt", a, b), a, b)

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
        return self.pure(type, f"shufflevector {first.typed}, {type} poison, {zeros}")

    def extractelement(self, vector: Value, index: int | Value) -> Value:
        """One lane as a scalar."""
        text = f"i32 {index}" if isinstance(index, int) else index.typed
        return self.pure(
            vector.type.with_lanes(1), f"extractelement {vector.typed}, {text}"
        )

    def insertelement(self, vector: Value, scalar: Value, index: int | Value) -> Value:
        """The vector with one lane replaced."""
        text = f"i32 {index}" if isinstance(index, int) else index.typed
        return self.pure(
            vector.type, f"insertelement {vector.typed}, {scalar.typed}, {text}"
        )

    def shufflevector(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """The lanes picked from a then b; -1 is a lane nobody reads."""
        mask = ", ".join("i32 poison" if lane < 0 else f"i32 {lane}" for lane in lanes)
        second = f"{a.type} poison" if b is None else b.typed
        type = a.type.with_lanes(len(lanes))
        return self.pure(
            type, f"shufflevector {a.typed}, {second}, <{len(lanes)} x i32> <{mask}>"
        )

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
            raise InternalError(
                expected("reduce_tree", "a power of two of lanes", lanes)
            )
        while lanes > 2:
            lanes //= 2
            low = self.shufflevector(vector, None, range(lanes))
            high = self.shufflevector(vector, None, range(lanes, 2 * lanes))
            vector = self.binary(combine, low, high)
        if lanes == 1:
            return vector
        return self.binary(
            combine, self.extractelement(vector, 0), self.extractelement(vector, 1)
        )

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

    def load(
        self, type: LLVMType, pointer: Value, align: int, suffix: str = ""
    ) -> Value:
        """Loads; `align` in bytes; `suffix` is metadata (`, !alias.scope !1`)."""
        return self.instruction(
            type, f"load {type}, ptr {pointer.name}, align {align}{suffix}"
        )

    def store(self, value: Value, pointer: Value, align: int, suffix: str = "") -> None:
        """Stores; `suffix` is metadata (`, !nontemporal !0`)."""
        self.lines.append(
            f"  store {value.typed}, ptr {pointer.name}, align {align}{suffix}"
        )

    def alloca(self, type: LLVMType, count: int, align: int) -> Value:
        """Stack memory for `count` elements; belongs into the entry block."""
        return self.instruction(PTR, f"alloca {type}, i64 {count}, align {align}")

    def masked_load(
        self, type: LLVMType, pointer: Value, mask: Value, align: int
    ) -> Value:
        """Loads the lanes of the mask; the others are 0."""
        name = f"llvm.masked.load.{type.mangled}.p0"
        declaration = (
            f"declare {type} @{name}(ptr, i32 immarg, <{type.lanes} x i1>, {type})"
        )
        self.declarations.setdefault(name, declaration)
        zero = "zeroinitializer"
        return self.instruction(
            type,
            f"call {type} @{name}(ptr {pointer.name}, i32 {align}, {mask.typed}, {type} {zero})",
        )

    def masked_store(
        self, value: Value, pointer: Value, mask: Value, align: int
    ) -> None:
        """Stores the lanes of the mask."""
        type = value.type
        name = f"llvm.masked.store.{type.mangled}.p0"
        declaration = (
            f"declare void @{name}({type}, ptr, i32 immarg, <{type.lanes} x i1>)"
        )
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
        operands = (
            f"{pointers.typed}, i32 {align}, {mask.typed}, {type} zeroinitializer"
        )
        return self.instruction(type, f"call {type} @{name}({operands})")

    def scatter(self, value: Value, pointers: Value, mask: Value, align: int) -> None:
        """Stores each lane to its own address, in lane order."""
        type, lanes = value.type, value.type.lanes
        name = f"llvm.masked.scatter.{type.mangled}.v{lanes}p0"
        declaration = (
            f"declare void @{name}({type}, <{lanes} x ptr>, i32 immarg, <{lanes} x i1>)"
        )
        self.declarations.setdefault(name, declaration)
        operands = f"{value.typed}, {pointers.typed}, i32 {align}, {mask.typed}"
        self.lines.append(f"  call void @{name}({operands})")
