"""Products with a single row or column, which read each element of a matrix once.

Like a sum they are limited by memory: a kernel reaches its bandwidth in every dtype, which torch's
products of half precision don't, and it computes what surrounds the product as well.  All other
products belong to the library.

    (1, K) @ (K, N) = sum over K of x[k] * w[k, n];  (M, 1) @ (1, N) = x[m] * w[n]
"""

from __future__ import annotations

from typing import Any

from torch import ops
from torch.fx import Node

from ...ops.shape_builders import permute
from ..sizes import size_of, sizes_of
from .region_builder import Call, meta_of
from .sizes import is_one
from .term import Term
from .translation import Table, Translation

aten = ops.aten

_BY_LIBRARY = "a product of several rows and columns"


def _transposed(call: Call, term: Term) -> Term:
    order = list(range(term.tensor.ndim))
    order[-2:] = order[:-3:-1]
    return call.term(permute(call.fusion, term.tensor, order))


def _product(call: Call, a: Any, b: Any) -> Term:
    """Matrices, or batches of them; at least one of the extents is 1."""
    left, right = call.held(a, call.dtype), call.held(b, call.dtype)
    rows, inner = meta_of(a).shape[-2:]
    rank = meta_of(a).dim()
    if is_one(inner):
        return left * right
    if is_one(rows):
        return (_transposed(call, left) * right).sum([rank - 2], keepdim=True)
    return (left * _transposed(call, right)).sum([rank - 1], keepdim=True)


def _of_vector(call: Call, a: Any, b: Any) -> Term:
    left, right = call.held(a, call.dtype), call.held(b, call.dtype)
    return (left * right.with_new_axes([True, False])).sum([1])


def _of_vectors(call: Call, a: Any, b: Any) -> Term:
    return (call.held(a, call.dtype) * call.held(b, call.dtype)).sum([0])


def _added(call: Call, bias: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Term:
    product = _product(call, a, b)
    if alpha != 1:
        product = product * call.number(alpha, call.dtype)
    if beta == 0:
        return product  # the bias is ignored, even a NaN
    term = call.held(bias, call.dtype)
    if beta != 1:
        term = term * call.number(beta, call.dtype)
    return product + term


def _check_product(node: Node, a: Any, b: Any) -> str | None:
    extents = (*meta_of(a).shape[-2:], meta_of(b).shape[-1])
    return None if any(map(is_one, extents)) else _BY_LIBRARY


def _check_batches(node: Node, a: Any, b: Any) -> str | None:
    """Batches are given with all axes, as `graph_passes/batches_of_products.py` does."""
    left, right = sizes_of(meta_of(a).shape), sizes_of(meta_of(b).shape)
    if min(len(left), len(right)) < 2 or left[:-2] != right[:-2]:
        return "a product that repeats matrices"
    return _check_product(node, a, b)


def _check_added(node: Node, bias: Any, a: Any, b: Any, beta: Any, alpha: Any) -> str | None:
    """The library refuses a bias that can't be expanded to the product; the metadata may not."""
    given, shape = meta_of(bias).shape, (*meta_of(a).shape[:-1], meta_of(b).shape[-1])
    last = shape[len(shape) - len(given) :]
    if len(given) > len(shape) or not all(map(_fits, given, last)):
        return "a bias that doesn't fit the product"
    return _check_product(node, a, b)


def _fits(given: Any, wanted: Any) -> bool:
    return is_one(given) or size_of(given) == size_of(wanted)


TRANSLATIONS: Table = {
    aten.mm.default: Translation(_product, "product", _check_product),
    aten.bmm.default: Translation(_product, "product", _check_product),
    aten.matmul.default: Translation(_product, "product", _check_batches),
    aten.mv.default: Translation(_of_vector, "product"),
    aten.dot.default: Translation(_of_vectors, "product"),
    aten.addmm.default: Translation(_added, "product", _check_added),
    aten.baddbmm.default: Translation(_added, "product", _check_added),
}
