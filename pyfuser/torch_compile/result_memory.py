"""Which of several results in one memory the others are views of, as autograd sees it."""

from __future__ import annotations

import torch
from torch.fx import Node

from .graph import TracedGraph
from .saved_layouts import is_saved
from .views import viewed


def owners_of_results(traced: TracedGraph) -> dict[Node, Node]:
    """For each memory with results in it, by its base, the one that isn't a view for autograd.

    The others are views of it and count their changes together.  The caller may change it in place,
    which autograd refuses for a view that a compiled forward returns.  So it is a result that the
    caller gets, if there is one, not what only the backward reads; among these, the one that the
    program made the others from.  That needn't be the base: graph passes may let a kernel write
    another shape than that of any result.
    """
    results: dict[Node, bool] = {}  # and whether the caller gets it
    for number, node in enumerate(traced.outputs):
        if isinstance(node, Node) and node in traced.views:
            is_for_caller = not is_saved(traced.graph_module, number)
            results[node] = results.get(node, False) or is_for_caller
    owners: dict[Node, Node] = {}
    for node in sorted(results, key=results.__getitem__, reverse=True):
        base = traced.views.base(node)
        if base not in owners:
            owners[base] = base if base.op == "placeholder" else _first(node, results)
    return owners


def _first(node: Node, results: dict[Node, bool]) -> Node:
    """The result that a result is a view of, and that is a view of no other of its kind."""
    found, each = node, _source(node)
    while each is not None:
        if results.get(each) == results[node]:
            found = each
        each = _source(each)
    return found


def _source(node: Node) -> Node | None:
    """What a node is a view of; for a copy, the memory that was written to."""
    if node.target is torch.ops.aten.copy_.default:
        assert isinstance(node.args[0], Node)
        return node.args[0]
    return viewed(node)
