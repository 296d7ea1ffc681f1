"""Max pooling without its positions: the maximum of shifted windows, in one kernel.

torch's pooling always finds the positions too, which the backward needs; in inference they are
discarded.  Without them it is a chain of maxima, which compiles to a few vector operations.

    Before:  a, _ = max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    After:   p = constant_pad_nd(x, [1, 1, 1, 1], -inf)
             a = maximum(p[:, :, 0::2, 0::2], p[:, :, 0::2, 1::2], ...)

The copies around a pooling in channels-last memory (aten/channels_last.py) go with it: a kernel
reads and writes its tensors in the order that they have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from ..op_facts import facts
from ..views import is_getitem, tensor_of
from .metadata import call_traced

aten = torch.ops.aten

_MOST_WINDOWS = 16  # with more, torch's loop over the window is as good


def spell_out_pooling(graph: Graph) -> None:
    """Replaces max pooling without positions if all sizes are numbers."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not aten.max_pool2d_with_indices.default:
            continue
        picks = list(node.users)
        if len(picks) == 1 and is_getitem(picks[0]) and picks[0].args[1] == 0:
            _replace(graph, node, picks[0])


def _pair(values: Any, default: int) -> tuple[int, int]:
    given = list(values) if isinstance(values, (list, tuple)) else [values]
    given = given or [default]
    return (given[0], given[-1])


def _contiguous(source: Node, results: list[Node]) -> tuple[Node, list[Node]]:
    """Contiguous images and results: those that were copied to other memory, and from there."""
    if facts(source).copies and all(facts(user).copies for user in results[0].users):
        (images, *_), copies = source.all_input_nodes, list(results[0].users)
        if all(_is_contiguous(node) for node in [images, *copies]):
            return images, copies
    return source, results


def _is_contiguous(node: Node) -> bool:
    value = tensor_of(node)
    return value is not None and value.is_contiguous()


def _replace(graph: Graph, node: Node, pick: Node) -> None:
    given_source = node.args[0]
    assert isinstance(given_source, Node)
    source, results = _contiguous(given_source, [pick])
    value, result = tensor_of(source), tensor_of(pick)
    if not isinstance(value, Tensor) or result is None or value.dim() != 4:
        return
    if not value.is_floating_point() or not value.is_contiguous():
        return
    given = [*node.args[1:], *[None] * 5]
    kernel = _pair(given[0], 1)
    stride = kernel if not given[1] else _pair(given[1], 1)
    padding, dilation = _pair(given[2] or 0, 0), _pair(given[3] or 1, 1)
    sizes = [*value.shape, *result.shape, *kernel, *stride, *padding]
    if given[4] or dilation != (1, 1) or not all(isinstance(size, int) for size in sizes):
        return
    if not 1 < kernel[0] * kernel[1] <= _MOST_WINDOWS or result.numel() == 0:
        return
    with graph.inserting_before(node):
        padded = source
        if any(padding):
            widths = [padding[1], padding[1], padding[0], padding[0]]
            padded = call_traced(graph, aten.constant_pad_nd.default, source, widths, float("-inf"))
        best: Node | None = None
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                window = _strided(graph, padded, 2, i, result.shape[2], stride[0])
                window = _strided(graph, window, 3, j, result.shape[3], stride[1])
                pair = (window,) if best is None else (best, window)
                best = window if best is None else call_traced(graph, aten.maximum.default, *pair)
    assert best is not None
    best.meta = dict(results[0].meta)
    for each in results:
        each.replace_all_uses_with(best)
        graph.erase_node(each)
    if pick not in results:
        graph.erase_node(pick)
    graph.erase_node(node)


def _strided(graph: Graph, node: Node, dim: int, start: int, count: int, step: int) -> Node:
    end = start + (count - 1) * step + 1
    return call_traced(graph, aten.slice.Tensor, node, dim, start, end, step)
