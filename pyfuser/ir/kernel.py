"""Kernel: loops, memory and statements, ready for a code generator.

    kernel    ::= name, tensor parameter..., scalar parameter..., scratch buffer..., phase...
    phase     ::= grid extents, block extents, statement...     (a grid-wide sync between phases)
    statement ::= For index in [start, stop) { statement... }
                | If predicate { statement... } else { statement... }
                | Allocate buffer
                | Compute  access = op(operand, ...) [if predicate] [, checked] [to n bits]
                | Initialise access... with the identity of a reduction
                | Reduce   access... op= operand... [if predicate]
                | Scan     access = (running access op= operand) [if predicate]
                | Scatter  access, moved by an index from memory, op= operand [if predicate]
                | Barrier
    operand   ::= access | literal | scalar parameter | index value
                | access where predicate, else operand            (Guarded)
                | access, moved by an index from memory           (Gathered)
    access    ::= buffer[index]

Indices are element offsets as symbolic integers over sizes, strides and loop indices.  A loop of a
grid or block type is bound to hardware threads if the device has them, and is an ordinary loop
otherwise.

A kernel *refuses* a call if, where the statement's predicate holds, a Gathered index is out of
range or a checked operation has operands that its row of the op table refuses.  It still runs to
its end, computing something there without leaving its memory; the device defines how it reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..dtypes import DataType, size_in_bytes
from .domains import ParallelType
from .scalar_queries import evaluate
from .scalars import ONE, ZERO, IntExpr, Symbol, as_expr
from .schedule import MemoryType
from .vals import PythonNumber, Scalar, TensorView


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory for one tensor: `size` elements; `tensor` describes its contents to human readers.

    `prefetch` is how many bytes ahead reads should fetch (0: none).
    """

    name: str
    dtype: DataType
    memory: MemoryType
    size: IntExpr
    tensor: TensorView | None = None
    prefetch: IntExpr = ZERO

    @property
    def bytes_each(self) -> int:
        """Bytes of one element."""
        return size_in_bytes(self.dtype)

    @property
    def bytes(self) -> IntExpr:
        """The size in bytes."""
        return self.size * size_in_bytes(self.dtype)


@dataclass(slots=True, eq=False)
class TensorParameter:
    """A tensor argument.  Sizes and strides (in elements) are symbols or constants.

    `may_alias` is True for an input whose memory may be reused for an output.
    """

    buffer: Buffer
    sizes: tuple[IntExpr, ...]
    strides: tuple[IntExpr, ...]
    is_output: bool
    may_alias: bool = False


@dataclass(slots=True, eq=False)
class ScalarParameter:
    """A scalar argument, computed on the host.

    If it `is_seed`, its number may lie in the device's memory instead, where it is only known when
    the kernel runs.
    """

    name: str
    dtype: DataType
    scalar: Scalar
    is_seed: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Literal:
    """A constant operand."""

    value: PythonNumber
    dtype: DataType

    def __str__(self) -> str:
        return str(self.value)


@dataclass(slots=True, eq=False)
class IndexValue:
    """A symbolic integer used as a value (of dtype Int): iota, the count of a welford."""

    expr: IntExpr

    def __str__(self) -> str:
        return f"index({self.expr})"


@dataclass(slots=True, eq=False)
class Access:
    """One element of a buffer."""

    buffer: Buffer
    index: IntExpr

    def __str__(self) -> str:
        return f"{self.buffer.name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Less:
    """The condition a < b."""

    a: IntExpr
    b: IntExpr

    def __str__(self) -> str:
        return f"{self.a} < {self.b}"


Predicate = tuple[Less, ...]


def all_hold(predicate: Predicate, values: Mapping[str, int]) -> bool:
    """True if all conditions hold for these values of their symbols (by name)."""
    return all(evaluate(each.a, values) < evaluate(each.b, values) for each in predicate)


@dataclass(slots=True, eq=False)
class Gathered:
    """buffer[index + stride * i], where i is the value of `position` and must be in [0, extent).

    `position` is an integer operand. With `wraps`, a negative one has `extent` added to it. A
    position out of range is refused and clamped into the range. Nothing is read unless `inside`
    holds: otherwise the source has no such element at all.
    """

    access: Access
    position: Operand
    stride: IntExpr
    extent: IntExpr
    wraps: bool = False
    inside: Predicate = ()

    def __str__(self) -> str:
        access, kind = self.access, "wrapped" if self.wraps else "checked"
        return f"{access.buffer.name}[{access.index} + {self.stride}*{kind}({self.position})]"


@dataclass(slots=True, eq=False)
class Guarded:
    """`value` where `inside` holds, `otherwise` elsewhere; `value` isn't read there."""

    value: Access | Literal | ScalarParameter
    inside: Predicate
    otherwise: Operand

    def __str__(self) -> str:
        condition = " and ".join(map(str, self.inside))
        return f"({self.value} if {condition} else {self.otherwise})"


Operand = Access | Literal | ScalarParameter | IndexValue | Gathered | Guarded


