"""Keeps upsampling whole: each `interpolate` of a Dynamo graph is traced as one operation.

Torch's tracer decomposes it before the table of decompositions is consulted: into an indexed read
for each corner, and in the backward into an indexed addition for each.  Eager's kernels pass over
memory once in both, so a compiled graph calls these.  Measured over 20 sizes, modes and layouts,
both passes on one core: the parts took 1.3 to 32 times as long.  With changing sizes the parts
still run.

    Before:  interpolate(x, size=[8, 8], mode="bilinear")  ->  4 _unsafe_index, 7 mul, 10 add, ...
    After:   interpolate(x, size=[8, 8], mode="bilinear")  ->  upsample_bilinear2d(x, [8, 8], False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.nn import functional

from .dynamo_graphs import graphs_in

aten = torch.ops.aten

# By mode and by the rank of the operand.
_NEAREST: dict[tuple[str, int], OpOverload] = {
    ("nearest", 3): aten.upsample_nearest1d.default,
    ("nearest", 4): aten.upsample_nearest2d.default,
    ("nearest", 5): aten.upsample_nearest3d.default,
    ("nearest-exact", 3): aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 4): aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 5): aten._upsample_nearest_exact3d.default,
}
_BETWEEN_POINTS: dict[tuple[str, int], OpOverload] = {
    ("linear", 3): aten.upsample_linear1d.default,
    ("bilinear", 4): aten.upsample_bilinear2d.default,
    ("bicubic", 4): aten.upsample_bicubic2d.default,
    ("trilinear", 5): aten.upsample_trilinear3d.default,
}
_OPERATIONS = _NEAREST | _BETWEEN_POINTS


def keep_upsampling_whole(graph_module: GraphModule) -> None:
    """Changes each `interpolate` of a Dynamo graph, and of the graphs in it."""
    for module in graphs_in(graph_module):
        nodes = module.graph.find_nodes(op="call_function", target=functional.interpolate)
        for node in nodes:
            node.target = interpolate
        if nodes:
            module.recompile()


def interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.interpolate, for arguments that it accepted when Dynamo traced it."""
    rank = input.dim()
    sizes, scales = _each(size, rank - 2), _each(scale_factor, rank - 2)
    numbers = (*input.shape, *(sizes or ()), *(scales or ()))
    # With symbols, torch can only trace the parts; antialiasing stays whole by itself.
    is_static = all(isinstance(number, (int, float)) for number in numbers)
    if is_static and not recompute_scale_factor and not antialias:
        sizes = sizes or _scaled(input, scales or ())
        corners = (bool(align_corners),) if (mode, rank) in _BETWEEN_POINTS else ()
        operation = _OPERATIONS.get((mode, rank))
        if operation is not None:
            # Python decompositions for tracing belong to this dispatcher.
            with no_python_dispatcher():
                whole: torch.Tensor = operation(input, sizes, *corners, *(scales or ()))
            return whole
    return functional.interpolate(
        input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )


def _each(given: Any, rank: int) -> list[Any] | None:
    """One entry for each spatial dimension."""
    if given is None:
        return None
    return list(given) if isinstance(given, (list, tuple)) else [given] * rank


def _scaled(x: torch.Tensor, scales: Sequence[Any]) -> list[Any]:
    """The sizes of the result, rounded down as in torch."""
    return [int(extent * scale) for extent, scale in zip(x.shape[2:], scales, strict=False)]
