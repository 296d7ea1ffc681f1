"""The body of one phase: kernel statements -> lines of CUDA C++.

Loops over grid and block axes are bindings: they disappear and leave a condition if not every
thread takes part.  A barrier and a reduction across threads need all threads of the block, so they
are outside all conditions; a thread that a condition would have excluded contributes the identity.
A statement that writes memory outside all loops over an axis that the phase launches is run only by
index 0 of that axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import InternalError, expected
from ...ir.domains import BLOCK, ParallelType
from ...ir.kernel import (
    Access,
    Allocate,
    Barrier,
    Buffer,
    Compute,
    For,
    Gathered,
    Guarded,
    If,
    Initialise,
    Less,
    Operand,
    Phase,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from ...ir.kernel_queries import accesses, walk
from ...ir.scalars import ONE, ZERO, Integer
from ...ir.schedule import MemoryType
from .alignment import Alignment
from .async_copies import WAIT, begins_copies, copy_lines, is_async_copy
from .chosen_arms import with_chosen_arms
from .complements import with_complements
from .conditions import Conditions, Item, assemble, hoisted, indented, is_first, without_repeats
from .expressions import (
    ExpressionWriter,
    OwnPart,
    access_text,
    converted,
    in_registers,
    is_private_array,
    is_variable,
)
from .shadows import shadows_of, with_shadows
from .shared_memory import SCRATCH
from .spelling import Declaration, index_text, symbol_name, type_name
from .switches import is_rest_of, is_switch, positive_texts
from .vector_copies import VectorCopy, alignments, has_edges, vector_copy, with_whole_windows

Axes = frozenset[ParallelType]

# A loop that indexes registers is unrolled up to this many iterations, because only constant
# indices keep an array in registers; longer arrays spill in any case.
_MOST_UNROLLED = 64

# A comment shows how each tensor of a loop is computed, up to this many; beyond, only their names.
_MOST_EXPLAINED = 3


@dataclass(frozen=True, slots=True)
class _Place:
    """The context of a statement.

    `axes` are the axes of its grid and block loops, `conditions` the conditions under which it runs
    that no enclosing `if` tests, and `computed` the comment on the enclosing loop.  `is_aligned`
    says whether vectors are aligned; None if that isn't known and no enclosing `if` has tested it.
    If it `is_copied`, an enclosing loop only begins copies, for which the thread waits after it.
    """

    axes: Axes = frozenset()
    conditions: Conditions = ()
    computed: str = ""
    is_aligned: bool | None = None
    is_copied: bool = False


def is_collective(statement: Statement) -> bool:
    """True for statements that all threads of the block have to reach together."""
    return isinstance(statement, Barrier) or (
        isinstance(statement, Reduce | Scan) and bool(statement.block)
    )


def writes(statement: Statement) -> list[Buffer]:
    """The buffers a statement itself writes."""
    match statement:
        case Compute(output=output) | Scan(output=output) | Scatter(output=output):
            return [output.buffer]
        case Initialise(outputs=outputs) | Reduce(outputs=outputs):
            return [output.buffer for output in outputs]
        case _:
            return []


def idle_axes(statement: Statement, axes: Axes, phase: Phase) -> list[ParallelType]:
    """The launched axes along which a statement in loops over `axes` would repeat its write."""
    memories = {buffer.memory for buffer in writes(statement)}
    launched = [*phase.block]
    if MemoryType.global_ in memories:
        launched = [*phase.grid, *phase.block]
    elif MemoryType.shared not in memories:
        return []
    if isinstance(statement, Reduce):
        axes = axes - set(statement.block)
    return [axis for axis in launched if axis not in axes]


def partly_idle(phase: Phase) -> Axes:
    """The launched axes over which some statement of the phase isn't distributed."""

    def visit(body: Sequence[Statement], axes: Axes) -> Iterator[ParallelType]:
        for statement in body:
            yield from idle_axes(statement, axes, phase)
            if isinstance(statement, For):
                yield from visit(statement.body, axes | {statement.parallel_type})

    return frozenset(visit(phase.body, frozenset()))


