"""Random numbers: Philox's published vectors, values, torch's generator, definitions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, ParallelType, interface
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.dtypes import to_torch
from pyfuser.errors import DefinitionError, InputError
from pyfuser.interface import override_can_fuse_on_cpu
from pyfuser.ir.text import translate
from pyfuser.ops import random_numbers, random_state
from pyfuser.ops.evaluator import evaluate
from tests.cuda.host_compiler import requires_host_compiler
from tests.ops.random_reference import (
    DISTRIBUTIONS,
    DTYPES,
    OFFSET,
    SEED,
    defined,
    philox,
    reference,
)

pytestmark = pytest.mark.usefixtures("poison")


# -- a second reference


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(counter: list[int], key: list[int], wanted: str) -> None:
    assert philox(counter, key) == [int(word, 16) for word in wanted.split()]
    tensors = [[torch.tensor(word) for word in words] for words in (counter, key)]
    assert [int(word) for word in random_numbers.philox(*tensors)] == philox(counter, key)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=lambda d: d.name)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_evaluator_has_the_reference_s_numbers(distribution: str, dtype: DataType) -> None:
    index = torch.tensor([*range(40), 2**31, 2**34 + 3, 2**40 + 1])
    state = torch.tensor(SEED), torch.tensor(OFFSET)
    got = random_numbers.random(distribution, *state, index, dtype)
    want = [
        reference(distribution, SEED, OFFSET, i, dtype is DataType.Double) for i in index.tolist()
    ]
    exact = torch.tensor(want, dtype=torch.float64)
    if distribution == "uniform":
        assert torch.equal(got.double(), exact)
    else:
        eps = torch.finfo(to_torch(dtype)).eps
        torch.testing.assert_close(got.double(), exact, rtol=4 * eps, atol=4 * eps)


# -- values


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_uniform_numbers_are_below_one_and_evenly_spread(dtype: DataType) -> None:
    (x,) = defined("uniform", [1 << 20], dtype).execute([3, 4])
    wide = x.double()
    assert 0 <= wide.min() < 1e-4 and 0.99 < wide.max() < 1
    assert abs(wide.mean() - 0.5) < 0.003 and abs(wide.var() - 1 / 12) < 0.002
    counts = torch.histc(wide, 64, 0, 1)
    assert (counts - (1 << 14)).abs().max() < 6 * math.sqrt(1 << 14) + 128


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_normal_numbers_are_normal(dtype: DataType) -> None:
    (x,) = defined("normal", [1 << 20], dtype).execute([3, 4])
    wide = x.double()
    assert wide.isfinite().all() and 4 < wide.abs().max() < 9
    assert abs(wide.mean()) < 0.006 and abs(wide.var() - 1) < 0.01
    assert abs((wide**3).mean()) < 0.03 and abs((wide**4).mean() - 3) < 0.06
    pairs = wide.reshape(-1, 2)
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 0.01
    assert abs((pairs[:, 0] ** 2 * pairs[:, 1] ** 2).mean() - 1) < 0.03


def with_words(distribution: str, dtype: DataType, words: Sequence[int]) -> torch.Tensor:
    """The numbers that given words of Philox make."""
    original = random_numbers.philox
    random_numbers.philox = lambda counter, key: [  # type: ignore[assignment]
        torch.full_like(counter[0], word) for word in words
    ]
    try:
        state = torch.tensor(0), torch.tensor(0)
        return random_numbers.random(distribution, *state, torch.arange(4), dtype)
    finally:
        random_numbers.philox = original


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_the_extreme_words(dtype: DataType) -> None:
    """The greatest uniform number rounds to less than 1; the smallest radius is not infinite."""
    greatest = with_words("uniform", dtype, [0xFFFFFFFF] * 4).to(to_torch(dtype))
    assert (greatest < 1).all() and (greatest > 0.99).all()
    assert (with_words("uniform", dtype, [0] * 4) == 0).all()
    for words in ([0] * 4, [0xFFFFFFFF] * 4, [0, 0x80000000, 0, 0], [0x80000000] * 4):
        assert with_words("normal", dtype, words).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_ranges_and_scales(dtype: DataType) -> None:
    with FusionDefinition() as fd:
        low, high = (fd.define_scalar(None, dtype=DataType.Double) for _ in range(2))
        shape = [1 << 16]
        fd.add_output(fd.ops.uniform(low, high, shape, rng_seed=1, rng_offset=2, dtype=dtype))
        fd.add_output(fd.ops.normal(low, high, shape, rng_seed=1, rng_offset=2, dtype=dtype))
    for low_, high_ in ((-2.0, 3.0), (5.0, 5.5), (0.25, 1.0), (7.0, 7.0)):
        uniform, normal = (x.double() for x in fd.validate([low_, high_]))
        assert (uniform >= low_).all()
        assert low_ == high_ or (uniform < high_).all()
        assert abs(uniform.mean() - (low_ + high_) / 2) < 0.02 * high_
        assert abs(normal.mean() - low_) < 0.05 * high_
        assert abs(normal.std() - high_) < 0.05 * high_


# -- torch's generator


def drawing(count: int = 1) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        for number in range(count):
            fd.add_output(fd.ops.rand_like(x) if number % 2 == 0 else fd.ops.randn_like(x))
    return fd


def test_a_seed_replays_and_executions_differ() -> None:
    fd, x = drawing(), torch.zeros(1000)
    torch.manual_seed(7)
    first, second = fd.execute([x])[0], fd.execute([x])[0]
    state = torch.get_rng_state()
    third = fd.execute([x])[0]
    torch.manual_seed(7)
    assert torch.equal(drawing().execute([x])[0], first)
    assert torch.equal(fd.execute([x])[0], second)
    assert torch.equal(fd.execute([x])[0], third)
    torch.set_rng_state(state)
    assert torch.equal(fd.execute([x])[0], third)
    torch.manual_seed(8)
    others = [second, third, fd.execute([x])[0]]
    assert all((first == other).float().mean() < 0.01 for other in others)


@pytest.mark.parametrize("seed", [0, 11, 2**63 + 5, -4])
def test_the_nth_operation_after_a_seed_has_offset_n(seed: int) -> None:
    torch.manual_seed(seed)
    fd, two, x = drawing(), drawing(2), torch.zeros(21)
    drawn = [*fd.execute([x]), *two.execute([x]), *fd.execute([x]), *two.execute([x])]
    signed = seed - (1 << 64) if seed >= 1 << 63 else seed
    for offset, got in enumerate(drawn):
        kind = "normal" if offset in (2, 5) else "uniform"
        assert torch.equal(defined(kind, [21]).execute([signed, offset])[0], got)


def test_all_executions_have_their_own_numbers_and_replay() -> None:
    """Across the end of the generator's first block, and after draws of torch's own."""
    fd, two, x, seen = drawing(), drawing(2), torch.zeros(6), []
    torch.manual_seed(1)
    for number in range(700):
        if number == 100:
            torch.rand(1)
        state = torch.get_rng_state()
        run = two if number % 3 == 0 else fd
        results = run.execute([x])
        seen.append(tuple(results[0].tolist()))
        if number % 50 < 2 or 295 < number < 320:
            torch.set_rng_state(state)
            assert all(map(torch.equal, run.execute([x]), results))
    assert len(set(seen)) == len(seen)


def test_operations_of_one_definition_have_their_own_numbers() -> None:
    outputs = drawing(4).validate([torch.zeros(1000)])
    for i, first in enumerate(outputs):
        for second in outputs[i + 1 :]:
            assert (first == second).float().mean() < 0.01
    assert abs(torch.corrcoef(torch.stack(outputs)) - torch.eye(4)).max() < 0.2


def test_explicit_seeds_leave_the_generator_alone() -> None:
    state = torch.get_rng_state()
    defined("normal", [9]).execute([1, 2])
    assert torch.equal(torch.get_rng_state(), state)
    drawing().execute([torch.zeros(3)])
    assert not torch.equal(torch.get_rng_state(), state)


def test_a_hand_written_schedule_draws_too() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.uniform(0, 1, [100])
        fd.add_output(y)
        y.split(0, 8)
        y.axis(1).parallelize(ParallelType.vectorize)
    torch.manual_seed(1)
    first, second = fd.manual_execute([])[0], fd.manual_execute([])[0]
    torch.manual_seed(1)
    assert torch.equal(fd.manual_execute([])[0], first)
    assert not torch.equal(first, second)


@requires_host_compiler
def test_emulated_cuda_draws_the_same_numbers() -> None:
    torch.manual_seed(3)
    on_cpu = drawing(2).execute([torch.zeros(50)])
    torch.manual_seed(3)
    with emulated():
        on_cuda = drawing(2).execute([torch.zeros(50)])
    assert all(map(torch.equal, on_cpu, on_cuda))


def test_a_gpu_s_generator_is_used_by_its_own_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th execution after a seed has offset n, and torch's own numbers follow it."""

    class Generator:
        offset = 8

        def initial_seed(self) -> int:
            return 2**64 - 3

        def get_offset(self) -> int:
            return self.offset

        def set_offset(self, offset: int) -> None:
            self.offset = offset

    generator = Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (Generator(), generator))
    monkeypatch.setattr(random_state, "device_of", lambda inputs: torch.device("cuda:1"))
    fusion, x = drawing(3).fusion.definition, torch.zeros(4)
    assert random_state.with_random_state(fusion, [x]) == [x, -3, 2]
    assert random_state.with_random_state(fusion, [x]) == [x, -3, 5]
    assert generator.offset == 8 + 2 * 4 * 3


