"""A statement's arithmetic as C++: operands, conversions, ops of the table, reductions.

Compute and Reduce statements -> lines of C++. Values are computed in the compute dtype (float for
half-precision types) and converted when they are stored.  An op that the table defines by other ops
becomes one named constant per step, because the table's spellings take names of variables as
operands.  Invariant: the only ops known here by name are those that aren't arithmetic (set, cast,
iota, random numbers, welford).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...dtypes import REDUCED_FLOATING, DataType, compute_dtype
from ...errors import UnsupportedError, expected
from ...ir.kernel import (
    Access,
    Buffer,
    Compute,
    Gathered,
    Guarded,
    IndexValue,
    Initialise,
    Literal,
    Operand,
    Reduce,
    ScalarParameter,
    Scan,
    Scatter,
)
from ...ir.scalars import ONE, ZERO, Integer
from ...ir.schedule import MemoryType
from ...ops.dtype_rules import OperandType, Resolution, resolve
from ...ops.op import Op
from ...ops.random_numbers import DISTRIBUTIONS
from ...ops.table import OPS, REDUCTIONS, expand, refused
from .spelling import Assignment, index_text, literal, type_name

# The number of threads in a block, and the index of one, in a text that needs them.
THREAD_COUNT, THREAD_INDEX = "thread_count", "thread_index"

# Functions whose result needs few bits (half_precision.cuh, complements.py).
HALF_BITS = 16
HALF_FUNCTIONS = {
    **{"exp": "half_exp", "sigmoid": "half_sigmoid", "silu": "half_silu", "tanh": "half_tanh"},
    **{"div": "half_divide", "truediv": "half_divide", "reciprocal": "half_divide"},
    **{"one_plus_tanh": "half_one_plus_tanh", "one_plus_erf": "half_one_plus_erf"},
}

# Functions whose results may be this many units in the last place off, such as sigmoid, take an
# instruction for a reciprocal: the exact one has a branch, at which the elements of a thread wait
# for each other.
_ULP_OF_ROUGH_RESULTS = 3

# The operations by which block_reduce and block_scan combine (reductions.cuh).
COMBINERS = {
    "sum": "sum_of",
    "prod": "product_of",
    "max": "maximum_of",
    "min": "minimum_of",
    "nanmax": "greater_number_of",
    "nanmin": "lesser_number_of",
    "welford": "welford_of",
}


def is_variable(buffer: Buffer) -> bool:
    """True for a buffer in registers of one element: it is a plain variable."""
    return buffer.memory is MemoryType.local and buffer.size is ONE


def is_private_array(buffer: Buffer) -> bool:
    """True for a thread's own buffer of symbolic size.

    There are no such arrays in registers: it is in shared memory, interleaved with those of the
    other threads element by element, so that a warp's accesses go to different banks.
    """
    return buffer.memory is MemoryType.local and not isinstance(buffer.size, Integer)


def in_registers(buffer: Buffer) -> bool:
    """True for a thread's own buffer unless it had to go to shared memory."""
    return buffer.memory is MemoryType.local and not is_private_array(buffer)


def access_text(access: Access) -> str:
    """The element as an lvalue."""
    name = access.buffer.name
    if is_variable(access.buffer):
        return name
    if is_private_array(access.buffer):
        return f"{name}[({index_text(access.index)})*{THREAD_COUNT} + {THREAD_INDEX}]"
    return f"{name}[{index_text(access.index)}]"


def operand_dtype(operand: Operand) -> DataType:
    """The dtype that an operand has before it is converted."""
    match operand:
        case Access():
            return operand.buffer.dtype
        case IndexValue():
            return DataType.Int
        case Gathered(access=access):
            return access.buffer.dtype
        case Guarded(value=value):
            return operand_dtype(value)
        case _:
            return operand.dtype


def converted(text: str, source: DataType, target: DataType) -> str:
    """An expression of dtype `source` as one of `target`; storage dtypes have their own types."""
    if source is target:
        return text
    if source in REDUCED_FLOATING and target is DataType.Float:
        return f"to_float({text})"
    if source is DataType.Float and target in REDUCED_FLOATING:
        return f"to_{type_name(target)}({text})"
    return f"convert<{type_name(target)}>({text})"


