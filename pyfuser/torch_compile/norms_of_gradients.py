"""What a joint graph's gradients need of its norms, before it is cut (rematerialisation.py).

A norm is one op, which the partitioner never computes twice, so it saves the result that a gradient
reads.  Between gradients, which are pointwise, the result costs little more than the norm's input,
which its own gradient reads anyway: it is written out from that.  One tensor less is written by the
forward, kept, and read by the backward.

    Before:  a, mean, rstd = native_layer_norm(x, [n], weight, bias, eps)
             b = silu_backward(tangents_1, a)
    After:   c = (x - mean) * rstd * weight + bias
             b = silu_backward(tangents_1, c)

If a product's gradient reads the result too, it is saved whole, and all gradients read that.

The gradient of a batch norm in training has the running statistics among its arguments and doesn't
read them.  Without them the forward updates these in place, instead of saving them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch.fx import Graph, Node

from .aten import cost, refusal
from .aten.translation import Cost
from .aten.widening import is_half
from .graph_passes.metadata import call_traced
from .op_facts import facts
from .views import is_getitem, tensor_of

aten = torch.ops.aten


def drop_unread_statistics(joint: Graph) -> None:
    """The gradients of batch norms in training without the running statistics."""
    for node in joint.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def write_out_norms(joint: Graph) -> None:
    """Writes out the results of norms for gradients, if all that read them are pointwise."""
    gradients = _gradients(joint)
    for norm in list(filter(None, map(_norm, joint.nodes))):
        readers = sorted(_readers(norm.result, gradients), key=itemgetter(1))
        if not readers or any(_cost(each) not in ("cheap", "heavy") for _, each in readers):
            continue
        with joint.inserting_before(readers[0][1]):
            copies = {norm.result: norm.written_out(joint)}
        for read, reader in readers:
            with joint.inserting_before(reader):
                reader.replace_input_with(read, _copied(joint, read, copies))


def _gradients(joint: Graph) -> set[Node]:
    """The calls that depend on the gradients of the results."""
    found: set[Node] = set()
    for node in joint.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        depends = node.op == "call_function" and not found.isdisjoint(node.all_input_nodes)
        if is_tangent or depends:
            found.add(node)
    return found


@dataclass(frozen=True, slots=True)
class _Norm:
    """A norm: its result is (x - mean) * rstd * weight + bias.

    new_axes   how many axes the statistics and the parameters lack behind the axis of channels
    """

    result: Node
    mean: Node
    rstd: Node
    x: Node
    weight: Node | None
    bias: Node | None
    new_axes: int

    def written_out(self, joint: Graph) -> Node:
        """The result from the input and the statistics, by ops that the partitioner computes twice.

        They are those of the norm's translation (aten/norms.py), so every element is the same.
        """
        axes = self.new_axes
        centred = call_traced(
            joint, aten.sub.Tensor, _wide(joint, self.x), _wide(joint, self.mean, axes)
        )
        found = call_traced(joint, aten.mul.Tensor, centred, _wide(joint, self.rstd, axes))
        if self.weight is not None:
            found = call_traced(joint, aten.mul.Tensor, found, _wide(joint, self.weight, axes))
        if self.bias is not None:
            found = call_traced(joint, aten.add.Tensor, found, _wide(joint, self.bias, axes))
        dtype = self.result.meta["val"].dtype
        if found.meta["val"].dtype != dtype:
            found = call_traced(joint, aten._to_copy.default, found, dtype=dtype)
        return found


def _norm(node: Node) -> _Norm | None:
    """The norm that a node is, if it computes its statistics and the graph reads all of these."""
    arguments: Any = node.args
    match node.target:
        case aten._native_batch_norm_legit_functional.default:
            x, weight, bias, _, _, is_training, *_ = arguments
        case aten._native_batch_norm_legit.no_stats:
            x, weight, bias, is_training, *_ = arguments
        case aten.native_layer_norm.default:
            x, _, weight, bias, *_ = arguments
            is_training = True
        case _:
            return None
    picks = {user.args[1]: user for user in node.users if is_getitem(user)}
    if not is_training or not picks.keys() >= {0, 1, 2}:
        return None
    value, statistic = tensor_of(x), tensor_of(picks[1])
    if value is None or statistic is None or is_half(statistic):
        return None  # statistics that were rounded don't give the same result
    per_channel = node.target is not aten.native_layer_norm.default
    new_axes = value.dim() - 2 if per_channel else 0
    return _Norm(picks[0], picks[1], picks[2], x, weight, bias, new_axes)


def _wide(joint: Graph, node: Node, new_axes: int = 0) -> Node:
    """An operand in the dtype of computations, with axes of size 1 behind its own."""
    if is_half(node.meta["val"]):
        node = call_traced(joint, aten._to_copy.default, node, dtype=torch.float32)
    for _ in range(new_axes):
        node = call_traced(joint, aten.unsqueeze.default, node, -1)
    return node


def _readers(result: Node, gradients: set[Node]) -> Iterator[tuple[Node, Node]]:
    """The gradients that read the result, a view or a copy of it: (what they read, gradient)."""
    for user in result.users:
        if user in gradients:
            yield result, user
        elif _cost(user) == "view" or facts(user).converts:
            yield from _readers(user, gradients)


def _copied(joint: Graph, view: Node, copies: dict[Node, Node]) -> Node:
    """The view or copy of the norm's result as one of the written-out result."""
    if view not in copies:
        source = view.args[0]
        assert isinstance(source, Node)
        _copied(joint, source, copies)
        copies[view] = joint.node_copy(view, lambda node: copies.get(node, node))
    return copies[view]


def _cost(node: Node) -> Cost | None:
    """None for a node that can't be part of a kernel."""
    return cost(node) if refusal(node) is None else None