@requires_host_compiler
@pytest.mark.parametrize("by", ["cpu", "cuda", "torch"])
def test_a_seed_may_lie_in_memory(by: str) -> None:
    """As while a CUDA graph is captured: seeds as numbers and as tensors give the same."""
    x = torch.zeros(300)
    with contextlib.ExitStack() as stack:
        if by == "cuda":
            stack.enter_context(emulated())
        if by == "torch":
            stack.callback(override_can_fuse_on_cpu, True)
            override_can_fuse_on_cpu(False)
        fd = drawing(3)
        for seed in (5, -(2**63)):
            numbers = fd.execute([x, seed, 2])
            in_memory = fd.execute([x, torch.tensor(seed), 2])
            assert all(map(torch.equal, numbers, in_memory))
        for wrong in (torch.tensor([5]), torch.tensor(5.0)):
            with pytest.raises(InputError, match="to be a scalar but got"):
                fd.execute([x, wrong, 2])
        with pytest.raises(InputError, match="to be a scalar but got"):
            fd.execute([x, 5, torch.tensor(2)])


def test_torch_runs_the_same_numbers_where_fusing_is_switched_off() -> None:
    fd, x = drawing(2), torch.zeros(300)
    torch.manual_seed(9)
    fused = fd.execute([x])
    override_can_fuse_on_cpu(False)
    try:
        torch.manual_seed(9)
        assert all(map(torch.equal, fd.execute([x]), fused))
    finally:
        override_can_fuse_on_cpu(None)


