"""Moves reshapes before the pointwise ops whose results they reshape.

Linear layers work on matrices, and the ops between them on [batch, length, width]. A reshape of
real axes between two fusible nodes would end a region there.  Before the pointwise ops it is a view
of a library call's result, which costs nothing, or it meets its inverse and vanishes.

    Before:  a = add(mm(x, w), bias)   [512, 64];  b = view(a, [4, 128, 64]);  c = gelu(b)
    After:   b = add(view(mm(x, w), [4, 128, 64]), bias);  c = gelu(b)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

from ..aten import cost, refusal
from ..op_facts import is_pointwise
from ..sizes import Size, sizes_of
from ..traced_layouts import is_dense, lies_in_order
from ..views import is_view, tensor_of

aten = torch.ops.aten

RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_MOST_NODES = 32  # before one reshape


@dataclass(frozen=True, slots=True)
class _Shapes:
    """The shapes before and after a reshape, and how many trailing axes stay unchanged."""

    old: tuple[Size, ...]
    new: tuple[Size, ...]
    suffix: int
    result: torch.Tensor

    @staticmethod
    def of(source: Node, result: torch.Tensor) -> _Shapes:
        """Those of a reshape with a result like this."""
        old, new = shape_of(source), sizes_of(result.shape)
        suffix = 0
        while suffix < min(len(old), len(new)) and old[-1 - suffix] == new[-1 - suffix]:
            suffix += 1
        return _Shapes(old, new, suffix, result)


def move_reshapes(graph: Graph) -> None:
    """Moves reshapes before pointwise ops if everything before them can be reshaped too.

    A reshape of a reshape is one of what was reshaped first: there is nothing to cross between.
    """
    for node in graph.nodes:
        first = node.args[0] if _is_reshape(node) else None
        if isinstance(first, Node) and _is_reshape(first):
            node.update_arg(0, first.args[0])
    for node in reversed(list(graph.nodes)):
        if _is_reshape(node):
            source = node.args[0]
            if isinstance(source, Node) and is_plain(source):
                move_reshape(graph, node, source)


def _is_reshape(node: Node) -> bool:
    return node.target in RESHAPES and is_plain(node)


def can_be_reshaped(source: Node, like: torch.Tensor, reader: Node) -> bool:
    """True if what pointwise ops compute can be computed in another shape, with no reshape between
    kernels, provided that a reader takes it in that shape."""
    shapes = _Shapes.of(source, like)
    return is_pointwise_node(source) and _collect(source, shapes, {}, reader)


def move_reshape(graph: Graph, node: Node, source: Node) -> None:
    """Moves a reshape before the pointwise ops that it reads, if everything before them can be
    reshaped too."""
    result = tensor_of(node)
    assert result is not None
    shapes, chosen = _Shapes.of(source, result), dict[Node, None]()
    if not is_pointwise_node(source) or not _collect(source, shapes, chosen):
        return
    made: dict[Node, Node] = {}
    for old_node in sorted(chosen, key=list(graph.nodes).index):
        made[old_node] = _reshaped(graph, old_node, shapes, made)
    for old_node, new_node in made.items():
        _replace_users(graph, old_node, new_node, shapes, chosen)


def _collect(
    node: Node, shapes: _Shapes, chosen: dict[Node, None], reader: Node | None = None
) -> bool:
    """Notes the pointwise nodes to be reshaped; False if something prevents it."""
    if node in chosen:
        return True
    if len(chosen) >= _MOST_NODES or not is_plain(node):
        return False
    # The result must get its shape from one operand, not by broadcasting several.
    if not any(shape_of(operand) == shapes.old for operand in node.all_input_nodes):
        return False
    chosen[node] = None
    for user in node.users:
        if user in chosen or user is reader or _leads_to(user, shapes.new):
            continue
        if user.op == "call_function" and (refusal(user) is None or _leads_on(user)):
            return False  # a kernel reads it in its old shape
    return all(_fits(operand, shapes, chosen) for operand in node.all_input_nodes)


def _leads_to(user: Node, shape: tuple[Size, ...]) -> bool:
    return user.target in RESHAPES and is_plain(user) and shape_of(user) == shape


def _leads_on(user: Node) -> bool:
    """True for a view that a kernel may read."""
    return is_view(user) and any(
        other.op == "call_function" and (is_view(other) or refusal(other) is None)
        for other in user.users
    )


def _fits(operand: Node, shapes: _Shapes, chosen: dict[Node, None]) -> bool:
    value = tensor_of(operand)
    if value is None:
        return False  # a size among the arguments
    shape = shape_of(operand)
    if shape != shapes.old:
        leading = shape[: max(len(shape) - shapes.suffix, 0)]
        return all(size == 1 for size in leading)
    if not is_plain(operand):
        return False
    if _seen_before(operand, shapes) is not None:
        return True
    if operand.op == "placeholder" or refusal(operand) is not None:
        return True
    return is_pointwise_node(operand) and _collect(operand, shapes, chosen)


def _seen_before(node: Node, shapes: _Shapes) -> Node | None:
    """The source of an earlier reshape, if it already has the wanted shape."""
    source = node.args[0] if node.target in RESHAPES else None
    if isinstance(source, Node) and shape_of(source) == shapes.new and is_plain(source):
        return source
    return None


def _reshaped(graph: Graph, node: Node, shapes: _Shapes, made: dict[Node, Node]) -> Node:
    """The same op on reshaped operands, inserted before the old one."""

    def operand(argument: Any) -> Any:
        if isinstance(argument, Node):
            return made.get(argument) or _operand(graph, argument, shapes)
        if isinstance(argument, (list, tuple)):
            return type(argument)(operand(entry) for entry in argument)
        return argument

    with graph.inserting_before(node):
        arguments = tuple(operand(a) for a in node.args)
        keywords = {k: operand(a) for k, a in node.kwargs.items()}
        new = graph.call_function(node.target, arguments, keywords)  # type: ignore[arg-type]
    forget_rank(new)
    value = tensor_of(node)
    assert value is not None
    new.meta = {**node.meta, "val": with_layout(value, shapes.result)}
    return new


def _operand(graph: Graph, node: Node, shapes: _Shapes) -> Node:
    """An operand as the reshaped op reads it."""
    shape, value = shape_of(node), tensor_of(node)
    assert value is not None
    if shape == shapes.old:
        before = _seen_before(node, shapes)
        if before is not None:
            return before
        return view_node(graph, node, with_layout(value, shapes.result))
    if len(shape) <= shapes.suffix:
        return node
    kept = list(value.shape)[len(shape) - shapes.suffix :]
    strides = list(value.stride())[len(shape) - shapes.suffix :]
    return view_node(graph, node, with_sizes_and_strides(value, kept, strides))


def view_node(graph: Graph, node: Node, value: torch.Tensor) -> Node:
    """A view of a node, described by its metadata, because arguments can't contain symbols."""
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    new: Node = graph.call_function(aten.view.default, (node, sizes))
    new.meta["val"] = value
    return new


