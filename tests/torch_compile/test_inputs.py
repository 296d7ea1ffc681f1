"""The inputs and outputs that a compiled function may have, each case against eager.

Inputs that are changed in place, share memory, are expanded, empty, without axes or laid out in
other ways; outputs that are inputs, views, repeated or no tensors; every dtype.  A compiled call
must give eager's values, dtypes, shapes, strides and sharing of memory, and leave its inputs as
eager leaves them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.programs.check import sharing, strides
from tests.support.compiled import BACKEND, assert_as_close_as_eager
from tests.support.compiled import fresh as fresh


@dataclass(frozen=True)
class Case:
    """A function and how to make its inputs; the same seed gives the same inputs."""

    name: str
    function: Callable[..., Any]
    make: Callable[[], Sequence[Any]]


def tensors(*shapes: tuple[int, ...]) -> Callable[[], list[Tensor]]:
    """Contiguous float32 inputs of these shapes."""
    return lambda: [torch.randn(shape) for shape in shapes]


def flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def assert_same(got: Any, expected: Any) -> None:
    if not isinstance(expected, Tensor):
        assert got == expected
        return
    assert strides(got) == strides(expected)
    assert got.requires_grad == expected.requires_grad
    torch.testing.assert_close(got, expected, equal_nan=True)


def check(
    function: Callable[..., Any], make: Callable[[], Sequence[Any]], **options: Any
) -> list[Any]:
    """Three calls, each on its own inputs; returns the last call's outputs."""
    compiled = torch.compile(function, backend=BACKEND, fullgraph=True, **options)
    for seed in range(3):
        torch.manual_seed(seed)
        expected_inputs = make()
        torch.manual_seed(seed)
        inputs = make()
        expected, got = flat(function(*expected_inputs)), flat(compiled(*inputs))
        assert len(got) == len(expected)
        for ours, eager in zip([*got, *inputs], [*expected, *expected_inputs], strict=True):
            assert_same(ours, eager)
        assert sharing([*inputs, *got]) == sharing([*expected_inputs, *expected])
    return got


