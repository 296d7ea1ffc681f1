"""Metadata for the nodes that save and restore the random state around a recomputed random op.

Activation checkpointing runs dropout again in the backward, with the random state of the first run.
AOTAutograd's partitioner makes the nodes for this after all others have their metadata: theirs is
missing, and the state's size, a property of the generator, is a symbol there.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

from ..views import is_getitem, tensor_of
from .metadata import set_metadata

_hops = getattr(torch.ops, "higher_order", None)
_SAVES = getattr(_hops, "run_and_save_rng_state", None)  # (op, *args) -> (state, op's result)
_RESTORES = getattr(_hops, "run_with_rng_state", None)  # (state, op, *args) -> op's result


def complete_metadata(graph: Graph) -> None:
    """Gives results and states of such nodes the metadata that all other nodes have."""
    for node in graph.nodes:
        if node.op != "call_function" or "val" in node.meta:
            continue
        if node.target is _RESTORES:
            state, op, *arguments = node.args
            if isinstance(state, Node):
                _fix_size(state)
            set_metadata(node, op, arguments)
        elif node.target is _SAVES:
            op, *arguments = node.args
            set_metadata(node, op, arguments)
            result = node.meta.get("val")
            states = [user for user in node.users if is_getitem(user) and user.args[1] == 0]
            for state in states:
                _fix_size(state)
            node.meta["val"] = (states[0].meta.get("val") if states else None, result)


def _fix_size(state: Node) -> None:
    """Makes the size of a state a number: the generator's size never changes."""
    value = tensor_of(state)
    if isinstance(value, FakeTensor) and any(isinstance(n, torch.SymInt) for n in value.shape):
        sizes = [n.node.hint if isinstance(n, torch.SymInt) else n for n in value.shape]
        if None not in sizes:
            with value.fake_mode:
                state.meta["val"] = torch.empty(sizes, dtype=value.dtype, device=value.device)
