"""Products of a single row or column in several batch axes are in the kernels around them.

The oracle is eager in float64; the error may be a few times eager's own in the tested dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.compiled import assert_as_close_as_eager
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise
from tests.torch_compile.errors_of_results import compared

pytestmark = pytest.mark.usefixtures("poison")

Function = Callable[[Tensor, Tensor], Tensor]


def _column(a: Tensor, b: Tensor) -> Tensor:
    return (a.exp() @ b[..., :1]).squeeze(-1).sigmoid()


def _row(a: Tensor, b: Tensor) -> Tensor:
    return (b[..., 0, :].unsqueeze(-2) @ a.sin()).tanh() + 1


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :1].exp() @ b[..., :1, :] + 1


def _transposed(a: Tensor, b: Tensor) -> Tensor:
    return (a.exp().mT @ b[..., :1]).sigmoid()


def _einsum(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("bhkv,bhk->bhv", a.exp(), b[..., 0]).sigmoid()


def _expanded(a: Tensor, b: Tensor) -> Tensor:
    return (a[:1].exp() @ b[..., :1]).sigmoid()


def _recurrence(a: Tensor, b: Tensor) -> Tensor:
    state, found = torch.zeros_like(a), []
    for step in range(3):
        key = b[..., step]
        known = torch.einsum("bhkv,bhk->bhv", state, key)
        state = state * 0.9 + key.unsqueeze(-1) * (a[..., step, :] - known).unsqueeze(-2)
        found.append(key.unsqueeze(-2) @ state)
    return torch.cat(found, -2)


def _read_in_both_shapes(a: Tensor, b: Tensor) -> Tensor:
    merged = a.exp().flatten(0, 1).bmm(b[..., :1].flatten(0, 1))
    return merged.unflatten(0, a.shape[:2]).sigmoid().sum((0, 1)) + merged.cos().sum(0)


FUNCTIONS: dict[str, Function] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        *(_column, _row, _outer, _transposed, _einsum, _expanded),
        *(_recurrence, _read_in_both_shapes),
    )
}
SHAPES = [(2, 3, 7, 7), (1, 4, 16, 16), (3, 1, 5, 5), (2, 2, 33, 33)]


def _gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> dict[str, Tensor]:
    found = function(*inputs)
    grads = torch.autograd.grad(found, inputs, found.detach())
    return {"result": found.detach(), **{f"{i}": grad for i, grad in enumerate(grads)}}


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    pairwise(FUNCTIONS, SHAPES, (torch.float32, torch.bfloat16), strength=1),
)
def test_gradients(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    inputs = [(torch.randn(shape) / 2).to(dtype).requires_grad_() for _ in range(2)]
    doubles = [each.detach().double().requires_grad_() for each in inputs]
    got = _gradients(torch.compile(function, backend="pyfuser"), inputs)
    assert_as_close_as_eager(got, _gradients(function, inputs), _gradients(function, doubles))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transposed_and_expanded_inputs(name: str) -> None:
    a = torch.randn(3, 6, 2, 6).transpose(1, 2)
    b = torch.randn(1, 1, 6, 6).expand(3, 2, 6, 6)
    found = compared(FUNCTIONS[name], a, b)
    assert found.got.stride() == found.eager.stride()
    found.require_as_precise(64 * found.rounding * max(found.scale, 1.0))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_changing_sizes(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    for shape in ((2, 3, 5, 5), (4, 2, 8, 8), (3, 5, 17, 17)):
        inputs = [(torch.randn(shape) / 2).requires_grad_() for _ in range(2)]
        got, wanted = _gradients(compiled, inputs), _gradients(function, inputs)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_the_steps_of_a_recurrence_are_one_region(sources: list[str]) -> None:
    a, b = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
    torch.compile(_recurrence, backend="pyfuser")(a, b)
    (source,) = sources
    assert "mm" not in source and "f1_" not in source


def test_a_backward_saves_no_copies_of_operands(sources: list[str]) -> None:
    inputs = [torch.randn(2, 3, 16, 16, requires_grad=True) for _ in range(2)]
    _gradients(torch.compile(_recurrence, backend="pyfuser"), inputs)
    assert sources
    assert not any("clone" in source or "mm" in source for source in sources)


def test_a_product_that_is_a_result_may_be_changed() -> None:
    def both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        made = a.exp().flatten(0, 1).bmm(b.flatten(0, 1))
        return made, made.unflatten(0, (2, 3)).sin()

    a, b = torch.randn(2, 3, 4, 5, requires_grad=True), torch.randn(2, 3, 5, 1, requires_grad=True)
    made, sine = torch.compile(both, backend="pyfuser")(a, b)
    expected, expected_sine = both(a, b)
    torch.testing.assert_close((made.mul_(2), sine), (expected.mul_(2), expected_sine))


def test_products_of_the_library_keep_their_batch(sources: list[str]) -> None:
    a, b = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    got = torch.compile(lambda a, b: (a.exp() @ b).sigmoid(), backend="pyfuser")(a, b)
    torch.testing.assert_close(got, (a.exp() @ b).sigmoid())
    assert "into_bmm" in sources[0]
