"""What a flex attention's program does to each score, as ops on the tensor of all scores.

A program is a graph of scalars: a score, its batch, head, row and column, and what it reads from
tables at such indices.  What is computed from tables alone stays as it is.  Pointwise ops mean the
same for tensors that broadcast: the index of a head is a tensor of 1 x heads x 1 x 1, and what is
computed from it has that shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ..aten.checked import ops
from ..op_facts import is_pointwise, is_random
from ..views import tensor_of
from .metadata import set_metadata

aten = torch.ops.aten

# Ops that make a tensor without axes: the position of its value among the arguments, or the value.
_NUMBERS: dict[Any, int | bool] = {
    aten.scalar_tensor.default: 0,
    aten.full.default: 1,
    aten.new_full.default: 2,
    aten.ones.default: True,
    aten.new_ones.default: True,
}


class NotEvaluated(Exception):
    """A program with other ops than those that can be evaluated for all scores at once."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Adds calls to a graph, with their metadata."""

    graph: Graph
    mode: FakeTensorMode

    def call(self, op: Any, *arguments: Any, **keywords: Any) -> Node:
        """A new call."""
        node: Node = self.graph.call_function(op, arguments, keywords)
        set_metadata(node, op, arguments, self.mode)
        return node

    def sizes(self, node: Node) -> list[Any]:
        """The sizes of a tensor: numbers, and nodes for those that may change."""
        value = _tensor(node)
        return [
            size if isinstance(size, int) else self.call(aten.sym_size.int, node, axis)
            for axis, size in enumerate(value.shape)
        ]

    def number(self, value: float, dtype: torch.dtype, device: torch.device) -> Node:
        """A tensor without axes."""
        return self.call(aten.full.default, [], value, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Sum:
    """A changed score: `where(condition, score * factor + bias, -inf)`."""

    factor: float = 1.0
    bias: Node | None = None
    condition: Node | None = None

    def where(self, condition: Node, builder: Builder) -> Sum:
        """This one, without the scores for which the condition doesn't hold."""
        if self.condition is not None:
            condition = builder.call(aten.logical_and.default, self.condition, condition)
        return replace(self, condition=condition)


class Program:
    """A program whose operands are nodes of another graph, or unknown (None)."""

    def __init__(self, builder: Builder, program: Graph, operands: Sequence[Any]) -> None:
        """Evaluates what doesn't depend on an unknown operand; NotEvaluated if that can't be."""
        self._builder = builder
        nodes = list(program.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._calls = [node for node in nodes if node.op == "call_function"]
        self._result = nodes[-1].args[0]
        if not isinstance(self._result, Node) or any(node.op == "get_attr" for node in nodes):
            raise NotEvaluated
        self._values: dict[Node, Any] = {}
        self._tables: set[Node] = set()
        for placeholder, operand in zip(self._placeholders, operands, strict=True):
            if operand is not None:
                self._values[placeholder] = operand
                if _axes(operand) == _axes(placeholder):
                    self._tables.add(placeholder)
        self._evaluate()

    @property
    def result(self) -> Node:
        """The result; NotEvaluated if it is a number."""
        found = self._values[self._result]
        if not isinstance(found, Node):
            raise NotEvaluated
        return found

    def with_scores(self, scores: Node) -> Node:
        """The result if the first operand, which was unknown, are these scores."""
        self._values[self._placeholders[0]] = scores
        self._evaluate()
        return self.result

    def _evaluate(self) -> None:
        for node in self._calls:
            if node not in self._values and all(n in self._values for n in node.all_input_nodes):
                self._values[node] = self._evaluated(node)

    def _evaluated(self, node: Node) -> Node:
        """A call of a program for all scores."""
        is_of_tables = self._tables.issuperset(node.all_input_nodes)
        if is_random(node) or not (is_of_tables or self._is_elementwise(node)):
            raise NotEvaluated
        arguments, keywords = map_arg((node.args, node.kwargs), self._values.__getitem__)
        made = self._builder.call(node.target, *arguments, **keywords)
        if is_of_tables:
            self._tables.add(node)
        elif _tensor(made).dtype is not self._dtype_of_one(node):
            raise NotEvaluated
        return made

    def _dtype_of_one(self, node: Node) -> torch.dtype:
        """The type of a call's result for one score: tensors without axes count less in promotion,
        unless all operands have none.
        """

        def one(operand: Node) -> Any:
            value = self._values[operand]
            if operand in self._tables:
                return value.meta["val"] if isinstance(value, Node) else value
            return torch.empty((), dtype=_tensor(value).dtype, device=_tensor(value).device)

        with self._builder.mode:
            arguments, keywords = map_arg((node.args, node.kwargs), one)
            made: torch.Tensor = node.target(*arguments, **keywords)  # type: ignore[operator]
            return made.dtype

    def _is_elementwise(self, node: Node) -> bool:
        """True if a call means the same for tensors with axes as for those without."""
        if tensor_of(node) is None or _axes(node):
            return False
        if node.target in _NUMBERS:
            return True
        if node.target in (aten.index.Tensor, aten._unsafe_index.Tensor):
            table, indices = _arguments(node)
            return len(indices) == _axes(table) and None not in indices
        if node.target is not ops.checked_index.default and not is_pointwise(node):
            return False
        return not any(map(_axes, node.all_input_nodes))

    # -- programs that add

    def sum(self, held: torch.dtype) -> Sum | None:
        """What the program makes of the unknown score, if it only scales it, adds to it, and leaves
        scores out.

        Scores, and so what is added to them, are held in this type.
        """
        known: dict[Any, Sum] = {self._placeholders[0]: Sum()}
        for node in self._calls:
            if node not in self._values:
                found = self._changed(node, known, held)
                if found is None:
                    return None
                known[node] = found
        return known.get(self._result)

    def _changed(self, node: Node, known: Mapping[Any, Sum], held: torch.dtype) -> Sum | None:
        arguments = _arguments(node)
        if node.kwargs or len(arguments) < 2:
            return None
        if node.target is aten.where.self:
            return self._where(arguments, known)
        first, second = arguments[:2]
        if node.target is aten.add.Tensor and second in known:
            first, second = second, first
        if first not in known or second in known:
            return None
        score, other = known[first], self._values.get(second, second)
        if node.target in (aten.add.Tensor, aten.sub.Tensor):
            return self._plus(score, other, node.target, held)
        if isinstance(other, (int, float)) and 0 < other < math.inf:
            if node.target is aten.mul.Tensor:
                return self._times(score, other)
            if node.target is aten.div.Tensor:
                return self._times(score, 1 / other)
        return None

    def _plus(self, score: Sum, other: Any, op: OpOverload, held: torch.dtype) -> Sum | None:
        """A sum or difference; a number doesn't change the shares of a row."""
        if not isinstance(other, Node):
            return score if math.isfinite(other) else None
        if _tensor(other).dtype is not held:
            other = self._builder.call(aten._to_copy.default, other, dtype=held)
        if score.bias is not None:
            return replace(score, bias=self._builder.call(op, score.bias, other))
        if op is aten.sub.Tensor:
            other = self._builder.call(aten.neg.default, other)
        return replace(score, bias=other)

    def _times(self, score: Sum, factor: float) -> Sum:
        bias = score.bias
        if bias is not None:
            bias = self._builder.call(aten.mul.Tensor, bias, factor)
        return replace(score, factor=score.factor * factor, bias=bias)

    def _where(self, arguments: tuple[Any, ...], known: Mapping[Any, Sum]) -> Sum | None:
        """`where(condition, score, -inf)`, or with the two exchanged."""
        condition, kept, other = arguments
        chosen = self._values.get(condition)
        if chosen is None:
            return None
        if kept in known and number_of(self._values.get(other)) == -math.inf:
            return known[kept].where(chosen, self._builder)
        if other in known and number_of(self._values.get(kept)) == -math.inf:
            inverse = self._builder.call(aten.logical_not.default, chosen)
            return known[other].where(inverse, self._builder)
        return None


def number_of(node: Any) -> Any:
    """The value of all elements of a tensor without axes, if that is in the graph."""
    if not isinstance(node, Node) or node.target not in _NUMBERS:
        return None
    place = _NUMBERS[node.target]
    return place if place is True else node.args[place]


def _tensor(node: Any) -> torch.Tensor:
    value = tensor_of(node)
    assert value is not None
    return value


def _axes(operand: Any) -> int:
    value = tensor_of(operand) if isinstance(operand, Node) else None
    return 0 if value is None else value.dim()


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args