def _replace_users(
    graph: Graph, old: Node, new: Node, shapes: _Shapes, chosen: dict[Node, None]
) -> None:
    """Makes readers of the old node read the new one, through a view if they need the old shape."""
    back: Node | None = None
    for user in list(old.users):
        if user in chosen:
            continue
        if _leads_to(user, shapes.new):
            user.replace_all_uses_with(new)
            graph.erase_node(user)
            continue
        if back is None:
            value = tensor_of(old)
            assert value is not None
            fresh = tensor_of(new)
            assert fresh is not None
            with graph.inserting_after(new):
                shape, stride = list(value.shape), list(value.stride())
                back = view_node(graph, new, with_sizes_and_strides(fresh, shape, stride))
        user.replace_input_with(old, back)


def compute_in_shape(
    graph: Graph, node: Node, operand: Callable[[Node], Node], like: torch.Tensor
) -> tuple[Node, Node]:
    """Puts a pointwise op on reshaped operands, with a result shaped as `like`, and a view of that
    in the place of one; returns the two.  `operand` finds or makes what it reads.
    """
    value = tensor_of(node)
    assert value is not None
    with graph.inserting_before(node):
        moved = graph.node_copy(node, operand)
        forget_rank(moved)
        moved.meta = {**node.meta, "val": with_layout(value, like)}
        back = view_node(graph, moved, value)
    node.replace_all_uses_with(back)
    graph.erase_node(node)
    return moved, back


def shape_of(node: Node) -> tuple[Size, ...]:
    """The sizes of a tensor; () for another node."""
    value = tensor_of(node)
    return () if value is None else sizes_of(value.shape)


def is_plain(node: Node) -> bool:
    """True for a tensor in memory in the order of its axes, without gaps."""
    value = tensor_of(node)
    if not isinstance(value, FakeTensor) or value.is_neg() or value.is_conj():
        return False
    return lies_in_order(value) and is_dense(value)


def forget_rank(node: Node) -> None:
    """Asks for the order of the axes, in which the result lies, by what is known for any rank.

    An image of one channel lies in order and is in `channels_last`, which exists for images only.
    """
    if node.kwargs.get("memory_format") is not None:
        node.kwargs = {**node.kwargs, "memory_format": torch.contiguous_format}


def is_pointwise_node(node: Node) -> bool:
    """True for a pointwise op that kernels compute."""
    if node.op != "call_function" or not is_pointwise(node):
        return False
    return refusal(node) is None and cost(node) in ("cheap", "heavy")


def with_layout(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Metadata of a tensor's memory in the shape of another."""
    return with_sizes_and_strides(value, list(like.shape), list(like.stride()))


def with_shape(value: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Metadata of a dense tensor's memory in another shape, in the order of its axes."""
    strides: list[Any] = []
    elements: Any = 1
    for size in reversed(shape):
        strides.insert(0, elements)
        elements = elements * size
    return with_sizes_and_strides(value, list(shape), strides)


def with_sizes_and_strides(
    value: torch.Tensor, shape: list[Any], stride: list[Any]
) -> torch.Tensor:
    """Metadata of a tensor's memory with other sizes and strides."""
    assert isinstance(value, FakeTensor)
    with value.fake_mode:
        return torch.as_strided(value, shape, stride, value.storage_offset())
