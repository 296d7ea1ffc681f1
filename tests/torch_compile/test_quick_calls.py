"""Calls after the first, which leave out most of what AOTAutograd does for each call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from pyfuser.torch_compile import quick_calls
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

from .calls import flat

_Function = Callable[..., Any]


def _is_quick(results: Any) -> bool:
    """True if a graph's results come from the derived function."""
    node = next(each.grad_fn for each in flat(results) if each.grad_fn is not None)
    (base,) = node._forward_cls.__bases__
    return bool(base is not torch.autograd.Function)


def _inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 8, generator=generator, dtype=torch.float64) for _ in range(2)]


def _leaves() -> list[Tensor]:
    return [each.requires_grad_() for each in _inputs()]


def _step(function: _Function, leaves: list[Tensor]) -> list[Tensor | None]:
    """The results of a call, and the gradients of those that have one."""
    results = flat(function(*leaves))
    used = [each for each in results if each.requires_grad]
    given = [
        torch.linspace(-1, 1, each.numel(), dtype=each.dtype).view(each.shape) for each in used
    ]
    gradients = torch.autograd.grad(used, leaves, given, allow_unused=True)
    return [*(each.detach() for each in results), *gradients]


def _trained(function: _Function) -> _Function:
    """The function compiled, after a first step."""
    compiled: _Function = torch.compile(function, backend=BACKEND, dynamic=False)
    _step(compiled, _leaves())
    return compiled


def of_rows(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x * y, -1)


