"""Kernels that refuse values: values that torch refuses raise torch's error.

Each case runs as a FusionDefinition and under torch.compile, and is compared with eager: the type
of the error, and its text, to which pyfuser adds the operation, the value and what it expected.
The tests also check that a kernel has noticed the value, and not torch.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from pyfuser import FusionDefinition
from pyfuser.dtypes import DataType
from pyfuser.ir.domains import ParallelType
from pyfuser.ir.fusion import Fusion
from pyfuser.ops.evaluator import evaluate
from tests.ops.checked_cases import (
    CASES,
    DEFINED,
    IDS,
    Case,
    compiled,
    eagers_error,
    fused,
    fused_graph,
    index,
    numbers,
    require_case,
    require_refusal,
)

pytestmark = pytest.mark.usefixtures("poison")


# -- refused values


@pytest.mark.parametrize("case", DEFINED, ids=[case.name for case in DEFINED])
def test_a_definition_raises_what_eager_raises(case: Case, noticed: list[Fusion]) -> None:
    torch.manual_seed(0)
    assert case.define is not None
    call = fused(case.define, case.inputs(11))
    for n in (11, 40):
        require_case(case, call, noticed, n)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_compiled_function_raises_what_eager_raises(
    case: Case, dynamic: bool, noticed: list[Fusion]
) -> None:
    torch.manual_seed(0)
    call = compiled(case.call, dynamic)
    for n in (11, 40) if dynamic else (11,):
        require_case(case, call, noticed, n)


@pytest.mark.parametrize("case", DEFINED, ids=[case.name for case in DEFINED])
def test_the_evaluator_raises_it_too(case: Case) -> None:
    assert case.define is not None
    graph = fused_graph(case.define, case.inputs(11))
    inputs = case.spoil(11, 3, case.bad(11)[0])
    require_refusal(lambda *x: evaluate(graph, x), inputs, eagers_error(case.call, inputs))


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", ["embedding", "index_select", "index", "index of rows"])
def test_indices_of_both_widths(name: str, kind: torch.dtype, noticed: list[Fusion]) -> None:
    case = CASES[IDS.index(name)]
    narrow = replace(
        case,
        inputs=lambda n: [case.inputs(n)[0], case.inputs(n)[1].to(kind)],
        bad=lambda n: [v for v in case.bad(n) if abs(v) < 2**31] + [2**31 - 1, -(2**31)],
    )
    assert narrow.define is not None
    require_case(narrow, fused(narrow.define, narrow.inputs(11)), noticed, 11)
    require_case(narrow, compiled(narrow.call), noticed, 11)


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_divisors_of_every_width(kind: torch.dtype, noticed: list[Fusion]) -> None:
    for name in ("div", "floor_divide", "remainder", "fmod"):
        case = CASES[IDS.index(name)]
        narrow = replace(case, inputs=lambda n: [x.to(kind) for x in (numbers(n), numbers(n))])
        require_case(narrow, compiled(narrow.call), noticed, 23)


def test_the_text_names_the_operation_the_value_and_the_size() -> None:
    weight = torch.randn(10, 4)
    call = compiled(lambda w, i: functional.embedding(i, w) + 1)
    with pytest.raises(IndexError) as caught:
        call(weight, torch.tensor([3, 12]))
    text = "index out of range in self (embedding: expected an index in [0, 10), got 12)"
    assert str(caught.value) == text
    divide = fused(lambda o, a, b: o.div(a, b), [numbers(9), numbers(9)])
    with pytest.raises(RuntimeError) as division:
        divide(torch.full((9,), 5), torch.tensor([1, 1, 0, 1, 1, 0, 1, 1, 1]))
    text = "ZeroDivisionError (div: expected a divisor other than 0, got 5 / 0)"
    assert str(division.value) == text


@pytest.mark.parametrize(("shape", "dim"), [((5,), 0), ((5, 3), 0), ((3, 5), 1)])
def test_rows_that_are_added_out_of_range(shape: tuple[int, ...], dim: int) -> None:
    def add(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_add(dim, i, x.narrow(dim, 0, 1)) * 2

    given = [torch.randn(shape), torch.tensor([5])]
    require_refusal(compiled(add), given, eagers_error(add, given))


def test_a_number_that_is_zero(noticed: list[Fusion]) -> None:
    x = torch.arange(20)
    for call in (lambda x: x // 0 + 1, lambda x: x % 0, lambda x: 7 // (x - 3)):
        require_refusal(compiled(call), [x], eagers_error(call, [x]))
    with FusionDefinition() as fd:
        a, n = fd.from_pytorch(x), fd.define_scalar(None, dtype=DataType.Int)
        fd.add_output(fd.ops.remainder(a, n))
    assert torch.equal(fd.execute([x, 7])[0], x % 7)
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError \(remainder"):
        fd.execute([x, 0])
    assert torch.equal(fd.execute([x, -7])[0], x % -7)


def test_a_source_without_elements(noticed: list[Fusion]) -> None:
    none, rows = torch.empty(0, 3), torch.zeros(4, dtype=torch.int64)
    take = fused(lambda o, x, i: o.neg(o.index(x, i, 0)), [none, rows])
    with pytest.raises(IndexError, match="with size 0"):
        take(none, rows)
    assert take(none, rows[:0]).shape == (0, 3)
    assert take(torch.ones(1, 3), rows).shape == (4, 3)


def test_an_axis_that_broadcasts_is_checked_too(noticed: list[Fusion]) -> None:
    """A gather along an axis of size 1 reads the same whatever the index is."""
    x = torch.randn(1, 5)

    def call(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.exp().index_select(0, i) * 2

    made = compiled(call)
    zeros = torch.zeros(6, dtype=torch.int64)
    torch.testing.assert_close(made(x, zeros), call(x, zeros))
    zeros[4] = 1
    require_refusal(made, [x, zeros], eagers_error(call, [x, zeros]))


@pytest.mark.parametrize("lanes", [ParallelType.serial, ParallelType.block_x])
def test_a_users_schedule_refuses_as_well(lanes: ParallelType) -> None:
    """With its own predicates, and sources without elements, which schedulers don't accept."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        i = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        out = fd.ops.neg(fd.ops.index(x, i, 0))
        fd.add_output(out)
        out.merge(0).split(0, 16)
        fd.sched.transform_like(out)
        out.axis(1).parallelize(lanes)
        fd.sched.inline_most()
    source, rows = torch.randn(9, 5), torch.randint(-9, 9, (21,))
    assert torch.equal(fd.manual_execute([source, rows])[0], -source[rows])
    for place, bad in ((0, 9), (11, -10), (20, 9)):
        wrong = rows.index_fill(0, torch.tensor(place), bad)
        with pytest.raises(IndexError, match=f"got {bad}"):
            fd.manual_execute([source, wrong])
    with pytest.raises(IndexError, match="with size 0"):
        fd.manual_execute([source[:0], rows])
    assert fd.manual_execute([source[:0], rows[:0]])[0].shape == (0, 5)
    assert torch.equal(fd.manual_execute([source, rows])[0], -source[rows])