class BodyWriter:
    """Prints the statements of one phase.

    `assumes_aligned`: vectors are aligned, under the conditions that are then in `alignments`;
    otherwise the text tests what it has to.
    """

    def __init__(self, phase: Phase, assumes_aligned: bool) -> None:
        phase = replace(phase, body=with_complements(phase.body))
        self.phase, self._assumes_aligned = phase, assumes_aligned
        self.alignments: dict[Alignment, None] = {}
        self.expressions = ExpressionWriter()
        self._extents = {**phase.grid, **phase.block}
        self._partly_idle = partly_idle(phase)
        self._shadows = shadows_of(phase)

    def lines(self) -> list[str]:
        """The body of the phase."""
        start = _Place(is_aligned=True if self._assumes_aligned else None)
        lines = assemble(self._items(self.phase.body, start))
        random = self.expressions.random_numbers.items()
        return [*(f"{kind} {name};" for (kind, *_), name in random), *lines]

    def _items(self, body: Sequence[Statement], place: _Place) -> list[Item]:
        items: list[Item] = []
        left = list(body)
        is_waiting = False
        while left:
            statement = left.pop(0)
            copies = not place.is_copied and begins_copies(statement)
            if is_waiting and not copies:
                items.append(Item([WAIT]))
            is_waiting = copies
            if copies:
                items += self._statement(statement, replace(place, is_copied=True))
            elif is_switch(statement):
                # Peeling may have cut the loop in two.
                rest = left[0] if left and is_rest_of(left[0], statement) else statement
                items += self._switch(statement, rest, place)
                left = left[rest is not statement :]
            else:
                items += self._statement(statement, place)
        return [*items, Item([WAIT])] if is_waiting else items

    def _switch(self, whole: For, rest: For, place: _Place) -> list[Item]:
        """Whole blocks, without predicates and with aligned vectors, or else the rest, which is
        right in all cases.
        """
        tests = positive_texts(whole.stop)
        if not self._assumes_aligned:
            tests += map(str, alignments(whole.body))
        if not tests:
            return self._items(whole.body, place)
        collective = any(map(is_collective, walk(whole.body)))
        inner = place if collective else replace(place, conditions=())
        fast = assemble(self._items(whole.body, replace(inner, is_aligned=True)))
        slow = assemble(self._items(rest.body, replace(inner, is_aligned=self._assumes_aligned)))
        return [Item(_if_else(tests, fast, slow), () if collective else place.conditions)]

    def _statement(self, statement: Statement, place: _Place) -> list[Item]:
        match statement:
            case For() if statement.parallel_type.is_thread:
                return self._items(statement.body, self._bound(statement, place))
            case For():
                return self._loop(statement, place)
            case If():  # made for threads that are loops
                raise InternalError(
                    expected("cuda codegen", "conditions of statements", "a branch")
                )
            case Allocate(buffer=buffer):
                shadows = self._shadows.values()
                beside = [s for s in dict.fromkeys(shadows) if s.tensor is buffer.tensor]
                return [item for each in (buffer, *beside) for item in _declaration(each)]
            case Barrier():
                return [Item(["__syncthreads();"])]
            case Reduce(block=block) if block:
                return self._block_reduction(statement, place)
            case Compute():
                begun = place.is_copied and is_async_copy(statement)
                lines = copy_lines(statement) if begun else self.expressions.compute(statement)
                return [self._item(statement, place, lines)]
            case Scatter():
                return [self._item(statement, place, self.expressions.scatter(statement))]
            case Scan(block=block) if block:
                return self._block_scan(statement, place)
            case Scan():
                return [self._item(statement, place, self.expressions.scan(statement))]
            case Initialise() | Reduce():
                own, stores = with_shadows(statement, self._shadows)
                if isinstance(own, Reduce):
                    lines = self.expressions.accumulate(own)
                else:
                    lines = self.expressions.initialise(own)
                items = [self._item(own, place, lines)]
                return [*items, self._item(statement, place, stores)] if stores else items

    def _item(
        self,
        statement: Compute | Initialise | Reduce | Scan | Scatter,
        place: _Place,
        lines: list[str],
    ) -> Item:
        firsts = [is_first(axis) for axis in idle_axes(statement, place.axes, self.phase)]
        conditions = [*firsts, *place.conditions, *statement.predicate]
        return Item(lines, without_repeats(conditions))

    def _bound(self, loop: For, place: _Place) -> _Place:
        """Inside a loop over a grid or block axis: a condition if it is launched longer."""
        kind, launched = loop.parallel_type, self._extents.get(loop.parallel_type)
        exact = launched is loop.stop and (
            isinstance(launched, Integer) or kind not in self._partly_idle
        )
        conditions = place.conditions
        if not exact:
            conditions = without_repeats([*conditions, Less(loop.index, loop.stop)])
        return replace(place, axes=place.axes | {kind}, conditions=conditions)

    def _loop(self, loop: For, place: _Place) -> list[Item]:
        computed = _computed(loop)
        inner = replace(place, computed=computed)
        comment = [] if computed == place.computed else [f"// {computed}"]
        if any(map(is_collective, walk(loop.body))):
            chain = _reduction_chain(loop)
            if chain is not None:
                return [Item(comment), *self._block_reduction(chain[-1], place, chain[:-1])]
            _check_uniform(loop)
            return [Item([*comment, *_loop_lines(loop, self._items(loop.body, inner))])]
        if place.is_aligned is None and loop.parallel_type is ParallelType.serial:
            tests = [] if has_edges(loop.body) else [*map(str, alignments(loop.body))]
            if tests:
                bare = replace(inner, conditions=())
                ways = (self._loop(loop, replace(bare, is_aligned=way)) for way in (True, False))
                lines = _if_else(tests, *map(assemble, ways))
                return [Item([*comment, *lines], place.conditions)]
        if place.is_aligned is True:
            loop, edges = with_whole_windows(loop)
            self.alignments |= dict.fromkeys(edges)
        loop = with_chosen_arms(loop)
        items = self._items(loop.body, replace(inner, conditions=()))
        items, shared = hoisted(items, loop.index)
        conditions = without_repeats([*place.conditions, *shared])
        lines = _loop_lines(loop, items)
        copy = vector_copy(loop)
        if copy is not None:
            lines = self._copied(copy, loop, lines, conditions, place.is_aligned is True)
        return [Item([*comment, *lines], conditions)]

    def _copied(
        self, copy: VectorCopy, loop: For, lines: list[str], known: Conditions, is_aligned: bool
    ) -> list[str]:
        """A loop that is a copy: a call for whole vectors, `lines` for those that aren't, and what
        fills those outside of a window.
        """
        bounds, inside = (
            tuple(c for c in conditions if c not in known)
            for conditions in (copy.conditions, copy.inside)
        )
        whole = (*bounds, *inside)
        self.alignments |= dict.fromkeys(copy.alignments or ())
        call = copy.text(is_aligned)
        if not whole:
            return [call]
        cases = [Item([call], whole)]
        if not copy.partly:
            return _cases(cases, lines)
        if is_aligned and copy.edges is not None and not bounds:
            self.alignments |= dict.fromkeys(copy.edges)
            if copy.alignments is not None:
                return [copy.text_or_filled(whole)]
        else:
            cases.append(Item(lines, copy.partly))
        return _cases(cases, _loop_lines(loop, [Item(self.expressions.compute(copy.fill))]))

    def _block_reduction(
        self, statement: Reduce, place: _Place, loops: Sequence[For] = ()
    ) -> list[Item]:
        """Each thread accumulates its own part, over `loops`; then the parts are reduced.

        Every thread gets the total; the first along the reduced axes writes it to memory.
        """
        output = statement.outputs[0].buffer
        own = self.expressions.fresh(f"{output.name}_own")
        total = self.expressions.fresh(f"{output.name}_total")
        partial = OwnPart.of(statement, own)
        for loop in loops:
            if loop.parallel_type.is_thread:
                place = self._bound(loop, place)
        conditions = without_repeats([*place.conditions, *statement.predicate])
        serial = [loop for loop in loops if not loop.parallel_type.is_thread]
        items = _own_part(partial, own, conditions, serial)
        pointer = f"reinterpret_cast<{partial.kind}*>({SCRATCH})"
        reduced = f"block_reduce<{self._threads(statement)}>({own}, {partial.combiner}, {pointer})"
        items.append(Item([f"const {partial.kind} {total} = {reduced};"]))
        local, stores = with_shadows(statement, self._shadows)
        assert isinstance(local, Reduce)
        accumulated = self.expressions.accumulate(local, total)
        if all(buffer.memory is MemoryType.local for buffer in writes(local)):
            items.append(Item(accumulated))
            accumulated = []
        if accumulated or stores:
            items.append(self._write_total(statement, place, serial, [*accumulated, *stores]))
        return items

    def _block_scan(self, statement: Scan, place: _Place) -> list[Item]:
        """The threads scan their elements together; each then has the running result after them."""
        name, running = statement.output.buffer.name, statement.running
        own, total = (self.expressions.fresh(f"{name}_{part}") for part in ("own", "total"))
        result = self.expressions.fresh(f"{name}_result")
        partial = OwnPart.of(statement, own)
        conditions = without_repeats([*place.conditions, *statement.predicate])
        pointer = f"reinterpret_cast<{partial.kind}*>({SCRATCH})"
        scanned = (
            f"block_scan<{self._threads(statement)}>({own}, {partial.combiner}, {pointer}, {total})"
        )
        value = f"{partial.combiner}({scanned}, {access_text(running)})"
        dtype, target = running.buffer.dtype, statement.output.buffer.dtype
        stored = f"{access_text(statement.output)} = {converted(result, dtype, target)};"
        ran = f"{partial.combiner}({total}, {access_text(running)})"
        return [
            *_own_part(partial, own, conditions, ()),
            Item([f"{partial.kind} {total};", f"const {partial.kind} {result} = {value};"]),
            Item([f"{access_text(running)} = {ran};"]),
            self._item(statement, place, [stored]),
        ]

    def _threads(self, statement: Reduce | Scan) -> str:
        """The template arguments of block_reduce and block_scan: axes, and the block's sizes."""
        axes = [str(axis in statement.block).lower() for axis in BLOCK]
        extents = [self._extents.get(axis, ONE) for axis in BLOCK]
        sizes = [str(n.value) if isinstance(n, Integer) else "0" for n in extents]
        return ", ".join([*axes, *sizes])

    def _write_total(
        self, statement: Reduce, place: _Place, serial: Sequence[For], lines: list[str]
    ) -> Item:
        """What the first thread writes to memory, if the statement has run at all."""
        written = self._item(statement, place, lines)
        indices = {loop.index for loop in serial}
        known = [c for c in written.conditions if indices.isdisjoint(c.a.symbols)]
        # Lowering may have moved the conditions on the elements into the loops' bounds.
        known += [
            Less(loop.start, loop.stop)
            for loop in serial
            if loop.start is not ZERO or not isinstance(loop.stop, Integer)
        ]
        return replace(written, conditions=without_repeats(known))


