"""Flex attention in terms of other ops.

A traced graph has one call for it, with graphs for what a program does to each score and for which
scores it keeps.  torch computes that with every op by itself, unless Inductor has a kernel.  Here a
program that scales scores, adds to them or leaves some out becomes a call of torch's attention with
the sum of all that as a mask; any other becomes two products and a softmax, with the program's ops
in the kernel between them.

    Before:  o = flex_attention(q, k, v, score + slope[h] * (j - i), i >= j, 0.125)[0]
    After:   m = where(i >= j, slope[h] * (j - i), -inf)
             o = scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.125)

Blocks of scores that a block mask leaves out are computed, too, but for those above the diagonal of
a causal one.  Its place: before the passes over products and attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from ..sizes import hints, sizes_of
from ..views import is_getitem, tensor_of
from .attention import ATTENTION, in_rows
from .metadata import contiguous, item_of
from .score_programs import Builder, NotEvaluated, Program, Sum, number_of

aten = torch.ops.aten

_FLEX_ATTENTION = getattr(getattr(torch.ops, "higher_order", None), "flex_attention", None)
_AND = (aten.logical_and.default, aten.bitwise_and.Tensor)


def spell_out_flex_attention(graph: Graph) -> None:
    """Replaces the calls whose programs are made of pointwise ops and reads of tables."""
    for node in list(graph.nodes):
        if node.target is _FLEX_ATTENTION and all(map(is_getitem, node.users)):
            call = _parsed(graph, node)
            if call is not None:
                builder = Builder(graph, call.mode)
                with graph.inserting_before(node), suppress(NotEvaluated):
                    _replace(builder, node, _results(call, builder))


def _replace(builder: Builder, node: Node, results: Sequence[Node | None]) -> None:
    for pick in list(node.users):
        number = pick.args[1]
        assert isinstance(number, int)
        result = results[number]
        if result is not None:
            pick.replace_all_uses_with(_laid_out_as(builder, result, pick))
        builder.graph.erase_node(pick)
    builder.graph.erase_node(node)


def _laid_out_as(builder: Builder, result: Node, wanted: Node) -> Node:
    """The result with the strides of a dense one that others were traced with."""
    made, strides = sizes_of(_tensor(result).stride()), sizes_of(_tensor(wanted).stride())
    if made == strides:
        return result
    call, steps = builder.call, hints(_tensor(wanted).stride())
    order = sorted(range(len(steps)), key=lambda axis: -steps[axis])
    back = sorted(range(len(steps)), key=lambda place: order[place])
    permuted = call(aten.permute.default, result, order)
    copy = contiguous(builder.graph, permuted)
    return copy if order == back == sorted(order) else call(aten.permute.default, copy, back)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of flex attention.

    wants_statistics    the sums and maxima of scores are read
    """

    queries: Node
    keys: Node
    values: Node
    score_program: Graph
    mask_program: Graph
    scale: float
    score_tables: Sequence[Any]
    mask_tables: Sequence[Any]
    wants_statistics: bool
    mode: FakeTensorMode


def _parsed(graph: Graph, node: Node) -> _Call | None:
    """The call, if its tensors have sizes above 0."""
    arguments: tuple[Any, ...] = node.args
    queries, keys, values, score_program, block_mask, scale, _options, *tables = arguments
    score_tables, mask_tables = (*tables, (), ())[:2]
    owner = graph.owning_module
    score, mask = (_program(owner, each) for each in (score_program, block_mask[-1]))
    tensors = [tensor_of(each) for each in (queries, keys, values)]
    fakes = [each for each in tensors if isinstance(each, FakeTensor)]
    if score is None or mask is None or len(fakes) != 3:
        return None
    if any(each.dim() != 4 or 0 in each.shape for each in fakes):
        return None
    wants = any(pick.users and pick.args[1] != 0 for pick in node.users)
    mode = fakes[0].fake_mode
    return _Call(queries, keys, values, score, mask, scale, score_tables, mask_tables, wants, mode)


def _program(owner: GraphModule | None, node: Any) -> Graph | None:
    """The graph that an attribute of the owner holds."""
    if owner is None or not isinstance(node, Node) or node.op != "get_attr":
        return None
    found = getattr(owner, str(node.target), None)
    return found.graph if isinstance(found, GraphModule) else None


def _results(call: _Call, builder: Builder) -> Sequence[Node | None]:
    """The nodes of output, logarithms of sums, and maxima; None if nobody reads them.

    NotEvaluated for programs that can't be written for all scores.
    """
    writer = _Writer(call, builder)
    mask = Program(builder, call.mask_program, [*writer.indices, *call.mask_tables]).result
    is_all = number_of(mask) is True
    program = Program(builder, call.score_program, [None, *writer.indices, *call.score_tables])
    changed = program.sum(writer.held) if writer.is_for_the_library() else None
    if changed is not None:
        changed = changed if is_all else changed.where(mask, builder)
        return [writer.attention(changed), None, None]
    scores = program.with_scores(writer.scores())
    if not is_all:
        lowest = builder.number(-torch.inf, writer.held, writer.device)
        scores = builder.call(aten.where.self, mask, scores, lowest)
    return writer.softmax(scores)


