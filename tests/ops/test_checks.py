"""Kernels that can say no: values that torch refuses raise torch's error, and nothing else does.

Each case runs as a FusionDefinition and under torch.compile, and is compared with eager: the type
of the error, and its text, to which pyfuser adds the operation, the value and what it expected.
That a kernel has noticed, and not torch, is asked too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pyfuser import FusionDefinition, fallback
from pyfuser.dtypes import DataType, from_torch
from pyfuser.errors import InternalError
from pyfuser.ir.domains import ParallelType
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.kernel import Kernel
from pyfuser.ops.evaluator import evaluate

pytestmark = pytest.mark.usefixtures("poison")

Inputs = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A function of tensors, the same as a definition, and inputs of which one has bad values.

    inputs   for a size n: good ones; the first element of the `spoiled` one may be replaced
    bad      for a size n: values that torch refuses in the place of any element of it
    """

    name: str
    call: Callable[..., torch.Tensor]
    define: Callable[..., Any] | None
    inputs: Callable[[int], Inputs]
    spoiled: int
    bad: Callable[[int], Sequence[float]]

    def spoil(self, n: int, place: int, value: float) -> Inputs:
        """Inputs of which one element is refused."""
        inputs = self.inputs(n)
        inputs[self.spoiled] = inputs[self.spoiled].clone()
        inputs[self.spoiled].view(-1)[place] = value
        return inputs


