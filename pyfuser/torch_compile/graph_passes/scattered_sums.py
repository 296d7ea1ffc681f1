"""Sums of slices in zeros become a concatenation: the gradient of a tensor that is read in parts.

Each step of a recurrence reads its own part of a tensor, and the gradient of that read is zeros
with one part in them.  Added up step by step, each step would read and write the whole tensor.

    Before:  a = select_scatter(zeros, x, 1, 0) + select_scatter(zeros, y, 1, 1);
             b = a + select_scatter(zeros, z, 1, 2) + c
    After:   b = cat([unsqueeze(x, 1), unsqueeze(y, 1), unsqueeze(z, 1)], 1) + c

A part that is read several times has several gradients, which are added up where it is.

Parts that take turns, as the gradients of x[:, ::2] and x[:, 1::2] do, are put together as rows:

    Before:  a = slice_scatter(zeros, x, 1, 0, n, 2) + slice_scatter(zeros, y, 1, 1, n, 2)
    After:   a = view(cat([unsqueeze(x, 2), unsqueeze(y, 2)], 2), [..., n, ...])

At most one other tensor is added, last.  Runs early, because what is dropped then needs no other
pass.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node

from ..sizes import sizes_of
from ..views import tensor_of
from .metadata import call_traced

aten = torch.ops.aten

# Two are computed well by one kernel, from windows with zeros around them, unless they take turns.
_LEAST_PARTS = 3
_SCATTERS = (aten.select_scatter.default, aten.slice_scatter.default)
_ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)


@dataclass(frozen=True, slots=True)
class _Part:
    """Tensors in zeros, added up: along `dim`, their elements are every `step`-th of [start, stop)
    there.
    """

    zeros: Node
    sources: tuple[Node, ...]
    dim: int
    start: int
    stop: int
    step: int
    has_dim: bool

    @property
    def place(self) -> tuple[int, ...]:
        return self.dim, self.start, self.stop, self.step, self.has_dim


def join_scattered_sums(graph: Graph) -> None:
    """Replaces the last addition of each sum; what nothing else reads is dropped later."""
    if sum(node.target in _SCATTERS for node in graph.nodes) < 2:
        return
    for node in reversed(list(graph.nodes)):
        if node.users and _is_sum(node) and not any(_is_inner(user, node) for user in node.users):
            _join(graph, node)


def _join(graph: Graph, last: Node) -> None:
    parts: list[_Part] = []
    others: list[Node] = []
    for operand in _operands(last):
        part = _part_of(operand, last)
        if part is None:
            others.append(operand)
        else:
            parts.append(part)
    parts = _in_order(parts)
    if len(parts) < 2 or len(others) > 1 or len({part.dim for part in parts}) > 1:
        return
    size = _size(last, parts[0].dim)
    takes_turns = _take_turns(parts, last)
    if size is None or not (takes_turns or _are_apart(parts, size)):
        return
    with graph.inserting_before(last):
        if takes_turns:
            joined = _rows(graph, parts, last)
        else:
            pieces = list(_pieces(graph, parts, size))
            joined = call_traced(graph, aten.cat.default, pieces, parts[0].dim)
        result = call_traced(graph, aten.add.Tensor, joined, others[0]) if others else joined
    result.meta = dict(last.meta)
    last.replace_all_uses_with(result)
    graph.erase_node(last)


def _in_order(parts: list[_Part]) -> list[_Part]:
    """One part for each place, from the first to the last."""
    found: dict[tuple[int, ...], _Part] = {}
    for part in sorted(parts, key=lambda part: part.start):
        first = found.setdefault(part.place, part)
        if first is not part:
            found[part.place] = replace(first, sources=first.sources + part.sources)
    return list(found.values())


def _are_apart(parts: list[_Part], size: int) -> bool:
    """True for parts one after the other: some of them, or each place of a pair."""
    are_plain = all(part.step == 1 for part in parts)
    is_enough = len(parts) >= _LEAST_PARTS or (len(parts) == size and not parts[0].has_dim)
    are_in_order = all(a.stop <= b.start for a, b in zip(parts, parts[1:], strict=False))
    return are_plain and is_enough and are_in_order


def _take_turns(parts: list[_Part], last: Node) -> bool:
    """True if the whole is made of rows of which each part has one place, in order."""
    value, count = tensor_of(last), len(parts)
    if value is None or not all(isinstance(size, int) for size in value.shape):
        return False
    size = value.shape[parts[0].dim]
    return (
        {part.step for part in parts} == {count}
        and size % count == 0
        and [part.start for part in parts] == list(range(count))
        and all(part.stop > size - count + part.start for part in parts)
    )


def _rows(graph: Graph, parts: list[_Part], last: Node) -> Node:
    """The parts' elements in turns."""
    dim, value = parts[0].dim, tensor_of(last)
    assert value is not None
    sources = [_source(graph, part) for part in parts]
    rows = [call_traced(graph, aten.unsqueeze.default, source, dim + 1) for source in sources]
    joined = call_traced(graph, aten.cat.default, rows, dim + 1)
    return call_traced(graph, aten.view.default, joined, list(value.shape))


