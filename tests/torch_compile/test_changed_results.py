"""Results of a compiled function may be changed in place, as eager's results may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "number": (lambda x: x.sin().copy_(torch.tensor(3.0)) + x * 0, ()),
    "number that is copied": (lambda x: x * 1, ()),
    "copy": (lambda x: x * 1, (3, 4)),
    "copy, permuted": (lambda x: (x.t() * 1).clone(), (3, 4)),
    "empty": (lambda x: torch.lerp(x, x + 1, 0.3), (0, 3)),
    "empty, permuted": (lambda x: x.t() * 2, (0, 3)),
    "filled": (lambda x: x * 2 + torch.zeros_like(x).fill_(2), (3, 1)),
    "kernel": (lambda x: x.sin().t() + 1, (3, 4)),
    "library": (lambda x: (x @ x.t()).t() * 1, (3, 4)),
    "view": (lambda x: x.sin().t()[1:], (3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_may_be_changed_in_place(name: str) -> None:
    function, shape = CASES[name]

    def program(given: Tensor, called: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        x = given.clone().requires_grad_()
        y = called(x)
        y.mul_(2)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return y.detach(), gradient

    x = torch.randn(shape)
    compiled = torch.compile(function, backend=BACKEND)
    for got, expected in zip(program(x, compiled), program(x, function), strict=True):
        torch.testing.assert_close(got, expected)


def _beside_detached(x: Tensor) -> tuple[Tensor, ...]:
    rows = x.softmax(-1)
    y = rows.bfloat16()
    return rows, y.reshape(-1), y.detach()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_and_the_same_detached_are_two_tensors(dynamic: bool) -> None:
    """As one object, they would be one result to autograd, which then lacks a gradient."""
    made = torch.compile(_beside_detached, backend=BACKEND, dynamic=dynamic)
    for shape in ((1, 2), (3, 4)):
        results = []
        for run in (_beside_detached, made):
            x = torch.linspace(-1, 1, shape[0] * shape[1]).view(shape).requires_grad_()
            rows, flat, detached = run(x)
            assert not detached.requires_grad
            slope = torch.linspace(0, 3, rows.numel())
            given = (slope.view(shape), slope.bfloat16())
            results.append(torch.autograd.grad((rows, flat), x, given)[0])
        torch.testing.assert_close(results[1], results[0])


def _middle() -> Tensor:
    return torch.arange(35.0).view(1, 5, 1, 7)[:, 1:-1]


UPDATES: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "all of it": lambda x: (x.mul_(2).flatten(2),),
    "a part": lambda x: (x[:, :1].mul_(3), x.flatten(2))[1:],
    "all of a narrowed axis": lambda x: (x.narrow(0, 0, 1).fill_(3), x.flatten(2))[1:],
    "several views": lambda x: (x.zero_(), x.flatten(2), x.view(x.shape), x[:, 1:].detach())[1:],
    "a row of a view": lambda x: (x.copy_(x + 1), x.flatten(2)[0])[1:],
    "other memory": lambda x: (x.copy_(y := x * 2), y.flatten(2))[1:],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", UPDATES)
def test_views_of_an_updated_argument(name: str, dynamic: bool) -> None:
    """Of an argument that begins inside its storage, or whose rows have gaps."""
    function = UPDATES[name]
    compiled = torch.compile(function, backend=BACKEND, dynamic=dynamic)
    for make in (
        _middle,
        lambda: torch.arange(140.0).view(2, 5, 2, 7)[:, 1:-1],
        lambda: torch.arange(140.0).view(2, 5, 2, 7)[:, :, :, 1:3].transpose(0, 1)[:2],
    ):
        given, expected = make(), make()
        for got, eager in zip(compiled(given), function(expected), strict=True):
            assert torch.equal(got, eager)
            assert got.stride() == eager.stride()
            shared = [
                view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
                for view, x in ((got, given), (eager, expected))
            ]
            assert shared[0] == shared[1]
        assert torch.equal(given, expected)


def _doubled(x: Tensor, *views: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    y = x * 2
    return tuple(view(y) for view in views)


SHARING: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "a tensor and a part of it": lambda x: _doubled(x, lambda y: y, lambda y: y[1:]),
    "two parts": lambda x: _doubled(x, lambda y: y[:3], lambda y: y[1:]),
    "a part, then the tensor": lambda x: _doubled(x, lambda y: y.t(), lambda y: y),
    "the same elements": lambda x: _doubled(x, lambda y: y, lambda y: y.view(4, 6)),
    "detached": lambda x: _doubled(x, lambda y: y, lambda y: y.detach()),
    "chunks": lambda x: (x * 2).chunk(2),
    "chunks of products": lambda x: (x @ x.t()).chunk(2, 1),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SHARING)
def test_autograd_notices_changes_of_results_that_share_memory(name: str, dynamic: bool) -> None:
    """As eager does, it refuses a gradient of what was changed through another result."""
    compiled = torch.compile(SHARING[name], backend=BACKEND, dynamic=dynamic)
    for _ in range(3):  # later calls take another way than the first
        first, second = compiled(torch.randn(4, 6))
        weight = torch.ones(first.shape, requires_grad=True)
        loss = (weight * first).sum()
        second.add_(100)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_detached_result_may_get_a_history() -> None:
    compiled = torch.compile(SHARING["detached"], backend=BACKEND)
    first, second = compiled(torch.randn(4, 6))
    second.mul_(torch.full((4, 6), 2.0, requires_grad=True))
    assert second.requires_grad and not first.requires_grad
    assert torch.equal(first, second)


# as many parameters of vision models are
@pytest.mark.parametrize("shape", [(4, 6), (1, 4, 1, 6), (1,), ()])
def test_a_kernel_writes_over_what_it_reads_once(shape: tuple[int, ...]) -> None:
    def step(parameter: Tensor, gradient: Tensor) -> None:
        parameter.mul_(0.5).sub_(gradient * 0.1)

    compiled = torch.compile(step, backend=BACKEND, dynamic=False)
    parameter, gradient = torch.randn(shape), torch.randn(shape)
    compiled(parameter, gradient)
    for _ in range(2):
        expected = parameter.clone()
        step(expected, gradient)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            compiled(parameter, gradient)
        torch.testing.assert_close(parameter, expected)
        assert "aten::copy_" not in {event.name for event in profile.events()}


@pytest.mark.parametrize("shape", [(1, 6), (4, 1), (1, 1), ()])
def test_what_is_read_for_several_results_is_written_afterwards(shape: tuple[int, ...]) -> None:
    def step(x: Tensor, other: Tensor) -> Tensor:
        product = x * other
        x.copy_((product - other).sum_to_size(shape))
        return product * 2

    compiled = torch.compile(step, backend=BACKEND, dynamic=False)
    x, other = torch.randn(shape), torch.randn(4, 6)
    for _ in range(2):
        expected = x.clone()
        wanted = step(expected, other)
        torch.testing.assert_close(compiled(x, other), wanted)
        torch.testing.assert_close(x, expected)


def test_a_kernel_reads_an_argument_before_its_update_and_converts_after_it() -> None:
    """The update is in the middle of the graph, and reads what the kernel computes."""

    def function(x: Tensor) -> Tensor:
        viewed = x.expand_as(x)
        viewed.mul_(2)
        return viewed.expand(2)

    ours, eagers = torch.tensor(3, dtype=torch.uint8), torch.tensor(3, dtype=torch.uint8)
    compiled = torch.compile(function, backend="pyfuser")
    assert torch.equal(compiled(ours), function(eagers))
    assert torch.equal(ours, eagers)