def _own_part(
    partial: OwnPart, own: str, conditions: Conditions, serial: Sequence[For]
) -> list[Item]:
    """The variable `own`, in which the thread accumulates over the serial loops."""
    if not serial and not conditions:
        return [Item([f"const {partial.kind} {own} = {partial.value};"])]
    start = Item([f"{partial.kind} {own} = {partial.nothing};"])
    if not serial:
        return [start, Item([f"{own} = {partial.value};"], conditions)]
    added = Item([f"{own} = {partial.combined};"], conditions)
    for loop in reversed(serial):
        rest, shared = hoisted([added], loop.index)
        added = Item(_loop_lines(loop, rest), shared)
    return [start, added]


def _reduction_chain(loop: For) -> tuple[*tuple[For, ...], Reduce] | None:
    """(loop, ..., reduction): the loops around one block reduction, and it.

    None unless the loop is such a chain, in which no loop changes the accumulator.
    """
    loops = [loop]
    while True:
        match loops[-1].body:
            case [For() as inner]:
                loops.append(inner)
            case [Reduce(block=block) as reduction] if block:
                break
            case _:
                return None
    serial = {one.index for one in loops if not one.parallel_type.is_thread}
    if any(serial & output.index.symbols for output in reduction.outputs):
        return None
    if any(serial & (one.start.symbols | one.stop.symbols) for one in loops):
        return None
    return (*loops, reduction)


