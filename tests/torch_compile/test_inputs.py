"""The inputs and outputs that a compiled function may have, each case against eager.

Inputs that are changed in place, share memory, are expanded, empty, without axes or laid out in
other ways; outputs that are inputs, views, repeated or no tensors.  A compiled call must give
eager's values, dtypes, shapes, strides and sharing of memory, and leave its inputs as eager does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.programs.check import sharing
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

from .calls import assert_same, check


@dataclass(frozen=True)
class Case:
    """A function and how to make its inputs; the same seed gives the same inputs."""

    name: str
    function: Callable[..., Any]
    make: Callable[[], Sequence[Any]]


def tensors(*shapes: tuple[int, ...]) -> Callable[[], list[Tensor]]:
    """Contiguous float32 inputs of these shapes."""
    return lambda: [torch.randn(shape) for shape in shapes]


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


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_views_of_equal_values_share_no_memory(dynamic: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return (x * 2).view(-1), (x * 2).view(-1), x.detach().clone()[1:], x.detach().clone()[1:]

    x = torch.randn(4, 6, requires_grad=True)
    got = torch.compile(program, backend=BACKEND, dynamic=dynamic)(x)
    assert sharing([x, *got]) == sharing([x, *program(x)])
    for ours, eagers in zip(got, program(x), strict=True):
        assert_same(ours, eagers)


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