def _pieces(graph: Graph, parts: list[_Part], size: int) -> Iterator[Node]:
    """The parts, and zeros between them."""
    end, dim = 0, parts[0].dim
    for part in parts:
        if part.start > end:
            yield call_traced(graph, aten.slice.Tensor, part.zeros, dim, end, part.start)
        source = _source(graph, part)
        if not part.has_dim:
            source = call_traced(graph, aten.unsqueeze.default, source, dim)
        yield source
        end = part.stop
    if end < size:
        yield call_traced(graph, aten.slice.Tensor, parts[-1].zeros, dim, end, size)


def _source(graph: Graph, part: _Part) -> Node:
    """The sum of a part's tensors."""
    return functools.reduce(partial(call_traced, graph, aten.add.Tensor), part.sources)


def _operands(last: Node) -> Iterator[Node]:
    """What a sum adds, through the additions that nothing else reads."""
    waiting: list[tuple[Any, Node]] = [(last, last)]
    while waiting:
        operand, reader = waiting.pop()
        if operand is last or (_is_sum(operand) and _is_inner(reader, operand)):
            waiting += [(each, operand) for each in reversed(operand.args)]
        else:
            yield operand


def _is_sum(node: Node) -> bool:
    """True for the addition of two tensors, unscaled."""
    if node.op != "call_function" or node.target is not aten.add.Tensor or node.kwargs:
        return False
    return all(isinstance(each, Node) and _is_alike(each, node) for each in node.args)


def _is_inner(reader: Node, node: Node) -> bool:
    """True if an addition is all that reads a node, once."""
    return _is_sum(reader) and len(node.users) == 1 and reader.args.count(node) == 1


def _is_alike(node: Node, other: Node) -> bool:
    """True for tensors of one shape and dtype; sizes are compared without a guard."""
    a, b = tensor_of(node), tensor_of(other)
    if a is None or b is None or a.dtype != b.dtype:
        return False
    return sizes_of(a.shape) == sizes_of(b.shape)


def _size(node: Node, dim: int) -> int | None:
    value = tensor_of(node)
    size = None if value is None else value.shape[dim]
    return size if isinstance(size, int) else None


def _part_of(node: Node, last: Node) -> _Part | None:
    """The part that a node has among zeros; None for another node."""
    is_select = node.target is aten.select_scatter.default
    if node.op != "call_function" or node.target not in _SCATTERS:
        return None
    zeros, source, *rest = node.args
    given: list[Any] = rest
    value = tensor_of(last)
    if not isinstance(zeros, Node) or zeros.target not in _ZEROS or not isinstance(source, Node):
        return None
    if value is None or not _is_alike(zeros, last) or len(node.users) > 1 or node.kwargs:
        return None
    dim = int(given[0]) % value.dim() if given else 0
    size = _size(last, dim)
    if size is None:
        return None
    bounds = _bounds(is_select, given[1:], size)
    own = tensor_of(source)
    if bounds is None or own is None or own.dtype != value.dtype:
        return None
    return _Part(zeros, (source,), dim, *bounds, not is_select)


def _bounds(is_select: bool, given: list[Any], size: int) -> tuple[int, int, int] | None:
    """Where a part begins and ends, and its step; None if that isn't known."""
    start, stop, step = ([*given, *(None, None, 1)[len(given) :]])[:3]
    start, stop = 0 if start is None else start, size if stop is None else stop
    if not all(isinstance(each, int) for each in (start, stop, step)):
        return None
    start = start + size if start < 0 else start
    if is_select:
        return start, start + 1, 1
    stop = stop + size if stop < 0 else stop
    start, stop = (min(max(each, 0), size) for each in (start, stop))
    return (start, stop, step) if start < stop else None
