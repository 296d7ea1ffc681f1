"""Equal views of one tensor are one input of a region."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict


def _fake_quantised(x: Tensor, scale: Tensor) -> Tensor:
    rounded = torch.clamp(torch.round(x / scale[:, None]), -128, 127)
    return ((rounded - x / scale[:, None]).detach() + x / scale[:, None]) * scale[:, None]


def _with_results(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x * scale[:, None], scale[:, None], scale[:, None]


def _with_an_update(x: Tensor, scale: Tensor) -> Tensor:
    before = x / scale[:, None]
    scale.mul_(2)
    return before - x / scale[:, None]


@pytest.mark.parametrize("function", [_fake_quantised, _with_results, _with_an_update])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_are_those_of_eager(function: object, dynamic: bool) -> None:
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)  # type: ignore[call-overload]
    for rows, columns in ((64, 65), (7, 9)):
        x, scale = torch.randn(rows, columns), torch.rand(rows) + 0.5
        ours, theirs = scale.clone(), scale.clone()
        torch.testing.assert_close(compiled(x, ours), function(x, theirs))  # type: ignore[operator]
        assert torch.equal(ours, theirs)


def test_a_region_reads_the_scale_once(sources: list[str]) -> None:
    torch.compile(_fake_quantised, backend="pyfuser")(torch.randn(64, 65), torch.rand(64) + 0.5)
    (source,) = sources
    assert source.count(".data_ptr()") == 3  # of x, scale and the result
