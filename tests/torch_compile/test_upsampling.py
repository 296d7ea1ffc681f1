"""`interpolate` in a compiled graph is one of torch's operations, and gives eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from pyfuser.torch_compile.backend import BackendOptions, compile_with
from pyfuser.torch_compile.compiled_graph import Call, compile_graph
from pyfuser.torch_compile.graph_passes import half_products
from tests.support.compiled import BACKEND, assert_as_close_as_eager
from tests.support.compiled import strict as strict

MODES = [
    ("nearest", 3), ("nearest", 4), ("nearest", 5),
    ("nearest-exact", 3), ("nearest-exact", 4), ("nearest-exact", 5),
    ("linear", 3), ("bilinear", 4), ("bicubic", 4), ("trilinear", 5), ("area", 4),
]  # fmt: skip
SIZES: list[dict[str, Any]] = [
    {"size": 9},
    {"scale_factor": 1.7},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
]
SHAPE = (2, 3, 5, 6, 4)


def gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and the gradient of its sum."""
    x = x.clone().requires_grad_()
    result = function(x)
    result.float().sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad


def assert_as_eager(function: Callable[[Tensor], Tensor], *inputs: Tensor, **how: Any) -> None:
    compiled = torch.compile(function, backend=BACKEND, **how)
    for x in inputs:
        for ours, eagers in zip(gradient(compiled, x), gradient(function, x), strict=True):
            assert ours.stride() == eagers.stride()
            torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize(("mode", "rank"), MODES)
def test_every_mode(mode: str, rank: int) -> None:
    for sizes in SIZES:
        torch._dynamo.reset()
        assert_as_eager(
            lambda x, sizes=sizes: F.interpolate(x * 2, mode=mode, **sizes),
            torch.randn(SHAPE[:rank]),
        )


@pytest.mark.parametrize(("mode", "rank"), MODES[:-1])
def test_both_passes_are_one_operation_each(mode: str, rank: int) -> None:
    called: list[str] = []

    def noted(traced: GraphModule) -> Call:
        called.extend(str(n.target) for n in traced.graph.nodes if n.op == "call_function")
        return compile_graph(traced)

    def backend(graph: GraphModule, inputs: list[Any]) -> Any:
        return compile_with(graph, inputs, BackendOptions(), noted)

    compiled = torch.compile(lambda x: F.interpolate(x * 2, size=9, mode=mode), backend=backend)
    gradient(compiled, torch.randn(SHAPE[:rank]))
    upsampling = [name for name in called if "upsample" in name]
    assert len(upsampling) == 2 and "backward" in upsampling[1]
    assert not any("index" in name for name in called)


def test_changing_sizes() -> None:
    inputs = [torch.randn(size, 3, size + 2, 4) for size in (2, 3, 5)]
    assert_as_eager(
        lambda x: F.interpolate(x.sin(), scale_factor=2, mode="bilinear"), *inputs, dynamic=True
    )


def test_layouts_and_dtypes() -> None:
    x = torch.randn(2, 3, 5, 6)
    assert_as_eager(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True).relu(),
        x.to(memory_format=torch.channels_last),
        x.bfloat16(),
        x.double(),
    )


def test_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a convolution in the library's own precision; in float32 it is as exact."""
    weight = torch.randn(3, 3, 1, 1)

    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.interpolate(F.conv2d(x, weight), scale_factor=2, mode="bilinear")

    x = torch.randn(2, 3, 5, 6)
    exact = F.interpolate(F.conv2d(x, weight), scale_factor=2, mode="bilinear")
    made, eager = torch.compile(function, backend=BACKEND)(x), function(x)
    assert_as_close_as_eager({"": made}, {"": eager}, {"": exact}, factor=1)
    monkeypatch.setattr(half_products, "is_faster_in_float32", lambda dtype: False)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(function, backend=BACKEND)(x), function(x))


def test_inside_of_a_transform() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.vmap(lambda y: F.interpolate(y, scale_factor=2, mode="bilinear"))(x) * 2

    x = torch.randn(2, 2, 3, 4, 4)
    torch.testing.assert_close(torch.compile(function, backend=BACKEND)(x), function(x))
