"""Cuts a joint graph into forward and backward: what is saved and what is recomputed.

torch's min-cut partitioner decides by lists of the ops that a compiler fuses and recomputes.  Here
it gets the ops that pyfuser translates: a cheap op kept whole isn't a library call whose result has
to be saved.  Results of vector math or a reduction (tanh, softmax) are saved, as in eager: on a
CPU, recomputing them takes longer than reading them, and more memory if a product needs them whole.
Those of silu and gelu aren't: their gradients compute the same function of the same input.  What
is tested for equality, as by the gradient of an extremum, is never recomputed
(`save_compared_values`).
The partitioner takes neither its lists nor its elimination of common subexpressions as arguments,
so it is run as a copy whose functions see replacements; torch's own stays unchanged.

It may save an argument that the forward updates, such as a buffer whose old value a gradient needs.
The backward would then read the new value, so the forward saves a copy (`save_old_values`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch._functorch import partitioners
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from .aten import TRANSLATIONS
from .common_subexpressions import without_common_subexpressions
from .graph_passes.batches_of_products import split_batches_of_products
from .graph_passes.image_formats import keep_images_channels_last
from .norms_of_gradients import drop_unread_statistics, write_out_norms
from .saved_layouts import note_saved
from .traced_layouts import is_dense
from .views import base_of, is_updated, tensor_of

aten = torch.ops.aten

_EQUALITY = frozenset((aten.eq.Tensor, aten.ne.Tensor))

# Whose backward kernels compute the result on the way.
_RECOMPUTED = {aten.silu, aten.gelu}

Partitioner = Callable[..., tuple[GraphModule, GraphModule]]


def partition_joint_graph(rematerialise: bool) -> Partitioner:
    """torch's partitioner for joint graphs, with pyfuser's ops."""
    partitioner = _min_cut if rematerialise else partitioners.default_partition

    def partition(joint: GraphModule, inputs: Any, **keywords: Any) -> tuple[Any, Any]:
        drop_unread_statistics(joint.graph)
        split_batches_of_products(joint.graph)
        keep_images_channels_last(joint.graph)
        forward, backward = partitioner(joint, inputs, **keywords)
        save_old_values(forward, keywords["num_fwd_outputs"])
        note_saved(forward, keywords["num_fwd_outputs"])
        return forward, backward

    return partition


def save_old_values(forward: GraphModule, count: int) -> None:
    """Saves copies of the arguments that a forward updates; the first `count` results are its own.

    Before:  a = sin(b); copy_(b, a); return a, b
    After:   c = clone(b); a = sin(b); copy_(b, a); return a, c

    Where autograd sees an update, or mustn't, the forward returns the new value, and AOTAutograd
    copies it into the argument.
    """
    graph = forward.graph
    (output,) = graph.find_nodes(op="output")
    updated_later = _updated_later(output)
    results = list(output.args[0])
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for number, saved in enumerate(results[count:], count):
        if not isinstance(saved, Node) or not _can_be_cloned(saved):
            continue
        if is_updated(saved) or base_of(saved) in updated_later:
            is_argument = saved.op == "placeholder"
            with graph.inserting_before(first) if is_argument else graph.inserting_after(saved):
                copy = graph.call_function(aten.clone.default, (saved,))
            copy.meta = {**saved.meta, "val": saved.meta["val"].clone()}
            results[number] = copy
    if results != list(output.args[0]):
        output.args = (type(output.args[0])(results),)
        forward.recompile()


def save_compared_values(graph: Graph) -> None:
    """Lets the forward save what is tested for equality, or the test, if the backward needs it.

    The gradient of an extremum goes to the elements that equal it, divided by their number.  Other
    kernels than the forward's may compute them to other last bits, and find none: 0 / 0.
    """
    for node in graph.nodes:
        if node.target in _EQUALITY:
            for operand in map(base_of, node.all_input_nodes):
                value = tensor_of(operand)
                is_float = value is not None and value.is_floating_point()
                if operand.op == "call_function" and is_float:
                    operand.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _updated_later(output: Node) -> set[Node]:
    """The arguments that AOTAutograd updates when the forward is done, if this torch says which."""
    made = (getattr(each, "mutated_input", None) for each in output.meta.get("desc", ()))
    updated = {each for each in made if each is not None}
    arguments = output.graph.find_nodes(op="placeholder")
    return {argument for argument in arguments if argument.meta.get("desc") in updated}


def _can_be_cloned(saved: Node) -> bool:
    """True if a copy has the layout on which the backward relies."""
    value = tensor_of(saved)
    return value is not None and not value.is_neg() and is_dense(value)


def _packets(cost: str) -> set[Any]:
    """The ops whose translations have this cost."""
    return {overload.overloadpacket for overload, row in TRANSLATIONS.items() if row.cost == cost}


def _min_cut(joint: GraphModule, inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    ops = partitioners.get_default_op_list()
    cheap = _packets("cheap") | _RECOMPUTED
    heavy = (_packets("heavy") | _packets("reduction")) - cheap
    # Saved tensors pass through detach; a decomposition would turn it into aliases.
    views: list[Any] = [*ops.view_ops, aten.detach]
    fusible: list[Any] = [*ops.fusible_ops, *cheap, *heavy, aten.detach]
    recomputable = (*ops.recomputable_ops, *cheap, aten.detach)
    recomputed: list[Any] = [op for op in recomputable if op not in heavy]
    of = type(ops.fusible_ops)
    extended = type(ops)(
        of(fusible), ops.compute_intensive_ops, ops.random_ops, of(views), of(recomputed)
    )
    partitioner = _partitioner_with(
        get_default_op_list=lambda: extended, fx_graph_cse=without_common_subexpressions
    )
    write_out_norms(joint.graph)
    save_compared_values(joint.graph)
    return partitioner(joint, inputs, compiler="inductor", **keywords)


def _partitioner_with(**replaced: Callable[..., Any]) -> Partitioner:
    """torch's partitioner, with some functions of its module replaced."""
    scope = dict(vars(partitioners))
    for name, function in list(scope.items()):
        is_own = isinstance(function, FunctionType)
        if is_own and function.__module__ == partitioners.__name__:
            copy = FunctionType(
                function.__code__, scope, name, function.__defaults__, function.__closure__
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            scope[name] = copy
    scope.update(replaced)
    found: Partitioner = scope["min_cut_rematerialization_partition"]
    return found


__all__ = ["partition_joint_graph"]
