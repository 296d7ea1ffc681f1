"""Library operations: what torch computes as a whole, one row for each.

A row of LIBRARY_OPS belongs to a `LibraryOp` of the same name: its reference takes the expression's
arguments by their names.  The builders (library_builders.py) give the results axes and dtypes; the
evaluator calls the reference; plans call it too, unless torch can write the result into memory of
the runtime (pyfuser/library_operations.py).  Invariant: a reference returns the dtypes that the
builder gives its outputs, for operands of the dtypes that the builder accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..ir.exprs import LibraryOp
from ..ir.scalars import IntExpr
from ..ir.vals import TensorView

aten = torch.ops.aten

Results = torch.Tensor | tuple[torch.Tensor, ...]


def _no_sums(expr: LibraryOp) -> list[IntExpr]:
    return []


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """One operation: the function that computes it, and what validation needs to know.

    `sums` are the sizes whose product is how many elements are added up for one of the result.
    """

    name: str
    reference: Callable[..., Results]
    sums: Callable[[LibraryOp], list[IntExpr]] = _no_sums
    is_repeatable: bool = True


def _last_size(expr: LibraryOp) -> list[IntExpr]:
    """The innermost size of the first operand."""
    return [expr.tensor_inputs[0].axes[-1].size]


def _size_along_dim(expr: LibraryOp) -> list[IntExpr]:
    axes, dim = expr.tensor_inputs[0].axes, dict(expr.options)["dim"]
    assert isinstance(dim, int)
    return [axes[dim].size] if axes else []


def _size_of_attention(expr: LibraryOp) -> list[IntExpr]:
    """The size of a head, and the number of keys."""
    key = expr.argument("key")
    assert isinstance(key, TensorView)
    return [key.axes[-1].size, key.axes[-2].size]


# -- products


def matmul(arg1: torch.Tensor, arg2: torch.Tensor) -> torch.Tensor:
    """torch.matmul."""
    return torch.matmul(arg1, arg2)


def linear(
    arg1: torch.Tensor, arg2: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """arg1 @ arg2.T + bias."""
    return torch.nn.functional.linear(arg1, arg2, bias)


# -- scans


def cumsum(arg: torch.Tensor, dim: int) -> torch.Tensor:
    """torch.cumsum."""
    return torch.cumsum(arg, dim)


def cumprod(arg: torch.Tensor, dim: int) -> torch.Tensor:
    """torch.cumprod."""
    return torch.cumprod(arg, dim)


def cummin(arg: torch.Tensor, dim: int) -> torch.Tensor:
    """The values of torch.cummin."""
    return torch.cummin(arg, dim)[0]


def cummax(arg: torch.Tensor, dim: int) -> torch.Tensor:
    """The values of torch.cummax."""
    return torch.cummax(arg, dim)[0]


# -- orders


def argsort(arg: torch.Tensor, dim: int, descending: bool, stable: bool) -> torch.Tensor:
    """torch.argsort."""
    return torch.argsort(arg, dim=dim, descending=descending, stable=stable)


def topk(arg: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool) -> Results:
    """(values, indices) of torch.topk."""
    values, indices = torch.topk(arg, k, dim, largest, sorted)
    return values, indices


_ROWS = (
    LibraryRow("matmul", matmul, _last_size),
    LibraryRow("linear", linear, _last_size),
    LibraryRow("cumsum", cumsum, _size_along_dim),
    LibraryRow("cumprod", cumprod, _size_along_dim),
    LibraryRow("cummin", cummin),
    LibraryRow("cummax", cummax),
    LibraryRow("argsort", argsort),
    LibraryRow("topk", topk),
)

LIBRARY_OPS: dict[str, LibraryRow] = {row.name: row for row in _ROWS}