@dataclass(slots=True, eq=False)
class For:
    """A loop over [start, stop).

    `is_conditional` if it has iterations only where conditions on the loops around it hold, which
    its statements lack: what they read may not exist elsewhere.
    """

    index: Symbol
    stop: IntExpr
    parallel_type: ParallelType
    body: list[Statement]
    start: IntExpr = field(default_factory=lambda: as_expr(0))
    is_conditional: bool = False


@dataclass(slots=True, eq=False)
class If:
    """`body` where a condition on the indices of the loops around holds, else `otherwise`."""

    predicate: Predicate
    body: list[Statement]
    otherwise: list[Statement] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Allocate:
    """Allocates a buffer, which lives until the end of the enclosing body."""

    buffer: Buffer


@dataclass(slots=True, eq=False)
class Compute:
    """output = op(inputs); if the predicate is false, nothing is written.

    A register may then hold anything; memory keeps its value.  `compute` is the dtype in which each
    operand is computed (never Half or BFloat16), `result` the dtype of the result.  `is_checked`
    says that operands may be refused, `cache_op` how a copy's load uses the caches. If `bits` isn't
    0, a relative error of 2**-bits in the result does no harm, because it will be rounded
    (`analysis/precision.py`).
    """

    op: str
    output: Access
    inputs: tuple[Operand, ...]
    predicate: Predicate = ()
    compute: tuple[DataType, ...] = ()
    result: DataType = DataType.Null
    is_checked: bool = False
    cache_op: str = ""
    bits: int = 0


@dataclass(slots=True, eq=False)
class Initialise:
    """Sets accumulators to the identity of `op` (sum, prod, max, min, welford).

    If the predicate is false there is no element to set, as for Compute.
    """

    op: str
    outputs: tuple[Access, ...]
    predicate: Predicate = ()


@dataclass(slots=True, eq=False)
class Reduce:
    """outputs = combine(outputs, inputs) where the predicate holds.

    `block` names the thread axes that are reduced over: if threads are hardware, their values are
    combined across threads. welford has three outputs, and one or three inputs.
    """

    op: str
    outputs: tuple[Access, ...]
    inputs: tuple[Operand, ...]
    predicate: Predicate = ()
    block: tuple[ParallelType, ...] = ()


@dataclass(slots=True, eq=False)
class Scan:
    """running = combine(input, running); output = running, in every iteration and in order.

    `op` is the reduction whose partial results a scan gives.  What an iteration outside the
    predicate computes is never read: it comes after the last element, or belongs to no row.
    `block` names the thread axes along which elements follow each other: if threads are hardware,
    they share `running`, which is then the result so far in all of them.
    """

    op: str
    output: Access
    running: Access
    inputs: tuple[Operand, ...]
    predicate: Predicate = ()
    block: tuple[ParallelType, ...] = ()


@dataclass(slots=True, eq=False)
class Scatter:
    """The element that the first input addresses, a Gathered, is set to the second input.

    If `op` is a reduction rather than "set", the two are combined. Nothing is written where the
    position is out of range. `is_concurrent` says that several threads may write one element.
    """

    op: str
    inputs: tuple[Operand, ...]
    predicate: Predicate = ()
    is_concurrent: bool = False

    @property
    def place(self) -> Gathered:
        """Where an element is written."""
        assert isinstance(self.inputs[0], Gathered)
        return self.inputs[0]

    @property
    def output(self) -> Access:
        """The access that is moved by the position."""
        return self.place.access


@dataclass(slots=True, eq=False)
class Barrier:
    """Synchronises all threads of the block."""


Statement = For | If | Allocate | Compute | Initialise | Reduce | Scan | Scatter | Barrier


@dataclass(slots=True, eq=False)
class Phase:
    """The part of a kernel between two grid-wide synchronisations.

    `last_along` is an axis of the grid of the phase before, whose other axes are this phase's grid:
    what a block reads was written by the blocks at its place along these.  So the last of the
    blocks along that axis can run this phase; the grid needn't end.
    """

    grid: dict[ParallelType, IntExpr]
    block: dict[ParallelType, IntExpr]
    body: list[Statement]
    last_along: ParallelType | None = None

    def task_count(self) -> IntExpr:
        """The number of blocks (tasks)."""
        total: IntExpr = ONE
        for extent in self.grid.values():
            total = total * extent
        return total


@dataclass(frozen=True, slots=True)
class Runs:
    """How often the statement that computes the named tensor runs, over all tasks."""

    tensor: int
    count: IntExpr


