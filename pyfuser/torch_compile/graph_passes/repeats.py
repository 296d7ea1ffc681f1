"""Computes what reads a repeated tensor with the repetitions along an axis of their own.

Along a repeated axis a kernel would find the place of each element by a division, and a repeat by
torch is one more pass over memory.  With an axis for the repetitions the tensor is expanded, which
is a stride of zero, and all else is split, which is a view.

    Before:  r = repeat(b, [1, 4])   [512, 64] -> [512, 256];  c = mul(x, r)
    After:   c = view(mul(view(x, [512, 4, 64]), expand(view(b, [512, 1, 64]), [512, 4, 64])),
                      [512, 256])

Only pointwise ops are computed so, and if nothing that reads them in the same kernel, such as a
reduction, needs the axis whole.  It runs before `move_reshapes` and `move_readers_of_reshapes`,
which move the reshapes out of the way of what comes before and after.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

from ..aten import refusal
from ..sizes import sizes_of
from ..views import elements_of, tensor_of
from .reshapes import (
    can_be_reshaped,
    compute_in_shape,
    is_plain,
    is_pointwise_node,
    move_reshape,
    shape_of,
    view_node,
    with_shape,
)

aten = torch.ops.aten

# A tensor that is repeated for a result so many times as large costs next to nothing.
_MOST_TIMES = 16
_MOST_READERS = 64

Splits = dict[int, tuple[int, Any]]  # axis from the right -> repetitions, size


def expand_repeats(graph: Graph) -> None:
    """Splits the axes of all pointwise ops in the kernels that read a repeat, if they allow it."""
    for node in list(graph.nodes):
        splits = _splits(node)
        readers = _readers(node, splits) if splits else []
        if readers:
            _split(graph, readers, splits)


def _splits(node: Node) -> Splits:
    """The axes that a repeat repeats and that have several elements; {} if it isn't split."""
    if node.target is not aten.repeat.default or refusal(node) is None or not is_plain(node):
        return {}
    source, repeats = _operands(node)
    if not elements_of(node) or not all(isinstance(count, int) for count in repeats):
        return {}
    value = tensor_of(source)
    assert value is not None
    pairs = zip(reversed(repeats), reversed(value.shape), strict=False)
    return {
        place: (count, size)
        for place, (count, size) in enumerate(pairs)
        if count != 1 and not (isinstance(size, int) and size == 1)
    }


def _operands(repeat: Node) -> tuple[Node, list[Any]]:
    source, repeats = repeat.args
    assert isinstance(source, Node) and isinstance(repeats, (list, tuple))
    return source, list(repeats)


def _readers(repeat: Node, splits: Splits) -> list[Node]:
    """What reads a repeat in its kernels, directly or not, in order; [] if it can't be split."""
    found: dict[Node, None] = {}
    waiting = [repeat]
    while waiting:
        for user in waiting.pop().users:
            is_in_kernel = user.op == "call_function" and refusal(user) is None
            if user in found or not (is_in_kernel or repeat in user.all_input_nodes):
                continue
            if not (is_in_kernel and is_pointwise_node(user) and is_plain(user)):
                return []
            if elements_of(user) > _MOST_TIMES * elements_of(repeat) or len(found) == _MOST_READERS:
                return []
            found[user] = None
            waiting.append(user)
    inside = {repeat, *found}
    if not all(_can_be_split(each, inside, splits) for each in found):
        return []
    return [each for each in repeat.graph.nodes if each in found]


def _can_be_split(reader: Node, inside: set[Node], splits: Splits) -> bool:
    value = tensor_of(reader)
    assert value is not None
    like = with_shape(value, _split_shape(value, splits))
    for operand in reader.all_input_nodes:
        own = tensor_of(operand)
        if own is None:
            return False  # a size
        if operand in inside or operand.op == "placeholder" or refusal(operand) is not None:
            continue
        if shape_of(operand) == shape_of(reader):
            if not can_be_reshaped(operand, like, reader):
                return False
        elif any(place < own.dim() for place in splits):
            return False
    return True


def _expanded(graph: Graph, node: Node, splits: Splits) -> Node:
    """The repeated tensor with axes for the repetitions, of which all are the same memory."""
    source, _ = _operands(node)
    value, result = tensor_of(source), tensor_of(node)
    assert value is not None and result is not None
    own = [1] * (result.dim() - value.dim()) + list(value.shape)
    shape: list[Any] = []
    for axis, size in enumerate(own):
        place = result.dim() - 1 - axis
        shape += [1, size] if place in splits else [size]
    wanted = _split_shape(result, splits)
    viewed = _viewed(value, shape)
    apart = view_node(graph, source, viewed)
    sizes = [size if isinstance(size, int) else -1 for size in wanted]
    expanded: Node = graph.call_function(aten.expand.default, (apart, sizes))
    with viewed.fake_mode:
        expanded.meta["val"] = viewed.expand(wanted)
    return expanded


def _split(graph: Graph, readers: list[Node], splits: Splits) -> None:
    """Puts ops on split axes in the place of some, and views of their results."""
    made: dict[Node, Node] = {}
    views: list[tuple[Node, Node]] = []

    def apart(operand: Node) -> Node:
        own = tensor_of(operand)
        assert own is not None
        if operand in made or not any(place < own.dim() for place in splits):
            return made.get(operand, operand)
        if _splits(operand) == splits:
            view = _expanded(graph, operand, splits)
        else:
            view = view_node(graph, operand, _viewed(own, _split_shape(own, splits)))
            views.append((view, operand))
        return view

    for reader in readers:
        value = tensor_of(reader)
        assert value is not None
        like = with_shape(value, _split_shape(value, splits))
        moved, back = compute_in_shape(graph, reader, apart, like)
        made[back] = moved
    for view, operand in views:
        move_reshape(graph, view, operand)


def _viewed(value: torch.Tensor, shape: list[Any]) -> FakeTensor:
    """Metadata of a tensor with some axes split, which any strides allow."""
    assert isinstance(value, FakeTensor)
    with value.fake_mode:
        made = value.view(shape)
    assert isinstance(made, FakeTensor)
    return made


def _split_shape(value: torch.Tensor, splits: Splits) -> list[Any]:
    """The shape with two axes for each that is split; an axis of one element becomes two."""
    shape: list[Any] = []
    for axis, size in enumerate(value.shape):
        split = splits.get(value.dim() - 1 - axis)
        if split is None:
            shape.append(size)
        else:
            shape += [1, 1] if sizes_of([size]) == (1,) else split
    return shape
