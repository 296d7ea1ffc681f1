"""Kernel -> Kernel: sizes that statements only ever multiply with each other become one number.

The first step of the CPU device.  Of the axes that a scheduler merges, a kernel contains only the
product of the sizes, so a contiguous tensor of rank 6 is computed by exactly the text that computes
one of rank 1.  The text decides which kernels share machine code, and it depends on the numbers
that are passed to the kernel; so sizes that no statement mentions (most sizes of a tensor) aren't
passed.

Before:  for j in [0, ceildiv((i0*i1*i2), 16)) { ... if j*16 + x < i0*i1*i2 }
After:   for j in [0, ceildiv(i0_, 16)) { ... if j*16 + x < i0_ }        where i0_ = i0*i1*i2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...ir.kernel import (
    Access,
    Allocate,
    Buffer,
    Compute,
    For,
    Gathered,
    Guarded,
    If,
    IndexValue,
    Initialise,
    Kernel,
    Less,
    Operand,
    Phase,
    Predicate,
    Reduce,
    Scan,
    Scatter,
    Statement,
    TensorParameter,
)
from ...ir.kernel_queries import accesses, operand_sizes, walk
from ...ir.scalar_queries import substitute
from ...ir.scalars import ONE, Binary, IntExpr, Monomial, Symbol, product, terms_of


def join_sizes(kernel: Kernel) -> Kernel:
    """The kernel with `joined` sizes and without sizes that no statement mentions."""
    sizes = list(dict.fromkeys(_sizes(kernel)))
    groups = _groups(sizes, set(kernel.symbols))
    joined = {Symbol.of(f"{group[0].name}_"): product(group) for group in groups}
    values: dict[Symbol, IntExpr] = {}
    for group, symbol in zip(groups, joined, strict=True):
        values |= dict.fromkeys(group, ONE)
        values[group[0]] = symbol
    phases, tensors = kernel.phases, kernel.tensors
    if joined:
        rewriter = _Rewriter(values)
        tensors = [rewriter.parameter(tensor) for tensor in kernel.tensors]
        phases = [rewriter.phase(phase) for phase in kernel.phases]
    mentioned = {s for size in sizes for s in substitute(size, values).symbols}
    own = {*kernel.symbols, *joined}
    used = sorted((s for s in mentioned if s in own), key=str)
    return replace(kernel, tensors=tensors, phases=phases, symbols=used, joined=joined)


def _sizes(kernel: Kernel) -> Iterator[IntExpr]:
    """Every symbolic integer that decides the kernel's text."""
    for phase in kernel.phases:
        yield from (*phase.grid.values(), *phase.block.values())
        for statement in walk(phase.body):
            for access in accesses(statement):
                yield from (access.index, access.buffer.prefetch)
            match statement:
                case For(index=index):
                    yield from (statement.start, statement.stop)
                    if index.upper is not None:
                        yield index.upper
                case Allocate(buffer=buffer):
                    yield buffer.size
                case Compute() | Reduce() | Scan() | Scatter():
                    yield from operand_sizes(statement.inputs)
            if isinstance(statement, Compute | If | Initialise | Reduce | Scan | Scatter):
                yield from (side for less in statement.predicate for side in (less.a, less.b))


def _groups(sizes: list[IntExpr], symbols: set[Symbol]) -> list[list[Symbol]]:
    """Groups of two or more symbols that occur in the same products, each once."""
    products: dict[Monomial, None] = {}
    seen: set[IntExpr] = set()
    waiting = list(sizes)
    while waiting:
        size = waiting.pop()
        if size in seen:
            continue
        seen.add(size)
        for monomial, _ in terms_of(size):
            products[monomial] = None
            for atom in monomial:
                waiting += atom.parts() if isinstance(atom, Binary) else ()
    places: dict[Symbol, list[int]] = {}
    for number, monomial in enumerate(products):
        for atom in monomial:
            if isinstance(atom, Symbol) and atom in symbols:
                places.setdefault(atom, []).append(number)
    groups: dict[tuple[int, ...], list[Symbol]] = {}
    for symbol in sorted(places, key=str):
        where = tuple(places[symbol])
        if len(set(where)) == len(where):  # no powers: a square can't be written with the product
            groups.setdefault(where, []).append(symbol)
    return [group for group in groups.values() if len(group) > 1]


