"""Cutting a joint graph into forward and backward: what is saved and what is computed again.

torch's min-cut partitioner decides by lists of what a compiler fuses and computes again.  They are
given what pyfuser translates: a whole op that is cheap is no library call whose result has to be
saved.  What takes vector math or a reduction (gelu, softmax) is saved, as eager saves it: on a CPU,
computing it again costs more time than reading it, and more memory where a product needs it whole.
Both hooks are the partitioner's own functions, replaced while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch import partitioners
from torch.fx import GraphModule

from .aten import TRANSLATIONS
from .common_subexpressions import without_common_subexpressions

aten = torch.ops.aten

Partitioner = Callable[..., tuple[GraphModule, GraphModule]]


def partition_joint_graph(rematerialise: bool) -> Partitioner:
    """torch's partitioner for joint graphs, with pyfuser's ops."""
    if not rematerialise:
        return partitioners.default_partition
    return _min_cut


def _packets(cost: str) -> set[Any]:
    """The ops whose translations cost this."""
    return {overload.overloadpacket for overload, row in TRANSLATIONS.items() if row.cost == cost}


def _min_cut(joint: GraphModule, inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    ops = partitioners.get_default_op_list()
    cheap = _packets("cheap")
    heavy = (_packets("heavy") | _packets("reduction")) - cheap
    # Saved tensors go through detach; a decomposition would make aliases of it.
    views: list[Any] = [*ops.view_ops, aten.detach]
    fusible: list[Any] = [*ops.fusible_ops, *cheap, *heavy, aten.detach]
    recomputable = (*ops.recomputable_ops, *cheap, aten.detach)
    recomputed: list[Any] = [op for op in recomputable if op not in heavy]
    of = type(ops.fusible_ops)
    extended = type(ops)(
        of(fusible), ops.compute_intensive_ops, ops.random_ops, of(views), of(recomputed)
    )
    with (
        patch.object(partitioners, "get_default_op_list", lambda: extended),
        patch.object(partitioners, "fx_graph_cse", without_common_subexpressions),
    ):
        return partitioners.min_cut_rematerialization_partition(
            joint, inputs, compiler="inductor", **keywords
        )


__all__ = ["partition_joint_graph"]
