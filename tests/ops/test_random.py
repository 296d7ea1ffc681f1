"""Random numbers: Philox's published vectors, and that a number depends on nothing but its place.

`reference` is Philox and Box-Muller once more, in Python's own integers and mpmath.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import pytest
import torch

from pyfuser import DataType, FusionDefinition, ParallelType
from pyfuser.compiler import compiled_kernel_count
from pyfuser.dtypes import to_torch
from pyfuser.errors import DefinitionError, InputError
from pyfuser.ir.text import translate
from pyfuser.ops import random_numbers
from pyfuser.ops.evaluator import evaluate
from tests.cuda.harness import requires_host_compiler
from tests.cuda.runtime import emulated

pytestmark = pytest.mark.usefixtures("poison")

DTYPES = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16)
DISTRIBUTIONS = random_numbers.DISTRIBUTIONS
SEED, OFFSET = -0x123456789ABCDEF, (1 << 33) + 5


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing falls back to torch."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")


# -- a second reference


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    words, (low, high) = list(counter), key
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            second >> 32 ^ words[1] ^ low,
            second % 2**32,
            first >> 32 ^ words[3] ^ high,
            first % 2**32,
        ]
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return words


def words_of(seed: int, offset: int, call: int) -> list[int]:
    halves = [n % 2**64 for n in (call, offset, seed)]
    call_words, offset_words, key = ([n % 2**32, n >> 32] for n in halves)
    return philox([*call_words, *offset_words], key)


def reference(distribution: str, seed: int, offset: int, index: int, is_double: bool) -> float:
    """The number at an index, exactly except for the last rounding."""
    place = index % (2 if is_double else 4)
    words = words_of(seed, offset, index // (2 if is_double else 4))
    if distribution == "uniform":
        if is_double:
            return ((words[2 * place] << 32 | words[2 * place + 1]) >> 11) / 2.0**53
        return (words[place] >> 8) / 2.0**24
    if is_double:
        fraction = ((words[0] << 32 | words[1]) >> 11) / mpmath.mpf(2) ** 53 + 2.0**-54
        turn = (words[2] << 32 | words[3]) / mpmath.mpf(2) ** 64
    else:
        fraction = words[place & 2] / mpmath.mpf(2) ** 32 + 2.0**-33
        turn = words[(place & 2) + 1] / mpmath.mpf(2) ** 32
    function = mpmath.sin if place % 2 else mpmath.cos
    return float(mpmath.sqrt(-2 * mpmath.log(fraction)) * function(2 * mpmath.pi * turn))


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


# -- kernels


def defined(
    distribution: str,
    shape: Sequence[int],
    dtype: DataType = DataType.Float,
    finish: Callable[[Any, Any], Any] = lambda ops, x: x,
) -> FusionDefinition:
    """A definition of seed and offset that returns `finish` of standard random numbers."""
    with FusionDefinition() as fd:
        seed, offset = fd.define_vector(2)
        make = getattr(fd.ops, distribution)
        x = make(0.0, 1.0, shape, rng_seed=seed, rng_offset=offset, dtype=dtype)
        fd.add_output(finish(fd.ops, x))
    return fd


def expected(distribution: str, shape: Sequence[int], dtype: DataType) -> torch.Tensor:
    """What the reference gives for SEED and OFFSET."""
    index = torch.arange(math.prod(shape)).reshape(tuple(shape))
    state = torch.tensor(SEED), torch.tensor(OFFSET)
    return random_numbers.random(distribution, *state, index, dtype).to(to_torch(dtype))


SHAPES = ([], [0], [1], [7], [4096], [3, 0], [37, 129], [16, 64], [5, 1, 33], [2, 3, 4, 5])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_kernels_have_the_reference_s_bits(distribution: str, dtype: DataType) -> None:
    for shape in SHAPES:
        (got,) = defined(distribution, shape, dtype).execute([SEED, OFFSET])
        assert torch.equal(got, expected(distribution, shape, dtype)), shape


@requires_host_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_emulated_cuda_has_the_same_bits(dtype: DataType) -> None:
    with emulated() as runtime:
        for distribution in DISTRIBUTIONS:
            (got,) = defined(distribution, [37, 129], dtype).execute([SEED, OFFSET])
            assert torch.equal(got, expected(distribution, [37, 129], dtype))
        assert runtime.kernels


def permuted(ops: Any, x: Any) -> Any:
    return ops.set(ops.permute(x, [1, 0]))


def column_major(ops: Any, x: Any) -> Any:
    return ops.stride_order(x, [0, 1])


def after_a_cut(ops: Any, x: Any) -> Any:
    return ops.segment_set(ops.neg(ops.segment_set(x)))


def of_a_part(ops: Any, x: Any) -> Any:
    return ops.slice(x, [3, 1], [20, 30])


def reshaped(ops: Any, x: Any) -> Any:
    return ops.reshape(x, [129, 37])


@pytest.mark.parametrize(
    ("finish", "wanted"),
    [
        (permuted, lambda x: x.t()),
        (column_major, lambda x: x),
        (after_a_cut, lambda x: -x),
        (of_a_part, lambda x: x[3:20, 1:30]),
        (reshaped, lambda x: x.reshape(129, 37)),
    ],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_layouts_and_cuts_do_not_change_numbers(
    distribution: str, finish: Callable[..., Any], wanted: Callable[..., Any]
) -> None:
    fd = defined(distribution, [37, 129], finish=finish)
    want = wanted(expected(distribution, [37, 129], DataType.Float))
    assert torch.equal(fd.execute([SEED, OFFSET])[0], want)


def test_numbers_that_are_reduced_and_used_again() -> None:
    def centred(ops: Any, x: Any) -> Any:
        return ops.sub(x, ops.max(x, [-1], keepdim=True))

    x = expected("uniform", [33, 100], DataType.Float)
    fd = defined("uniform", [33, 100], finish=centred)
    assert torch.equal(fd.execute([SEED, OFFSET])[0], x - x.amax(-1, keepdim=True))


def test_numbers_that_are_broadcast() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        rows = fd.ops.uniform(0, 1, [fd.ops.size(x, 0)], rng_seed=SEED, rng_offset=OFFSET)
        fd.add_output(fd.ops.mul(x, fd.ops.broadcast(rows, [False, True])))
    x, rows_ = torch.randn(37, 65), expected("uniform", [37], DataType.Float)
    assert torch.equal(fd.execute([x])[0], x * rows_[:, None])


def test_each_element_of_an_expanded_tensor_has_its_own_number() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        column = fd.ops.sum(x, [1], keepdim=True)
        fd.add_output(fd.ops.rand_like(fd.ops.expand(column, [-1, 16])))
    (y,) = fd.validate([torch.randn(5, 3)])
    assert y.shape == (5, 16)
    assert y.unique().numel() == y.numel()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_numbers(threads: int) -> None:
    fd, before = defined("normal", [1000, 1001]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (got,) = fd.execute([SEED, OFFSET])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, expected("normal", [1000, 1001], DataType.Float))


def rows_of_lanes(fd: FusionDefinition, y: Any) -> None:
    y.split(1, 16)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(2).parallelize(ParallelType.vectorize)


def flat(fd: FusionDefinition, y: Any) -> None:
    y.merge(0, 1)
    y.split(0, 128)
    y.split(1, 8)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(2).parallelize(ParallelType.block_x)


def columns_first(fd: FusionDefinition, y: Any) -> None:
    y.reorder({0: 1, 1: 0})
    y.split(1, 4)
    y.axis(0).parallelize(ParallelType.block_x)


@pytest.mark.parametrize("by_hand", [rows_of_lanes, flat, columns_first])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_schedules_by_hand_do_not_change_numbers(
    distribution: str, by_hand: Callable[..., Any]
) -> None:
    for dtype in DTYPES[:2]:
        with FusionDefinition() as fd:
            seed, offset = fd.define_vector(2)
            make = getattr(fd.ops, distribution)
            y = make(0, 1, [30, 64], rng_seed=seed, rng_offset=offset, dtype=dtype)
            fd.add_output(y)
            by_hand(fd, y)
        (got,) = fd.manual_execute([SEED, OFFSET])
        assert torch.equal(got, expected(distribution, [30, 64], dtype))


def test_new_seeds_compile_nothing() -> None:
    fd = defined("uniform", [64, 65])
    first = fd.execute([1, 2])[0]
    before = compiled_kernel_count()
    others = [fd.execute([seed, offset])[0] for seed, offset in ((2, 2), (1, 3), (-1, -1))]
    assert all(not torch.equal(first, other) for other in others)
    assert torch.equal(first, fd.execute([1, 2])[0])
    assert compiled_kernel_count() == before
    assert len(fd.fec.engine.executor.plans) == 1


def test_seed_and_offset_may_be_tensors() -> None:
    with FusionDefinition() as fd:
        seed = fd.define_tensor([], contiguity=[], dtype=DataType.Int)
        offset = fd.define_tensor([], contiguity=[], dtype=DataType.Int32)
        fd.add_output(fd.ops.uniform(0, 1, [7, 33], rng_seed=seed, rng_offset=offset))
    for seed_, offset_ in ((SEED, 7), (3, 0)):
        inputs = [torch.tensor(seed_), torch.tensor(offset_, dtype=torch.int32)]
        want = defined("uniform", [7, 33]).execute([seed_, offset_])[0]
        assert torch.equal(fd.execute(inputs)[0], want)


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


# -- dropout


def dropout(half: bool = False) -> FusionDefinition:
    """x, seed, offset -> x, each element scaled or dropped; the same for a gradient."""
    dtype = DataType.BFloat16 if half else DataType.Float
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        seed, offset = fd.define_vector(2)
        shape = fd.ops.shape(x)
        kept = fd.ops.ge(fd.ops.uniform(0, 1, shape, rng_seed=seed, rng_offset=offset), 0.25)
        y = fd.ops.mul(fd.ops.mul(x, fd.ops.cast(kept, DataType.Float)), 1 / 0.75)
        fd.add_output(fd.ops.cast(y, dtype))
    return fd


@pytest.mark.parametrize("half", [False, True], ids=["float", "bfloat16"])
def test_dropout_is_one_kernel_and_its_backward_makes_the_mask_again(half: bool) -> None:
    forward, backward = dropout(half), dropout(half)
    x = torch.randn(63, 257).to(torch.bfloat16 if half else torch.float32)
    (y,) = forward.execute([x, 5, 6])
    (gradient,) = backward.execute([torch.ones_like(x), 5, 6])
    mask = expected_mask(x.shape)
    want = (x.float() * mask.float() * (1 / 0.75)).to(x.dtype)
    assert torch.equal(y, want)
    assert torch.equal(gradient != 0, mask)
    assert abs(mask.float().mean() - 0.75) < 0.02
    for fd in (forward, backward):
        parts = fd.fec.engine.executor.resolve([x, 5, 6]).program.parts
        assert [part.segment.scheduler for part in parts] == ["pointwise"]
        assert len(parts[0].segment.outputs) == 1


def expected_mask(shape: Sequence[int]) -> torch.Tensor:
    index = torch.arange(math.prod(shape)).reshape(tuple(shape))
    state = torch.tensor(5), torch.tensor(6)
    return random_numbers.random("uniform", *state, index, DataType.Float) >= 0.25


def test_softmax_with_dropout_is_one_kernel() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [-1], keepdim=True)))
        weights = fd.ops.div(power, fd.ops.sum(power, [-1], keepdim=True))
        kept = fd.ops.ge(fd.ops.rand_like(weights), 0.1)
        fd.add_output(fd.ops.where(kept, fd.ops.mul(weights, 1 / 0.9), 0.0))
    fd.validate([torch.randn(17, 200)])
    parts = fd.fec.engine.executor.resolve([torch.randn(17, 200)]).program.parts
    assert [part.segment.scheduler for part in parts] == ["inner_persistent"]


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
