"""Merges equal results of one kernel, such as an activation that autocast rounds for each product.

A kernel would compute them once, but store each in memory of its own.  Equal calls in different
kernels stay: a merged result would have to be kept from its first reader to its last.  Graphs with
gradients have no equal calls any more.  Needs to know which calls a kernel may hold, so it runs
after the other passes.

    Before:  a = _to_copy(x, bfloat16); b = mm(a, v); c = _to_copy(x, bfloat16); d = mm(c, w)
    After:   a = _to_copy(x, bfloat16); b = mm(a, v); d = mm(a, w)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from torch.fx import Graph, Node

from ..common_subexpressions import call_key
from ..op_facts import has_effects
from ..partition import partition
from ..views import is_updated, leaves_graph, note_storages
from .equal_views import merge_equal_views


def merge_equal_results(graph: Graph, outside: Mapping[Node, str]) -> None:
    """Replaces calls by equal ones of the same region; nodes in `outside` are in none."""
    if not _has_equal_calls(graph):
        return
    is_changed = False
    for region in partition(graph, outside).regions:
        known: dict[Hashable, Node] = {}
        for node in region.nodes:
            key = call_key(node, lambda n: n) if _is_mergeable(node) else None
            kept = known.setdefault(key, node) if key is not None else node
            if kept is not node:
                note_storages(kept, node)
                node.replace_all_uses_with(kept)
                graph.erase_node(node)
                is_changed = True
    if is_changed:
        merge_equal_views(graph)


def _has_equal_calls(graph: Graph) -> bool:
    keys = [call_key(node, lambda n: n) for node in graph.nodes if _is_mergeable(node)]
    found = [key for key in keys if key is not None]
    return len(set(found)) < len(found)


def _is_mergeable(node: Node) -> bool:
    """True for a call without effects whose result neither leaves the graph nor is updated."""
    is_pure = node.op == "call_function" and not has_effects(node)
    return is_pure and not leaves_graph(node) and not is_updated(node)
