"""Reductions beside tensors whose memory runs across theirs, which other kernels transpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.ir.fusion import Fusion
from pyfuser.ops import builders
from tests.segment.fusions import schedulers, softmax, tensor
from tests.support.compiled import strict as strict
from tests.support.targets import segment, size_info

Function = Callable[[Tensor], Tensor]


def _sum_of_both(x: Tensor) -> Tensor:
    return (x + x.t()).sum(1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, 1).t().contiguous(),
        lambda x: torch.softmax(x, 0).t().contiguous(),
        lambda x: torch.softmax(x.t(), 1).contiguous(),
        lambda x: functional.layer_norm(x, x.shape[1:]).t().exp().contiguous(),
        lambda x: (x + x.t()).softmax(1),
        _sum_of_both,
        lambda x: (x.cumsum(1) * 2).t().contiguous(),
    ],
)
@pytest.mark.parametrize("size", [5, 67, 131])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_are_those_of_eager(function: Function, size: int, dynamic: bool) -> None:
    """Below the size from which kernels are separate, and above it."""
    x = torch.randn(size, size)
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    expected = function(x)
    assert compiled(x).stride() == expected.stride()
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("size", [16, 128])
def test_only_large_tensors_are_kept_apart(size: int) -> None:
    """A small one costs less than a second kernel."""
    fusion = Fusion()
    x = tensor(fusion, 2)
    turned = builders.permute(fusion, softmax(fusion, x), [1, 0])
    fusion.add_output(builders.exp(fusion, turned))
    names = [axis.size.name for axis in x.axes]
    segmented = segment(fusion, size_info(dict.fromkeys(names, size)))
    expected = ["inner_persistent"] if size < 64 else ["inner_persistent", "transpose"]
    assert schedulers(segmented) == expected
    if size >= 64:
        assert "runs across the rows" in segmented.segments[0].reason