def _computed(loop: For) -> str:
    """What a loop computes: `T3 = add(T1, T2)` per statement, or only the names of many."""
    found: dict[str, str] = {}
    for statement in walk(loop.body):
        outputs = ", ".join(dict.fromkeys(buffer.name for buffer in writes(statement)))
        if not outputs:
            continue
        found.setdefault(outputs, outputs)
        if isinstance(statement, Compute | Reduce | Scan | Scatter):
            inputs = ", ".join(map(_name_of, statement.inputs))
            found[outputs] = f"{outputs} = {statement.op}({inputs})"
    return ", ".join(found if len(found) > _MOST_EXPLAINED else found.values())


def _name_of(operand: Operand) -> str:
    """An operand in a comment: the tensor that it reads."""
    match operand:
        case Access(buffer=buffer) | Gathered(access=Access(buffer=buffer)):
            return buffer.name
        case Guarded(value=value):
            return _name_of(value)
        case _:
            return str(operand)


def _declaration(buffer: Buffer) -> list[Item]:
    """A variable or an array in registers; shared memory is declared before everything else."""
    if buffer.memory is not MemoryType.local or is_private_array(buffer):
        return []
    size = "" if is_variable(buffer) else f"[{buffer.size}]"
    variable = Declaration.of(type_name(buffer.dtype), f"{buffer.name}{size}")
    return [Item([], declares=variable)]


