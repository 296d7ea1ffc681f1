"""The part of the LLVM writer that every routine needs: lines, constants, arithmetic, calls.

`InstructionWriter` prints one instruction per method call and returns its result as a `Value`;
equal pure instructions in one basic block are printed once. `llvm_writer.FunctionWriter` adds lanes
and memory. Invariant: no fast-math flag is ever printed. Source: the LLVM Language Reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from pyfuser.devices.cpu.llvm_types import LLVMType, Value, literal
from pyfuser.dtypes import DataType


class InstructionWriter:
    """Collects the lines of one function's body.

    `lines` may be replaced by another list at any time (to hoist code). Remembered values are
    dropped whenever that happens and at every label, so a remembered value is always defined
    earlier in the same basic block.
    """

    __slots__ = (
        "_count",
        "_seen",
        "_seen_lines",
        "computed_by",
        "declarations",
        "definitions",
        "has_avx512",
        "has_bf16",
        "has_short_nans",
        "has_fma",
        "lines",
        "makes_pairs",
        "stored_form",
    )

    def __init__(self, *, has_fma: bool, has_avx512: bool = False, has_bf16: bool = False) -> None:
        self.has_fma = has_fma
        self.has_avx512 = has_avx512
        self.has_bf16 = has_bf16  # AVX-512's conversion of 16 floats to bfloat16
        self.has_short_nans = False  # no NaN has any of the bits that rounding to bfloat16 drops
        self.makes_pairs = False  # vectors are stored as the halves of words (`pairs.py`)
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        # Name of a float value -> the narrower stored value that it was widened from, exactly.
        self.stored_form: dict[str, tuple[DataType, Value]] = {}
        # Name of the result of some functions -> the function and its operand.
        self.computed_by: dict[str, tuple[str, Value]] = {}
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
        if text.endswith(":"):
            self.forget()

    @contextmanager
    def into(self, lines: list[str]) -> Iterator[None]:
        """Writes to other lines meanwhile, such as those of the entry block."""
        saved, self.lines = self.lines, lines
        try:
            yield
        finally:
            self.lines = saved

    def forget(self) -> None:
        """Drops the remembered values: they may not dominate what follows."""
        self._seen = {}
        self._seen_lines = self.lines

    def instruction(self, type: LLVMType, text: str) -> Value:
        """`%v<n> = <text>`, always printed (loads, calls with effects, phis)."""
        self._count += 1
        value = Value(f"%v{self._count}", type)
        self.lines.append(f"  {value.name} = {text}")
        return value

    def pure(self, type: LLVMType, text: str) -> Value:
        """Like `instruction`, but an equal text in the same basic block gives the earlier value."""
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

    def branch_if(self, condition: Value, then: str, otherwise: str, likely: str = "") -> None:
        """Ends the block with a conditional jump; `likely` is a `, !prof !n` suffix if wanted."""
        self.lines.append(f"  br i1 {condition.name}, label %{then}, label %{otherwise}{likely}")

    def phi(self, type: LLVMType, incoming: Iterable[tuple[Value, str]]) -> Value:
        """A phi of (value, block) pairs; must come first in its block."""
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
        """A vector literal with one number per lane."""
        scalar = LLVMType(element)
        parts = ", ".join(self.constant(number, scalar).typed for number in numbers)
        return Value(f"<{parts}>", LLVMType(element, len(numbers)))

    def undefined(self, type: LLVMType) -> Value:
        """A value that is never read."""
        return Value("poison", type)

    # -- arithmetic -------------------------------------------------------------------------------

    def binary(self, opcode: str, a: Value, b: Value) -> Value:
        """`opcode a, b`; the type is a's."""
        return self.pure(a.type, f"{opcode} {a.type.text} {a.name}, {b.name}")

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
        """C fmod: one call of the C library per lane; prefer the vector math."""
        return self.binary("frem", a, b)

    def fneg(self, a: Value) -> Value:
        """-a"""
        return self.pure(a.type, f"fneg {a.typed}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once if the machine has the instruction, else twice."""
        if self.has_fma:
            type = a.type
            name = f"llvm.fma.{type.mangled}"
            if name not in self.declarations:
                self.declarations[name] = f"declare {type} @{name}({type}, {type}, {type})"
            t = type.text
            return self.pure(type, f"call {t} @{name}({t} {a.name}, {t} {b.name}, {t} {c.name})")
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
        """a << b; b must be less than the width."""
        return self.binary("shl", a, b)

    def lshr(self, a: Value, b: Value) -> Value:
        """Logical a >> b; b must be less than the width."""
        return self.binary("lshr", a, b)

    def ashr(self, a: Value, b: Value) -> Value:
        """Arithmetic a >> b; b must be less than the width."""
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
        return self.binary("xor", a, self.constant(-1 if a.type.bits > 1 else True, a.type))

    def fcmp(self, predicate: str, a: Value, b: Value) -> Value:
        """Compare floats (oeq, une, olt, uno, ...) to i1."""
        return self.pure(
            a.type.with_element("i1"), f"fcmp {predicate} {a.type.text} {a.name}, {b.name}"
        )

    def icmp(self, predicate: str, a: Value, b: Value) -> Value:
        """Compare integers or pointers (eq, ne, slt, ult, ...) to i1."""
        return self.pure(
            a.type.with_element("i1"), f"icmp {predicate} {a.type.text} {a.name}, {b.name}"
        )

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """condition ? a : b, per lane (a scalar condition selects whole vectors)."""
        if a.name == b.name:
            return a
        return self.pure(a.type, f"select {condition.typed}, {a.typed}, {b.typed}")

    def is_nan(self, a: Value) -> Value:
        """True in the lanes that are NaN."""
        return self.fcmp("uno", a, a)

    # -- conversions: the target is an element name or a type with the same lanes -----------------

    def convert(self, opcode: str, a: Value, target: LLVMType | str) -> Value:
        """`opcode a to target`; no instruction if the type is already right."""
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
        """Float to signed integer; the caller knows that it fits."""
        return self.convert("fptosi", a, target)

    # -- calls and intrinsics ---------------------------------------------------------------------

    def call(self, type: LLVMType, function: str, *arguments: Value) -> Value:
        """A pure call of a declared function (arguments by value); equal calls are made once."""
        if function not in self.declarations:
            types = ", ".join(argument.type.text for argument in arguments)
            self.declarations[function] = f"declare {type} @{function}({types})"
        operands = ", ".join([f"{argument.type.text} {argument.name}" for argument in arguments])
        return self.pure(type, f"call {type.text} @{function}({operands})")

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
        """|magnitude| with the sign of `sign`.

        Doubles as integers: where the result is rounded to half precision, LLVM would also round
        the number that has the sign, by a library function that isn't there.
        """
        if magnitude.type.element != "double":
            return self.intrinsic("copysign", magnitude.type, magnitude, sign)
        integer = magnitude.type.as_integer
        signs = -(1 << (integer.bits - 1))
        kept = self.and_(self.bitcast(magnitude, integer), self.constant(~signs, integer))
        taken = self.and_(self.bitcast(sign, integer), self.constant(signs, integer))
        return self.bitcast(self.or_(kept, taken), magnitude.type)

    def fmin_number(self, a: Value, b: Value) -> Value:
        """`a < b ? a : b`: the machine's min, which gives b where either is NaN."""
        return self.select(self.fcmp("olt", a, b), a, b)

    def fmax_number(self, a: Value, b: Value) -> Value:
        """`a > b ? a : b`: the machine's max, which gives b where either is NaN."""
        return self.select(self.fcmp("ogt", a, b), a, b)
