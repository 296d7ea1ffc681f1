"""Merges equal results of one kernel, such as an activation that autocast rounds for each product.

A kernel would compute them once, but store each in memory of its own.  Equal calls in different
kernels stay: a merged result would have to be kept from its first reader to its last.  Graphs with
gradients have no equal calls any more.  Needs to know which calls a kernel may hold, so it runs
after the other passes.

    Before:  a = _to_copy(x, bfloat16); b = mm(a, v); c = _to_copy(x, bfloat16); d = mm(c, w)
    After:   a = _to_copy(x, bfloat16); b = mm(a, v); d = mm(a, w)
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Graph, Node

from ..common_subexpressions import call_key, is_pure_inner_call, merge_equal_calls
from ..partition import partition
from ..views import is_updated
from .equal_views import merge_equal_views


def merge_equal_results(graph: Graph, outside: Mapping[Node, str]) -> None:
    """Replaces calls by equal ones of the same region; nodes in `outside` are in none."""
    if not _has_equal_calls(graph):
        return
    regions = partition(graph, outside).regions
    merged = [merge_equal_calls(graph, filter(_is_mergeable, each.nodes)) for each in regions]
    if any(merged):
        merge_equal_views(graph)


def _has_equal_calls(graph: Graph) -> bool:
    keys = [call_key(node, lambda n: n) for node in graph.nodes if _is_mergeable(node)]
    found = [key for key in keys if key is not None]
    return len(set(found)) < len(found)


def _is_mergeable(node: Node) -> bool:
    return is_pure_inner_call(node) and not is_updated(node)
