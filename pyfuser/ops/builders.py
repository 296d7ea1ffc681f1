"""Builders: one function per operation, `(fusion, ...) -> value`, which adds to the fusion.

This is the front of `pointwise` and the `*_builders`. The rows of the op table and its reductions
are available by their names (`builders.add(fusion, a, b)`) without code for each, and the
operations of the interface that pyfuser doesn't define yet raise UnsupportedError. The expressions
that builders append are well formed: the verifier accepts them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from .attention_builders import sdpfa_bwd, sdpfa_fwd
from .composite_builders import embedding_fwd, triu
from .gather_builders import gather, index_select, select, take_along_axis
from .library_builders import argsort, linear, matmul, topk
from .point_builders import index, index_put
from .pointwise import Argument, cast, pointwise
from .random_builders import normal, rand_like, randn_like, uniform
from .read_builders import cat, flip, pad, slice, slice_scatter
from .reduction_builders import Dims, reduce, var, var_mean, welford
from .reshape_builders import reshape
from .scaled_products import DEVICE_ONLY, grouped_mm, scaled_mm
from .scan_builders import scan
from .scatter_builders import scatter
from .shape_builders import (
    broadcast,
    broadcast_in_dim,
    expand,
    full,
    iota,
    permute,
    shape,
    size,
    squeeze,
    stride_order,
)
from .table import OPS, REDUCTIONS, SCANS

_NAMED: dict[str, Callable[..., Any]] = {
    **DEVICE_ONLY,
    **{name: partial(scan, name) for name in SCANS},
    "argsort": argsort,
    "broadcast": broadcast,
    "broadcast_in_dim": broadcast_in_dim,
    "cast": cast,
    "cat": cat,
    "embedding_fwd": embedding_fwd,
    "expand": expand,
    "full": full,
    "flip": flip,
    "gather": gather,
    "grouped_mm": grouped_mm,
    "index": index,
    "index_put": index_put,
    "index_select": index_select,
    "iota": iota,
    "linear": linear,
    "matmul": matmul,
    "normal": normal,
    "pad": pad,
    "permute": permute,
    "rand_like": rand_like,
    "randn_like": randn_like,
    "reshape": reshape,
    "scaled_mm": scaled_mm,
    "scatter": scatter,
    "sdpfa_bwd": sdpfa_bwd,
    "sdpfa_fwd": sdpfa_fwd,
    "select": select,
    "shape": shape,
    "size": size,
    "slice": slice,
    "slice_scatter": slice_scatter,
    "squeeze": squeeze,
    "stride_order": stride_order,
    "take_along_axis": take_along_axis,
    "topk": topk,
    "triu": triu,
    "uniform": uniform,
    "var": var,
    "var_mean": var_mean,
    "welford": welford,
}


def _row(name: str, fusion: Fusion, *operands: Argument) -> Val:
    return pointwise(fusion, name, *operands)


def _reduction(
    name: str,
    fusion: Fusion,
    operand: Val,
    dims: Dims = None,
    keepdim: bool = False,
    dtype: DataType = DataType.Null,
) -> TensorView:
    return reduce(fusion, name, operand, dims, keepdim, dtype)


BUILDERS: dict[str, Callable[..., Any]] = {
    **{name: partial(_row, name) for name in OPS},
    **{name: partial(_reduction, name) for name in REDUCTIONS},
    **_NAMED,
}


def __getattr__(name: str) -> Callable[..., Any]:
    """The builder of a row of the op table, by the row's name."""
    found = BUILDERS.get(name)
    if found is None:
        raise AttributeError(f"builders: expected the name of an operation, got {name!r}")
    return found


__all__ = [
    "BUILDERS",
    "DEVICE_ONLY",
    "argsort",
    "broadcast",
    "broadcast_in_dim",
    "cast",
    "cat",
    "embedding_fwd",
    "expand",
    "flip",
    "full",
    "gather",
    "grouped_mm",
    "index",
    "index_put",
    "index_select",
    "iota",
    "linear",
    "matmul",
    "normal",
    "pad",
    "permute",
    "pointwise",
    "rand_like",
    "randn_like",
    "reduce",
    "reshape",
    "scaled_mm",
    "scatter",
    "sdpfa_bwd",
    "sdpfa_fwd",
    "select",
    "shape",
    "size",
    "slice",
    "slice_scatter",
    "squeeze",
    "stride_order",
    "take_along_axis",
    "topk",
    "triu",
    "uniform",
    "var",
    "var_mean",
    "welford",
]
