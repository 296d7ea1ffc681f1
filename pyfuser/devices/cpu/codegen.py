"""Kernel -> LLVM IR text: one range function per phase, with explicit vectors.

A grid loop is the loop over this thread's share of the tasks.  A block_x or vectorize loop that
contains no vectorize loop runs in lanes.  Unrolled loops are written out; all others are loops.
Tensors of one element that are written once are SSA values.  The others are in memory: small ones
on the stack, where LLVM's `sroa` turns them into registers, large or symbolic ones in the thread's
workspace.  Invariants: no fast-math; every masked access is inside its buffer; the text is
deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial

from ...dtypes import DataType, size_in_bytes
from ...errors import InternalError, expected
from ...ir.domains import GRID, ParallelType
from ...ir.kernel import (
    Allocate,
    Buffer,
    Compute,
    For,
    If,
    Initialise,
    Kernel,
    Phase,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from ...ir.kernel_queries import walk
from ...ir.scalars import (
    ONE,
    ZERO,
    CeilDiv,
    FloorDiv,
    Integer,
    IntExpr,
    Symbol,
    ceil_div,
    floor_div,
    mod,
)
from .conversions import storage_type
from .counters import CountingLoop
from .jit import function_attributes
from .kernel_code import CpuKernelCode, expensive_operations, slot_names
from .lane_loops import LaneLoops
from .lanes import Lanes
from .llvm_writer import I64, PTR, FunctionWriter, Value
from .pairs import Pairs, Uses, may_pair
from .processor import Processor
from .row_copies import RowCopies, copied_buffers, row_copy
from .scopes import Scopes, flatten
from .short_rows import MOST_PLACES, split_evenly, whole_rows
from .statement_facts import has_short_nans, register_buffers
from .statements import StatementEmitter
from .written_once import WrittenOnce

STACK_BYTES = 16 << 10  # larger buffers go to the workspace: threads may have small stacks
_SERIAL = (ParallelType.serial, ParallelType.unswitch, ParallelType.block_y, ParallelType.block_z)


def generate(kernel: Kernel, processor: Processor) -> CpuKernelCode:
    """The text of a kernel.  UnsupportedError for what kernels can't compute."""
    functions, texts = [], []
    declarations: dict[str, str] = {}
    definitions: dict[str, str] = {}
    workspace: IntExpr = ZERO
    streaming: dict[tuple[IntExpr, int], None] = {}
    for number, phase in enumerate(kernel.phases):
        generator = PhaseGenerator(kernel, phase, f"{kernel.name}_phase{number}", processor)
        texts.append(generator.text())
        functions.append(generator.name)
        declarations |= generator.writer.declarations
        definitions |= generator.writer.definitions
        workspace = workspace + generator.workspace
        streaming |= generator.statements.streaming.multiples
    attributes = f"attributes #0 = {{ {function_attributes(processor, calls=bool(definitions))} }}"
    parts = [*texts, *definitions.values(), *declarations.values(), attributes, "!0 = !{i32 1}"]
    return CpuKernelCode(
        kernel.outline,
        "\n".join(parts) + "\n",
        tuple(functions),
        workspace,
        tuple(streaming),
        expensive_operations(kernel),
    )


