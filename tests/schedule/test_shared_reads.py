"""Inputs that results without anything else in common read: once, in one nest of loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyfuser import DataType, FusionDefinition, compiler
from pyfuser.analysis.layouts import layout_of
from pyfuser.frontend.tensor_view import TensorView
from pyfuser.ops.binding import bind
from tests.support.targets import PRETENDED

Build = Callable[[FusionDefinition, TensorView, TensorView], tuple[TensorView, ...]]
BUILDS: dict[str, tuple[Build, list[int]]] = {
    "pointwise": (lambda fd, x, y: (fd.ops.add(x, y), fd.ops.sub(x, y)), [1, 1]),
    "rows": (lambda fd, x, y: (fd.ops.sum(x, 1), fd.ops.max(x, 1)), [1, 0]),
    "columns": (lambda fd, x, y: (fd.ops.sum(x, 0), fd.ops.sum(fd.ops.mul(x, x), 0)), [1, 0]),
    "all": (lambda fd, x, y: (fd.ops.min(x), fd.ops.max(x)), [1, 0]),
    "three": (
        lambda fd, x, y: (fd.ops.sum(fd.ops.mul(x, y), 0), fd.ops.sum(x, 0), fd.ops.max(y, 0)),
        [1, 1],
    ),
    "a weight": (lambda fd, x, y: (fd.ops.mul(x, 2.0), fd.ops.exp(fd.ops.add(x, 1.0))), [1, 0]),
}


def definition(build: Build, dtype: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True, dtype=dtype) for _ in range(2))
        for result in build(fd, x, y):
            fd.add_output(result)
    return fd


@pytest.mark.parametrize("name", BUILDS)
def test_each_input_is_read_in_one_place(name: str) -> None:
    build, reads = BUILDS[name]
    fusion = definition(build, DataType.Float).fusion.definition
    inputs = [torch.randn(64, 96) for _ in range(2)]
    layouts = [layout_of(x.shape, x.stride()) for x in inputs]
    text = compiler.stages(fusion, bind(fusion, inputs).sizes, layouts, PRETENDED)["scheduled"]
    lines = [line.split(" = ")[1] for line in text.splitlines() if " = " in line]
    assert [sum(f"T{i}_g" in line for line in lines) for i in range(2)] == reads, text


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Double], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (0, 5), (5, 0), (7, 3), (64, 96), (1, 4099), (300, 17)])
@pytest.mark.parametrize("name", BUILDS)
def test_results(name: str, shape: tuple[int, int], dtype: DataType) -> None:
    build, _ = BUILDS[name]
    if 0 in shape and name in ("rows", "all", "three"):
        pytest.skip("there is no maximum of nothing")
    fd = definition(build, dtype)
    kind = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16}
    inputs = [torch.randn(shape).to(kind.get(dtype, torch.float64)) for _ in range(2)]
    fd.validate(inputs)
