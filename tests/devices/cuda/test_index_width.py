"""Kernels have 32-bit indices for the sizes and strides for which all of them fit."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, ParallelType, compiled_kernel_count
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.index_width import MOST, integers_of, narrow_conditions
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.devices.switches import register_runtime
from pyfuser.errors import ScheduleError
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.kernel import Kernel
from pyfuser.ir.scalar_queries import evaluate
from pyfuser.ops.binding import bind
from pyfuser.plans.plan import stride_name
from tests.cuda.emulate import cuda_kernel
from tests.cuda.host_compiler import requires_host_compiler
from tests.cuda.random_schedules import example
from tests.devices.cuda.benchmark_kernels import FUNCTIONS, TextRuntime, codes_of
from tests.devices.cuda.test_automatic_schedules import AUTOMATIC, scheduled_for
from tests.test_plans import executor_of

SM_90 = CudaTarget.of("sm_90")


@contextmanager
def only_texts() -> Iterator[TextRuntime]:
    """While it lasts, the kernels of CPU tensors are only written."""
    runtime = TextRuntime(SM_90)
    register_runtime("cpu", lambda _: runtime)
    try:
        yield runtime
    finally:
        register_runtime("cpu", None)


def width_of_call(fd: FusionDefinition, *inputs: torch.Tensor) -> int:
    """Of the indices of the kernel that a call runs."""
    fd.execute(list(inputs))
    (built,) = executor_of(fd).resolve(list(inputs)).kernels
    bits = built.kernel.index_bits
    assert f"typedef int{bits}_t index_t;" in built.code.text
    return bits


def doubled(rank: int, contiguous: bool = True) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, contiguity=contiguous, dtype=DataType.Int8)
        fd.add_output(fd.ops.add(x, x))
    return fd


def conditions_of(name: str) -> list[list[str]]:
    codes = codes_of(name, "sm_90", torch.float32, 2048, 4096)
    return [[str(each) for each in narrow_conditions(code.kernel)] for code in codes]


def test_a_contiguous_kernel_has_one_condition():
    forward, _ = conditions_of("silu * mul")
    assert forward == [f"i0*i1 + 1024 < {MOST}"]


def test_rows_have_a_condition_on_the_padded_tensor():
    forward, _ = conditions_of("layer norm")
    assert forward == [f"i0 + 4095 < {MOST}", f"i0*i1 + 4095 < {MOST}"]


def check_bounds(kernel: Kernel, numbers: dict[str, int], seed: int) -> None:
    """No integer of the kernel is larger than its conditions say, for random values of indices."""
    chance = random.Random(seed)
    largest = max(evaluate(each.a, numbers) for each in narrow_conditions(kernel))
    outputs = [tensor for tensor in kernel.tensors if tensor.is_output]
    if any(evaluate(size, numbers) == 0 for tensor in outputs for size in tensor.sizes):
        return  # nothing is computed
    for phase in kernel.phases:
        launched = {axis.value: extent for axis, extent in {**phase.grid, **phase.block}.items()}
        for expr in set(integers_of(phase.body)):
            for _ in range(20):
                values = dict(numbers)
                for symbol in sorted(expr.symbols, key=str):
                    if symbol.upper is not None:
                        stop = evaluate(launched.get(symbol.name, symbol.upper), numbers)
                        last = max(stop - 1, 0)
                        values[symbol.name] = chance.choice([0, last, chance.randint(0, last)])
                with suppress(ZeroDivisionError):  # of an index inside an axis without elements
                    assert -largest <= evaluate(expr, values) <= largest, (str(expr), values)


def numbers_of(fusion: Fusion, inputs: Sequence[Any]) -> dict[str, int]:
    """Sizes and strides by name."""
    numbers = dict(bind(fusion, inputs).sizes)
    for value, given in zip(fusion.inputs, inputs, strict=True):
        if isinstance(given, torch.Tensor):
            numbers |= {stride_name(value, d): step for d, step in enumerate(given.stride())}
    return numbers


@pytest.mark.parametrize("shape", [(5, 37), (2, 1500), (300, 140)], ids=str)
@pytest.mark.parametrize("define", AUTOMATIC, ids=lambda define: define.__name__)
def test_the_integers_of_automatic_schedules_are_in_their_bounds(define, shape):
    fusion = Fusion()
    inputs = define(fusion)(*shape)
    kernel = cuda_kernel(scheduled_for(fusion, inputs, AUTOMATIC[define]))
    check_bounds(kernel, numbers_of(fusion, inputs), 0)


@pytest.mark.parametrize("seed", range(100))
def test_the_integers_of_random_schedules_are_in_their_bounds(seed):
    try:
        scheduled, original, inputs = example(seed).scheduled()
        kernel = cuda_kernel(scheduled)
    except ScheduleError:
        return
    check_bounds(kernel, numbers_of(original, inputs), seed)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_integers_of_the_benchmark_set_are_in_their_bounds(name):
    for code in codes_of(name, "sm_90", torch.float32, 96, 640):
        symbols = sorted(
            {s.name for each in narrow_conditions(code.kernel) for s in each.a.symbols}
        )
        for seed in range(3):
            chance = random.Random(seed)
            check_bounds(code.kernel, {each: chance.randint(1, 700) for each in symbols}, seed)


@pytest.mark.parametrize(
    ("shape", "bits"),
    [((8, 64), 32), ((2, 2**30 - 8192), 32), ((2, 2**30), 64), ((4, 2**30), 64), ((2**31, 3), 64)],
    ids=str,
)
def test_a_call_takes_the_width_that_its_sizes_need(shape, bits):
    with only_texts():
        assert width_of_call(doubled(2), torch.empty(shape, dtype=torch.int8)) == bits


def test_a_large_call_leaves_the_narrow_kernel_alone():
    fd, small = doubled(2), torch.empty(64, 2**20, dtype=torch.int8)
    with only_texts():
        assert width_of_call(fd, small) == 32
        count = compiled_kernel_count()
        assert width_of_call(fd, torch.empty(64, 2**25, dtype=torch.int8)) == 64
        assert compiled_kernel_count() == count + 1
        assert width_of_call(fd, torch.empty(64, 2**26, dtype=torch.int8)) == 64
        assert width_of_call(fd, small) == 32
        assert compiled_kernel_count() == count + 1


def test_elements_that_are_far_apart_need_wide_indices():
    fd = doubled(2, contiguous=False)
    memory = torch.empty(2**31 + 128, dtype=torch.int8)
    with only_texts():
        assert width_of_call(fd, memory.as_strided((3, 64), (2**24, 1))) == 32
        assert width_of_call(fd, memory.as_strided((3, 64), (2**30, 1), 64)) == 64
        assert width_of_call(fd, memory.as_strided((3, 64), (100, 1), 2**31 - 300)) == 32


@pytest.mark.parametrize(("length", "bits"), [(2**31 - 2**21, 32), (2**31 + 8, 64)])
def test_an_expanded_tensor_is_as_long_as_the_other_operand(length, bits):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=[None], dtype=DataType.Int8)
        y = fd.define_tensor([-1], contiguity=[True], dtype=DataType.Int8)
        fd.add_output(fd.ops.add(x, y))
    x, y = torch.empty(1, dtype=torch.int8).expand(length), torch.empty(length, dtype=torch.int8)
    with only_texts():
        assert width_of_call(fd, x, y) == bits


def test_a_hand_written_schedule_has_both_widths():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=DataType.Int8)
        y = fd.ops.add(x, x)
        fd.add_output(y)
    y.split(1, 128)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(2).parallelize(ParallelType.block_x)
    memory = torch.empty(2**31 + 128, dtype=torch.int8)
    with only_texts() as runtime:
        for step in (64, 2**30, 100, 2**30 + 1):
            fd.manual_execute([memory.as_strided((3, 64), (step, 1))])
    assert [code.kernel.index_bits for code in runtime.codes] == [32, 64]


def test_a_graph_of_changing_sizes_takes_the_width_that_a_call_needs():
    made = torch.compile(lambda x: x + x, backend="pyfuser", dynamic=True, fullgraph=True)
    found = []
    with only_texts() as runtime:
        for shape in ((64, 640), (64, 2**20), (64, 2**25), (64, 100)):
            made(torch.empty(shape, dtype=torch.int8))
            found.append({code.kernel.index_bits for code in runtime.codes})
    assert found == [{32}, {32}, {32, 64}, {32, 64}]


def test_a_plan_checks_one_number_of_a_contiguous_kernel():
    fd = doubled(2)
    with only_texts():
        fd.execute([torch.empty(4096, 4096, dtype=torch.int8)])
        (plan,) = executor_of(fd).plans
    found = [int(number) for number in re.findall(r"<= (\d+)", plan.source)]
    assert [number for number in found if MOST - (1 << 16) < number < MOST] == [MOST - 8193]


@requires_host_compiler
def test_wide_indices_reach_elements_that_are_far_apart():
    fd = doubled(2, contiguous=False)
    memory = torch.empty(2**31 + 64, dtype=torch.int8)  # only the pages of the rows are touched
    x = memory.as_strided((3, 64), (2**30, 1))
    x[:] = torch.arange(3 * 64, dtype=torch.int8).view(3, 64)
    with emulated() as runtime:
        (got,) = fd.execute([x])
    assert [kernel.kernel.index_bits for kernel in runtime.kernels] == [64]
    assert torch.equal(got, x + x)
