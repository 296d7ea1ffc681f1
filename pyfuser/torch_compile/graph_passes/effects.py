"""Effects as plain calls: prints, checks of factorisations, methods of script objects.

AOTAutograd keeps them in order by a token, an empty tensor that each call takes and returns.  Here
the steps of a graph keep calls with effects in order anyway, and a call through the wrapper costs
more than most kernels.

    Before:  e = with_effects(token, _linalg_check_errors, info, "cholesky"); t = e[0]
    After:   _linalg_check_errors(info, "cholesky"); t is the token that came in

Its place: before anything that reads a call's operands, which the wrapper hides.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ..views import is_getitem
from .metadata import item_of

_WITH_EFFECTS = getattr(getattr(torch.ops, "higher_order", None), "with_effects", None)


def call_effects_directly(graph: Graph) -> None:
    """Replaces the calls of ops that have effects."""
    for node in list(graph.nodes):
        if node.target is _WITH_EFFECTS and all(map(is_getitem, node.users)):
            _replace(graph, node)


def _replace(graph: Graph, node: Node) -> None:
    token, op, *arguments = node.args
    assert isinstance(token, Node) and callable(op)
    results = node.meta["val"][1:]
    has_one = not isinstance(op, OpOverload) or len(op._schema.returns) <= 1
    with graph.inserting_before(node):
        call = graph.call_function(op, tuple(arguments), dict(node.kwargs))
        call.meta["val"] = results[0] if has_one and results else results
        for pick in list(node.users):
            number = pick.args[1]
            assert isinstance(number, int)
            if number == 0:
                replacement = token
            elif has_one:
                replacement = call
            else:
                replacement = item_of(graph, call, number - 1)
            pick.replace_all_uses_with(replacement)
            graph.erase_node(pick)
    graph.erase_node(node)
