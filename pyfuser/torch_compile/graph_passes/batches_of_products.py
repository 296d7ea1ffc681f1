"""Products with a single row or column, which kernels compute, keep the batch axes around them.

`matmul` and `einsum` give the library one batch axis, merged of several. To the library these
reshapes are views that cost nothing. A product that a kernel computes is between fusible nodes, and
a reshape of real axes ends a region: each step of a recurrence would be several.

    Before:  a = view(state, [16, 32, 32]);  b = view(key, [16, 32, 1]);
             c = view(bmm(a, b), [8, 2, 32, 1])   # state is [8, 2, 32, 32]
    After:   c = matmul(state, key)

It runs before `drop_copies`: copies for a reshape that is no longer made are needless. It also runs
before a joint graph is cut, so that no such copy is saved for the backward.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from ..aten import refusal
from ..op_facts import facts
from ..sizes import Size, size_of, sizes_of
from ..views import is_updated, is_view, tensor_of, viewed
from .metadata import call_traced
from .reshapes import RESHAPES, shape_of, view_node, with_shape, with_sizes_and_strides

aten = torch.ops.aten

# How a matrix in each batch is transposed.
_SWAPS = ((aten.permute.default, [0, 2, 1]), (aten.transpose.int, 1, 2))


def split_batches_of_products(graph: Graph) -> None:
    """Replaces the products of matrices with one batch axis whose readers have several."""
    for node in list(graph.nodes):
        if node.target is not aten.bmm.default or refusal(node) is not None:
            continue
        if all(user.op != "output" for user in node.users):  # a result is no view of another tensor
            _try(graph, node)


def _try(graph: Graph, node: Node) -> None:
    value = tensor_of(node)
    assert value is not None
    for batch in _batches(node):
        operands = [_in_batches(graph, operand, batch) for operand in node.args[:2]]
        makers = [make for make in operands if make is not None]
        if len(makers) == len(operands) and _can_be_asked_for(list(value.shape)):
            with graph.inserting_before(node):
                matrices = [make() for make in makers]
                product: Node = graph.call_function(aten.matmul.default, tuple(matrices))
            _replace(graph, node, product, batch)
            return


def _batches(node: Node) -> list[list[Any]]:
    """The sizes that the batch axis has in an operand before a reshape, and in a reader after one.

    The reader may leave out a single row or column.
    """
    value = tensor_of(node)
    assert value is not None
    wanted = [shape_of(user) for user in node.users if user.target in RESHAPES]
    found: dict[tuple[Size, ...], list[Any]] = {}
    for each in (*map(_reshaped, node.args[:2]), *node.users):
        matrices = None if each is None else tensor_of(each)
        if matrices is None or matrices.dim() <= 3:
            continue
        batch = list(matrices.shape)[:-2]
        sizes = sizes_of(batch)
        is_wanted = any(shape[: len(sizes)] == sizes for shape in wanted)
        if is_wanted and prod(sizes) == size_of(value.shape[0]):
            found.setdefault(sizes, batch)
    return list(found.values())


def _reshaped(operand: Any) -> Node | None:
    """What became matrices with one batch axis by a reshape; None if nothing did."""
    while isinstance(operand, Node):
        if operand.target in RESHAPES:
            source = operand.args[0]
            assert isinstance(source, Node)
            return source
        operand = operand.args[0] if _is_swap(operand) else None
    return None


def _is_swap(node: Node) -> bool:
    return (node.target, *node.args[1:]) in _SWAPS


def _in_batches(graph: Graph, operand: Any, batch: list[Any]) -> Callable[[], Node] | None:
    """Finds or makes matrices with several batch axes; None if that takes a reshape of results."""
    value = tensor_of(operand) if isinstance(operand, Node) else None
    if value is None or value.is_neg() or value.is_conj():
        return None
    shape = [*batch, *value.shape[1:]]
    if operand.target in RESHAPES and shape_of(operand.args[0]) == sizes_of(shape):
        source = _copied(operand.args[0])
        return lambda: source
    if _is_swap(operand):
        swapped = _in_batches(graph, operand.args[0], batch)
        order = [*range(len(batch)), len(batch) + 1, len(batch)]
        return swapped and (lambda: call_traced(graph, aten.permute.default, swapped(), order))
    if not _is_stored(operand) or not _can_be_asked_for(shape):
        return None
    steps = with_shape(value, batch).stride()
    strides = [*(step * value.stride(0) for step in steps), *value.stride()[1:]]
    return lambda: view_node(graph, operand, with_sizes_and_strides(value, shape, strides))


def _copied(node: Node) -> Node:
    """What a copy that only changes the memory order copies; other nodes unchanged."""
    source = node.args[0] if facts(node).copies else None
    if not isinstance(source, Node) or shape_of(source) != shape_of(node) or is_updated(source):
        return node
    own, other = tensor_of(source), tensor_of(node)
    assert own is not None and other is not None
    return source if own.dtype == other.dtype and not (own.is_neg() or own.is_conj()) else node


def _is_stored(node: Node) -> bool:
    """True for a view of what no kernel computes, which can be viewed in another way."""
    while is_view(node) and (source := viewed(node)) is not None:
        node = source
    return node.op == "placeholder" or refusal(node) is not None


def _can_be_asked_for(shape: list[Any]) -> bool:
    """True for the sizes of a view if torch can find the only one that isn't known."""
    known = [size for size in shape if isinstance(size, int)]
    return len(known) == len(shape) or (len(known) == len(shape) - 1 and 0 not in known)


def _replace(graph: Graph, node: Node, product: Node, batch: list[Any]) -> None:
    """Makes readers read the product in several batch axes, or a view of it in one."""
    value = tensor_of(node)
    assert value is not None
    made = with_shape(value, [*batch, *value.shape[1:]])
    product.meta = {**node.meta, "val": made}
    for user in list(node.users):
        if user.target not in RESHAPES:
            continue
        if shape_of(user) == sizes_of(made.shape):
            user.replace_all_uses_with(product)
            graph.erase_node(user)
        else:
            user.update_arg(0, product)
    if node.users:
        with graph.inserting_after(product):
            node.replace_all_uses_with(view_node(graph, product, value))
    graph.erase_node(node)
