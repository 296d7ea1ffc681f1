"""Equal parts that are computed together and joined, as in the gradients of gated units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.profiling import Recorder, recording
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

from .calls import flat

pytestmark = pytest.mark.usefixtures("poison")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
Made = Callable[[Tensor, int], Any]


def swiglu(x: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, dim)
    return functional.silu(a) * b


def geglu(x: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, dim)
    return functional.gelu(a) * b


def gates(x: Tensor, dim: int) -> Tensor:
    i, f = x.chunk(2, dim)
    cell = torch.sigmoid(f) + torch.sigmoid(i) * torch.tanh(f * i)
    return torch.tanh(cell)


GATED = [swiglu, geglu, gates]


def powers(x: Tensor, dim: int) -> Tensor:
    e = torch.exp(x)
    return torch.cat([e, -e, e * e, 1 - e, e * x], dim)


def stacked(x: Tensor, dim: int) -> Tensor:
    s = torch.sigmoid(x)
    return torch.stack([s * x, 1 - s], dim)


def with_their_sum(x: Tensor, dim: int) -> list[Tensor]:
    joined = powers(x, dim)
    return [joined, joined.sum(0), joined * 2]


def with_a_part(x: Tensor, dim: int) -> list[Tensor]:
    e = torch.exp(x)
    return [torch.cat([e + 1, e * x], dim), e, e.sum(dim)]


def rounded(x: Tensor, dim: int) -> Tensor:
    e = torch.exp(x.float())
    return torch.cat([e, e * x, e - x], dim).to(torch.bfloat16)


def cut_again(x: Tensor, dim: int) -> list[Tensor]:
    return [part.contiguous() for part in powers(x, dim).split(2, dim)]


def of_a_norm(x: Tensor, dim: int) -> Tensor:
    y = functional.softmax(x, -1)
    return torch.cat([y, y * x, 1 - y], dim)


def of_rows(x: Tensor, dim: int) -> Tensor:
    """A part that is the same along an axis."""
    e = torch.exp(x)
    return torch.cat([e, (e * x)[:1].expand(x.shape), e * e], dim)


def transposed_too(x: Tensor, dim: int) -> Tensor:
    e = torch.exp(x).transpose(0, 1)
    return torch.cat([e, e * 2, e - x.transpose(0, 1)], dim)


def joined_twice(x: Tensor, dim: int) -> Tensor:
    e = torch.exp(x)
    twice = torch.cat([e, 1 - e], dim)
    return torch.cat([torch.sin(twice), torch.sin(twice) * twice], dim)


def states(x: Tensor, dim: int) -> Tensor:
    """Each step of a recurrence, which begins with a constant."""
    state, found = torch.zeros_like(x), []
    for step in range(16):
        state = torch.sigmoid(x + step) * state + x
        found.append(state)
    return torch.stack(found, dim)


JOINED = [
    powers, stacked, with_their_sum, with_a_part, rounded, cut_again, of_a_norm, of_rows,
    transposed_too, joined_twice, states,
]  # fmt: skip


def given(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(shape).to(dtype)


def assert_right(found: Any, eager: Any, exact: Any) -> None:
    """About eager's error, and eager's dtypes and layouts."""
    for ours, theirs, right in zip(flat(found), flat(eager), flat(exact), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        if right.numel():
            error, allowed = ((each.double() - right).abs().amax() for each in (ours, theirs))
            assert error <= 4 * allowed + 1e-6 * right.abs().amax()


@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    pairwise(GATED, [(6, 40), (3, 34, 5), (2, 8, 3, 3), (64, 256), (0, 32)], DTYPES, count=12),
)
def test_gradients_of_gated_units(
    function: Made, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=False)

    def gradient(f: Made, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        made = f(x, 1)
        weights = torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view(made.shape)
        return torch.autograd.grad(made, x, weights)[0]

    x = given(shape, dtype)
    exact = gradient(function, x.double())
    assert_right(gradient(compiled, x), gradient(function, x), exact)


@pytest.mark.parametrize(
    ("function", "shape"),
    pairwise(JOINED, [(6, 40), (3, 17, 5), (5, 1), (4, 2, 3, 16), (1, 0)], count=12),
)
def test_joined_along_any_axis(function: Made, shape: tuple[int, ...]) -> None:
    for dim in range(len(shape)):
        for dtype in (torch.float32, torch.bfloat16):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=BACKEND, dynamic=False)
            x = given(shape, dtype)
            results = (f(a, dim) for f, a in ((compiled, x), (function, x), (function, x.double())))
            assert_right(*results)


@pytest.mark.parametrize("function", [powers, stacked, with_their_sum, of_rows])
def test_views_of_other_layouts(function: Made) -> None:
    base = given((9, 40, 12))
    views = [base[:, ::2], base.transpose(0, 2), base[:, :, 1:8], base[:1].expand(5, 40, 12)]
    compiled = torch.compile(function, backend=BACKEND, dynamic=False)
    for x in views:
        assert_right(compiled(x, 1), function(x, 1), function(x.double(), 1))


@pytest.mark.parametrize("function", [powers, swiglu, with_their_sum, rounded])
def test_sizes_that_change(function: Made) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=True)
    for rows, columns in ((4, 48), (3, 34), (1, 2), (7, 1000), (0, 16)):
        x = given((rows, columns))
        assert_right(compiled(x, -1), function(x, -1), function(x.double(), -1))


def test_an_updated_input_is_a_copy() -> None:
    def update(x: Tensor, y: Tensor) -> Tensor:
        e = torch.exp(y)
        x.copy_(torch.cat([e * 2, e - x[:, :20]], 1))
        return x + 1

    compiled = torch.compile(update, backend=BACKEND)
    x, y = given((6, 40)), given((6, 20))
    ours = x.clone()
    expected, found = update(x, y), compiled(ours, y)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, x)


# -- what is made


def moved(function: Callable[[], Any]) -> list[tuple[int, int]]:
    """Bytes that each part of the calls reads and writes."""
    recorder = Recorder()
    with recording(recorder):
        function()
    return [(part.read, part.written) for each in recorder.calls for part in each.parts]


@pytest.mark.cpu
def test_everything_is_read_once_and_nothing_stored_twice() -> None:
    x = given((64, 256))
    compiled = torch.compile(powers, backend=BACKEND, dynamic=False)
    assert moved(lambda: compiled(x, 1)) == [(x.nbytes, 5 * x.nbytes)]


@pytest.mark.cpu
def test_the_states_of_a_recurrence_are_stored_once() -> None:
    x = given((64, 256))
    compiled = torch.compile(states, backend=BACKEND, dynamic=False)
    assert moved(lambda: compiled(x, 1)) == [(x.nbytes, 16 * x.nbytes)]


@pytest.mark.cpu
@pytest.mark.parametrize("function", GATED)
def test_a_gradient_is_one_kernel(function: Made) -> None:
    x = given((64, 256)).requires_grad_()
    compiled = torch.compile(function, backend=BACKEND, dynamic=False)
    made = compiled(x, 1)
    found = moved(lambda: torch.autograd.grad(made, x, torch.ones_like(made)))
    assert [written for _, written in found] == [x.nbytes]
