"""Programs that once partly fell back, found by random programs and shrunk.

Each runs strictly: a fallback is an error.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.compiled import strict as strict

Function = Callable[..., tuple[Tensor, ...]]


def _norm_backward_late(x: Tensor) -> tuple[Tensor, ...]:
    """The backward picks one result of the norm's, and reads it a library call later."""
    rows = x.view(2, -1)
    index = torch.arange(4)[:, None] * 3 % 2
    return torch.gather(rows, 0, index), functional.layer_norm(rows, (1,)).t()


def _output_beside_norm(x: Tensor) -> tuple[Tensor, ...]:
    """An output that only the norm's operand connects with the norm, by an input of less axes."""
    doubled = x * 2
    row = doubled[None, :, :, 0, 0]
    held = torch.where(row < 0.1, 3, row).clamp(min=doubled)
    return held.cos(), functional.rms_norm(held, (3,), eps=0.1)


def _number_before_and_after_sum(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """The backward reads a tensor of one element before and after a sum over the other axis."""
    return (y / (torch.sub(x, x, alpha=2) ** 2 + 0.5),)


@pytest.mark.parametrize(
    ("function", "shapes", "dtype"),
    [
        (_norm_backward_late, [(2,)], torch.float32),
        (_output_beside_norm, [(3, 3, 1, 1)], torch.float32),
        (_output_beside_norm, [(5, 3, 1, 1)], torch.float32),
        (_number_before_and_after_sum, [(1,), (1, 0)], torch.float16),
        (_number_before_and_after_sum, [(1,), (1, 37)], torch.float16),
    ],
)
def test_runs_in_kernels(
    function: Function, shapes: list[tuple[int, ...]], dtype: torch.dtype
) -> None:
    compiled = torch.compile(function, backend="pyfuser")
    torch.manual_seed(0)
    given = [torch.randn(shape, dtype=dtype) for shape in shapes]
    results = []
    for run in (function, compiled):
        inputs = [x.clone().requires_grad_() for x in given]
        outputs = run(*inputs)
        gradients = torch.autograd.grad([out.double().sum() for out in outputs], inputs)
        results.append([*outputs, *gradients])
    tolerance = 1e-2 if dtype is torch.float16 else 1e-5
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, atol=tolerance, rtol=tolerance)


def test_a_gather_of_the_first_columns_only() -> None:
    """A computation after the gather would need the first columns of a row that broadcasts."""

    def first(mask: Tensor, x: Tensor, index: Tensor) -> Tensor:
        return torch.where(mask, x, -0.7).gather(0, index)

    x, mask = torch.randn(3, 7), torch.arange(7) % 3 > 0
    for columns in (1, 2, 7):
        index = torch.tensor([2, 0])[:, None].expand(2, columns)
        expected = first(mask, x, index)
        assert torch.equal(torch.compile(first, backend="pyfuser")(mask, x, index), expected)


def test_a_cat_of_hundreds_of_parts() -> None:
    def reversed_parts(x: Tensor) -> Tensor:
        return torch.cat([part.sin() for part in x.split(2)][::-1])

    x = torch.randn(600, 5)
    compiled = torch.compile(reversed_parts, backend="pyfuser")
    torch.testing.assert_close(compiled(x), reversed_parts(x))


def test_a_tangent_is_as_large_as_the_memory_of_its_tensor() -> None:
    """The size of an argument's memory changes, although its shape doesn't."""

    def derivative(x: Tensor) -> Tensor:
        found: Tensor = torch.func.jacfwd(torch.tanh)(x)
        return found

    compiled = torch.compile(derivative, backend="pyfuser")
    for x in (torch.randn(12)[::2], torch.randn(8)[2:8], torch.randn(9)[1:-2]):
        torch.testing.assert_close(compiled(x), derivative(x))
