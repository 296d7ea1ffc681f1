"""Scans from the end: `flip`, a scan and `flip` become one operation, which a kernel computes.

The gradient of `cumsum` is traced as these three. A kernel reads no memory backwards except in the
loop of a reversed scan, so each of them would be a call of torch.

    Before:  a = flip(x, [1]); b = cumsum(a, 1); c = flip(b, [1])
    After:   c = pyfuser.reversed_cumsum(x, 1)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..aten.scans import REVERSED
from ..views import tensor_of

aten = torch.ops.aten


def join_reversed_scans(graph: Graph) -> None:
    """Replaces the outer `flip`; what nothing else reads is dropped later."""
    for node in list(graph.nodes):
        scan = _source(node, aten.flip.default)
        if scan is None or len(scan.users) > 1:
            continue
        target = next((target for target in REVERSED if scan.target is target), None)
        first = None if target is None else _source(scan, target)
        begin = None if first is None else _source(first, aten.flip.default)
        if first is None or begin is None:
            continue
        dims = {_dim(each) for each in (first, scan, node)}
        if len(dims) > 1 or None in dims:
            continue
        with graph.inserting_before(node):
            arguments = (begin, *scan.args[1:])
            joined = graph.call_function(REVERSED[target], arguments, dict(scan.kwargs))
        joined.meta = dict(node.meta)
        node.replace_all_uses_with(joined)
        graph.erase_node(node)


def _source(node: Node, target: Any) -> Node | None:
    """What a call of an op reads; None for another node."""
    is_call = node.op == "call_function" and node.target is target
    source = node.args[0] if is_call else None
    return source if isinstance(source, Node) else None


def _dim(node: Node) -> int | None:
    """The one dimension that a node flips or scans."""
    value, given = tensor_of(node), node.args[1]
    dims: Any = given if isinstance(given, (list, tuple)) else [given]
    if value is None or len(dims) != 1 or not value.dim():
        return None
    return int(dims[0]) % value.dim()
