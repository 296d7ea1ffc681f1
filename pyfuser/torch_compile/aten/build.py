"""Building a region: from the nodes of a part of an aten graph to one Fusion.

Each node's translation appends expressions; afterwards the driver checks that the value has the
held dtype, and the rank and the static axes of size 1 of the metadata.  The result contains no
sizes, so two layers, or two batch sizes, give the same text and share kernels.

Invariant: the fusion's inputs are `inputs` in order, then `scalars`; its outputs are the requested
ones, in the metadata's dtypes, each a separate tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ...dtypes import compute_dtype, from_torch
from ...errors import DefinitionError, UnsupportedError, expected
from ...ir.exprs import VIEWS
from ...ir.fusion import Fusion
from ...ir.vals import TensorView, Val
from ...ops.pointwise import copy
from ..views import is_getitem
from .region_builder import Call, NotTranslated, RegionBuilder
from .rounded_values import rounded_values
from .sizes import is_one, short_row
from .tables import translation_of
from .term import Term
from .translation import arguments


@dataclass
class RegionFusion:
    """A region as a fusion: the values to pass, in order, to get the outputs.

    inputs    the nodes of the tensors, in the order of the fusion's first inputs
    scalars   the values (numbers, or symbolic numbers) of its other inputs
    """

    fusion: Fusion
    inputs: list[Node]
    scalars: list[Any]


def build_region(
    nodes: Sequence[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    rounded: AbstractSet[Node] | None = None,
) -> RegionFusion:
    """The fusion of `nodes`, given in topological order.

    `inputs` are the outside nodes whose tensors or sizes are read, `outputs` the nodes whose values
    are used outside, `rounded` the values that kernels of the whole graph read rounded
    (by default, those of `nodes`).
    Raises NotTranslated for a node that can't be included.
    """
    builder = RegionBuilder({row for node in outputs for row in _short_rows(node)})
    tensors = [node for node in inputs if isinstance(node.meta["val"], torch.Tensor)]
    for node in tensors:
        builder.define_input(node)
    if rounded is None:
        rounded = rounded_values(nodes)
    for node in nodes:
        if not isinstance(node.meta["val"], (torch.SymInt, torch.SymFloat, torch.SymBool, int)):
            _translate(builder, node)
            if node in rounded:
                _round(builder, node)
    for node in outputs:
        _define_output(builder, node)
    for scalar in builder.sizes.inputs:
        builder.fusion.add_input(scalar)
    return RegionFusion(builder.fusion, tensors, builder.sizes.values)


def _short_rows(node: Node) -> Iterator[int]:
    """The lengths of the axes of short rows in the memory of a node's tensors."""
    for each in tree_leaves(node.meta["val"]):
        for dim in short_row(each) if isinstance(each, torch.Tensor) else ():
            yield int(each.shape[dim])


def _translate(builder: RegionBuilder, node: Node) -> None:
    if is_getitem(node):
        source, index = node.args
        found = builder.values.get(source)  # type: ignore[arg-type]
        if not isinstance(found, tuple):
            raise NotTranslated(node, expected("getitem", "a node of the region", source))
        builder.values[node] = found[index]  # type: ignore[index]
        return
    row = translation_of(node)
    if row is None:
        raise NotTranslated(node, "no translation of this operation")
    try:
        result = row.build(Call(builder, node), *arguments(node))
    except (DefinitionError, UnsupportedError, OverflowError) as error:
        raise NotTranslated(node, str(error)) from error
    meta = node.meta["val"]
    if isinstance(result, tuple):
        builder.values[node] = _checked_tuple(builder, node, result, meta)
        return
    value = builder.values[node] = _checked(builder, node, result, meta)
    if row.keeps_values and _all_rounded(builder, node):
        builder.rounded.add(value)


def _round(builder: RegionBuilder, node: Node) -> None:
    """Rounds the value of a node, for all its readers, to the dtype that it has in torch."""
    if not builder.is_rounded(node):
        logical = from_torch(node.meta["val"].dtype)
        rounded = builder.cast(builder.values[node], logical)
        builder.values[node] = builder.cast(rounded, compute_dtype(logical))


def _checked_tuple(
    builder: RegionBuilder, node: Node, results: tuple[Any, ...], metas: Any
) -> tuple[TensorView | None, ...]:
    found: list[TensorView | None] = []
    for position, meta in enumerate(metas):
        result = results[position] if position < len(results) else None
        if meta is None or result is None:
            if meta is not None:
                raise NotTranslated(node, f"no value of result {position}")
            found.append(None)
            continue
        found.append(_checked(builder, node, result, meta))
    return tuple(found)


def _checked(
    builder: RegionBuilder, node: Node, result: Term | TensorView, meta: Any
) -> TensorView:
    """The value, in a dtype it may be kept in, after comparing its axes with the metadata."""
    value = result.tensor if isinstance(result, Term) else result
    logical = from_torch(meta.dtype)
    if value.dtype is not logical:
        value = builder.cast(value, compute_dtype(logical))
    axes = value.axes
    if len(axes) != len(meta.shape):
        what = f"a result of rank {len(meta.shape)}"
        raise NotTranslated(node, expected("translation", what, len(axes)))
    for dim, (axis, size) in enumerate(zip(axes, meta.shape, strict=True)):
        has_one = axis.is_broadcast and not axis.is_expanded
        if has_one is not is_one(size):
            what = f"size {size} in dimension {dim}"
            raise NotTranslated(node, expected("translation", what, str(axis)))
        if not has_one:
            builder.sizes.learn(size, axis.size)
    return value


def _all_rounded(builder: RegionBuilder, node: Node) -> bool:
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]
    floats = [n for n in tensors if n.meta["val"].dtype.is_floating_point]
    return bool(floats) and all(builder.is_rounded(n) for n in floats)


def _define_output(builder: RegionBuilder, node: Node) -> None:
    value = builder.values.get(node)
    if not isinstance(value, TensorView):
        raise NotTranslated(node, expected("output", "a tensor of the region", value))
    value = builder.cast(value, from_torch(node.meta["val"].dtype))
    fusion = builder.fusion
    shares_memory = value in fusion.outputs or _views_an_input(fusion, value)
    fusion.add_output(copy(fusion, value) if shares_memory else value)


def _views_an_input(fusion: Fusion, value: Val) -> bool:
    """True if only views lead from an input to a value, which would share its memory."""
    while isinstance(value.expr, VIEWS):
        value = value.expr.inputs[0]
    return value in fusion.inputs
