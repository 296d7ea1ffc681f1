"""Removes nodes without readers: earlier passes leave them, and they would separate others.

Before:  a = mul(x, y); b = add(a, 1); return a
After:   a = mul(x, y); return a
"""

from __future__ import annotations

from torch.fx import Graph

from ..op_facts import has_effects


def drop_dead_nodes(graph: Graph) -> None:
    """Erases calls that have neither readers nor effects."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not has_effects(node):
            graph.erase_node(node)
