"""Tensors whose memory runs across that of others, which kernels of their own transpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.ir.fusion import Fusion
from pyfuser.ops import builders
from pyfuser.profiling import Recorder, recording
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
        lambda x: torch.softmax(x.t()[None], 2).contiguous(),
        lambda x: functional.layer_norm(x[None, :, None].mT.mT, x.shape[1:]).mT.contiguous(),
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
        assert "runs across that of another" in segmented.segments[0].reason


def _kinds(function: Callable[..., object], *inputs: Tensor) -> list[str]:
    """The schedulers of a function's kernels."""
    with recording(Recorder()) as recorder:
        torch.compile(function, backend="pyfuser", dynamic=False)(*inputs)
    return [part.scheduler for call in recorder.calls for part in call.parts]


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(80, 128), (1, 80, 128), (2, 80, 128), (80, 1, 128)])
def test_a_norm_across_memory_is_transposed_by_itself(shape: tuple[int, ...]) -> None:
    """What is stored between the two kernels lies as the first one's input, whatever the batch."""
    x = torch.randn(128, *shape[:-1]).movedim(0, -1)
    kinds = _kinds(lambda x: x.softmax(-1).contiguous(), x)
    assert kinds == ["outer_persistent", "transpose"]


def _both_ways(x: Tensor) -> tuple[Tensor, ...]:
    return x * 2, (x.exp() * 3).mT.contiguous(), x.sin()


@pytest.mark.parametrize("shape", [(80, 128), (1, 80, 128), (3, 67, 65)])
@pytest.mark.parametrize("turned", [False, True])
def test_outputs_that_run_across_each_other(shape: tuple[int, ...], turned: bool) -> None:
    x = torch.randn(shape)
    x = x.mT.contiguous().mT if turned else x
    for found, expected in zip(
        torch.compile(_both_ways, backend="pyfuser")(x), _both_ways(x), strict=True
    ):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


@pytest.mark.cpu
def test_a_pointwise_kernel_stores_in_one_order() -> None:
    assert sorted(_kinds(_both_ways, torch.randn(80, 128))) == ["pointwise", "transpose"]
    assert _kinds(_both_ways, torch.randn(8, 12)) == ["pointwise"]  # less than a launch
    assert len(_kinds(_both_ways, torch.randn(5000, 4))) == 1  # four columns are stored together
    assert len(_kinds(_both_ways, torch.randn(4, 5000))) == 1
