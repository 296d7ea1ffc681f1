"""Results that eager makes as views of arguments, where a graph makes them from other memory.

A function that updates an argument and returns a view of it becomes a functional graph: the view is
one of the updated value, which is copied into the argument in the end.  AOTAutograd then makes the
view again from the argument.  If sizes change, all that it knows are the size, strides and storage
offset of the graph's result, which are those of a view of the argument only by chance.  So such a
result is made a view of the argument, whose memory has the same values in the end.

    Before:  a = mul(x, 2); copy_(x, a); b = view(a, [n]); return b
    After:   a = mul(x, 2); copy_(x, a); b = view(x, [n]); return b

The graph alone doesn't say which results these are: `y = x * 2; x.copy_(y); return y.flatten()` is
the same graph, and returns other memory.  AOTAutograd knows it while it runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from .aot_metadata import metadata_of_results
from .views import is_getitem, shares_memory, tensor_of, viewed

aten = torch.ops.aten

_NAME = "pyfuser_input_aliases"  # an attribute, since a graph in a cache keeps these


def note_input_aliases(graph_module: GraphModule) -> None:
    """Notes in a forward graph which results are views of which arguments, by their numbers."""
    known = metadata_of_results()
    if known is None:
        return
    start = known.num_mutated_inp_runtime_indices
    graph_module.__dict__[_NAME] = {
        start + number: info.base_idx
        for number, info in enumerate(known.output_info)
        if info.output_type.name == "alias_of_input" and info.base_idx is not None
    }


def return_views_of_arguments(graph_module: GraphModule) -> None:
    """Makes the noted results views of their arguments, if there are sizes that change."""
    noted: dict[int, int] = graph_module.__dict__.get(_NAME, {})
    graph = graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    if not noted or not any(isinstance(p.meta.get("val"), torch.SymInt) for p in placeholders):
        return
    (output,) = graph.find_nodes(op="output")
    results = list(output.args[0])
    for number, position in noted.items():
        result = results[number] if number < len(results) else None
        if isinstance(result, Node) and position < len(placeholders):
            results[number] = _viewing(graph, result, placeholders[position], output)
    output.args = (type(output.args[0])(results),)


def _viewing(graph: Graph, result: Node, argument: Node, output: Node) -> Node:
    """The same view of the argument, if the result's base is like it; else the result.

    The base is the argument's new value, which may itself be a view, or new memory.
    """
    updates = [u for u in argument.users if u.target is aten.copy_.default]
    values = {u.args[1] for u in updates if u.args[0] is argument}
    chain = []
    base = result
    while shares_memory(base) and base not in values:
        chain.append(base)
        if is_getitem(base):  # one of several views that an operation returns
            chain.append(base.all_input_nodes[0])
        source = viewed(base)
        assert source is not None
        base = source
    made, given = tensor_of(base), tensor_of(argument)
    is_like = made is not None and given is not None and made.dtype == given.dtype
    if not chain or base.op == "placeholder" or not is_like or made.shape != given.shape:  # type: ignore[union-attr]
        return result
    copies = {base: argument}
    with graph.inserting_before(output):
        for node in reversed(chain):
            copies[node] = graph.node_copy(node, lambda n: copies.get(n, n))
            copies[node].meta = {**node.meta, "val": _computed(copies[node])}
    return copies[result]


def _computed(node: Node) -> Any:
    """The metadata of a view or of several, from that of its operands."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    target: Any = node.target
    return target(*args, **kwargs)
