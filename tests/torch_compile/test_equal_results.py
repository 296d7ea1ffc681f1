"""Equal results of a kernel are stored once: what autocast rounds for each of several products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyfuser.torch_compile.graph_passes import half_products
from tests.support.compiled import assert_as_close_as_eager
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict


def _projections(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", torch.bfloat16):
        return tuple((x * 2) @ weight for weight in weights)


def _with_results(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.exp() for _ in weights) + tuple(x.exp() @ weight for weight in weights)


def _with_an_update(x: Tensor, *weights: Tensor) -> Tensor:
    before = x.exp() @ weights[0]
    x.mul_(0.5)
    return before + x.exp() @ weights[1] + x.exp() @ weights[2]


def _of_random_numbers(x: Tensor, *weights: Tensor) -> Tensor:
    same = [torch.nn.functional.dropout(x, 0.5) @ weight for weight in weights]
    return torch.stack(same)


@pytest.mark.parametrize(
    "function", [_projections, _with_results, _with_an_update, _of_random_numbers]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_are_those_of_eager(
    function: object, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With products in the library's own precision."""
    monkeypatch.setattr(half_products, "is_faster_in_float32", lambda dtype: False)
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)  # type: ignore[call-overload]
    for rows in (64, 7):
        x, weights = torch.randn(rows, 65) / 8, torch.randn(3, 65, 33)
        ours, theirs = x.clone(), x.clone()
        with torch.no_grad():
            torch.manual_seed(0)
            made = compiled(ours, *weights)
            torch.manual_seed(0)
            expected = function(theirs, *weights)  # type: ignore[operator]
        torch.testing.assert_close(made, expected)
        assert torch.equal(ours, theirs)
        assert len({each.data_ptr() for each in made}) == len(made)


@pytest.mark.parametrize("dynamic", [False, True])
def test_rounded_results_are_as_exact_as_those_of_eager(dynamic: bool) -> None:
    """autocast leaves float64 alone, so that is the exact result."""
    compiled = torch.compile(_projections, backend="pyfuser", dynamic=dynamic)
    for rows in (64, 7):
        x, weights = torch.randn(rows, 65) / 8, torch.randn(3, 65, 33)
        with torch.no_grad():
            made = compiled(x, *weights)
            eager, exact = _projections(x, *weights), _projections(x.double(), *weights.double())
        named = [dict(zip("abc", each, strict=True)) for each in (made, eager, exact)]
        assert_as_close_as_eager(*named, factor=1)
        assert len({each.data_ptr() for each in made}) == len(made)


def test_an_activation_is_rounded_once(sources: list[str]) -> None:
    x, weights = torch.randn(64, 65), torch.randn(3, 65, 33)
    with torch.no_grad():
        torch.compile(_projections, backend="pyfuser")(x, *weights)
    (source,) = sources
    assert source.count("empty((64, 65)") == 1