def index(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randint(1, 9, shape)


def out_of_range(n: int) -> tuple[int, ...]:
    return (n, -1, 2**62, -(2**62))


def out_of_wrapped_range(n: int) -> tuple[int, ...]:
    return (n, -n - 1, 2**62, -(2**62))


def no_probability(n: int) -> tuple[float, ...]:
    return (1.25, -0.5, float("nan"), float("inf"))


CASES = [
    Case(
        "embedding",
        lambda w, i: functional.embedding(i, w) * 2.0,
        lambda o, w, i: o.mul(o.embedding_fwd(i, w), 2.0),
        lambda n: [torch.randn(n, 33), index(n, 3, 7)],
        1,
        out_of_range,
    ),
    Case(
        "index_select",
        lambda x, i: x.index_select(1, i) * 2.0,
        lambda o, x, i: o.mul(o.index_select(x, i, 1), 2.0),
        lambda n: [torch.randn(5, n), index(n, 37)],
        1,
        out_of_range,
    ),
    Case(
        "gather",
        lambda x, i: x.gather(1, i) * 2.0,
        lambda o, x, i: o.mul(o.gather(x, i, 1), 2.0),
        lambda n: [torch.randn(5, n), index(n, 5, 37)],
        1,
        out_of_range,
    ),
    Case(
        "gather of log_softmax",
        lambda x, i: -x.log_softmax(1).gather(1, i),
        None,
        lambda n: [torch.randn(37, n), index(n, 37, 1)],
        1,
        out_of_range,
    ),
    Case(
        "index",
        lambda x, i: x[:, i] * 2.0,
        lambda o, x, i: o.mul(o.index(x, i, 1), 2.0),
        lambda n: [torch.randn(5, n, 3), index(n, 37)],
        1,
        out_of_wrapped_range,
    ),
    Case(
        "index of rows",
        lambda x, i: x[i] + x[i].sum(-1, keepdim=True),
        lambda o, x, i: o.add(o.index(x, i, 0), o.sum(o.index(x, i, 0), [-1], True)),
        lambda n: [torch.randn(n, 65), index(n, 37)],
        1,
        out_of_wrapped_range,
    ),
    Case(
        "cross_entropy",
        lambda x, y: functional.cross_entropy(x, y),
        None,
        lambda n: [torch.randn(37, n), index(n, 37)],
        1,
        out_of_range,
    ),
    Case(
        "cross_entropy of images",
        lambda x, y: functional.cross_entropy(x, y, reduction="none", label_smoothing=0.1),
        None,
        lambda n: [torch.randn(3, n, 7, 5), index(n, 3, 7, 5)],
        1,
        out_of_range,
    ),
    Case(
        "nll_loss",
        lambda x, y: functional.nll_loss(x, y, ignore_index=-1),
        None,
        lambda n: [torch.randn(37, n), index(n, 37) - 1],
        1,
        lambda n: (n, -2, -100),
    ),
    Case(
        "scatter",
        lambda x, i: x.scatter(1, i, 2.0) * 3,
        None,
        lambda n: [torch.randn(37, n), index(n, 37, 1)],
        1,
        out_of_range,
    ),
    Case(
        "one_hot",
        lambda x, table: functional.one_hot(x, table.shape[0]) * 2,
        None,
        lambda n: [index(n, 3, 7), torch.randn(n)],
        0,
        out_of_range,
    ),
    Case(
        "binary_cross_entropy",
        lambda x, y: functional.binary_cross_entropy(x, y),
        None,
        lambda n: [torch.rand(n, 7), torch.rand(n, 7)],
        0,
        no_probability,
    ),
    Case(
        "binary_cross_entropy of its target",
        lambda x, y: functional.binary_cross_entropy(x, y),
        None,
        lambda n: [torch.rand(n, 7), torch.rand(n, 7)],
        1,
        no_probability,
    ),
    *(
        Case(
            name,
            call,
            define,
            lambda n: [numbers(n, 7), numbers(n, 7)],
            1,
            lambda n: (0,),
        )
        for name, call, define in (
            (
                "div",
                lambda a, b: torch.div(a, b, rounding_mode="trunc") + 1,
                lambda o, a, b: o.add(o.div(a, b), 1),
            ),
            ("floor_divide", lambda a, b: a // b + 1, None),
            ("remainder", lambda a, b: a % b, lambda o, a, b: o.remainder(a, b)),
            ("fmod", lambda a, b: torch.fmod(a, b), lambda o, a, b: o.fmod(a, b)),
            (
                "sum of remainders",
                lambda a, b: (a % b).sum(1),
                lambda o, a, b: o.sum(o.remainder(a, b), [1]),
            ),
        )
    ),
]
IDS = [case.name for case in CASES]
DEFINED = [case for case in CASES if case.define is not None]


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> list[Fusion]:
    """The fusions of kernels that refuse a call, from now on; nothing falls back to torch."""
    found: list[Fusion] = []
    original = fallback.refused

    def spy(fusion: Fusion, inputs: Sequence[Any]) -> None:
        found.append(fusion)
        original(fusion, inputs)

    monkeypatch.setattr(fallback, "refused", spy)
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    return found


def fused(define: Callable[..., Any], inputs: Inputs) -> Callable[..., torch.Tensor]:
    """A definition with open sizes as a function of its inputs."""
    with FusionDefinition() as fd:
        values = [
            fd.define_tensor([-1] * x.dim(), dtype=from_torch(x.dtype), contiguity=True)
            for x in inputs
        ]
        fd.add_output(define(fd.ops, *values))
    return lambda *given: fd.execute(list(given))[0]


def fused_graph(define: Callable[..., Any], inputs: Inputs) -> Fusion:
    with FusionDefinition() as fd:
        fd.add_output(define(fd.ops, *(fd.from_pytorch(x) for x in inputs)))
    graph: Fusion = fd.fusion.definition
    return graph


def compiled(call: Callable[..., Any], dynamic: bool = False) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(call, backend="pyfuser", dynamic=dynamic)


def eagers_error(call: Callable[..., Any], inputs: Inputs) -> Exception:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        call(*inputs)
    return caught.value


def require_refusal(call: Callable[..., Any], inputs: Inputs, like: Exception) -> None:
    """The call raises what eager raises, and leaves its inputs alone."""
    before = [x.clone() for x in inputs]
    with pytest.raises(type(like)) as caught:
        call(*inputs)
    assert type(caught.value) is type(like)
    assert str(caught.value).startswith(str(like))
    assert ": expected " in str(caught.value)
    assert ", got " in str(caught.value)
    for x, y in zip(inputs, before, strict=True):
        assert torch.equal(x.nan_to_num(7), y.nan_to_num(7))


def places(case: Case, n: int) -> list[int]:
    """The first element, the last (in the tail of a vector), and two in between."""
    count = case.inputs(n)[case.spoiled].numel()
    return sorted({0, 7 % count, count // 2, count - 1})


def require_case(case: Case, call: Callable[..., Any], noticed: list[Fusion], n: int) -> None:
    for place in places(case, n):
        for value in case.bad(n):
            inputs = case.spoil(n, place, value)
            error = eagers_error(case.call, inputs)
            known = len(noticed)
            require_refusal(call, inputs, error)
            assert len(noticed) == known + 1
        good = case.inputs(n)
        torch.testing.assert_close(call(*good), case.call(*good))
    assert noticed


# -- what is refused


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
    """With predicates of its own, and sources without elements, which schedulers don't take."""
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


# -- what isn't


def same(call: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> None:
    """No alarm: eager's numbers."""
    torch.testing.assert_close(compiled(call, dynamic)(*inputs), call(*inputs))


def test_lanes_that_are_masked_raise_no_alarm(noticed: list[Fusion]) -> None:
    """Vector tails, at every length: what lies behind the end isn't looked at."""
    storage = torch.full((80,), 10**9)
    divisors = torch.zeros(80, dtype=torch.int64)
    x = torch.randn(5)
    take = fused(lambda o, x, i: o.neg(o.index_select(x, i, 0)), [x, index(5, 4)])
    divide = fused(lambda o, a, b: o.div(a, b), [numbers(3), numbers(3)])
    for count in range(40):
        storage[:count], divisors[:count] = index(5, count), numbers(count)
        assert torch.equal(take(x, storage[:count]), -x[storage[:count]])
        assert torch.equal(
            divide(storage[:count], divisors[:count]), storage[:count] // divisors[:count]
        )
        storage[:count], divisors[:count] = 10**9, 0
    assert not noticed


def inside(x: torch.Tensor, around: float, layout: str) -> torch.Tensor:
    """The same values in another layout, in memory that is full of `around`."""
    order = [1, 0] if layout == "transposed" else [0, 1]
    wide = [2 * x.shape[d] + 30 for d in order]
    storage = torch.full(wide, around, dtype=x.dtype)
    step = 2 if layout == "strided" else 1
    rows, columns = (x.shape[d] for d in order)
    part = storage[9 : 9 + rows, 11 : 11 + columns * step : step].permute(order)
    return part.copy_(x)


REDUCED: list[Callable[..., torch.Tensor]] = [
    lambda a, b, x, i: a // b,
    lambda a, b, x, i: (a % b).t().contiguous(),
    lambda a, b, x, i: (a // b).sum(0),
    lambda a, b, x, i: (a // b).sum(1),
    lambda a, b, x, i: (a // b).sum(),
    lambda a, b, x, i: (a % b).float().softmax(1),
    lambda a, b, x, i: (a % b).float().softmax(0),
    lambda a, b, x, i: x.gather(1, i) * 2,
    lambda a, b, x, i: x.gather(1, i).sum(0),
    lambda a, b, x, i: x.gather(1, i).sum(1),
    lambda a, b, x, i: x.gather(1, i).softmax(1),
    lambda a, b, x, i: x.gather(1, i).t().contiguous() + 1,
    lambda a, b, x, i: x[i[0]].sum(0) + x[i[0]].sum(1).sum(),
    lambda a, b, x, i: functional.layer_norm(functional.embedding(i[:, 0], x), x.shape[1:]),
]


@pytest.mark.parametrize("layout", ["dense", "transposed", "strided"])
@pytest.mark.parametrize("number", range(len(REDUCED)))
def test_memory_beside_a_tensor_raises_no_alarm(
    number: int, layout: str, noticed: list[Fusion]
) -> None:
    """Schedules of all kinds, with predicates: sizes that nothing divides, large and small."""
    torch.manual_seed(0)
    call = REDUCED[number]
    made = compiled(call, dynamic=True)
    for rows, columns in ((37, 43), (3, 1027), (1033, 5), (259, 301)):
        a, b = torch.randint(-50, 50, (rows, columns)), torch.randint(1, 50, (rows, columns))
        x, i = torch.randn(rows, columns), index(min(rows, columns), rows, columns)
        spread = [inside(t, around, layout) for t, around in ((a, 0), (b, 0), (x, 7.0), (i, 2**40))]
        want = call(a, b, x, i)
        torch.testing.assert_close(made(*spread), want, rtol=1e-4, atol=1e-4)
        if number < 7:
            spread[1][rows - 1, columns - 1] = 0
        else:
            spread[3][0, 0 if number == 13 else columns - 1] = max(rows, columns)
        with pytest.raises((RuntimeError, IndexError), match="expected"):
            made(*spread)
    assert noticed


@pytest.mark.parametrize("dynamic", [False, True])
def test_padding_raises_no_alarm(dynamic: bool, noticed: list[Fusion]) -> None:
    """Around a window nothing is computed in eager: 0 there is nobody's divisor."""
    a, b, i = numbers(5, 7), numbers(5, 7), index(4, 6)
    x = torch.randn(4, 9)
    same(lambda a, b: functional.pad(a // b, [2, 3]) + 1, a, b, dynamic=dynamic)
    same(lambda a, b: torch.cat([a // b, b % a, a], 1) * 2, a, b, dynamic=dynamic)
    same(lambda a, b: torch.cat([a, a // b, b], 0) * 2, a, b, dynamic=dynamic)
    same(lambda x, i: functional.pad(x[i].exp(), [1, 1, 1, 1]) * 2, x, i, dynamic=dynamic)
    same(lambda x, i: torch.cat([x.index_select(0, i), x], 0) * 2, x, i, dynamic=dynamic)
    same(lambda a, b: (a // b)[1:, ::2] + (a % b)[:-1, ::2], a, b, dynamic=dynamic)
    assert not noticed


def test_guarded_indices_raise_no_alarm(noticed: list[Fusion]) -> None:
    table, i = torch.randn(6, 5), torch.arange(-3, 20)

    def guarded(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        inside = (i >= 0) & (i < table.shape[0])
        rows = table[i.clamp(0, table.shape[0] - 1)]
        return torch.where(inside[:, None], rows, 0.0)

    same(guarded, table, i)
    same(lambda a, b: a // torch.where(b == 0, 1, b), numbers(9), torch.arange(9))
    same(lambda a, b: a / b, numbers(9), torch.arange(9))  # true division
    same(lambda a, b: torch.where(b > 3, a % b.clamp(min=1), a), numbers(9), torch.arange(9))
    assert not noticed


@pytest.mark.parametrize("dynamic", [False, True])
def test_ignored_targets_raise_no_alarm(dynamic: bool, noticed: list[Fusion]) -> None:
    x, y = torch.randn(9, 5), index(5, 9)
    y[::3] = -100
    same(functional.cross_entropy, x, y, dynamic=dynamic)
    y[::3] = 77
    same(
        lambda x, y: functional.cross_entropy(x, y, ignore_index=77, reduction="none"),
        x, y, dynamic=dynamic,
    )  # fmt: skip
    y[::3] = -1
    same(
        lambda x, y: functional.cross_entropy(x, y, weight=x[0].exp(), ignore_index=-1),
        x, y, dynamic=dynamic,
    )  # fmt: skip
    assert not noticed


def test_negative_indices_are_eagers(noticed: list[Fusion]) -> None:
    x, i = torch.randn(7, 5), torch.arange(-7, 7)
    same(lambda x, i: x[i] * 2, x, i)
    same(lambda x, i: x[:, i.clamp(-5, 4)] * 2, x, i)
    same(lambda x, i: x.take_along_dim(i[:, None], 0) * 2, x, i)
    assert not noticed


def test_probabilities_at_the_ends_raise_no_alarm(noticed: list[Fusion]) -> None:
    x, y = torch.tensor([0.0, 1.0, 0.5, -0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    same(functional.binary_cross_entropy, x, y)
    for half in (torch.bfloat16, torch.float16):
        same(functional.binary_cross_entropy, x.to(half).sigmoid(), y.to(half))
    assert not noticed


def test_kernels_without_checks_have_no_test_behind_them() -> None:
    def lines(define: Callable[..., Any], inputs: Inputs) -> tuple[str, Kernel]:
        with FusionDefinition() as fd:
            fd.add_output(define(fd.ops, *(fd.from_pytorch(x) for x in inputs)))
        fd.execute(inputs)
        engine = fd.fec.engine.executor
        (plan,), (program,) = engine.plans, engine.programs.values()
        (kernel,) = program.parts[0].kernels.values()
        return plan.source, kernel.kernel

    for define, inputs, may_refuse in (
        (lambda o, a, b: o.add(a, b), [torch.ones(4), torch.ones(4)], False),
        (lambda o, a, b: o.div(a, b), [torch.ones(4), torch.ones(4)], False),
        (lambda o, a, b: o.add(o.div(a, 3), b), [numbers(4), numbers(4)], False),
        (lambda o, a, b: o.div(a, b), [numbers(4), numbers(4)], True),
    ):
        source, kernel = lines(define, inputs)
        assert kernel.may_refuse is may_refuse
        assert ("refused" in source) is may_refuse


def test_a_kernel_that_refuses_by_mistake_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results are right; strictly it is an error."""
    graph = fused_graph(lambda o, a, b: o.div(a, b), [numbers(4), numbers(4)])
    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    with pytest.warns(RuntimeWarning, match="expected values that torch refuses"):
        fallback.refused(graph, [numbers(4), numbers(4)])
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with pytest.raises(InternalError, match="others, by div"):
        fallback.refused(graph, [numbers(4), numbers(4)])


@pytest.mark.filterwarnings("error")
def test_classes_are_checked_inside_of_other_transforms(noticed: list[Fusion]) -> None:
    y = index(5, 4, 3)

    def mapped(y: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: functional.one_hot(row, 5) * 2, in_dims=1)(y)

    def recomputed(y: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: functional.one_hot(y, 5) * 2, y, use_reentrant=False)

    for call in (mapped, recomputed):
        made = compiled(call)
        assert torch.equal(made(y), call(y))
        bad = y.index_fill(1, torch.tensor(1), 5)
        require_refusal(made, [bad], RuntimeError("Class values must be smaller"))
    assert len(noticed) == 2


# -- calls and their inputs


def test_inputs_that_would_be_updated_are_left_alone(noticed: list[Fusion]) -> None:
    """The kernel that updates, before and behind the one that refuses, or the same."""

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
