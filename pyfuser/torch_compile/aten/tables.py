"""The tables of all families, and facts about nodes that need no translation.

`refusal` is called for every node of every graph, so it only reads metadata, and asks torch once
for other dtypes than floating-point ones (implemented.py); the partitioner also asks for the cost
of a node.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ...devices.switches import can_fuse_on
from ...dtypes import KERNEL_DTYPES, from_torch
from ..views import is_getitem
from . import (
    activations,
    checked,
    norms,
    pointwise,
    products,
    random_numbers,
    reads,
    rearrangements,
    reductions,
    scans,
    scatters,
    shapes,
    special,
)
from .implemented import is_implemented
from .translation import Cost, Table, Translation, arguments

TRANSLATIONS: Table = {
    **pointwise.TRANSLATIONS,
    **special.TRANSLATIONS,
    **activations.TRANSLATIONS,
    **reductions.TRANSLATIONS,
    **products.TRANSLATIONS,
    **scans.TRANSLATIONS,
    **norms.TRANSLATIONS,
    **shapes.TRANSLATIONS,
    **reads.TRANSLATIONS,
    **rearrangements.TRANSLATIONS,
    **scatters.TRANSLATIONS,
    **checked.TRANSLATIONS,
    **random_numbers.TRANSLATIONS,
}


def _has_kernels(dtype: torch.dtype) -> bool:
    try:
        return from_torch(dtype) in KERNEL_DTYPES
    except KeyError:
        return False


_DTYPES = frozenset(
    d for d in vars(torch).values() if isinstance(d, torch.dtype) and _has_kernels(d)
)


def translation_of(node: Node) -> Translation | None:
    """The row of a node's overload."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    return TRANSLATIONS.get(node.target)


def refusal(node: Node) -> str | None:
    """Why a node can't be part of a kernel; None if it can."""
    if is_getitem(node):
        source = node.args[0]
        if not isinstance(source, Node) or not isinstance(node.args[1], int):
            return "an item of something else than a node"
        return refusal(source)
    row = translation_of(node)
    if row is None:
        return "no translation of this operation"
    reason = _metadata_refusal(node)
    assert isinstance(node.target, OpOverload)
    if reason is None and not is_implemented(node.target, node.args, node.kwargs):
        reason = "torch doesn't implement it for these dtypes"
    if reason is None and row.check is not None:
        reason = row.check(node, *arguments(node))
    return reason


def _metadata_refusal(node: Node) -> str | None:
    results = node.meta.get("val")
    made = list(results) if isinstance(results, (tuple, list)) else [results]
    tensors = [meta for meta in made if meta is not None]
    if not tensors or not all(isinstance(meta, torch.Tensor) for meta in tensors):
        return "a result that isn't a tensor"
    for argument in node.all_input_nodes:
        meta = argument.meta.get("val")
        if isinstance(meta, torch.Tensor):
            tensors.append(meta)
        elif isinstance(meta, (tuple, list)) or meta is None:
            return "an operand that isn't a tensor or a number"
    device = tensors[0].device
    for tensor in tensors:
        if tensor.dtype not in _DTYPES:
            return f"the dtype {tensor.dtype}"
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return f"the layout {tensor.layout}"
        if tensor.is_neg() or tensor.is_conj():
            return "a pending negation or conjugation"
        if tensor.device != device:
            return f"tensors on {device} and {tensor.device}"
    return None if can_fuse_on(device.type) else f"tensors on {device}"


def cost(node: Node) -> Cost:
    """The cost class of a node: cheap, heavy, a reduction, a view, or a read."""
    if is_getitem(node):
        return "view"
    row = translation_of(node)
    if row is None:
        return "heavy"
    exponent: Any = node.args[1] if len(node.args) > 1 else None
    is_power = node.target is torch.ops.aten.pow.Tensor_Scalar
    if is_power and exponent not in pointwise.CHEAP_EXPONENTS:
        return "heavy"
    return row.cost