class _Writer:
    """Writes the products and the softmax of one call."""

    def __init__(self, call: _Call, builder: Builder) -> None:
        self._call, self._builder = call, builder
        query = _tensor(call.queries)
        self.dtype, self.device = query.dtype, query.device
        self.held = torch.float64 if query.dtype is torch.float64 else torch.float32
        self._batch, self._heads, self._rows, self._width = builder.sizes(call.queries)
        self._length = builder.sizes(call.keys)[2]
        sizes = (self._batch, self._heads, self._rows, self._length)
        self.indices = [self._index(size, axis) for axis, size in enumerate(sizes)]

    def _index(self, size: Any, axis: int) -> Node:
        """The positions along an axis of the scores, as torch counts them: in 64 bits, though
        Dynamo traces a program with 32.
        """
        call, shape = self._builder.call, [1, 1, 1, 1]
        shape[axis] = size
        numbers = call(aten.arange.default, size, dtype=torch.int64, device=self.device)
        return call(aten.view.default, numbers, shape)

    def is_for_the_library(self) -> bool:
        """True if torch's attention computes what is read."""
        if self._call.wants_statistics or self.device.type != "cpu":
            return False
        return bool(_tensor(self._call.values).shape[3] == _tensor(self._call.queries).shape[3])

    def attention(self, changed: Sum) -> Node:
        """The output, by torch's attention."""
        operands = [self._call.queries, *map(self._repeated, (self._call.keys, self._call.values))]
        rowwise = [in_rows(self._builder.graph, n) for n in operands]
        is_only_causal = changed.bias is None and self._is_causal(changed.condition)
        result = self._builder.call(
            ATTENTION,
            *rowwise,
            0.0,
            self._implies_causal(changed.condition),
            attn_mask=None if is_only_causal else self._mask(changed),
            scale=self._call.scale * changed.factor,
        )
        return item_of(self._builder.graph, result, 0)

    def _is_causal(self, condition: Any) -> bool:
        """True for the condition that a row is at or behind a column."""
        row, column = self.indices[2:]
        causal = ((aten.ge.Tensor, (row, column)), (aten.le.Tensor, (column, row)))
        return isinstance(condition, Node) and (condition.target, condition.args) in causal

    def _implies_causal(self, condition: Any) -> bool:
        """True if the library may leave out the blocks above the diagonal."""
        if isinstance(condition, Node) and condition.target in _AND:
            return any(map(self._implies_causal, condition.args))
        return self._is_causal(condition)

    def _mask(self, changed: Sum) -> Node | None:
        """What is added to the scores, at least rows x length; None for nothing."""
        call, mask = self._builder.call, changed.bias
        if changed.condition is not None:
            zero, lowest = (
                self._builder.number(each, self.held, self.device) for each in (0.0, -torch.inf)
            )
            mask = call(aten.where.self, changed.condition, zero if mask is None else mask, lowest)
        if mask is None:
            return None
        shape = [1, 1, 1, 1, *self._builder.sizes(mask)][-4:]
        whole = [*shape[:2], self._rows, self._length]
        return self._contiguous(call(aten.expand.default, mask, whole))

    def scores(self) -> Node:
        """The scaled scores, batch x heads x rows x length."""
        call = self._builder.call
        keys = self._repeated(self._call.keys)
        queries, keys = (self._flat(n, self.held) for n in (self._call.queries, keys))
        product = call(aten.bmm.default, queries, call(aten.transpose.int, keys, 1, 2))
        shape = [self._batch, self._heads, self._rows, self._length]
        return call(aten.mul.Tensor, call(aten.view.default, product, shape), self._call.scale)

    def softmax(self, scores: Node) -> list[Node | None]:
        """Output, logarithms (base 2) of the sums of exponentials, and maxima (base 2)."""
        call = self._builder.call
        shares = call(aten._safe_softmax.default, scores, -1)
        values = self._flat(self._repeated(self._call.values), self.dtype)
        product = call(aten.bmm.default, self._flat(shares, self.dtype), values)
        shape = [self._batch, self._heads, self._rows, self._builder.sizes(self._call.values)[3]]
        result = call(aten.view.default, product, shape)
        if not self._call.wants_statistics:
            return [result, None, None]
        statistics = (
            call(aten.logsumexp.default, scores, [-1]),
            call(aten.amax.default, scores, [-1]),
        )
        return [result, *(call(aten.div.Tensor, each, math.log(2)) for each in statistics)]

    def _repeated(self, node: Node) -> Node:
        """Keys or values for each batch and head of the queries."""
        call, queries = self._builder.call, _tensor(self._call.queries)
        if _tensor(node).shape[:2] == queries.shape[:2]:
            return node
        _, heads, length, width = self._builder.sizes(node)
        if not isinstance(heads, int) or not isinstance(self._heads, int):
            raise NotEvaluated
        shape = [self._batch, heads, self._heads // heads, length, width]
        grouped = call(aten.expand.default, call(aten.unsqueeze.default, node, 2), shape)
        whole = [self._batch, self._heads, length, width]
        return call(aten.view.default, self._contiguous(grouped), whole)

    def _flat(self, node: Node, dtype: torch.dtype) -> Node:
        """An operand of a product of matrices."""
        if _tensor(node).dtype is not dtype:
            node = self._builder.call(aten._to_copy.default, node, dtype=dtype)
        shape = [-1, *self._builder.sizes(node)[2:]]
        return self._builder.call(aten.view.default, self._contiguous(node), shape)

    def _contiguous(self, node: Node) -> Node:
        is_contiguous = _tensor(node).is_contiguous()
        return node if is_contiguous else contiguous(self._builder.graph, node)


def _tensor(node: Node) -> torch.Tensor:
    value = tensor_of(node)
    assert value is not None
    return value
