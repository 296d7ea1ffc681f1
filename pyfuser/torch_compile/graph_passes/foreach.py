"""`_foreach_*` ops -> the same op on each tensor.

Optimisers call these on all parameters at once.  The elements of the lists are independent, so each
becomes ordinary pointwise nodes, which regions are made of.

    Before:  a = _foreach_mul.Scalar([p, q], 0.9); b = a[0]; c = a[1]
    After:   b = mul.Tensor(p, 0.9); c = mul.Tensor(q, 0.9)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

# The elementwise op of a foreach op, by the kind of its second operand, if not in its name.
_RENAMED: dict[tuple[str, str], Any] = {
    ("maximum", "number"): aten.clamp_min.default,
    ("minimum", "number"): aten.clamp_max.default,
    ("maximum", "tensor"): aten.maximum.default,
    ("minimum", "tensor"): aten.minimum.default,
    ("clamp_min", "tensor"): aten.maximum.default,
    ("clamp_max", "tensor"): aten.minimum.default,
    ("clamp_min", "number"): aten.clamp_min.default,
    ("clamp_max", "number"): aten.clamp_max.default,
    ("copy", "tensor"): aten.copy.default,
    ("pow", "tensor"): aten.pow.Tensor_Tensor,
    ("pow", "number"): aten.pow.Tensor_Scalar,
    ("lerp", "tensor"): aten.lerp.Tensor,
    ("norm", "number"): aten.linalg_vector_norm.default,
    ("norm", ""): aten.linalg_vector_norm.default,
}


def flatten_foreach(graph: Graph) -> None:
    """Replaces every foreach op that has an elementwise one."""
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function" or not _name_of(node.target):
            continue
        changed |= _flatten(graph, node)
    if changed:
        graph.eliminate_dead_code()


def _name_of(target: Any) -> str:
    """`mul` for aten._foreach_mul.Scalar; empty for other ops and for those that mutate."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return ""
    name = target._schema.name.removeprefix("aten::")
    if not name.startswith("_foreach_") or name.endswith("_") or target._schema.is_mutable:
        return ""
    return name.removeprefix("_foreach_")


def _flatten(graph: Any, node: Node) -> bool:
    picks = list(node.users)
    if any(user.target is not operator.getitem for user in picks):
        return False
    lists = [a for a in node.args if isinstance(a, (list, tuple))]
    if not lists:
        return False
    target = _elementwise(node)
    if target is None:
        return False
    for pick in picks:
        index = pick.args[1]
        assert isinstance(index, int)
        arguments, keywords = _arguments(node, target, index)
        with graph.inserting_before(pick):
            made = graph.call_function(target, arguments, keywords)
        made.meta = dict(pick.meta)
        pick.replace_all_uses_with(made)
        graph.erase_node(pick)
    return True


def _arguments(node: Node, target: Any, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a foreach op for one element of each list, as those of the other op.

    What that op takes by its name only (value, dtype) may have any place in the foreach op.
    """
    only_named = {each.name for each in target._schema.arguments if each.kwarg_only}
    own: Any = node.target
    names = ["value" if each.name == "scalars" else each.name for each in own._schema.arguments]
    placed = dict(zip(names, node.args, strict=False))
    positional = tuple(_element(a, index) for n, a in placed.items() if n not in only_named)
    named = {n: a for n, a in placed.items() if n in only_named} | node.kwargs
    return positional, {name: _element(a, index) for name, a in named.items()}


def _element(argument: Any, index: int) -> Any:
    return argument[index] if isinstance(argument, (list, tuple)) else argument


def _kind(argument: Any) -> str:
    """The kind of an operand's elements."""
    if isinstance(argument, (list, tuple)):
        argument = argument[0] if argument else 0
    if isinstance(argument, Node):
        return "tensor" if isinstance(argument.meta.get("val"), torch.Tensor) else "number"
    return "number"


def _elementwise(node: Node) -> Any:
    """The overload for one element of each list; None if there is none."""
    name = _name_of(node.target)
    second = _kind(node.args[1]) if len(node.args) > 1 else ""
    if name == "pow" and _kind(node.args[0]) == "number":
        return aten.pow.Scalar
    if name == "lerp" and second == "tensor" and _kind(_argument(node, 2)) == "number":
        return aten.lerp.Scalar
    renamed = _RENAMED.get((name, second))
    if renamed is not None:
        return renamed
    packet = getattr(aten, name, None)
    if packet is None:
        return None
    if name in ("addcmul", "addcdiv"):
        takes_tensor = isinstance(_argument(node, 3), Node)
        return None if takes_tensor else packet.default
    wanted = {"tensor": ("Tensor",), "number": ("Tensor", "Scalar"), "": ("default",)}[second]
    return next((getattr(packet, o) for o in wanted if o in packet.overloads()), None)


def _argument(node: Node, position: int) -> Any:
    arguments: Sequence[Any] = node.args
    return arguments[position] if len(arguments) > position else None