def of_constants_too(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.argmax(-1), (x + y).sigmoid(), x.detach() * 2, y > 0


def of_one_with_a_history(x: Tensor, y: Tensor) -> Tensor:
    return x.exp() * y.detach()


def of_reshaped_products(x: Tensor, y: Tensor) -> Tensor:
    return functional.linear(x.view(2, 3, 8), y).relu()


def of_a_copied_transpose(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x * y).t().contiguous(), (x + y).t().clone()


def of_overlapping_windows(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1).unfold(0, 3, 1).tanh()


@pytest.mark.parametrize(
    "function",
    [
        of_rows,
        of_constants_too,
        of_one_with_a_history,
        of_reshaped_products,
        of_a_copied_transpose,
        of_overlapping_windows,
    ],
)
def test_every_step_is_eager_s(function: _Function) -> None:
    compiled: _Function = torch.compile(function, backend=BACKEND, dynamic=False)
    expected = _step(function, _leaves())
    for number in range(3):
        leaves = _leaves()
        assert _is_quick(compiled(*leaves)) == (number > 0)
        torch.testing.assert_close(_step(compiled, leaves), expected)


def of_a_mean(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x * y).mean(), x.mean(0) * x.shape[0] + y.expand(3, *y.shape).sum(0)[0]


def of_channels_last(x: Tensor, y: Tensor) -> Tensor:
    pictures = (x * y).reshape(1, 2, -1, x.shape[1])
    return pictures.contiguous(memory_format=torch.channels_last).exp()


@pytest.mark.parametrize(
    "function",
    [
        of_rows,
        of_constants_too,
        of_one_with_a_history,
        of_a_copied_transpose,
        of_a_mean,
        of_channels_last,
    ],
)
def test_steps_of_changing_sizes(function: _Function) -> None:
    compiled: _Function = torch.compile(function, backend=BACKEND, dynamic=True)
    for number, rows in enumerate((6, 4, 10, 6)):
        leaves = [torch.cat([each] * 2)[:rows].detach().requires_grad_() for each in _inputs()]
        results = compiled(*leaves)
        assert _is_quick(results) == (number > 0)
        expected = flat(function(*leaves))
        assert [each.stride() for each in flat(results)] == [each.stride() for each in expected]
        torch.testing.assert_close(_step(compiled, leaves), _step(function, leaves))


@pytest.mark.parametrize("layout", ["transposed", "expanded", "sliced"])
def test_gradients_of_any_layout_and_size(layout: str) -> None:
    compiled: _Function = torch.compile(of_rows, backend=BACKEND, dynamic=True)
    _step(compiled, _leaves())
    for rows in (4, 5):
        x, y = (each[:rows].detach().requires_grad_() for each in _inputs())
        given = torch.randn(8, rows, dtype=torch.float64).t()
        if layout == "expanded":
            given = given[:1].expand(rows, 8)
        elif layout == "sliced":
            given = torch.randn(rows, 11, dtype=torch.float64)[:, 3:]
        result = compiled(x, y)
        assert _is_quick(result)
        found = torch.autograd.grad(result, (x, y), given)
        torch.testing.assert_close(found, torch.autograd.grad(of_rows(x, y), (x, y), given))


@pytest.mark.parametrize("with_gradients", [False, True])
def test_results_say_which_of_their_sizes_change(with_gradients: bool) -> None:
    def broken(x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        torch._dynamo.graph_break()
        return z.exp() + 1

    def compilations(backend: Any) -> int:
        counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        compiled: _Function = torch.compile(broken, backend=counter)
        for rows in (6, 4, 5, 3):
            x, y = (each[:rows].detach() for each in _inputs())
            x.requires_grad_(with_gradients)
            torch.testing.assert_close(compiled(x, y), broken(x, y))
            if with_gradients:
                compiled(x, y).sum().backward()
        torch._dynamo.reset()
        return int(counter.frame_count)

    assert compilations(BACKEND) == compilations("aot_eager")


def test_the_history_of_an_argument_without_a_gradient_isn_t_part_of_the_graph() -> None:
    compiled = torch.compile(of_one_with_a_history, backend=BACKEND, dynamic=False)
    for _ in range(3):
        x, y = _leaves()
        doubled = y * 2
        result = compiled(x, doubled)
        assert result.grad_fn is not None and result.grad_fn.next_functions[1][0] is None
        gradients = torch.autograd.grad(result.sum(), (x, y), allow_unused=True)
        torch.testing.assert_close(gradients, (x.exp() * doubled, None))


@pytest.mark.parametrize("layout", ["transposed", "expanded", "negated"])
def test_gradients_of_any_layout(layout: str) -> None:
    compiled, (x, y) = _trained(of_rows), _leaves()
    given = torch.randn(8, 6, dtype=torch.float64).t()
    if layout == "expanded":
        given = given[:1].expand(6, 8)
    elif layout == "negated":
        given = torch._neg_view(given)
    result = compiled(x, y)
    assert _is_quick(result)
    found = torch.autograd.grad(result, (x, y), given)
    torch.testing.assert_close(found, torch.autograd.grad(of_rows(x, y), (x, y), given))


def test_a_result_that_is_not_used_has_gradients_of_0() -> None:
    def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x + y

    compiled, (x, y) = _trained(two), _leaves()
    (found,) = torch.autograd.grad(compiled(x, y)[1].sum(), x)
    torch.testing.assert_close(found, torch.ones_like(x))


def test_a_retained_graph_runs_again_and_any_other_only_once() -> None:
    compiled, (x, y) = _trained(of_rows), _leaves()
    result = compiled(x, y)
    assert _is_quick(result)
    first = torch.autograd.grad(result.sum(), x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(result.sum(), x)


def test_gradients_of_gradients_are_refused() -> None:
    compiled, (x, y) = _trained(of_rows), _leaves()
    (gradient,) = torch.autograd.grad(compiled(x, y).square().sum(), x, create_graph=True)
    expected = torch.autograd.grad(of_rows(x, y).square().sum(), x)
    torch.testing.assert_close((gradient.detach(),), expected)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(gradient.sum(), x)


def test_a_saved_tensor_may_not_change() -> None:
    compiled, (x, y) = _trained(of_rows), _leaves()
    result = compiled(x, y)
    assert _is_quick(result)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x @ y[:, :1],
        lambda x, y: x.t() * x.t() * y.sum(),
        lambda x, y: x[1:] * x[:-1] * y[0].mean(),
    ],
    ids=["product", "transposed", "parts"],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_tensor_with_a_saved_view_may_not_change(function: Any, dynamic: bool) -> None:
    x, y = torch.randn(6, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    result = torch.compile(function, backend="pyfuser", dynamic=dynamic)(x, y)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_a_result_may_change_beside_a_view_of_it(shape: tuple[int, ...]) -> None:
    """The view is returned first, and is the whole."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        doubled = x * 2
        return doubled.expand_as(doubled), doubled

    compiled, x = torch.compile(function, backend="pyfuser"), torch.randn(shape, requires_grad=True)
    for which in (0, 1):
        results = compiled(x)
        assert [each._is_view() for each in results] == [True, False]
        results[which].unsqueeze(0).mul_(3)
        torch.testing.assert_close(results, (x * 6, x * 6))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_computed_in_another_shape_is_no_view(dynamic: bool) -> None:
    """A kernel writes the product with its batches as one axis, which no result has."""

    def views_first(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        doubled = (x @ y) * 2
        return doubled.view_as(doubled), doubled, doubled.unsqueeze(0)

    def saved(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return ((x @ y).exp(),)

    leaves = [torch.randn(size, requires_grad=True) for size in ((2, 3, 4, 5), (2, 3, 5, 1))]
    for function, are_views in ((views_first, [True, False, True]), (saved, [False])):
        compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
        for which in range(len(are_views)):
            results = compiled(*leaves)
            assert [each._is_view() for each in results] == are_views
            results[which].squeeze().mul_(3)
            torch.testing.assert_close(results, tuple(each * 3 for each in function(*leaves)))


def test_a_backward_knows_that_only_its_forward_was_not_deterministic() -> None:
    compiled, (x, y) = _trained(of_rows), _leaves()
    result = compiled(x, y)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            result.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_hooks_of_saved_tensors_run() -> None:
    compiled, (x, y) = _trained(of_rows), _leaves()
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor.detach().clone())
        return len(packed) - 1

    with saved_tensors_hooks(pack, packed.__getitem__):
        found = _step(compiled, [x, y])
    assert packed
    torch.testing.assert_close(found, _step(of_rows, [x, y]))


def test_calls_without_gradients_in_between() -> None:
    compiled, (x, y) = _trained(of_rows), _leaves()
    expected = of_rows(x, y).detach()
    for _ in range(2):
        with torch.no_grad():
            assert not compiled(x, y).requires_grad
        with torch.inference_mode():
            torch.testing.assert_close(compiled(x, y), expected)
        torch.testing.assert_close(_step(compiled, [x, y]), _step(of_rows, [x, y]))


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast(enabled: bool) -> None:
    weight = torch.randn(8, 8)

    def product(x: Tensor, y: Tensor) -> Tensor:
        return (x.float() @ weight).relu() + y.float()

    compiled = torch.compile(product, backend=BACKEND, dynamic=False)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            x, y = _leaves()
            result, expected = compiled(x, y), product(x, y)
            assert result.dtype == expected.dtype
        torch.testing.assert_close(
            torch.autograd.grad(result.sum(), (x, y)), torch.autograd.grad(expected.sum(), (x, y))
        )


def test_compiled_autograd_traces_the_backward() -> None:
    compiled, (x, y) = _trained(of_rows), _leaves()
    result = compiled(x, y).square()
    expected = torch.autograd.grad(of_rows(x, y).square().sum(), (x, y))
    with compiled_autograd._enable(torch.compile(backend=BACKEND)):
        result.sum().backward()
    torch.testing.assert_close((x.grad, y.grad), expected)


def test_a_backward_in_a_traced_function() -> None:
    inner = _trained(of_rows)

    @torch.compile(backend=BACKEND)
    def outer(x: Tensor, y: Tensor) -> Any:
        result = inner(x, y) * 2
        torch._dynamo.graph_break()
        result.sum().backward()
        return result.detach() + 1

    for _ in range(3):
        x, y = _leaves()
        torch.testing.assert_close(outer(x, y), (of_rows(x, y) * 2 + 1).detach())
        torch.testing.assert_close((x.grad,), torch.autograd.grad((of_rows(x, y) * 2).sum(), x))


def test_threads_train_one_function() -> None:
    compiled: _Function = torch.compile(of_rows, backend=BACKEND, dynamic=False)
    expected, wrong = _step(of_rows, _leaves()), []

    def train() -> None:
        try:
            for _ in range(10):
                torch.testing.assert_close(_step(compiled, _leaves()), expected)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=train) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def giving_a_view_too(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x = x * 1
    return x.view(-1)[::2], x


def changing_an_input(x: Tensor, y: Tensor) -> Tensor:
    y[1:] = 1
    return x * y


def giving_an_input_back(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x, x * y, y.t()


def of_numbers_too(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x * y, x.shape[0], None


def of_nothing_that_is_given(x: Tensor, y: Tensor) -> Tensor:
    return torch.arange(4.0)


ALONE = [
    of_rows,
    of_constants_too,
    of_reshaped_products,
    of_overlapping_windows,
    giving_a_view_too,
    changing_an_input,
    giving_an_input_back,
    of_numbers_too,
    of_nothing_that_is_given,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("function", ALONE)
def test_calls_without_gradients(function: _Function, with_gradients: bool, dynamic: bool) -> None:
    compiled: _Function = torch.compile(function, backend=BACKEND, dynamic=dynamic)
    for _ in range(3):
        given, expected = _inputs(), _inputs()
        with torch.set_grad_enabled(with_gradients):
            found = compiled(*given)
            torch.testing.assert_close(found, function(*expected))
            assert torch.is_grad_enabled() == with_gradients
        torch.testing.assert_close(given, expected)
        tensors = [each for each in flat(found) if isinstance(each, Tensor)]
        assert not any(each.requires_grad for each in tensors)


def test_the_gradients_are_back_after_an_error() -> None:
    def index(x: Tensor, places: Tensor) -> Tensor:
        return torch.index_select(x, 0, places) * 2

    compiled: _Function = torch.compile(index, backend=BACKEND, dynamic=False)
    x = _inputs()[0]
    for _ in range(2):
        torch.testing.assert_close(compiled(x, torch.tensor([1])), x[1:2] * 2)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, torch.tensor([9]))
    assert torch.is_grad_enabled()


def test_inputs_in_a_list() -> None:
    @torch.compile(backend=BACKEND, dynamic=False)
    def total(tensors: list[Tensor]) -> Any:
        return sum(tensors[1:], tensors[0])

    for _ in range(3):
        x, y = _inputs()
        torch.testing.assert_close(total([x, y]), x + y)
        torch.testing.assert_close(total([x]), x)


def test_another_torch_keeps_its_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_calls, "IS_KNOWN", False)
    compiled, (x, y) = _trained(of_rows), _leaves()
    assert not _is_quick(compiled(x, y))
    torch.testing.assert_close(_step(compiled, [x, y]), _step(of_rows, [x, y]))