class PhaseGenerator:
    """Writes the range function of one phase."""

    def __init__(self, kernel: Kernel, phase: Phase, name: str, processor: Processor) -> None:
        self.kernel, self.phase, self.name = kernel, phase, name
        has_avx512 = processor.vector_bits >= 512
        has_bf16 = has_avx512 and processor.has("avx512bf16")
        self.writer = FunctionWriter(
            has_fma=processor.has_fma, has_avx512=has_avx512, has_bf16=has_bf16
        )
        self.writer.has_short_nans = has_short_nans(kernel)
        self.vector_bytes = processor.vector_bits // 8
        self.line_bytes = processor.cache_line_bytes
        self.scopes = Scopes(self.writer)
        self.entry: list[str] = []
        self.workspace: IntExpr = ZERO
        self.statements = StatementEmitter(self.writer, self.scopes, self)
        self.lane_loops = LaneLoops(self)
        self.pointers: dict[Buffer, Value] = {}
        self.lanes: Lanes | None = None
        self.grid_index: dict[ParallelType, Value] = {}
        self.open_grid: set[ParallelType] = set()
        self.serial_loops: list[For] = []
        self.copied_buffers = copied_buffers(phase.body)
        self.widened: dict[Buffer, int] = {}
        self.once = WrittenOnce(self)
        self.registers = register_buffers(phase)
        self.has_bfloat16 = any(t.buffer.dtype is DataType.BFloat16 for t in kernel.tensors)

    # -- the function

    def text(self) -> str:
        """The whole function."""
        body = self.writer.lines
        self.writer.lines = self.entry
        self._load_slots()
        self.writer.lines = body
        self._tasks()
        self.statements.refusals.report(len(slot_names(self.kernel)))
        self.writer.ret()
        lines = [*self.entry, *flatten(body)]  # type: ignore[arg-type]
        signature = f"define void @{self.name}(ptr noalias %args, i64 %thread, i64 %threads)"
        return "\n".join([f"{signature} #0 {{", "entry:", *lines, "}", ""])

    def _load_slots(self) -> None:
        w = self.writer
        symbols = {s.name: s for s in self.kernel.symbols}
        buffers = {
            b.name: b for b in (*(t.buffer for t in self.kernel.tensors), *self.kernel.scratch)
        }
        for i, name in enumerate(slot_names(self.kernel)):
            slot = w.element_pointer(Value("%args", PTR), "i64", w.constant(i, I64))
            if name in buffers or name == "workspace":
                pointer = w.load(PTR, slot, 8)
                if name in buffers:
                    self.pointers[buffers[name]] = pointer
                else:
                    self.workspace_pointer = pointer
            else:
                value = w.load(I64, slot, 8)
                if name in symbols:
                    self.scopes.define(symbols[name], value)
                elif name == "workspace_bytes":
                    offset = w.mul(value, Value("%thread", I64))
                    self.workspace_pointer = w.element_pointer(self.workspace_pointer, "i8", offset)
                elif name == "streaming":
                    self.statements.streaming.flag = w.icmp("ne", value, w.constant(0, I64))
                else:
                    self.statements.scalars[name] = value

    def _tasks(self) -> None:
        """for task in this thread's share: body"""
        w, scopes = self.writer, self.scopes
        total = self.phase.task_count()
        if total is ONE:
            with_branch = w.icmp("eq", Value("%thread", I64), w.constant(0, I64))
            first, done = w.fresh("first"), w.fresh("done")
            w.branch_if(with_branch, first, done)
            w.label(first)
            scopes.enter()
            for kind in self.phase.grid:
                self.bind_grid(kind, w.constant(0, I64))
            self.body(self.phase.body)
            self.statements.flush()
            scopes.leave()
            w.branch(done)
            w.label(done)
            return
        tasks = scopes.integer(total)
        thread, threads = Value("%thread", I64), Value("%threads", I64)
        begin = w.binary("udiv", w.mul(tasks, thread), threads)
        end = w.binary("udiv", w.mul(tasks, w.add(thread, w.constant(1, I64))), threads)
        self.loop_between(begin, end, 1, self._task)

    def _task(self, task: Value) -> None:
        """Binds the grid indices of one task, the first axis fastest, and runs the body."""
        number = Symbol.of("task", self.phase.task_count())
        self.scopes.define(number, task)
        rest: IntExpr = number
        *faster, (slowest, _) = self.phase.grid.items()
        for kind, extent in faster:
            self.bind_grid(kind, self.scopes.integer(mod(rest, extent)))
            rest = floor_div(rest, extent)
        self.bind_grid(slowest, self.scopes.integer(rest))
        self.body(self.phase.body)

    def bind_grid(self, kind: ParallelType, index: Value) -> None:
        """Gives every loop symbol of a grid type the task's coordinate."""
        self.grid_index[kind] = index
        for statement in walk(self.phase.body):
            if isinstance(statement, For) and statement.parallel_type is kind:
                self.scopes.define(statement.index, index)

    # -- control flow

    def loop_between(self, begin: Value, end: Value, step: int, body: object) -> None:
        """for index in [begin, end) step: body(index)"""
        w, scopes = self.writer, self.scopes
        head, inside, done = w.fresh("head"), w.fresh("body"), w.fresh("done")
        scope = scopes.enter()
        before = w.fresh("before")
        w.branch(before)
        w.label(before)
        w.branch(head)
        w.label(head)
        next_name = f"%{w.fresh('next')}"
        latch = w.fresh("latch")
        index = w.phi(I64, [(begin, before), (Value(next_name, I64), latch)])
        phis, steps = list[str](), list[str]()
        w.lines.append(phis)  # type: ignore[arg-type]
        if step == 1:
            scope.loop = CountingLoop(before, latch, phis, steps)
            scope.loop.counts_from(index, begin)
        more = w.icmp("slt", index, end)
        w.branch_if(more, inside, done)
        w.label(inside)
        body(index)  # type: ignore[operator]
        self.statements.flush()
        w.branch(latch)
        w.label(latch)
        w.lines.append(steps)  # type: ignore[arg-type]
        w.emit(f"  {next_name} = add nsw i64 {index.name}, {step}")
        w.branch(head)
        scopes.leave()
        w.label(done)

    def branch_on(
        self,
        condition: Value,
        body: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
        *,
        is_conditional: bool = False,
    ) -> None:
        """if condition: body() else: otherwise(); for `is_conditional`, see Scope."""
        w, scopes = self.writer, self.scopes
        ways = [(w.fresh("then"), body)]
        if otherwise is not None:
            ways.append((w.fresh("else"), otherwise))
        done = w.fresh("done")
        self.statements.flush()  # what waits isn't stored under the condition
        w.branch_if(condition, *[name for name, _ in [*ways, (done, body)]][:2])
        for name, write in ways:
            w.label(name)
            scopes.enter(is_conditional=is_conditional)
            write()
            self.statements.flush()  # their values are defined only in this branch
            w.branch(done)
            scopes.leave()
        w.label(done)

    def _if(self, statement: If) -> None:
        holds = self.statements.condition(statement.predicate)
        assert holds is not None
        bodies = (partial(self.body, each) for each in (statement.body, statement.otherwise))
        self.branch_on(holds, *bodies, is_conditional=True)

    # -- statements

    def body(self, statements: list[Statement]) -> None:
        """Everything in a body, in order."""
        for statement in statements:
            match statement:
                case For():
                    self._for(statement)
                case If():
                    self._if(statement)
                case Allocate(buffer=buffer):
                    self._allocate(buffer)
                case Compute() | Initialise() | Reduce() | Scan() | Scatter():
                    condition = self.once.condition(statement)
                    if condition is None:
                        self.statements.emit(statement)
                    else:
                        self.branch_on(condition, partial(self.statements.emit, statement))
                case _:
                    pass  # barriers: threads are loops here

    def in_workspace(self, size: IntExpr, offset: int = 0) -> Value:
        """The address of so many bytes of the thread's workspace, an offset after their start."""
        with self.scopes.at(0):
            start = self.scopes.integer(self.workspace + offset)
            pointer = self.writer.element_pointer(self.workspace_pointer, "i8", start)
        self.workspace = self.workspace + ceil_div(size, 64) * 64
        return pointer

    def _allocate(self, buffer: Buffer) -> None:
        if buffer in self.registers:
            return
        lanes = self.lanes.count if self.lanes is not None else 1
        if lanes > 1:
            self.widened[buffer] = lanes
        elif buffer in self.pointers:
            return  # the same buffer in the second half of a cut loop
        size = buffer.size * lanes
        element = storage_type(buffer.dtype)
        bytes_each = size_in_bytes(buffer.dtype)
        around = self.line_bytes // bytes_each if buffer in self.copied_buffers else 0
        if isinstance(size, Integer) and size.value * bytes_each <= STACK_BYTES:
            with self.writer.into(self.entry):
                memory = self.writer.alloca(element, max(size.value + 2 * around, 1), 64)
                start = self.writer.constant(around, I64)
                self.pointers[buffer] = (
                    self.writer.element_pointer(memory, element.element, start)
                    if around
                    else memory
                )
            return
        bytes_around = around * bytes_each
        self.pointers[buffer] = self.in_workspace(
            size * bytes_each + 2 * bytes_around, bytes_around
        )

    def _for(self, loop: For) -> None:
        kind = loop.parallel_type
        if kind in GRID:
            self._grid_for(loop)
        elif kind is ParallelType.unroll:
            if not self._over_places(loop):
                self._unrolled(loop, self._known_range(loop))
        elif self.lane_loops.runs_in_lanes(loop):
            around = self.serial_loops[-1] if self.serial_loops else None
            copy = row_copy(loop, around) if self.open_grid.issuperset(self.phase.grid) else None
            if copy is not None:
                RowCopies(self).emit(copy)
            else:
                self.lane_loops.emit(loop)
        else:
            self._serial(loop)

    def _grid_for(self, loop: For) -> None:
        self.open_grid.add(loop.parallel_type)
        extent = self.phase.grid[loop.parallel_type]
        if loop.stop is extent:
            self.body(loop.body)
        else:
            index, stop = self.scopes.integer(loop.index), self.scopes.integer(loop.stop)
            inside = self.writer.icmp("slt", index, stop)
            self.branch_on(inside, lambda: self.body(loop.body), is_conditional=True)
        self.open_grid.discard(loop.parallel_type)

    def _known_range(self, loop: For) -> range:
        start, stop = self.scopes.resolve(loop.start), self.scopes.resolve(loop.stop)
        if not isinstance(start, Integer) or not isinstance(stop, Integer):
            raise InternalError(expected("unroll", "a constant extent", loop.stop))
        return range(start.value, stop.value)

    def _unrolled(self, loop: For, values: range) -> None:
        if self._may_pair(loop):
            self.statements.pairs = Pairs(self.writer, self.scopes, loop.index)
            self.writer.makes_pairs = True
        self._written_out(loop, values)
        self.statements.pairs = None
        self.writer.makes_pairs = False

    def _written_out(self, loop: For, values: Iterable[IntExpr | int]) -> None:
        """The body once for each value of the index."""
        for value in values:
            self.scopes.set_constant(loop.index, value)
            self.body(loop.body)
        self.scopes.set_constant(loop.index, None)
        if not self.scopes.constants:
            self.statements.streaming.flush()

    @cached_property
    def uses(self) -> Uses:
        """Who writes and reads the phase's buffers."""
        return Uses(self.phase.body)

    def _may_pair(self, loop: For) -> bool:
        """Pairs are for unconditional stores."""
        are_open = self.open_grid.issuperset(self.phase.grid)
        return self.has_bfloat16 and are_open and may_pair(loop, self.uses, self.lane_loops.count)

    def _over_places(self, loop: For) -> bool:
        """Writes out a loop over places of rows that lanes have, some at a time; False if it isn't
        one."""
        in_lanes = self.lane_loops.runs_in_lanes
        inner = [s for s in loop.body if isinstance(s, For) and in_lanes(s)]
        has_masks = not self.statements.has_slow_masks
        is_over_rows, whole = whole_rows(loop, inner, has_masks=has_masks)
        if is_over_rows:
            assert isinstance(loop.start, Integer) and isinstance(loop.stop, Integer)
            most = min(MOST_PLACES, *map(self.lane_loops.count, inner))
            for places in split_evenly(loop.start.value, loop.stop.value, most):
                with self.statements.rows.over_places(loop, places, whole):
                    self._unrolled(loop, places)
        return is_over_rows

    def _serial(self, loop: For) -> None:
        if self._over_places(loop):
            return

        def inside(index: Value) -> None:
            self.scopes.define(loop.index, index)
            self.serial_loops.append(loop)
            self.body(loop.body)
            self.serial_loops.pop()

        if loop.stop - loop.start is ONE:
            self._once(loop)
            return
        begin, end = self.scopes.integer(loop.start), self.scopes.integer(loop.stop)
        if _runs_at_most_once(loop):
            is_left = self.writer.icmp("slt", begin, end)
            self.branch_on(is_left, partial(self._once, loop), is_conditional=True)
            return
        run = partial(self.loop_between, begin, end, 1, inside)
        if loop.is_conditional:
            self.branch_on(self.writer.icmp("slt", begin, end), run, is_conditional=True)
        else:
            run()

    def _once(self, loop: For) -> None:
        """One iteration, in which what depends on the index only is computed outside of others."""
        self.serial_loops.append(loop)
        self._written_out(loop, [loop.start])
        self.serial_loops.pop()


def _runs_at_most_once(loop: For) -> bool:
    """True for a loop over what whole blocks leave."""
    start, stop = loop.start, loop.stop
    if not isinstance(start, FloorDiv) or not isinstance(stop, CeilDiv):
        return False
    return start.a is stop.a and start.b is stop.b