def _check_uniform(loop: For) -> None:
    """Checks that a loop with a barrier inside runs equally often in every thread of the block."""
    names = {axis.value for axis in BLOCK}
    if any(symbol.name in names for symbol in loop.start.symbols | loop.stop.symbols):
        what = f"loop {loop.index} around a barrier to be as long in all threads"
        raise InternalError(expected("cuda", what, f"[{loop.start}, {loop.stop})"))


def _loop_lines(loop: For, items: Sequence[Item]) -> list[str]:
    name = symbol_name(loop.index)
    header = f"for (index_t {name} = {index_text(loop.start)}; {name} < {index_text(loop.stop)};"
    lines = [f"{header} ++{name}) {{", *indented(assemble(items)), "}"]
    return ["#pragma unroll", *lines] if _is_unrolled(loop) else lines


def _is_unrolled(loop: For) -> bool:
    if loop.parallel_type in (ParallelType.unroll, ParallelType.vectorize):
        return True
    if not isinstance(loop.stop, Integer) or loop.stop.value > _MOST_UNROLLED:
        return False
    return any(
        loop.index in access.index.symbols and in_registers(access.buffer)
        for statement in walk(loop.body)
        for access in accesses(statement)
    )


def _if_else(tests: Sequence[str], lines: list[str], otherwise: list[str]) -> list[str]:
    """`if (all tests) { lines } else { otherwise }`."""
    head = f"if ({' && '.join(tests)}) {{"
    return [head, *indented(lines), "} else {", *indented(otherwise), "}"]


def _cases(cases: Sequence[Item], otherwise: list[str]) -> list[str]:
    """`if (conditions) { item } else if ... else { otherwise }`."""
    lines: list[str] = []
    for case in cases:
        first, *rest = assemble([case])[:-1]
        lines += [f"}} else {first}" if lines else first, *rest]
    return [*lines, "} else {", *indented(otherwise), "}"]
