"""pyfuser's own ops that return their operand, but raise torch's error for values it refuses.

    pyfuser::checked_class(x, classes)              each is a class (one_hot)
    pyfuser::checked_index(x, size, dim)            each is an index, also from the end (index)
    pyfuser::checked_target(x, classes, ignored)    each is a class, or is ignored (nll_loss)
    pyfuser::checked_probability(x)                 each is in [0, 1] (binary_cross_entropy)
    pyfuser::checked_target_probability(x)          the same, of its target

A decomposition of an op that checks its operands inserts one of these.  Each is the row of the op
table with its name; torch runs those that aren't part of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.fx import GraphModule

from ...dtypes import DataType, from_torch
from ...ops.checking import check_op
from ...ops.dtype_rules import OperandType, resolve
from ...ops.table import OPS
from .region_builder import Call, meta_of
from .term import Term
from .translation import Table, Translation

aten = torch.ops.aten

_SCHEMAS = {
    "checked_class": "(Tensor x, SymInt classes) -> Tensor",
    "checked_index": "(Tensor x, SymInt size, int dim) -> Tensor",
    "checked_target": "(Tensor x, SymInt classes, SymInt ignored) -> Tensor",
    "checked_probability": "(Tensor x) -> Tensor",
    "checked_target_probability": "(Tensor x) -> Tensor",
}

_new_library: Any = torch.library.Library
_library = _new_library("pyfuser", "DEF")  # its definitions last as long as it does


def _eager(name: str, x: torch.Tensor, *numbers: int) -> torch.Tensor:
    row, dtype = OPS[name], from_torch(x.dtype)
    given = [OperandType(dtype), *(OperandType(DataType.Int, "scalar") for _ in numbers)]
    operands = [x, *(torch.tensor(number, device=x.device) for number in numbers)]
    check_op(row, operands, resolve(row, given))
    return x.clone()


def _metadata(x: torch.Tensor, *numbers: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _batched(name: str, info: Any, dims: Any, *given: Any) -> tuple[Any, Any]:
    """Elementwise, so the batch dimension may be any."""
    return getattr(ops, name)(*given), dims[0]


ops = torch.ops.pyfuser

for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema)
    _library.impl(_name, partial(_eager, _name), "CompositeExplicitAutograd")
    _library.impl(_name, _metadata, "Meta")
    torch.library.register_vmap(f"pyfuser::{_name}", partial(_batched, _name), lib=_library)


# -- translations


def _classes(call: Call, x: Any, classes: Any) -> Term:
    return call.held(x).op("checked_class", call.builder.sizes.entry(meta_of(classes)))


def _place(call: Call, x: Any, size: Any, dim: int) -> Term:
    return call.held(x).op("checked_index", call.builder.sizes.entry(meta_of(size)), dim)


def _target(call: Call, x: Any, classes: Any, ignored: Any) -> Term:
    number = call.number(ignored, DataType.Int).value
    return call.held(x).op("checked_target", call.builder.sizes.entry(meta_of(classes)), number)


def _probability(name: str, call: Call, x: Any) -> Term:
    return call.held(x).op(name)


TRANSLATIONS: Table = {
    ops.checked_class.default: Translation(_classes, keeps_values=True),
    ops.checked_index.default: Translation(_place, keeps_values=True),
    ops.checked_target.default: Translation(_target, keeps_values=True),
    **{
        getattr(ops, name).default: Translation(partial(_probability, name), keeps_values=True)
        for name in ("checked_probability", "checked_target_probability")
    },
}


# -- the decompositions that insert them


def _nll_loss(parts: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, applied to a checked target."""

    def loss(
        x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignored: int
    ) -> Any:
        classes = x.shape[1] if x.dim() > 1 else x.shape[0]
        checked = ops.checked_target(target.long(), classes, ignored)
        return parts(x, checked, weight, reduction, ignored)

    return loss


def _binary_cross_entropy(parts: Callable[..., Any]) -> Callable[..., Any]:
    def loss(x: torch.Tensor, target: torch.Tensor, weight: Any = None, reduction: int = 1) -> Any:
        checked = ops.checked_target_probability(target)
        return parts(ops.checked_probability(x), checked, weight, reduction)

    return loss


def _decompositions() -> dict[Any, Callable[..., Any]]:
    made = {
        aten.nll_loss_forward.default: _nll_loss,
        aten.nll_loss2d_forward.default: _nll_loss,
        aten.binary_cross_entropy.default: _binary_cross_entropy,
    }
    parts = get_decompositions(list(made))
    return {overload: build(parts[overload]) for overload, build in made.items()}


DECOMPOSITIONS = _decompositions()


def check_classes(graph_module: GraphModule) -> None:
    """Inserts a check before each `one_hot` of a Dynamo graph.

    AOTAutograd would only see it decomposed into a comparison.
    """
    for module in graph_module.modules():
        if isinstance(module, GraphModule):
            _check_classes_of(module)


def _check_classes_of(module: GraphModule) -> None:
    nodes = module.graph.find_nodes(op="call_function", target=torch._C._nn.one_hot)
    for node in nodes:
        classes = node.kwargs.get("num_classes", [*node.args, -1, -1][1])
        if not node.args or classes == -1:
            continue  # the largest value decides the number of classes
        with module.graph.inserting_before(node):
            checked = module.graph.call_function(ops.checked_class.default, (node.args[0], classes))
        node.args = (checked, *node.args[1:])
    if nodes:
        module.recompile()
