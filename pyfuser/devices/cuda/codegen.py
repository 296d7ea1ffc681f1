"""Kernel -> CUDA C++ text, and how to launch it.

Each phase of a kernel becomes one `extern "C" __global__` function, because a grid-wide
synchronisation is the boundary between two launches.  A phase that the last block of the phase
before can run (`Phase.last_along`) is part of its function: a counter tells which block is the last
to arrive.  The text is for human readers; a compiler gets it after the device helpers
(device_helpers.py).  Launch geometry and the sizes of shared memory stay symbolic: one text serves
all sizes.  A second one is for calls whose vectors aren't aligned (alignment.py).

Invariant: a function takes exactly the tensors, sizes, strides and scalars that it uses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from ...dtypes import size_in_bytes
from ...errors import ScheduleError, expected
from ...ir.domains import BLOCK, GRID, ParallelType
from ...ir.kernel import (
    Allocate,
    Buffer,
    Compute,
    For,
    Initialise,
    Kernel,
    Phase,
    Reduce,
    ScalarParameter,
    Scan,
    Scatter,
    Statement,
)
from ...ir.kernel_queries import (
    accesses,
    operand_sizes,
    operands,
    walk,
)
from ...ir.scalar_functions import maximum
from ...ir.scalar_queries import evaluate
from ...ir.scalars import ONE, ZERO, Integer, IntExpr, Symbol, product
from ...ir.schedule import MemoryType
from ...target.target import PORTABLE_LIMITS, Limits
from .alignment import Alignment
from .bodies import BodyWriter, partly_idle
from .conditions import indented
from .expressions import THREAD_COUNT, THREAD_INDEX, accumulators, is_private_array
from .occupancy import registers_of_a_block
from .shadows import shadows_of
from .shared_memory import SCRATCH, SharedArray, shared_layout
from .spelling import index_text, symbol_name, type_name


@dataclass(frozen=True, slots=True)
class Counters:
    """Numbers of blocks that have arrived, zero before a launch and after it: `count` of them."""

    count: IntExpr


@dataclass(frozen=True, slots=True)
class SeedAddress:
    """Where a seed lies in the GPU's memory, if it isn't passed as a number: then this is null.

    Only a seed in memory can be another one each time that a captured launch runs.
    """

    seed: ScalarParameter


# Tensors, scratch buffers and counters are passed as their addresses, a symbol as index_t, a scalar
# as itself.
Parameter = Buffer | Symbol | ScalarParameter | SeedAddress | Counters

Extents = tuple[IntExpr, IntExpr, IntExpr]

ARRIVED = "arrived"

# What the name of a seed's parameters ends with.
GIVEN, ADDRESS = "_given", "_address"


@dataclass(frozen=True, slots=True)
class Launch:
    """One function, its grid and block (x, y, z), and its arguments in order.

    A function loops over the blocks along y and z that are more than a grid can have, unless what
    is more along y `goes_on_along_z`.  Sizes and strides are passed with `index_bits`.  The
    function is for arguments for which the `alignments` hold; for others there is one of the same
    launch in `CudaSource.for_any_address`.  Messages name the tensors that it has `written` and
    `shared`, in shared memory.
    """

    function: str
    grid: Extents
    block: Extents
    shared_bytes: IntExpr
    parameters: tuple[Parameter, ...]
    index_bits: int = 64
    alignments: tuple[Alignment, ...] = ()
    written: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    goes_on_along_z: bool = False

    def subject(self, device: object = None) -> str:
        """The beginning of a message: the function, its device, and the tensors of its limits."""
        has = [f"writes {_listed(self.written)}"] if self.written else []
        has += [f"{_listed(self.shared)} in shared memory"] if self.shared else []
        where = "" if device is None else f" on {device}"
        about = f" ({'; '.join(has)})" if has else ""
        return f"{self.function}{where}{about}"

    def geometry(self, sizes: dict[str, int]) -> Geometry | None:
        """The numbers for these sizes and strides, by name; None if there is nothing to do.

        Raises ScheduleError if the sizes need more than every GPU has.
        """
        grid, block = (
            tuple(evaluate(extent, sizes) for extent in extents)
            for extents in (self.grid, self.block)
        )
        if 0 in grid or 0 in block:
            return None
        shared_bytes = evaluate(self.shared_bytes, sizes)
        geometry = Geometry(grid, block, shared_bytes, self.goes_on_along_z)
        return geometry.within(PORTABLE_LIMITS, self.subject())


@dataclass(frozen=True, slots=True)
class Geometry:
    """A launch's numbers: blocks, and threads and bytes of dynamic shared memory per block.

    `goes_on_along_z` if blocks along y that a grid can't have are along z, which is free.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    goes_on_along_z: bool = False

    def within(self, limits: Limits, subject: str) -> Geometry:
        """What is launched: no more blocks along y and z than a grid can have.

        Raises ScheduleError if there are more threads, blocks along x or bytes than allowed; its
        message begins with `subject`.
        """
        most_of_each = (*limits.grid, *limits.block)
        x, y, z = self.grid
        most_y, most_z = limits.grid[1:]
        if self.goes_on_along_z:
            z = max(-(-y // most_y), 1)
            grid = (x, -(-y // z), z)
        else:
            grid = (x, min(y, most_y), min(z, most_z))
        extents = (*grid, *self.block)
        too_many = any(n > most for n, most in zip(extents, most_of_each, strict=True))
        too_big = self.shared_bytes > limits.shared_bytes
        if too_many or too_big or math.prod(self.block) > limits.threads:
            what = (
                f"at most {limits.threads} threads a block, {limits.grid} blocks "
                f"and {limits.shared_bytes} bytes of shared memory"
            )
            threads = " x ".join(map(str, self.block))
            got = f"{threads} threads, {self.grid} blocks, {self.shared_bytes} bytes"
            raise ScheduleError(expected(subject, what, got))
        return replace(self, grid=grid)


@dataclass(frozen=True, slots=True)
class CudaSource:
    """The text of a kernel, and its launches in the order of its phases."""

    kernel: Kernel
    text: str
    launches: list[Launch]

    @property
    def for_any_address(self) -> CudaSource:
        """The same launches, whose functions test the alignment of vectors: nothing must hold."""
        return _source(self.kernel, assumes_aligned=False)


def _listed(names: Sequence[str], most: int = 8) -> str:
    """The names, or so many of them and how many others there are."""
    others = len(names) - most
    return ", ".join(names[:most]) + (f" and {others} others" if others > 0 else "")


def generate(kernel: Kernel) -> CudaSource:
    """The CUDA C++ of a kernel lowered for hardware threads, whose vectors are aligned.

    Raises ScheduleError if registers would have a symbolic size, UnsupportedError for dtypes and
    ops that kernels can't compute.
    """
    found = _source(kernel, assumes_aligned=True)
    is_known = all(
        alignment.is_known_from(launch.parameters)
        for launch in found.launches
        for alignment in launch.alignments
    )
    return found if is_known else found.for_any_address


def _source(kernel: Kernel, assumes_aligned: bool) -> CudaSource:
    texts, launches = [], []
    functions: list[list[Phase]] = []
    for phase in kernel.phases:
        if phase.last_along is None:
            functions.append([])
        functions[-1].append(phase)
    for number, phases in enumerate(functions):
        name = kernel.name if len(functions) == 1 else f"{kernel.name}_phase{number}"
        text, launch = _function(kernel, phases, name, assumes_aligned)
        texts.append(text)
        launches.append(launch)
    width = f"typedef int{kernel.index_bits}_t index_t;\n"
    return CudaSource(kernel, "\n".join([width, *texts]), launches)


def _function(
    kernel: Kernel, phases: Sequence[Phase], name: str, assumes_aligned: bool
) -> tuple[str, Launch]:
    """The function of a phase, and of the one that its last blocks run, if there is one."""
    phase, last = phases[0], phases[1] if len(phases) > 1 else None
    if last is not None:
        phase, last = _in_one_launch(phase, last)
    grid, block = launch_extents(phase, GRID), launch_extents(phase, BLOCK)
    arrays = list(dict.fromkeys(a for each in phases for a in _shared_arrays(each, block)))
    declarations, shared_bytes = shared_layout(_with_one_scratch(arrays))
    limits = zip(GRID[1:], grid[1:], PORTABLE_LIMITS.grid[1:], strict=True)
    loops = {
        axis: extent
        for axis, extent, most in limits
        if not isinstance(extent, Integer) or extent.value > most
    }
    writers = [BodyWriter(each, assumes_aligned) for each in (phase, last) if each is not None]
    body = writers[0].lines()
    counters = []
    if last is not None:
        counters = [Counters(product(last.grid.values()))]
        body += [_arrival(phase, last), *indented(writers[1].lines()), "}"]
    goes_on = set(loops) == {ParallelType.grid_y} and ParallelType.grid_z not in phase.grid
    if goes_on:
        body = [*_block_along_y(grid[1]), *body]
    else:
        if loops and any(not array.is_private for array in arrays):
            body.append("__syncthreads();")
        for axis, extent in loops.items():
            body = _grid_stride_loop(axis, extent, body)
    has_private = any(array.is_private for array in arrays)
    parameters = (*_parameters(kernel, phases, [*grid, *block]), *counters)
    bindings = [*_bindings(phase, block, loops, has_private), *_seeds(parameters)]
    body = [*bindings, *declarations, *body]
    alignments = dict.fromkeys(each for writer in writers for each in writer.alignments)
    known = tuple(alignments) if assumes_aligned else ()
    launch = Launch(
        name,
        grid,
        block,
        shared_bytes,
        parameters,
        kernel.index_bits,
        known,
        tuple(buffer.name for buffer in parameters if buffer in _written(phases)),
        tuple(array.name for array in arrays),
        goes_on,
    )
    lines = [*_signature(kernel, phases, launch), *indented(body), "}"]
    return "".join(line + "\n" for line in lines), launch


def _in_one_launch(phase: Phase, last: Phase) -> tuple[Phase, Phase]:
    """The two phases with the same blocks, at least one along the axis whose last block is awaited:
    it has work even if there is nothing to reduce.
    """
    axis = last.last_along
    assert axis is not None
    grid = {kind: n if kind is not axis else maximum(n, ONE) for kind, n in phase.grid.items()}
    return replace(phase, grid=grid), replace(last, block=phase.block)


def _arrival(phase: Phase, last: Phase) -> str:
    """The condition of being the last block along an axis: there is a counter for each place."""
    place: IntExpr = ZERO
    for axis in reversed(last.grid):
        place = place * last.grid[axis] + Symbol.of(axis.value)
    assert last.last_along is not None
    blocks = index_text(phase.grid[last.last_along])
    counter = ARRIVED if place is ZERO else f"{ARRIVED} + {index_text(place)}"
    return f"if (is_last_block({counter}, {blocks})) {{"


def _with_one_scratch(arrays: Sequence[SharedArray]) -> list[SharedArray]:
    """The arrays, of which one is the scratch of all block reductions."""
    scratch = [array for array in arrays if array.name == SCRATCH]
    if len(scratch) < 2:
        return list(arrays)
    largest = functools.reduce(lambda a, b: a if maximum(a.size, b.size) is a.size else b, scratch)
    return [*(array for array in arrays if array.name != SCRATCH), largest]


def _grid_stride_loop(axis: ParallelType, extent: IntExpr, body: list[str]) -> list[str]:
    """The body for every index of an axis of the grid that may be longer than a grid can be."""
    name = symbol_name(Symbol.of(axis.value))
    stride = axis.value.replace("blockIdx", "gridDim")
    steps = f"{name} = {axis.value}; {name} < {index_text(extent)}; {name} += {stride}"
    return [f"for (index_t {steps}) {{", *indented(body), "}"]


def _block_along_y(extent: IntExpr) -> list[str]:
    """The index along y of a block that may be one of those that go on along z.  A loop over more
    blocks than a grid can have along y would take registers: 24 of the 56 of a cat.
    """
    name = symbol_name(Symbol.of(ParallelType.grid_y.value))
    return [
        f"const index_t {name} = blockIdx.y + blockIdx.z * gridDim.y;",
        f"if ({name} >= {index_text(extent)}) return;",
    ]


def launch_extents(phase: Phase, axes: tuple[ParallelType, ...]) -> Extents:
    """The extents of a grid or a block; at least 1 if some statement isn't distributed over it."""
    extents = {**phase.grid, **phase.block}
    idle = partly_idle(phase)
    x, y, z = (
        maximum(extents.get(axis, ONE), ONE) if axis in idle else extents.get(axis, ONE)
        for axis in axes
    )
    return x, y, z


def _shared_arrays(phase: Phase, block: Extents) -> list[SharedArray]:
    """The buffers in shared memory, each once, and the scratch of block reductions and scans."""
    threads = product(block)
    arrays = [SharedArray.private(buffer, threads) for buffer in _private_arrays(phase)]
    arrays += [
        SharedArray.of(buffer) for buffer in _allocated(phase) if buffer.memory is MemoryType.shared
    ]
    sizes = [
        sum(size_in_bytes(access.buffer.dtype) for access in accumulators(statement))
        for statement in walk(phase.body)
        if isinstance(statement, Reduce | Scan) and statement.block
    ]
    return arrays + ([SharedArray.scratch(threads, max(sizes))] if sizes else [])


def _allocated(phase: Phase) -> list[Buffer]:
    """Every allocated buffer once; a loop that lowering cut in two allocates in both parts."""
    found = (s.buffer for s in walk(phase.body) if isinstance(s, Allocate))
    return list(dict.fromkeys(found))


def _private_arrays(phase: Phase) -> list[Buffer]:
    own = [*_allocated(phase), *shadows_of(phase).values()]
    return [buffer for buffer in own if is_private_array(buffer)]


def _bindings(
    phase: Phase, block: Extents, loops: Container[ParallelType], has_private: bool
) -> list[str]:
    """The indices of the axes that the phase launches and doesn't loop over, as variables."""
    lines = [
        f"const index_t {symbol_name(Symbol.of(axis.value))} = {axis.value};"
        for axis in (*phase.grid, *phase.block)
        if axis not in loops
    ]
    if has_private:
        threads = [axis for axis in BLOCK if axis in phase.block]
        index: IntExpr = ZERO
        for axis in reversed(threads):
            index = index * block[BLOCK.index(axis)] + Symbol.of(axis.value)
        lines.append(f"const index_t {THREAD_COUNT} = {index_text(product(block))};")
        lines.append(f"const index_t {THREAD_INDEX} = {index_text(index)};")
    return lines


def _seeds(parameters: Sequence[Parameter]) -> list[str]:
    """The seeds as variables."""
    seeds = [each.seed for each in parameters if isinstance(each, SeedAddress)]
    return [
        f"const {type_name(seed.dtype)} {seed.name} = "
        f"{seed.name}{ADDRESS} ? *{seed.name}{ADDRESS} : {seed.name}{GIVEN};"
        for seed in seeds
    ]


def _parameters(
    kernel: Kernel, phases: Sequence[Phase], launched: list[IntExpr]
) -> tuple[Parameter, ...]:
    """What the phases use, tensors first, then sizes and strides, scalars and scratch."""
    buffers: set[Buffer] = set()
    scalars: set[ScalarParameter] = set()
    for statement in _statements(phases):
        buffers |= {access.buffer for access in accesses(statement)}
        if isinstance(statement, Compute | Reduce | Scan | Scatter):
            used = operands(statement.inputs)
            scalars |= {i for i in used if isinstance(i, ScalarParameter)}
    used_sizes = (expr for phase in phases for expr in _index_expressions(phase))
    symbols = frozenset().union(*(expr.symbols for expr in used_sizes))
    names = {symbol.name for symbol in symbols.union(*(e.symbols for e in launched))}
    return (
        *(tensor.buffer for tensor in kernel.tensors if tensor.buffer in buffers),
        *(symbol for symbol in kernel.symbols if symbol.name in names),
        *(scalar for scalar in kernel.scalars if scalar in scalars),
        *(SeedAddress(each) for each in kernel.scalars if each in scalars and each.is_seed),
        *(buffer for buffer in kernel.scratch if buffer in buffers),
    )


def _statements(phases: Sequence[Phase]) -> Iterator[Statement]:
    """Every statement of the phases."""
    return (statement for phase in phases for statement in walk(phase.body))


def _written(phases: Sequence[Phase]) -> set[Buffer]:
    """What the statements of the phases write to."""
    return {
        access.buffer
        for statement in _statements(phases)
        for access in list(accesses(statement))[: len(getattr(statement, "outputs", [0]))]
    }


def _index_expressions(phase: Phase) -> Iterator[IntExpr]:
    """Every symbolic integer that the text of a phase computes."""
    yield from (*phase.grid.values(), *phase.block.values())
    for statement in walk(phase.body):
        yield from (access.index for access in accesses(statement))
        match statement:
            case For():
                yield from (statement.start, statement.stop)
            case Allocate(buffer=buffer):
                yield buffer.size
            case Initialise():
                yield from (side for c in statement.predicate for side in (c.a, c.b))
            case Compute() | Reduce() | Scan() | Scatter():
                yield from (side for c in statement.predicate for side in (c.a, c.b))
                yield from operand_sizes(statement.inputs)


def _signature(kernel: Kernel, phases: Sequence[Phase], launch: Launch) -> list[str]:
    threads = product(launch.block)
    bounds = _bounds(kernel, threads.value if isinstance(threads, Integer) else None)
    written = _written(phases)
    tensors = {tensor.buffer: tensor for tensor in kernel.tensors}
    declared = []
    for parameter in launch.parameters:
        match parameter:
            case Buffer():
                pointer, tensor = f"{type_name(parameter.dtype)}*", tensors.get(parameter)
                if parameter not in written:
                    unique = tensor is None or not tensor.may_alias
                    pointer = f"const {pointer}{' __restrict__' if unique else ''}"
                sizes = tensor.sizes if tensor else (parameter.size,)
                shape = ", ".join(map(str, sizes))
                comment = f"  // [{shape}]"
                if tensor and not tensor.is_output:
                    comment += f" by strides [{', '.join(map(str, tensor.strides))}]"
                declared.append((f"{pointer} {parameter.name}", comment))
            case Symbol():
                declared.append((f"index_t {symbol_name(parameter)}", ""))
            case ScalarParameter():
                name = f"{parameter.name}{GIVEN if parameter.is_seed else ''}"
                declared.append((f"{type_name(parameter.dtype)} {name}", ""))
            case SeedAddress(seed=seed):
                pointer = f"const {type_name(seed.dtype)}* __restrict__ {seed.name}{ADDRESS}"
                declared.append((pointer, f"  // of {seed.name}, or null if it is given"))
            case Counters():
                declared.append((f"unsigned* {ARRIVED}", f"  // [{parameter.count}], zeros"))
    head = f'extern "C" __global__ void {bounds}{launch.function}('
    return [head, *_comma_separated(declared)] if declared else [f"{head}) {{"]


def _bounds(kernel: Kernel, threads: int | None) -> str:
    """What decides how many registers a thread has; `threads` of a block, if they are known.

    With a least number of blocks on a multiprocessor, ptxas gives a thread the registers that it
    needs; without, it aims at an occupancy, and spills a few to reach it.  A function can't have
    both bounds, so that a number of registers has to leave room for a whole block.
    """
    most_registers = kernel.most_registers
    if most_registers is not None:
        if threads is not None:
            most_registers = min(most_registers, registers_of_a_block(threads))
        return f"__maxnreg__({most_registers}) "
    return "" if threads is None else f"__launch_bounds__({threads}, {kernel.least_blocks}) "


def _comma_separated(declared: list[tuple[str, str]]) -> list[str]:
    last = len(declared) - 1
    lines = [
        f"{text}{',' if i < last else ') {'}{comment}" for i, (text, comment) in enumerate(declared)
    ]
    return indented(indented(lines))
