"""Branches and loops: `torch.cond`, `while_loop`, `scan`, `map`, and regions compiled once.

In a traced graph each is one call, of a higher-order op with graphs for its bodies.  The bodies are
compiled like any graph, and the functions here call them.  torch's own implementations would do so
through several layers of dispatch, which take longer than a small body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..plans.library_calls import with_strides
from .sizes import sizes_of
from .views import tensor_of

Call = Callable[[list[Any]], Sequence[Any]]
Function = Callable[..., Any]
Strides = tuple[int, ...] | None  # None: those of a contiguous tensor, whatever its sizes


class Body:
    """A compiled body, called with its operands like the graph that it replaces."""

    def __init__(
        self,
        graph_module: GraphModule,
        strides: Mapping[int, Strides],
        compiler: Callable[[GraphModule], Call],
    ) -> None:
        """`strides` are those that the operands had in tracing.

        `compiler` may change the graph that it gets, which is a copy of the body's.
        """
        copy = GraphModule(graph_module, deepcopy(graph_module.graph))
        output = next(iter(reversed(copy.graph.nodes)))
        self._is_one = not isinstance(output.args[0], (list, tuple))
        if self._is_one:
            output.args = ((output.args[0],),)
            copy.recompile()
        self._strides = strides
        self._call = compiler(copy)

    def __call__(self, *operands: Any) -> Any:
        """The result, or the sequence of results.

        An operand may have other strides than in tracing, as it may be a row, or the result of the
        iteration before.
        """
        given = [*operands]
        for i, strides in self._strides.items():
            if strides is None:
                given[i] = given[i].contiguous()
            elif given[i].stride() != strides:
                given[i] = with_strides(given[i], strides)
        results = self._call(given)
        return results[0] if self._is_one else results


def compile_bodies(attributes: dict[Node, Any], compiler: Callable[[GraphModule], Call]) -> None:
    """Replaces the bodies among the attributes of a graph by compiled ones, each once."""
    bodies: dict[GraphModule, Any] = {}
    for node, value in attributes.items():
        users = list(node.users)
        if isinstance(value, GraphModule) and users and all(map(is_control_flow, users)):
            if value not in bodies:
                strides = _strides_of_operands(value)
                bodies[value] = value if strides is None else Body(value, strides, compiler)
            attributes[node] = bodies[value]


def _strides_of_operands(graph_module: GraphModule) -> dict[int, Strides] | None:
    """The strides of the operands that are tensors, by position.

    None if some depend on sizes, and not as those of a contiguous tensor do.
    """
    found: dict[int, Strides] = {}
    for i, node in enumerate(graph_module.graph.find_nodes(op="placeholder")):
        value = tensor_of(node)
        if value is None:
            continue
        strides = sizes_of(value.stride())
        if all(isinstance(stride, int) for stride in strides):
            found[i] = strides
        elif value.is_contiguous():
            found[i] = None
        else:
            return None
    return found


def is_control_flow(node: Node) -> bool:
    """True for a call that a function of this file can do."""
    return node.target in CONTROL_FLOW and not node.kwargs


def _cond(predicate: Any, true: Function, false: Function, operands: Sequence[Any]) -> Any:
    """The results of the body that the predicate chooses."""
    return (true if predicate else false)(*operands)


def _while_loop(
    condition: Function, body: Function, carried: Sequence[Any], others: Sequence[Any]
) -> Sequence[Any]:
    """What is carried after the last iteration; copies of the operands if there is none."""
    if not condition(*carried, *others):
        return [each.clone() if isinstance(each, torch.Tensor) else each for each in carried]
    carried = body(*carried, *others)
    while condition(*carried, *others):
        carried = body(*carried, *others)
    return carried


def _while_loop_stack_output(
    condition: Function, body: Function, carried: Sequence[Any], others: Sequence[Any]
) -> Sequence[Any]:
    """What is carried after each iteration, stacked; the operands if there is none."""
    made = []
    while condition(*carried, *others):
        carried = body(*carried, *others)
        made.append(carried)
    return _stacked(made or [carried])


def _scan(
    body: Function, carried: Sequence[Any], scanned: Sequence[torch.Tensor], others: Sequence[Any]
) -> Sequence[Any]:
    """What is carried after the last iteration, then the results of all iterations, stacked."""
    number = len(carried)
    made = []
    for row in zip(*(each.unbind(0) for each in scanned), strict=True):
        results = body(*carried, *row, *others)
        carried = results[:number]
        made.append(results[number:])
    return [*carried, *_stacked(made)]


def _map(body: Function, scanned: Sequence[torch.Tensor], others: Sequence[Any]) -> Sequence[Any]:
    """The results of the iterations, stacked."""
    rows = zip(*(each.unbind(0) for each in scanned), strict=True)
    return _stacked([body(*row, *others) for row in rows])


def _stacked(made: Sequence[Sequence[Any]]) -> list[Any]:
    """The results of iterations in tensors for all; None where they have none."""
    return [None if parts[0] is None else torch.stack(parts) for parts in zip(*made, strict=True)]


def _invoke_subgraph(body: Function, name: str, *operands: Any) -> Any:
    """The results of a region that is compiled once for all its calls."""
    return body(*operands)


_higher_order = getattr(torch.ops, "higher_order", None)
_FUNCTIONS: dict[str, Function] = {
    "cond": _cond,
    "invoke_subgraph": _invoke_subgraph,
    "map_impl": _map,
    "scan": _scan,
    "while_loop": _while_loop,
    "while_loop_stack_output": _while_loop_stack_output,
}
# The higher-order ops that this torch has, and what computes them.
CONTROL_FLOW: dict[Any, Function] = {
    op: function
    for name, function in _FUNCTIONS.items()
    if (op := getattr(_higher_order, name, None)) is not None
}
