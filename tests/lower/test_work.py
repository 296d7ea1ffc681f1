"""Work is bounded: how often the statements of kernels run, counted from their loops, not timed.

Each family is a definition that grows with n.  At n and at 4n its kernels run at most four times as
many statements as its operations would one by one, and local memory never holds a whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.executor import Executor, Resolved
from pyfuser.ir.kernel import Allocate
from pyfuser.ir.kernel_queries import walk
from pyfuser.ir.scalar_queries import evaluate
from pyfuser.ir.schedule import MemoryType
from pyfuser.lower.work import MOST_REPEATED, unfused_runs
from pyfuser.ops.binding import bind_extents
from tests.support.accuracy import assert_close_to_oracle
from tests.support.kernels import lowered_kernels

pytestmark = pytest.mark.usefixtures("poison")

Family = Callable[[FusionDefinition], None]
Inputs = list[torch.Tensor | int]


def _reshape_between_outputs(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, 4, 32], contiguity=True)
    y = fd.ops.neg(x)
    z = fd.ops.reshape(y, [fd.ops.mul(fd.ops.size(x, 0), 4), 32])
    for output in (y, z, fd.ops.permute(z, [1, 0])):
        fd.add_output(output)


def _split_between_outputs(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, 32])
    y = fd.ops.exp(x)
    z = fd.ops.reshape(y, [fd.ops.size(x, 0), 4, 8])
    fd.add_output(fd.ops.permute(y, [1, 0]))
    fd.add_output(fd.ops.add(z, 1.0))


def _reduction_over_a_broadcast(fd: FusionDefinition) -> None:
    x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1])
    chain = y
    for _ in range(9):
        chain = fd.ops.add(fd.ops.mul(chain, 1.5), y)
    fd.add_output(fd.ops.sum(fd.ops.mul(x, chain), 0))


def _chain_of_a_row(fd: FusionDefinition) -> None:
    x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1])
    chain = y
    for _ in range(9):
        chain = fd.ops.add(fd.ops.mul(chain, 1.5), y)
    fd.add_output(fd.ops.add(x, chain))


def _transposed_outputs(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, -1])
    positive = fd.ops.exp(x)
    scaled = fd.ops.div(positive, fd.ops.sum(positive, 1, keepdim=True))
    fd.add_output(scaled)
    fd.add_output(fd.ops.permute(scaled, [1, 0]))
    fd.add_output(fd.ops.sum(scaled, 0))


def _windows_of_windows(fd: FusionDefinition) -> None:
    current = fd.define_tensor([-1])
    for step in (1, 2, 4, 8, 16):
        size = fd.ops.size(current, 0)
        shifted = fd.ops.slice(current, [0], [fd.ops.sub(size, step)])
        current = fd.ops.add(current, fd.ops.pad(fd.ops.neg(shifted), [step, 0]))
    fd.add_output(current)


def _gather_of_a_reduction(fd: FusionDefinition) -> None:
    x, index = fd.define_tensor([-1, -1]), fd.define_tensor([-1], dtype=DataType.Int)
    sums = fd.ops.sum(x, 1)
    fd.add_output(fd.ops.index_select(fd.ops.sqrt(sums), index, 0))


def _gather_of_a_chain(fd: FusionDefinition) -> None:
    table, index = fd.define_tensor([-1, -1]), fd.define_tensor([-1], dtype=DataType.Int)
    chain = table
    for _ in range(9):
        chain = fd.ops.add(fd.ops.mul(chain, 1.5), table)
    fd.add_output(fd.ops.index_select(chain, index, 0))


def _cat_of_chains(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1])
    parts = [fd.ops.mul(fd.ops.add(x, float(k)), fd.ops.sub(x, float(k))) for k in range(12)]
    fd.add_output(fd.ops.cat(parts, 0))


def _chain_put_into_more(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1])
    chain = x
    for _ in range(9):
        chain = fd.ops.add(fd.ops.mul(chain, 1.5), x)
    fd.add_output(fd.ops.pad(chain, [100000, 0]))


def _matrix(n: int) -> Inputs:
    return [torch.rand(n, 48)]


def _with_row(n: int) -> Inputs:
    return [torch.rand(n, 48), torch.rand(48)]


def _with_index(n: int) -> Inputs:
    return [torch.rand(16, 48), torch.arange(n) % 16]


FAMILIES: list[tuple[Family, Callable[[int], Inputs]]] = [
    (_reshape_between_outputs, lambda n: [torch.rand(n, 4, 32)]),
    (_split_between_outputs, lambda n: [torch.rand(n, 32)]),
    (_reduction_over_a_broadcast, _with_row),
    (_chain_of_a_row, _with_row),
    (_transposed_outputs, _matrix),
    (_windows_of_windows, lambda n: [torch.rand(n)]),
    (_gather_of_a_reduction, _with_index),
    (_gather_of_a_chain, _with_index),
    (_cat_of_chains, lambda n: [torch.rand(n)]),
    (_chain_put_into_more, lambda n: [torch.rand(n)]),
]


def _resolved(family: Family, inputs: Inputs) -> tuple[FusionDefinition, Resolved, dict[str, int]]:
    with FusionDefinition() as fd:
        family(fd)
    fusion = fd.fusion.graph
    return fd, Executor(fusion).resolve(inputs), bind_extents(fusion, inputs)


def _counts(family: Family, inputs: Inputs) -> tuple[int, int]:
    """(statements that the kernels run, statements of the definition's operations)."""
    fd, resolved, sizes = _resolved(family, inputs)
    total = 0
    for built in resolved.kernels:
        if built is not None:
            total += sum(evaluate(runs.count, sizes) for runs in built.kernel.runs)
    return total, sum(evaluate(count, sizes) for count in unfused_runs(fd.fusion.graph).values())


@pytest.mark.parametrize(("family", "inputs"), FAMILIES, ids=lambda value: value.__name__)
def test_statements_grow_with_the_sizes(family: Family, inputs: Callable[[int], Inputs]) -> None:
    (few, few_alone), (many, many_alone) = (_counts(family, inputs(n)) for n in (1024, 4096))
    assert 0 < few <= MOST_REPEATED * few_alone
    assert many <= MOST_REPEATED * many_alone
    assert many <= 4.1 * few


@pytest.mark.parametrize(("family", "inputs"), FAMILIES, ids=lambda value: value.__name__)
def test_local_memory_holds_rows_and_tiles(family: Family, inputs: Callable[[int], Inputs]) -> None:
    _, resolved, sizes = _resolved(family, inputs(4096))
    kernels = lowered_kernels(resolved.program)
    assert kernels
    for kernel in kernels:
        for phase in kernel.phases:
            for statement in walk(phase.body):
                is_local = isinstance(statement, Allocate) and (
                    statement.buffer.memory is not MemoryType.global_
                )
                if is_local:
                    assert evaluate(statement.buffer.size, sizes) <= 4096


@pytest.mark.parametrize("n", [1, 5, 300])
@pytest.mark.parametrize(("family", "inputs"), FAMILIES, ids=lambda value: value.__name__)
def test_results(family: Family, inputs: Callable[[int], Inputs], n: int) -> None:
    """Cut or whole, the results are those of the evaluator in float64."""
    with FusionDefinition() as fd:
        family(fd)
    given = inputs(max(n, 32) if family is _windows_of_windows else n)
    assert_close_to_oracle(fd.fusion.graph, given, fd.execute(given))
