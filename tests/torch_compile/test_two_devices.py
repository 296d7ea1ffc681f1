"""Graphs with tensors of two devices: what concerns one device alone is fused, the rest is torch's.

The other device is `meta`: without kernels, as it is, or with those of
tests/support/other_device.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pyfuser
from pyfuser.torch_compile.explain import Explanation
from tests.support.compiled import BACKEND, strict  # noqa: F401


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=BACKEND)


def on_both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Computes on the CPU and on the other device, and hands a result over."""
    a = torch.exp(x) * 2
    b = torch.sin(y) + 1
    moved = (a + 1).to(y.device)
    return a, b, torch.tanh(moved) * y, torch.relu(a - 3) * 2


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-1, 1, 12).reshape(3, 4), torch.empty(3, 4, device="meta")


def check(got: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for mine, eager in zip(got, wanted, strict=True):
        assert (mine.device, mine.shape, mine.stride()) == (
            eager.device,
            eager.shape,
            eager.stride(),
        )
        if eager.device.type == "cpu":
            torch.testing.assert_close(mine, eager)


def fused_ops(report: Explanation) -> list[set[str]]:
    """The ops of each region."""
    (graph,) = report.graphs
    return [{op.removeprefix("aten::").split(".")[0] for op in r.ops} for r in graph.regions]


def test_nodes_of_a_device_without_kernels_are_torchs() -> None:
    x, y = inputs()
    check(compiled(on_both)(x, y), on_both(x, y))
    report = pyfuser.explain(on_both, x, y)
    assert {"exp", "mul", "add"} <= set.union(*fused_ops(report))
    assert not {"sin", "tanh"} & set.union(*fused_ops(report))
    reasons = {op.removeprefix("aten::"): why for (op, why) in report.graphs[0].outside}
    assert reasons["sin"] == "tensors on meta"
    assert reasons["_to_copy"] == "tensors on meta and cpu"


def test_each_device_with_kernels_has_its_own(other_device: Any) -> None:
    x, y = inputs()
    check(compiled(on_both)(x, y), on_both(x, y))
    assert len(other_device.launches) == 2  # the sine; the tanh of what was handed over
    regions = fused_ops(pyfuser.explain(on_both, x, y))
    assert any("exp" in region for region in regions)
    assert any("sin" in region for region in regions)
    assert all(not ("exp" in region and "sin" in region) for region in regions)


def test_a_number_of_the_cpu_is_copied_to_who_reads_it_there(other_device: Any) -> None:
    x, y = inputs()
    number = torch.tensor(2.0)

    def program(x: torch.Tensor, y: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.exp(x) * n, torch.sin(y) * n, n + 1

    check(compiled(program)(x, y, number), program(x, y, number))
    (launch,) = other_device.launches
    assert number.data_ptr() not in launch


def test_what_reads_no_tensor_is_made_where_it_belongs(other_device: Any) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.exp(x), torch.arange(6, device="meta") * 2 + 1

    x = torch.ones(3)
    check(compiled(program)(x), program(x))


def test_a_device_that_is_switched_off_takes_its_graphs_with_it(other_device: Any) -> None:
    x, y = inputs()
    program = compiled(on_both)
    check(program(x, y), on_both(x, y))
    other_device.launches.clear()
    pyfuser.override_can_fuse_on_cpu(False)
    try:
        check(program(x, y), on_both(x, y))
        assert other_device.launches == []
    finally:
        pyfuser.override_can_fuse_on_cpu(None)
    check(program(x, y), on_both(x, y))
    assert len(other_device.launches) == 2


def test_a_graph_without_a_device_that_has_kernels_is_torchs() -> None:
    """As a whole; strictly, it is an error."""
    with pytest.raises(Exception, match="expected a device with kernels, got meta"):
        compiled(lambda y: torch.exp(y) + 1)(torch.ones(3, 4, device="meta"))
