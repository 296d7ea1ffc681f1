"""Which of several results in one memory the others are views of, as autograd sees it.

AOTAutograd makes a result that the program made as a view again, from its base: a result, too.  The
caller may change that base in place, which autograd refuses for a view that a compiled forward
returns.  So the base has to be the owner of the memory, of which other results are views.

    y = x * 2; return y.flatten()[3:], y        the owner is y

The graph alone doesn't say so once passes have changed it.  Here they may compute the flat product,
and make both results views of it.  AOTAutograd knows it while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from .aot_metadata import metadata_of_results
from .graph import TracedGraph
from .saved_layouts import is_saved
from .views import Views, viewed

aten = torch.ops.aten

_NAME = "pyfuser_bases"  # an attribute, since a graph in a cache keeps these


def note_bases(graph_module: GraphModule) -> None:
    """Notes which results of a forward graph autograd differentiates and are views of no other."""
    known = metadata_of_results()
    if known is None:
        return
    start = known.num_mutated_inp_runtime_indices
    end = start + len(known.output_info)
    graph_module.__dict__[_NAME] = {
        *range(start),  # new values of arguments
        *range(end, end + known.num_intermediate_bases),
        *(
            start + number
            for number, info in enumerate(known.output_info)
            if info.requires_grad and not info.output_type.name.startswith("alias_of_")
        ),
    }


def owners_of_results(traced: TracedGraph) -> dict[Node, Node]:
    """For each memory with results in it, by its base, the one of which the others are views.

    A result that the caller gets, if there is one, not what only the backward reads; a noted one
    before others; and among these, the one from which the others were made.
    """
    noted = traced.graph_module.__dict__.get(_NAME, ())
    ranks: dict[Node, int] = {}
    for number, node in enumerate(traced.outputs):
        if isinstance(node, Node) and node in traced.views:
            is_for_caller = not is_saved(traced.graph_module, number)
            ranks[node] = max(ranks.get(node, 0), is_for_caller + (number in noted))
    owners: dict[Node, Node] = {}
    for node in sorted(ranks, key=ranks.__getitem__, reverse=True):
        base = traced.views.base(node)
        if base not in owners:
            owners[base] = base if base.op == "placeholder" else _first(node, ranks, traced.views)
    return owners


def is_detached(node: Node, views: Views) -> bool:
    """True for a view, on whose way from its base autograd was told to look away."""
    return any(each.target is aten.detach.default for each in _chain(node, views))


def _first(node: Node, ranks: dict[Node, int], views: Views) -> Node:
    """The result that a result is a view of, and that is a view of no other of its rank."""
    return [each for each in _chain(node, views) if ranks.get(each) == ranks[node]][-1]


def _chain(node: Node, views: Views) -> Iterator[Node]:
    """A node and what it is a view of, up to the base of the view."""
    each: Node | None = node
    while each is not None and views.base(each) is views.base(node):
        yield each
        is_update = each.target is aten.copy_.default  # the memory that was written to
        each = each.all_input_nodes[0] if is_update else viewed(each)