def test_registered_fusions_with_and_without_a_seed_are_two() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        seed, offset = fd.define_vector(2)
        shape = [fd.ops.size(x, 0)]
        fd.add_output(fd.ops.uniform(0, 1, shape, rng_seed=seed, rng_offset=offset))
    seeded = interface.register_fusion(fd.fusion.definition)
    drawn = interface.register_fusion(drawing().fusion.definition)
    assert seeded != drawn
    stack = [torch.zeros(5), 1, 2]
    interface.run_fusion(seeded, stack)
    assert torch.equal(stack[0], fd.execute([torch.zeros(5), 1, 2])[0])
    stack = [torch.zeros(5)]
    torch.manual_seed(2)
    interface.run_fusion(drawn, stack)
    torch.manual_seed(2)
    assert torch.equal(stack[0], drawing().execute([torch.zeros(5)])[0])


# -- definitions


def test_definitions_print_and_run_again() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Half)
        late, early = fd.ops.rand_like(x), fd.ops.randn_like(x)
        fd.ops.rand_like(x)  # unused, but it has a number
        fd.add_output(fd.ops.normal(1.0, 2.0, [4, 3]))
        fd.add_output(early)
        fd.add_output(late)
        fd.add_output(fd.ops.uniform(0, 1, [5], rng_seed=3, rng_offset=4, dtype=DataType.Double))
    space: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), space)
    with FusionDefinition() as again:
        space["nvfuser_fusion"](again)
    assert repr(again).count("fd.ops.uniform(0.0, 1.0") == 4 - 1
    assert "rng_seed=3, rng_offset=4" in repr(again)
    assert translate(again.fusion.definition, canonical=True) == translate(
        fd.fusion.definition, canonical=True
    )
    inputs, results = [torch.zeros(6, 7, dtype=torch.float16)], []
    for each in (fd, again):
        torch.manual_seed(5)
        results.append(each.execute(inputs))
    assert all(map(torch.equal, *results))


def test_the_inputs_are_those_that_were_defined() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Float)
        y = fd.ops.rand_like(x)
        z = fd.define_tensor([-1], dtype=DataType.Float)
        fd.add_output(fd.ops.add(fd.ops.add(x, y), z))
    assert fd.fusion.inputs() == [x, z]
    tensors = [torch.zeros(3), torch.ones(3)]
    torch.manual_seed(0)
    (first,) = fd.validate(tensors)
    torch.manual_seed(0)
    assert torch.equal(evaluate(fd.fusion.definition, tensors)[0], first)
    with pytest.raises(InputError, match="execute: expected 2 inputs, got 1"):
        fd.execute(tensors[:1])
    assert fd.fec.is_compiled(tensors)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda o: o.uniform(0, 1, [3], rng_seed=1), "both rng_seed and rng_offset, or neither"),
        (lambda o: o.uniform(0, 1, [3], dtype=DataType.Int), "only create floating point types!"),
        (lambda o: o.normal(0, 1, [3], dtype=torch.float32), "did you mean DataType.Float"),
        (lambda o: o.uniform(2, 1, [3]), "uniform: expected finite bounds, the lower one first"),
        (lambda o: o.uniform(0, 1, [3], rng_seed=0.5, rng_offset=1), "integers as seed and offset"),
        (lambda o: o.normal(0, 1, [-3]), "normal: expected a size of at least 0"),
        (
            lambda o: o.rand_like(o.full([3], 1, DataType.Int)),
            "rand_like: expected a floating operand, got DataType.Int",
        ),
        (
            lambda o: o.normal(0, 1, [3], rng_seed=o.iota(3), rng_offset=1),
            "seed and offset to be numbers or tensors without dimensions, got 1 dimensions",
        ),
        (lambda o: o.normal(o.iota(3), 1, [3]), "scalars as parameters, got a tensor"),
    ],
)
def test_wrong_calls(define: Callable[..., Any], message: str) -> None:
    with FusionDefinition() as fd, pytest.raises(DefinitionError, match=message):
        define(fd.ops)