# -- calls and their inputs


def test_inputs_that_would_be_updated_are_left_alone(noticed: list[Fusion]) -> None:
    """The kernel that updates is before or after the one that refuses, or the same."""

    def same_kernel(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a.add_(7)
        a.floor_divide_(b)
        return a * 2

    def update_first(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w.mul_(2.0)
        product = w @ w.t()
        return (product.sum() + (a // b)).sum()

    def update_last(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        picked = w[b - 1]
        w.mul_(picked.sum())
        return w.sum() + 1

    for call in (same_kernel, update_first, update_last):
        made = compiled(call)
        a, b, w = numbers(9), numbers(9), torch.randn(9, 9)
        got, want = [a.clone(), b, w.clone()], [a.clone(), b, w.clone()]
        torch.testing.assert_close(made(*got), call(*want), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        bad = b.clone()
        bad[4] = 0 if call is not update_last else 11
        error = eagers_error(call, [a.clone(), bad, w.clone()])
        require_refusal(made, [a.clone(), bad, w.clone()], error)
        torch.testing.assert_close(made(*got), call(*want), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert len(noticed) == 3


def test_a_definitions_aliased_inputs_are_left_alone(noticed: list[Fusion]) -> None:
    a, b, c = numbers(9), numbers(9), torch.randn(9)
    with FusionDefinition() as fd:
        x, y, z = (fd.from_pytorch(t) for t in (a, b, c))
        fd.add_output(fd.ops.mul(z, 2.0), alias_input=z)
        fd.add_output(fd.ops.div(x, y), alias_input=x)
        fd.add_output(fd.ops.remainder(x, y))
    before, bad = [a.clone(), c.clone()], b.index_fill(0, torch.tensor(8), 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fd.execute([a, bad, c])
    assert torch.equal(a, before[0])
    assert torch.equal(c, before[1])
    (rest,) = fd.execute([a, b, c])
    assert torch.equal(a, before[0] // b)
    assert torch.equal(rest, before[0] % b)
    assert torch.equal(c, before[1] * 2)


def test_gradients_come_after_a_refusal(noticed: list[Fusion]) -> None:
    """A training step that raises, and the next that doesn't."""
    weight = torch.randn(11, 6, requires_grad=True)
    other = weight.detach().clone().requires_grad_()

    def loss(weight: torch.Tensor, rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional.embedding(rows, weight) * 2, target)

    made = compiled(loss)
    rows, target = index(11, 9), index(6, 9)
    for bad_rows, bad_target in ((rows + 20, target), (rows, target + 20)):
        with pytest.raises(IndexError):
            made(weight, bad_rows, bad_target)
        made(weight, rows, target).backward()
        loss(other, rows, target).backward()
        torch.testing.assert_close(weight.grad, other.grad)


def test_threads_know_their_own_calls() -> None:
    """Several threads with one plan: each of its bad calls is refused, and no good one is."""
    weight = torch.randn(50, 300)
    take = fused(lambda o, w, i: o.mul(o.embedding_fwd(i, w), 2.0), [weight, index(50, 700)])
    good, wrong = index(50, 700), index(50, 700)
    wrong[650] = 50
    take(weight, good)
    problems: list[str] = []

    def work(inputs: torch.Tensor, is_good: bool) -> None:
        for _ in range(60):
            try:
                result = take(weight, inputs)
            except IndexError:
                if is_good:
                    problems.append("a good call was refused")
            else:
                if not is_good:
                    problems.append("a bad call was not")
                elif not torch.equal(result, weight[inputs] * 2):
                    problems.append("a wrong result")

    workers = [
        threading.Thread(target=work, args=(inputs, inputs is good))
        for inputs in (good, wrong, good, wrong)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not problems


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_thread_of_a_call_can_refuse_it(count: int) -> None:
    weight = torch.randn(50, 300)
    take = fused(lambda o, w, i: o.mul(o.embedding_fwd(i, w), 2.0), [weight, index(50, 700)])
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        for place in (0, 100, 349, 350, 699):
            with pytest.raises(IndexError, match="got 50"):
                take(weight, index(50, 700).index_fill(0, torch.tensor(place), 50))
    finally:
        torch.set_num_threads(before)
