"""Common subexpressions of an aten graph: equal computations are done once.

Replaces torch's pass of the same name when a joint graph is cut, because importing that one loads
all of Inductor, which takes longer than compiling a small model.

    Before:  a = exp(x); b = exp(x); c = a + b
    After:   a = exp(x); c = a + a
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from torch.fx import Graph, Node

from .op_facts import has_effects
from .views import leaves_graph, note_storages


def without_common_subexpressions(graph: Graph) -> Graph:
    """A copy of a functional graph in which equal calls are merged.

    Random ops, ops with effects, the graph's results and what they are views of keep their own
    nodes: two results must not share memory.
    """
    made = Graph()
    copies: dict[Node, Node] = {}
    known: dict[Hashable, Node] = {}
    for node in graph.nodes:
        key = call_key(node, copies.__getitem__) if is_pure_inner_call(node) else None
        found = known.get(key) if key is not None else None
        if found is None:
            found = made.node_copy(node, lambda n: copies[n])
            if key is not None:
                known[key] = found
        else:
            note_storages(found, node)
        copies[node] = found
    return made


def merge_equal_calls(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Replaces those of these calls that are equal to one before them; True if there are any."""
    known: dict[Hashable, Node] = {}
    is_changed = False
    for node in nodes:
        key = call_key(node, lambda n: n)
        kept = known.setdefault(key, node) if key is not None else node
        if kept is not node:
            note_storages(kept, node)
            node.replace_all_uses_with(kept)
            graph.erase_node(node)
            is_changed = True
    return is_changed


def is_pure_inner_call(node: Node) -> bool:
    """True for a call without effects or random numbers whose memory doesn't leave the graph."""
    if node.op != "call_function" or has_effects(node):
        return False
    return not leaves_graph(node)


def call_key(node: Node, resolve: Callable[[Node], Node]) -> Hashable:
    """The key of equal calls; None for a call with arguments that can't be compared.

    `resolve` gives the node that stands for an argument.
    """
    keywords = tuple(sorted(node.kwargs.items()))
    key = (node.target, _frozen(node.args, resolve), _frozen(keywords, resolve))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(argument: Any, resolve: Callable[[Node], Node]) -> Any:
    """An argument in a form that is equal only if the computation is: 1 isn't 1.0 or True."""
    if isinstance(argument, Node):
        return resolve(argument)
    if isinstance(argument, (list, tuple)):
        return tuple(_frozen(entry, resolve) for entry in argument)
    if isinstance(argument, float):
        return float, repr(argument)  # -0.0 isn't 0.0
    return type(argument), argument
