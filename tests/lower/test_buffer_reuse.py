"""Buffer reuse: its docstring's example, and correct results with reused rows."""

from __future__ import annotations

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import DataType as Type
from pyfuser.ir.kernel import (
    Access,
    Allocate,
    Buffer,
    Compute,
)
from pyfuser.ir.kernel_queries import walk
from pyfuser.ir.scalars import ZERO, Symbol
from pyfuser.ir.schedule import MemoryType
from pyfuser.lower.buffer_reuse import reuse_buffers
from tests.support.accuracy import assert_close_to_oracle
from tests.support.kernels import lowered_kernels

SIZE = Symbol.of("n")


def buffer(name: str, dtype: Type = Type.Float, memory: MemoryType = MemoryType.local) -> Buffer:
    return Buffer(name, dtype, memory, SIZE)


def copy(target: Buffer, source: Buffer) -> Compute:
    return Compute("set", Access(target, ZERO), (Access(source, ZERO),))


def test_a_dead_buffer_is_taken_over() -> None:
    given, made = buffer("T0"), buffer("T9")
    first, second = buffer("T1"), buffer("T2")
    body = reuse_buffers(
        [
            Allocate(first),
            copy(first, given),
            copy(made, first),
            Allocate(second),
            copy(second, given),
            copy(made, second),
        ]
    )
    assert [s.buffer for s in body if isinstance(s, Allocate)] == [first]
    assert [s.output.buffer for s in body if isinstance(s, Compute)] == [first, made, first, made]


def test_a_live_buffer_is_not() -> None:
    given, made = buffer("T0"), buffer("T9")
    first, second = buffer("T1"), buffer("T2")
    body = reuse_buffers(
        [
            Allocate(first),
            copy(first, given),
            Allocate(second),
            copy(second, given),
            copy(made, first),
            copy(made, second),
        ]
    )
    assert [s.buffer for s in body if isinstance(s, Allocate)] == [first, second]


@pytest.mark.parametrize(
    "other", [buffer("T2", Type.Double), buffer("T2", memory=MemoryType.shared)]
)
def test_only_the_same_kind_of_memory_is(other: Buffer) -> None:
    given, first, alike = buffer("T0"), buffer("T1"), buffer("T3")
    for second, kept in ((other, [first, other]), (alike, [first])):
        body = [Allocate(first), copy(first, given), Allocate(second), copy(second, given)]
        assert [s.buffer for s in reuse_buffers(body) if isinstance(s, Allocate)] == kept


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("count", [2, 3, 4])
def test_softmaxes_of_a_row_share_their_memory(count: int) -> None:
    """exp is kept for a row, its softmax normalised, then the same again with the result.

    However many they are, one row is read while another is written.
    """
    with FusionDefinition() as fd:
        value = fd.define_tensor([-1, -1], dtype=DataType.Float)
        for _ in range(count):
            powers = fd.ops.exp(fd.ops.sub(value, fd.ops.max(value, [1], keepdim=True)))
            value = fd.ops.div(powers, fd.ops.sum(powers, [1], keepdim=True))
        fd.add_output(value)
    x = torch.randn(5, 203)
    outputs = fd.execute([x])
    assert_close_to_oracle(fd.fusion.definition, [x], outputs, absolute=1e-7)
    (program,) = fd.fec.engine.executor.programs.values()
    (kernel,) = lowered_kernels(program)
    rows = [
        s.buffer.name
        for phase in kernel.phases
        for s in walk(phase.body)
        if isinstance(s, Allocate) and s.buffer.size.symbols
    ]
    assert len(rows) == len(set(rows)) == 2