def operand_text(operand: Operand, dtype: DataType) -> str:
    """An operand as an expression of `dtype`."""
    match operand:
        case Literal():
            if dtype in REDUCED_FLOATING:
                return converted(literal(operand.value, dtype), DataType.Float, dtype)
            return literal(operand.value, dtype)
        case Access():
            return converted(access_text(operand), operand.buffer.dtype, dtype)
        case ScalarParameter():
            return converted(operand.name, operand.dtype, dtype)
        case IndexValue():
            return converted(f"int64_t({index_text(operand.expr)})", DataType.Int, dtype)
        case Gathered():
            return converted(gathered_text(operand), operand.access.buffer.dtype, dtype)
        case Guarded(value=value, inside=inside, otherwise=otherwise):
            condition = " && ".join(f"{index_text(c.a)} < {index_text(c.b)}" for c in inside)
            return (
                f"({condition} ? {operand_text(value, dtype)} : {operand_text(otherwise, dtype)})"
            )


def gathered_text(operand: Gathered) -> str:
    """The element that an index points at; an index out of range fails an assertion."""
    position = operand_text(operand.position, DataType.Int)
    kind = "wrapped" if operand.wraps else "checked"
    position = f"index_t({kind}_index({position}, {index_text(operand.extent)}))"
    offset = f"{position}*({index_text(operand.stride)})"
    if operand.access.index is not ZERO:
        offset = f"{index_text(operand.access.index)} + {offset}"
    return f"{operand.access.buffer.name}[{offset}]"


