"""Merges equal views of one tensor, for the regions that read them would take them for two inputs.

Inside a region, equal operations on equal operands are merged (`preseg/common_subexpressions.py`).
Other calls stay: a merged result would have to be kept from its first reader to its last.

    Before:  a = unsqueeze(s, 1); b = div(x, a); c = unsqueeze(s, 1); d = div(x, c)
    After:   a = unsqueeze(s, 1); b = div(x, a); d = div(x, a)
"""

from __future__ import annotations

from torch.fx import Graph, Node

from ..common_subexpressions import merge_equal_calls
from ..views import is_getitem, is_updated, is_view, leaves_graph


def merge_equal_views(graph: Graph) -> None:
    """Replaces views by equal ones before them."""
    merge_equal_calls(graph, filter(_is_mergeable, list(graph.nodes)))


def _is_mergeable(node: Node) -> bool:
    """True for a view that isn't visible outside the graph, of a tensor that isn't updated."""
    is_one = is_view(node) and not is_getitem(node)
    return is_one and not leaves_graph(node) and not is_updated(node)