@dataclass(slots=True, eq=False)
class Kernel:
    """A complete kernel.  `scratch` is global memory that lives only during a call.

    `symbols` are the sizes and strides it needs, in parameter order. `joined` says which products
    of sizes some of them represent. `runs` says how often its statements run. `conditions` on
    sizes are those that it relies on: of a split that is known to be whole. A device that has a
    choice computes indices of `index_bits` (`Target.narrow_conditions`). A hardware thread has
    `most_registers`, or as many as it needs and leaves for `least_blocks` on a multiprocessor.
    `may_refuse` if the values of its tensors decide whether a call is refused; with
    `has_an_order_of_threads`, results depend on the order in which threads run.
    """

    name: str
    tensors: list[TensorParameter]
    scalars: list[ScalarParameter]
    scratch: list[Buffer]
    phases: list[Phase]
    symbols: list[Symbol] = field(default_factory=list)
    joined: dict[Symbol, IntExpr] = field(default_factory=dict)
    runs: tuple[Runs, ...] = ()
    conditions: Predicate = ()
    index_bits: int = 64
    most_registers: int | None = None
    least_blocks: int = 1
    may_refuse: bool = False
    has_an_order_of_threads: bool = False

    @property
    def outline(self) -> Kernel:
        """The kernel without its statements: what its launches need to know."""
        phases = [replace(phase, body=[]) for phase in self.phases]
        scratch = [replace(buffer, tensor=None) for buffer in self.scratch]
        return replace(self, phases=phases, scratch=scratch)

    def is_for(self, sizes: Mapping[str, int]) -> bool:
        """True if the kernel is right for these sizes."""
        return all_hold(self.conditions, sizes)

    def numbers(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes and strides of a call by name, including those that the kernel derives."""
        return {**sizes, **{s.name: evaluate(e, sizes) for s, e in self.joined.items()}}

    def __str__(self) -> str:
        return "\n".join(_kernel_lines(self)) + "\n"


def _kernel_lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}("
    for tensor in kernel.tensors:
        role = "out" if tensor.is_output else "in "
        sizes = ", ".join(map(str, tensor.sizes))
        strides = ", ".join(map(str, tensor.strides))
        dtype = tensor.buffer.dtype.name
        yield f"  {role} {tensor.buffer.name}: {dtype}[{sizes}] strides [{strides}]"
    for scalar in kernel.scalars:
        yield f"  in  {scalar.name}: {scalar.dtype.name}"
    yield ")"
    for buffer in kernel.scratch:
        yield f"scratch {buffer.name}: {buffer.dtype.name}[{buffer.size}]"
    for phase in kernel.phases:
        grid = ", ".join(f"{p.value}: {e}" for p, e in phase.grid.items())
        block = ", ".join(f"{p.value}: {e}" for p, e in phase.block.items())
        last = phase.last_along
        where = f" in the last block along {last.value}" if last else ""
        yield f"phase grid({grid}) block({block}){where} {{"
        yield from _body_lines(phase.body, 1)
        yield "}"


def _condition(predicate: Predicate) -> str:
    return f" if {' and '.join(map(str, predicate))}" if predicate else ""


def _body_lines(body: list[Statement], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for statement in body:
        match statement:
            case For():
                kind = statement.parallel_type
                tag = "" if kind is ParallelType.serial else f" [{kind.value}]"
                yield (
                    f"{pad}for {statement.index} in [{statement.start}, {statement.stop}){tag} {{"
                )
                yield from _body_lines(statement.body, depth + 1)
                yield pad + "}"
            case If(body=then, otherwise=otherwise):
                yield f"{pad}{_condition(statement.predicate).lstrip()} {{"
                yield from _body_lines(then, depth + 1)
                if otherwise:
                    yield pad + "} else {"
                    yield from _body_lines(otherwise, depth + 1)
                yield pad + "}"
            case Allocate(buffer=buffer):
                yield (
                    f"{pad}allocate {buffer.name}: {buffer.memory.name.rstrip('_')} "
                    f"{buffer.dtype.name}[{buffer.size}]"
                )
            case Compute():
                arguments = ", ".join(map(str, statement.inputs))
                condition = _condition(statement.predicate)
                checked = ", checked" if statement.is_checked else ""
                checked += f", {statement.cache_op} load" if statement.cache_op else ""
                checked += f" to {statement.bits} bits" if statement.bits else ""
                yield f"{pad}{statement.output} = {statement.op}({arguments}){condition}{checked}"
            case Initialise():
                outputs = ", ".join(map(str, statement.outputs))
                condition = _condition(statement.predicate)
                yield f"{pad}{outputs} = identity of {statement.op}{condition}"
            case Reduce():
                outputs = ", ".join(map(str, statement.outputs))
                arguments = ", ".join(map(str, statement.inputs))
                block = "".join(f" across {p.value}" for p in statement.block)
                condition = _condition(statement.predicate)
                yield f"{pad}{outputs} {statement.op}= {arguments}{block}{condition}"
            case Scan(output=output, running=running):
                arguments = ", ".join(map(str, statement.inputs))
                block = "".join(f" along {p.value}" for p in statement.block)
                condition = _condition(statement.predicate)
                yield f"{pad}{output} = ({running} {statement.op}= {arguments}){block}{condition}"
            case Scatter(op=op, inputs=(place, value)):
                shared = ", concurrent" if statement.is_concurrent else ""
                condition = _condition(statement.predicate)
                yield f"{pad}{place} {'' if op == 'set' else op}= {value}{condition}{shared}"
            case Barrier():
                yield f"{pad}barrier"
