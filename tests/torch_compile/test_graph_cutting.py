"""A graph whose cut is repeated: the passes run once, nodes that don't fit are left to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node

from pyfuser.errors import UnsupportedError
from pyfuser.torch_compile import compiled_graph, graph
from pyfuser.torch_compile.graph import TracedGraph
from pyfuser.torch_compile.graph_text import op_name
from tests.support.compiled import BACKEND, strict  # noqa: F401


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the passes that ran."""
    ran: list[str] = []

    def noting(change: Callable[[Graph], object]) -> Callable[[Graph], object]:
        def run(given: Graph) -> None:
            ran.append(change.__name__)
            change(given)

        run.__name__ = change.__name__
        return run

    monkeypatch.setattr(graph, "GRAPH_PASSES", tuple(map(noting, graph.GRAPH_PASSES)))
    return ran


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[TracedGraph]:
    """The graphs that were made ready."""
    found: list[TracedGraph] = []
    prepare = compiled_graph.prepare

    def noting(*given: Any) -> TracedGraph:
        found.append(prepare(*given))
        return found[-1]

    monkeypatch.setattr(compiled_graph, "prepare", noting)
    return found


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two regions, with a product between them."""
    return torch.tanh((torch.exp(x) + 1) @ w) * 2


def outside(made: TracedGraph) -> dict[str, str]:
    return {op_name(node): why for node, why in made.outside.items()}


def check(passes: list[str], traced: list[TracedGraph], reason: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(torch.compile(program, backend=BACKEND)(x, w), program(x, w))
    (made,) = traced
    assert len(passes) == len(set(passes)) == len(graph.GRAPH_PASSES)
    assert {"aten::exp", "aten::add.Tensor"} <= outside(made).keys()
    assert outside(made)["aten::exp"] == reason
    assert len(made.fusions) == 1


def has_exp(nodes: list[Node]) -> bool:
    return any(op_name(node) == "aten::exp" for node in nodes)


def test_after_a_region_that_is_refused(
    passes: list[str], traced: list[TracedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    fusion_node = graph.fusion_node

    def refusing(region: Any, *arguments: Any) -> Any:
        if has_exp(region.nodes):
            raise UnsupportedError("not this one")
        return fusion_node(region, *arguments)

    monkeypatch.setattr(graph, "fusion_node", refusing)
    check(passes, traced, "not this one")


def test_after_a_region_without_a_kernel(
    passes: list[str], traced: list[TracedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernels = TracedGraph.without_kernels

    def first_region(self: TracedGraph) -> dict[Node, str]:
        found = without_kernels(self)
        for fusion in self.fusions:
            if has_exp(fusion.region.nodes):
                found |= dict.fromkeys(fusion.region.nodes, "too small")
        return found

    monkeypatch.setattr(TracedGraph, "without_kernels", first_region)
    check(passes, traced, "too small")