class ExpressionWriter:
    """Prints statements; numbers the named constants of one kernel.

    `random_numbers` has the names of variables that the statements need: (type, seed, offset).
    """

    def __init__(self) -> None:
        self.random_numbers: dict[tuple[str, ...], str] = {}
        self._count = 0
        self._used: Counter[str] = Counter()

    def fresh(self, name: str) -> str:
        """The name, with a number if already used: lowering may have cut a loop in two."""
        self._used[name] += 1
        return name if self._used[name] == 1 else f"{name}{self._used[name]}"

    def compute(self, statement: Compute) -> list[str]:
        """`output = op(inputs)` as one or more lines."""
        output, target = access_text(statement.output), statement.output.buffer.dtype
        match statement.op:
            case "set" if statement.cache_op and (loaded := _cached_load(statement)):
                return [Assignment.of(output, loaded)]
            case "set" | "cast":
                return [Assignment.of(output, operand_text(statement.inputs[0], target))]
            case "iota":
                return [Assignment.of(output, _iota(statement, target))]
        if statement.op in DISTRIBUTIONS:
            return [Assignment.of(output, self._random(statement, target))]
        if not statement.is_checked and (short := self._half_precision(statement)):
            return [Assignment.of(output, converted(short, DataType.Float, target))]
        row = OPS[statement.op]
        if not row.in_kernels:
            raise UnsupportedError(expected(row.name, "an op that kernels compute", row.name))
        resolution = _resolution(statement)
        lines: list[str] = []
        operands = [
            self._operand(operand, dtype, uses, lines)
            for operand, dtype, uses in zip(
                statement.inputs, resolution.compute, _uses(row, statement, resolution), strict=True
            )
        ]
        if statement.is_checked:
            bad = self._refused(row, operands, resolution, lines)
            lines.append(f'require(!{bad}, "{row.name}");')
        result = compute_dtype(resolution.result)
        value = self._expand(row, operands, resolution, lines)
        last = lines[-1] if lines else None
        if isinstance(last, Assignment) and last.target == value:  # assign directly to the output
            lines.pop()
            value = last.value
        # Assigning to a variable of the result's type narrows promoted integers.
        if result is not target and result is DataType.Bool:
            value = f"bool({value})"
        return [*lines, Assignment.of(output, converted(value, result, target))]

    def _half_precision(self, statement: Compute) -> str | None:
        """A float of which few bits are needed, by a shorter function; None if there is none."""
        name = HALF_FUNCTIONS.get(statement.op)
        if name is None or not 0 < statement.bits <= HALF_BITS:
            return None
        if set(statement.compute) != {DataType.Float}:
            return None
        texts = [operand_text(operand, DataType.Float) for operand in statement.inputs]
        if statement.op == "reciprocal":
            texts.insert(0, literal(1, DataType.Float))
        return f"{name}({', '.join(texts)})"

    def _random(self, statement: Compute, target: DataType) -> str:
        """A random number of the result's dtype.

        The variable that computes the numbers of a seed and an offset keeps four of them; both are
        the same for all elements, also if they are read from tensors without dimensions.
        """
        operands = [operand_text(operand, DataType.Int) for operand in statement.inputs]
        seed, offset, _ = statement.inputs
        kind = f"random_numbers<{type_name(statement.result)}>"
        name = f"{kind}()"
        if _is_one_number(seed) and _is_one_number(offset):
            key = (kind, *operands[:2])
            name = self.random_numbers.setdefault(key, f"numbers{len(self.random_numbers)}")
        number = f"{name}.{statement.op}({', '.join(operands)})"
        return converted(number, statement.result, target)

    def _new_name(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _named(self, text: str, dtype: DataType, lines: list[str]) -> str:
        name = self._new_name()
        lines.append(Assignment.of(name, text, f"const {type_name(dtype)}"))
        return name

    def _operand(self, operand: Operand, dtype: DataType, uses: int, lines: list[str]) -> str:
        """The operand itself if the op uses it once, else the name of a constant."""
        text = operand_text(operand, dtype)
        if uses <= 1 or _is_name(operand, dtype):
            return text
        return self._named(text, dtype, lines)

    def _expand(
        self, row: Op, operands: list[str], resolution: Resolution, lines: list[str]
    ) -> str:
        is_rough = row.ulp32 >= _ULP_OF_ROUGH_RESULTS

        def emit(op: Op, values: tuple[str, ...], dtype: DataType, result: DataType) -> str:
            if is_rough and op.name == "div" and values[0] == literal(1, DataType.Float):
                return self._named(f"near_reciprocal({values[1]})", result, lines)
            return self._named(op.cuda_for(dtype, *values), result, lines)

        return expand(row, operands, resolution, emit, literal)

    def _refused(
        self, row: Op, operands: list[str], resolution: Resolution, lines: list[str]
    ) -> str:
        """The name of the condition under which the row's check refuses the operands."""

        def emit(op: Op, values: tuple[str, ...], dtype: DataType, result: DataType) -> str:
            return self._named(op.cuda_for(dtype, *values), result, lines)

        return refused(row, operands, resolution, emit, literal)

    def initialise(self, statement: Initialise) -> list[str]:
        """Sets each accumulator to the identity."""
        return [
            Assignment.of(access_text(output), identity(statement.op, output.buffer.dtype))
            for output in statement.outputs
        ]

    def accumulate(self, statement: Reduce, value: str | None = None) -> list[str]:
        """`outputs = combine(outputs, value)`; without `value`, the statement's inputs."""
        outputs = [access_text(output) for output in statement.outputs]
        dtype = statement.outputs[0].buffer.dtype
        value = value or addend(statement)
        if statement.op != "welford":
            combine = OPS[REDUCTIONS[statement.op].combine]
            return [Assignment.of(outputs[0], combine.cuda_for(dtype, outputs[0], value))]
        kind, name = type_name(dtype), self._new_name()
        own = f"welford<{kind}>{{{', '.join(outputs)}}}"
        fields = ("mean", "m2", "count")
        return [
            f"const welford<{kind}> {name} = welford_of<{kind}>()({own}, {value});",
            *(f"{o} = {name}.{field};" for o, field in zip(outputs, fields, strict=True)),
        ]

    def scan(self, statement: Scan) -> list[str]:
        """`running = combine(input, running); output = running`."""
        lines: list[str] = []
        running, dtype = access_text(statement.running), statement.running.buffer.dtype
        value = self._named(operand_text(statement.inputs[0], dtype), dtype, lines)
        combine = OPS[REDUCTIONS[statement.op].combine]
        output, target = access_text(statement.output), statement.output.buffer.dtype
        return [
            *lines,
            Assignment.of(running, combine.cuda_for(dtype, value, running)),
            Assignment.of(output, converted(running, dtype, target)),
        ]

    def scatter(self, statement: Scatter) -> list[str]:
        """`place = value`, or `place = combine(place, value)`."""
        place, value = statement.inputs
        assert isinstance(place, Gathered)
        fits = [f"{index_text(c.a)} < {index_text(c.b)}" for c in place.inside]
        checks = [f'require({" && ".join(fits)}, "{statement.op}");'] if fits else []
        return [*checks, *self._scatter(statement, place, value)]

    def _scatter(self, statement: Scatter, place: Gathered, value: Operand) -> list[str]:
        target, text = place.access.buffer.dtype, gathered_text(place)
        if statement.op == "set":
            return [Assignment.of(text, operand_text(value, target))]
        lines: list[str] = []
        dtype = compute_dtype(target)
        own = self._named(operand_text(value, dtype), dtype, lines)
        if statement.is_concurrent:
            combiner = f"{COMBINERS[statement.op]}<{type_name(dtype)}>()"
            return [*lines, f"atomic_combine(&{text}, {own}, {combiner});"]
        there = self._new_name()
        lines.append(f"{type_name(target)}& {there} = {text};")
        old = converted(there, target, dtype)
        combined = OPS[REDUCTIONS[statement.op].combine].cuda_for(dtype, old, own)
        return [*lines, Assignment.of(there, converted(combined, dtype, target))]


def _cached_load(statement: Compute) -> str | None:
    """The load with a cache operator; None for a copy of something else than global memory."""
    (source,) = statement.inputs
    is_load = isinstance(source, Access) and source.buffer.memory is MemoryType.global_
    if not isinstance(source, Access) or not is_load:
        return None
    if source.buffer.dtype is not statement.output.buffer.dtype:
        return None
    return f"load_{statement.cache_op}(&{access_text(source)})"


def _is_name(operand: Operand, dtype: DataType) -> bool:
    """True for operands that can be repeated: a literal, a variable of the compute dtype."""
    if isinstance(operand, Literal):
        return True
    is_variable_of = isinstance(operand, Access) and is_variable(operand.buffer)
    return (is_variable_of or isinstance(operand, ScalarParameter)) and (
        operand_dtype(operand) is dtype
    )


def _is_one_number(operand: Operand) -> bool:
    """True if a kernel reads the same number each time."""
    if isinstance(operand, Access):
        tensor = operand.buffer.tensor
        return tensor is not None and all(axis.size is ONE for axis in tensor.axes)
    return isinstance(operand, ScalarParameter | Literal)


def _uses(row: Op, statement: Compute, resolution: Resolution) -> Sequence[int]:
    """How often each operand occurs in an op's text: definitions and checks may use it again."""
    several = [2] * len(statement.inputs)
    if row.definition is not None or statement.is_checked:
        return several
    return row.cuda_uses(resolution.compute[-1], len(several))


def identity(op: str, dtype: DataType) -> str:
    """The identity of a reduction, as a value of `dtype`."""
    if op == "welford":
        return literal(0, dtype)
    return literal(REDUCTIONS[op].identity(dtype), dtype)


def accumulators(statement: Reduce | Scan) -> tuple[Access, ...]:
    """What a statement adds to."""
    return (statement.running,) if isinstance(statement, Scan) else statement.outputs


def contribution(statement: Reduce | Scan) -> str:
    """What a statement adds, as one expression: a number, or a `welford` triple."""
    dtypes = [access.buffer.dtype for access in accumulators(statement)]
    if statement.op != "welford":
        return operand_text(statement.inputs[0], dtypes[0])
    kind = type_name(dtypes[0])
    if len(statement.inputs) == 1:
        return f"welford<{kind}>{{{operand_text(statement.inputs[0], dtypes[0])}, 0, 1}}"
    fields = (operand_text(i, d) for i, d in zip(statement.inputs, dtypes, strict=True))
    return f"welford<{kind}>{{{', '.join(fields)}}}"


def addend(statement: Reduce | Scan) -> str:
    """`contribution` as what is combined with a part: of a welford, an element is a number."""
    if len(statement.inputs) > 1:
        return contribution(statement)
    return operand_text(statement.inputs[0], accumulators(statement)[0].buffer.dtype)


@dataclass(frozen=True, slots=True)
class OwnPart:
    """What a thread contributes to a block reduction or scan, as C++.

    kind      its type
    nothing   the identity
    value     what one run of the statement adds
    combined  the part so far (a variable) with `value`
    combiner  the operation by which block_reduce combines parts
    """

    kind: str
    nothing: str
    value: str
    combined: str
    combiner: str

    @staticmethod
    def of(statement: Reduce | Scan, variable: str) -> OwnPart:
        """The spellings for a statement whose part is in `variable`."""
        dtype, value = accumulators(statement)[0].buffer.dtype, contribution(statement)
        element = type_name(dtype)
        combiner = f"{COMBINERS[statement.op]}<{element}>()"
        if statement.op == "welford":
            kind, combined = f"welford<{element}>", f"{combiner}({variable}, {addend(statement)})"
            return OwnPart(kind, f"{kind}{{0, 0, 0}}", value, combined, combiner)
        combine = OPS[REDUCTIONS[statement.op].combine]
        combined = combine.cuda_for(dtype, variable, value)
        return OwnPart(element, identity(statement.op, dtype), value, combined, combiner)


def _resolution(statement: Compute) -> Resolution:
    """The dtypes a statement computes in.  Builders made all tensors of that dtype already."""
    kinds = [
        OperandType(operand_dtype(i), "tensor" if isinstance(i, Access) else "scalar")
        for i in statement.inputs
    ]
    return resolve(OPS[statement.op], kinds)


def _iota(statement: Compute, target: DataType) -> str:
    """start + step * index, in the output's compute dtype."""
    dtype = compute_dtype(target)
    start, step, index = (operand_text(operand, dtype) for operand in statement.inputs)
    return converted(f"{start} + {step} * {index}", dtype, target)