def add_in_place(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x * 2


def copy_in_place(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y.sin())
    return x + 1


def through_a_view(x: Tensor, y: Tensor) -> Tensor:
    x[0].mul_(2)
    x[:, 1:3] += y[:, 1:3]
    return x.relu()


def through_a_transpose(x: Tensor, y: Tensor) -> None:
    x.t().add_(y.t().exp())


def swap_in_place(x: Tensor, y: Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def change_and_give_back(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.mul_(y), y


def resize_of_dtype(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y.bfloat16())
    return x.int()


def fill_where(x: Tensor, y: Tensor) -> Tensor:
    x[y > 0] = 0.5
    x.masked_fill_(y < -1, -3.0)
    return x.cumsum(0)


def update_and_read_the_old_value(x: Tensor, y: Tensor) -> Tensor:
    old, new = x.clone(), x * 2
    x.copy_(new)
    return old


def read_the_old_value_after_a_shared_one(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    shared = x.exp()
    new, product, difference = shared * 2, (shared + 1) * x, x - shared
    x.copy_(new)
    return product, difference


def sum_and_difference(x: Tensor, y: Tensor) -> None:
    total, difference = x + y, x - y
    x.copy_(total)
    y.copy_(difference)


def replace_by_the_transposed(x: Tensor) -> None:
    x.copy_(x.t().exp())


def add_the_transposed(x: Tensor) -> None:
    x.copy_(x.t() + x)


PAIR = tensors((5, 6), (5, 6))
MUTATIONS = [
    Case(function.__name__, function, PAIR)
    for function in (
        add_in_place,
        copy_in_place,
        through_a_view,
        through_a_transpose,
        swap_in_place,
        change_and_give_back,
        resize_of_dtype,
        fill_where,
        update_and_read_the_old_value,
        read_the_old_value_after_a_shared_one,
        sum_and_difference,
    )
] + [
    Case(function.__name__, function, tensors((20, 20)))
    for function in (replace_by_the_transposed, add_the_transposed)
]


def same_twice() -> list[Tensor]:
    x = torch.randn(5, 6)
    return [x, x]


def overlapping() -> list[Tensor]:
    base = torch.randn(8, 6)
    return [base[:5], base[3:]]


def sliding() -> list[Tensor]:
    return [torch.randn(10).unfold(0, 6, 1), torch.randn(5, 6)]


def change_and_read(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(3)
    return y.sin() + 1


def change_both_halves(x: Tensor) -> tuple[Tensor, ...]:
    left, right = x.chunk(2, 1)
    left.mul_(right)
    right.add_(left)
    return left, right


def change_a_flat_view(x: Tensor) -> tuple[Tensor, ...]:
    flat = x.view(-1)
    flat[-1:] *= 2
    flat.mul_(3)
    return flat, flat[::2]


def change_complex_numbers(z: Tensor) -> tuple[Tensor, ...]:
    z.mul_(2)
    return z[1:], z.chunk(2)[1], torch.view_as_real(z)[1:], z.real


def keep_a_copy_of_another_dtype(x: Tensor) -> Tensor:
    old = x.view(torch.int32).clone().view(torch.float32)
    x.add_(1)
    return old


def read_another_dtype_after_the_new_value(x: Tensor) -> Tensor:
    bits = x.view(torch.int32)
    new = x.sin()
    wanted = (bits & 255).float() * (new @ new).relu()
    x.copy_(new)
    return wanted


ALIASED = [
    Case(
        "complex_numbers_changed",
        change_complex_numbers,
        lambda: [torch.randn(80, dtype=torch.complex64)[3:51].view(6, 8)],
    ),
    Case("copy_of_another_dtype", keep_a_copy_of_another_dtype, tensors((4, 6))),
    Case(
        "copy_of_the_real_parts",
        lambda z: (z.clone().real, z.clone().imag, z * 2),
        lambda: [torch.randn(4, 6, dtype=torch.complex64)],
    ),
    Case("another_dtype_read", read_another_dtype_after_the_new_value, tensors((6, 6))),
    Case("flat_view_changed", change_a_flat_view, lambda: [torch.randn(80)[3:51].view(6, 8)]),
    Case("halves_changed", change_both_halves, lambda: [torch.randn(80)[3:51].view(6, 8)]),
    Case("same_tensor", lambda x, y: x * y + x, same_twice),
    Case("same_tensor_changed", add_in_place, same_twice),
    Case("overlapping_views", lambda x, y: (x + y.sin()).sum(1), overlapping),
    Case("overlapping_views_changed", change_and_read, overlapping),
    Case("view_of_itself", lambda x, y: x.add_(1) + y, lambda: [b := torch.randn(4, 4), b.t()]),
    Case("sliding_windows", lambda x, y: torch.softmax(x * y, -1), sliding),
]

LAYOUTS = [
    Case(
        "expanded", lambda x, y: x * y, lambda: [torch.randn(5, 1).expand(5, 6), torch.ones(5, 6)]
    ),
    Case("expanded_scalar", lambda x: x.exp(), lambda: [torch.tensor(0.5).expand(4, 3)]),
    Case("expand_inside", lambda x: x[:, None].expand(3, 4).clone() * 2, tensors((3,))),
    Case("empty", lambda x: (x + 1, x.sum(), x.sum(0)), tensors((0, 4))),
    Case("empty_inside", lambda x: torch.cat([x[:0].exp(), x]), tensors((3, 4))),
    Case("no_axes", lambda x, y: (x * y, x.sum(), x.reshape(1, 1)), tensors((), ())),
    Case("no_axes_with_axes", lambda x, y: x * y + x, tensors((), (4, 3))),
    Case("ones", lambda x, y: (x + y).softmax(0), tensors((1, 1), (1, 7))),
    Case("transposed", lambda x, y: x.t() + y, tensors((6, 5), (5, 6))),
    Case(
        "strided", lambda x: x * 2 + x.mean(1, keepdim=True), lambda: [torch.randn(8, 9)[::2, 1::3]]
    ),
    Case("offset", lambda x: x.tanh(), lambda: [torch.randn(101)[3:]]),
    Case(
        "permuted", lambda x: torch.softmax(x, 1), lambda: [torch.randn(3, 4, 5).permute(2, 0, 1)]
    ),
    Case(
        "channels_last",
        lambda x: (x.relu() + 1, x.mean((2, 3)), x.contiguous() * 2),
        lambda: [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)],
    ),
    Case("reversed", lambda x: x.flip(0) + x, tensors((5, 3))),
    Case("numbers", lambda x, n, f: x * n + f, lambda: [torch.randn(4), 3, 0.25]),
]


def none_and_numbers(x: Tensor) -> tuple[Any, ...]:
    return x + 1, None, 3, "text", x.shape[0]


def repeated(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sigmoid() * x
    return y, y, x, y.t()


OUTPUTS = [
    Case("input", lambda x: (x, x * 2), tensors((4, 3))),
    Case("view_of_input", lambda x: (x[1:], x.t(), x.view(-1), x.exp()), tensors((4, 3))),
    Case("views_of_intermediate", lambda x: (y := x.exp(), y[0], y.t()), tensors((4, 3))),
    Case("only_views", lambda x: (x.t(), x[:, None]), tensors((4, 3))),
    Case("repeated", repeated, tensors((4, 3))),
    Case("none_and_numbers", none_and_numbers, tensors((4, 3))),
    Case("constants", lambda x: (torch.zeros(3), torch.arange(4) + x.shape[0], x), tensors((4, 3))),
    Case("strided", lambda x: (x.permute(2, 0, 1).exp(), (x * 2)[:, 1:]), tensors((3, 4, 5))),
    Case("contiguous_of_view", lambda x: x.t().contiguous().view(-1), tensors((4, 3))),
    Case("nothing", lambda x: (), tensors((4, 3))),
]

CASES = {case.name: case for case in (*MUTATIONS, *ALIASED, *LAYOUTS, *OUTPUTS)}


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_eager_s(name: str) -> None:
    check(CASES[name].function, CASES[name].make)


@pytest.mark.parametrize("name", CASES)
def test_a_call_with_dynamic_shapes_is_eager_s(name: str) -> None:
    check(CASES[name].function, CASES[name].make, dynamic=True)


def gradients(function: Callable[..., Any], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Of the sum of all float outputs, weighted so that no two elements count the same."""
    total = torch.zeros(())
    for output in flat(function(*leaves)):
        weights = torch.linspace(0.5, 1.5, output.numel()).view(output.shape)
        total = total + (output * weights).sum()
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def of_views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x[1:].sigmoid() * y.t()[1:], x.expand(2, *x.shape).tanh()


def of_inputs_given_back(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x, x * y, y.view(-1)


def of_one_input_only(x: Tensor, y: Tensor) -> Tensor:
    return x.softmax(-1) * y.detach().t()


def of_a_change_in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z[0].mul_(y[:, 0])
    z.add_(y.t())
    return z.exp()


def of_something_empty(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:0], (x * y.t()).sum(0, keepdim=True)])


@pytest.mark.parametrize(
    "function",
    [of_views, of_inputs_given_back, of_one_input_only, of_a_change_in_place, of_something_empty],
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_gradients_are_eager_s(function: Callable[..., Any], dynamic: bool) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=dynamic, fullgraph=True)
    for seed in range(2):
        torch.manual_seed(seed)
        leaves = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
        for got, expected in zip(
            gradients(compiled, leaves), gradients(function, leaves), strict=True
        ):
            assert (got is None) == (expected is None)
            if expected is not None:
                assert_same(got, expected)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_views_of_equal_values_share_no_memory(dynamic: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return (x * 2).view(-1), (x * 2).view(-1), x.detach().clone()[1:], x.detach().clone()[1:]

    x = torch.randn(4, 6, requires_grad=True)
    got = torch.compile(program, backend=BACKEND, dynamic=dynamic)(x)
    assert sharing([x, *got]) == sharing([x, *program(x)])
    for ours, eagers in zip(got, program(x), strict=True):
        assert_same(ours, eagers)


@pytest.mark.parametrize("rematerialise", [False, True], ids=["all_saved", "min_cut"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_gradients_read_the_old_value_of_an_updated_buffer(
    dynamic: bool, rematerialise: bool
) -> None:
    def program(x: Tensor, weight: Tensor, mean: Tensor) -> Tensor:
        y = torch.sin(weight * mean.clone()) * x + mean[1:].clone().sum() * weight.exp()
        with torch.no_grad():
            mean.mul_(0.9).add_(x.detach().mean(0))
        return y.exp()

    compiled = torch.compile(
        program, backend=BACKEND, dynamic=dynamic, options={"rematerialise": rematerialise}
    )
    for rows in (3, 4, 7):
        x, weight, mean = (torch.randn(s, requires_grad=s != 5) for s in ((rows, 5), (1, 5), 5))
        ours, eagers = (
            torch.autograd.grad(call(x, weight, mean.clone()).sum(), [x, weight])
            for call in (compiled, program)
        )
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)  # exp amplifies rounding


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_as_strided_counts_from_the_beginning_of_the_storage(dynamic: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.as_strided((2, 3), (3, 1), 1) * 2, x[1:].as_strided((2, 3), (3, 1), 4).exp()

    compiled = torch.compile(program, backend=BACKEND, dynamic=dynamic)
    memory = torch.randn(40)
    for begin in (0, 5, 9):
        x = memory[begin : begin + 20].view(4, 5)
        for ours, eagers in zip(compiled(x), program(x), strict=True):
            assert_same(ours, eagers)


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_that_overlap_share_what_is_written(dynamic: bool) -> None:
    """An update of a row is the functional `select_scatter`, which keeps strides that overlap."""

    def update(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.as_strided((4, 3), (2, 1))
        rows[1] = 0.0
        rows[2, 1:] *= 2
        windows = x.unfold(0, 4, 2)
        return rows + 1, windows.slice_scatter(windows[:1] * 3, 0, 1, 2)

    check = torch.compile(update, backend=BACKEND, dynamic=dynamic)
    x, y = torch.arange(20.0), torch.arange(20.0)
    for got, expected in zip(check(x), update(y), strict=True):
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()
    assert torch.equal(x, y)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_results_that_overlap(dynamic: bool) -> None:
    def windows(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2).unfold(0, 3, 1), x.sin().as_strided((4, 2), (1, 1))

    gradients = []
    for function in (windows, torch.compile(windows, backend=BACKEND, dynamic=dynamic)):
        x = torch.arange(12.0, requires_grad=True)
        results = function(x)
        weights = [torch.arange(y.numel(), dtype=y.dtype).view(y.shape) for y in results]
        gradients += torch.autograd.grad(results, x, weights)
    torch.testing.assert_close(*gradients)


def test_gradients_reach_the_base_of_a_view_that_is_changed() -> None:
    def change(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y.exp())
        return x.sin()

    def run(call: Callable[..., Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        base = torch.randn(6, 5, requires_grad=True)
        y = torch.randn(4, 5, requires_grad=True)
        held = base.clone()
        call(held[1:5], y).sum().backward()
        assert base.grad is not None and y.grad is not None
        return [base.grad, y.grad, held.detach()]

    compiled = torch.compile(change, backend=BACKEND, fullgraph=True)
    for got, expected in zip(run(compiled), run(change), strict=True):
        assert_same(got, expected)


def whole_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x * 3 + y,
        torch.maximum(x, y) - 1,
        (x & y) ^ (x | 1),
        x > y,
        torch.where(x >= y, x, y).sum(1),
        x.float() / 2,
        torch.div(x, 3, rounding_mode="floor"),
    )


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_whole_numbers(dtype: torch.dtype) -> None:
    least = 0 if dtype == torch.uint8 else -100
    check(whole_numbers, lambda: [torch.randint(least, 100, (5, 7)).to(dtype) for _ in range(2)])


def test_truth_values() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x & ~y, x ^ y, x.sum(1), (x | y).any(), x.all(0), x + y, torch.where(x, 1.5, 2.5)

    check(function, lambda: [torch.rand(5, 7) > 0.5 for _ in range(2)])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x * y.conj() + 1j
        return z, z.abs() * 2, z.real.sin() + z.imag, torch.view_as_real(z) + 1

    check(function, lambda: [torch.randn(5, 7, dtype=dtype) for _ in range(2)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_fractions(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = torch.softmax(x * 0.3 + y, -1)
        return z, (z - z.mean()) * y.sigmoid(), x.sum(1), x.amax(0) * 2, (x - 1).exp().clamp(0, 3)

    torch.manual_seed(0)
    inputs = [torch.randn(9, 33).to(dtype) for _ in range(2)]
    compiled = torch.compile(function, backend=BACKEND, fullgraph=True)
    got, eager, exact = (
        {str(number): each for number, each in enumerate(call(*given))}
        for call, given in (
            (compiled, inputs),
            (function, inputs),
            (function, [each.double() for each in inputs]),
        )
    )
    assert_as_close_as_eager(got, eager, exact)


def test_comparisons_in_half_precision_see_rounded_values() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 1.1
        return (y == y.amax(-1, keepdim=True)).sum(-1), (y > x).sum()

    check(function, lambda: [torch.randn(64, 200).bfloat16()])


def test_dtypes_meet_as_in_eager() -> None:
    def function(x: Tensor, y: Tensor, n: Tensor, scalar: Tensor) -> tuple[Tensor, ...]:
        return x + y, n * x, n + 1.5, x * scalar, n / n, torch.where(n > 0, x, 0.0), y.int() + n

    check(
        function,
        lambda: [
            torch.randn(4, 3).bfloat16(),
            torch.randn(4, 3),
            torch.randint(1, 9, (4, 3)),
            torch.tensor(0.1, dtype=torch.float64),
        ],
    )


def test_nan_and_infinity_stay() -> None:
    values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3e38]

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x.relu(), x.exp(), x.amax(), x.sum(), x.isnan(), x / x, x.clamp(-1, 1)

    check(function, lambda: [torch.tensor(values)])


def test_equal_operations_on_other_strides_are_other_fusions() -> None:
    """Compares one after the other: only the memory order of the results may differ."""
    x = torch.randn(5, 6, 8).transpose(0, 1).view(3, 2, 5, 8)
    for dims in itertools.permutations(range(4)):

        def function(x: Tensor, dims: tuple[int, ...] = dims) -> Tensor:
            return x.permute(dims) * 0.59

        actual = torch.compile(function, backend=BACKEND)(x)
        expected = function(x)
        assert torch.equal(actual, expected) and actual.stride() == expected.stride()
        torch._dynamo.reset()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_of_permuted_projections(dropout: float) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout)
    x = torch.randn(5, 3, 16)
    torch.manual_seed(1)
    expected = layer(x)
    torch.manual_seed(1)
    torch.testing.assert_close(torch.compile(layer, backend=BACKEND)(x), expected)


def test_a_negation_that_is_still_to_be_done() -> None:
    """Such a tensor's memory holds other numbers than the tensor."""
    z = torch.randn(7, dtype=torch.complex64)

    def inside(z: Tensor) -> Tensor:
        return z.conj().imag[1:] * 2 + 1

    def outside(x: Tensor) -> Tensor:
        return x * 2 + 1

    assert z.conj().imag.is_neg()
    for function, argument in ((inside, z), (outside, z.conj().imag)):
        actual = torch.compile(function, backend=BACKEND)(argument)
        assert torch.equal(actual, function(argument))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.expand_as(x),
        lambda x: x[:, None].transpose(0, 1)[..., 1:],
        lambda x: x.split(3, 1)[1],
        lambda x: x.reshape(-1)[2:].view(-1, 1),
    ],
)
@pytest.mark.parametrize("is_expanded", [False, True])
def test_gradients_of_views_of_an_input(
    view: Callable[[Tensor], Tensor], dynamic: bool, is_expanded: bool
) -> None:
    """Autograd derives the gradient of such a result itself, from what the result says it is."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return view(x), x.cumsum(1)

    x = torch.randn(6, 1).expand(6, 6) if is_expanded else torch.randn(6, 6)
    x = x.detach().requires_grad_()
    compiled = torch.compile(program, backend=BACKEND, dynamic=dynamic)
    expected = program(x)
    weights = [torch.arange(1.0 * y.numel()).view(y.shape) for y in expected]
    (ours,) = torch.autograd.grad(compiled(x), x, weights)
    (eagers,) = torch.autograd.grad(expected, x, weights)
    torch.testing.assert_close(ours, eagers)


def test_statistics_of_an_expanded_tensor() -> None:
    """A part that torch computes gives other parts one element along an expanded axis."""

    def program(x: Tensor) -> Tensor:
        spread = x.var(0, correction=0)[:, None].expand(-1, 3, -1)
        return nn.functional.layer_norm(spread, spread.shape[-1:])

    x = torch.randn(7, 7, 33, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(torch.compile(program, backend=BACKEND)(x), program(x))


def test_a_view_of_a_computation_that_is_done_twice() -> None:
    """The two are merged; by its metadata the view is one of the other computation's memory."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        first, second = (nn.functional.rms_norm(x, (5,)) for _ in range(2))
        wide = second.expand(2, -1)
        return first * -1, torch.cat([-wide, wide], 1), wide.t(), torch.stack([first, second], 0)

    x = torch.randn(5).requires_grad_()
    got, expected = torch.compile(program, backend=BACKEND)(x), program(x)
    for ours, eagers in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, eagers)
        assert ours.stride() == eagers.stride()


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_that_is_an_operand_and_kept_for_the_backward(dynamic: bool | None) -> None:
    """The graph calls its nodes by names that the wrapper's functions must not have."""

    def program(x: Tensor) -> Tensor:
        return x @ x.transpose(1, 2)

    compiled = torch.compile(program, backend=BACKEND, dynamic=dynamic)
    for size in (4, 6):
        x = torch.randn(2, size, 5, requires_grad=True)
        (ours,) = torch.autograd.grad(compiled(x).sum(), x)
        (eagers,) = torch.autograd.grad(program(x).sum(), x)
        torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_jagged_tensor(dynamic: bool) -> None:
    """The size of its jagged axis is an argument of the graph, and no number."""
    weight = torch.randn(4, 4, requires_grad=True)
    compiled = torch.compile(
        lambda x: nn.functional.linear(x, weight).tanh() * 2, backend=BACKEND, dynamic=dynamic
    )
    for lengths in ((2, 3), (5, 1, 2)):
        parts = [torch.randn(length, 4) for length in lengths]
        (gradient,) = torch.autograd.grad(
            compiled(torch.nested.nested_tensor(parts, layout=torch.jagged)).values().sum(), weight
        )
        expected = nn.functional.linear(torch.cat(parts), weight).tanh() * 2
        (reference,) = torch.autograd.grad(expected.sum(), weight)
        torch.testing.assert_close(gradient, reference)