class _Rewriter:
    """Copies statements with symbols replaced by `values`."""

    def __init__(self, values: Mapping[Symbol, IntExpr]) -> None:
        self.values = dict(values)
        self.buffers: dict[Buffer, Buffer] = {}

    def parameter(self, tensor: TensorParameter) -> TensorParameter:
        """The tensor; with a copy of its buffer if that depends on sizes."""
        buffer = tensor.buffer
        if not buffer.prefetch.symbols:
            return tensor
        self.buffers[buffer] = replace(buffer, prefetch=self.size(buffer.prefetch))
        return replace(tensor, buffer=self.buffers[buffer])

    def phase(self, phase: Phase) -> Phase:
        """The copy of a phase."""
        body = self.body(phase.body)
        grid = {kind: self.size(extent) for kind, extent in phase.grid.items()}
        block = {kind: self.size(extent) for kind, extent in phase.block.items()}
        return Phase(grid, block, body)

    def body(self, statements: list[Statement]) -> list[Statement]:
        """The copies of statements."""
        return [self.statement(statement) for statement in statements]

    def size(self, expr: IntExpr) -> IntExpr:
        """The copy of a symbolic integer."""
        return substitute(expr, self.values)

    def statement(self, statement: Statement) -> Statement:
        """The copy of one statement."""
        match statement:
            case For(index=index):
                if index.upper is not None:
                    bounded = Symbol.of(index.name, self.size(index.upper))
                    if bounded is not index:
                        self.values[index] = bounded
                        index = bounded
                start, stop = self.size(statement.start), self.size(statement.stop)
                body = self.body(statement.body)
                return replace(statement, index=index, start=start, stop=stop, body=body)
            case If(body=body, otherwise=otherwise):
                predicate = self.predicate(statement.predicate)
                return If(predicate, self.body(body), self.body(otherwise))
            case Allocate(buffer=buffer):
                if buffer not in self.buffers:
                    self.buffers[buffer] = replace(buffer, size=self.size(buffer.size))
                return Allocate(self.buffers[buffer])
            case Compute():
                return replace(
                    statement,
                    output=self.access(statement.output),
                    inputs=tuple(self.operand(value) for value in statement.inputs),
                    predicate=self.predicate(statement.predicate),
                )
            case Initialise():
                outputs = tuple(self.access(output) for output in statement.outputs)
                predicate = self.predicate(statement.predicate)
                return replace(statement, outputs=outputs, predicate=predicate)
            case Reduce():
                return replace(
                    statement,
                    outputs=tuple(self.access(output) for output in statement.outputs),
                    inputs=tuple(self.operand(value) for value in statement.inputs),
                    predicate=self.predicate(statement.predicate),
                )
            case Scan():
                return replace(
                    statement,
                    output=self.access(statement.output),
                    running=self.access(statement.running),
                    inputs=tuple(self.operand(value) for value in statement.inputs),
                    predicate=self.predicate(statement.predicate),
                )
            case Scatter():
                return replace(
                    statement,
                    inputs=tuple(self.operand(value) for value in statement.inputs),
                    predicate=self.predicate(statement.predicate),
                )
            case _:
                return statement

    def access(self, access: Access) -> Access:
        """The copy of an access, to the copy of its buffer."""
        return Access(self.buffers.get(access.buffer, access.buffer), self.size(access.index))

    def predicate(self, predicate: Predicate) -> Predicate:
        """The copy of a condition."""
        return tuple(Less(self.size(less.a), self.size(less.b)) for less in predicate)

    def operand(self, operand: Operand) -> Operand:
        """The copy of an operand."""
        match operand:
            case Access():
                return self.access(operand)
            case IndexValue(expr=expr):
                return IndexValue(self.size(expr))
            case Gathered(access=access, position=position, stride=stride, extent=extent):
                return replace(
                    operand,
                    access=self.access(access),
                    position=self.operand(position),
                    stride=self.size(stride),
                    extent=self.size(extent),
                    inside=self.predicate(operand.inside),
                )
            case Guarded(value=value, inside=inside, otherwise=otherwise):
                return replace(
                    operand,
                    value=self.access(value) if isinstance(value, Access) else value,
                    inside=self.predicate(inside),
                    otherwise=self.operand(otherwise),
                )
            case _:
                return operand
