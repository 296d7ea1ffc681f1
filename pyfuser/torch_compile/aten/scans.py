"""Scans: cumsum, cumprod, cummax and cummin; and two from the end, which are pyfuser's own ops.

    pyfuser::reversed_cumsum(x, dim, dtype)     flip, cumsum, flip
    pyfuser::reversed_cumprod(x, dim, dtype)    the same of a product

The operand of a sum or product is converted to the requested dtype first, as in eager. The running
result of half-precision types is Float, and it is rounded at outputs only. The indices of cummax
and cummin are a scan of their own: the greatest position so far of an element that is the extreme.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...dtypes import DataType
from .region_builder import Call, meta_of
from .shapes import index_along, is_empty
from .term import Term
from .translation import Build, Table, Translation

aten = torch.ops.aten


_new_library: Any = torch.library.Library
_library = _new_library("pyfuser", "FRAGMENT")  # its definitions last as long as it does


def _from_the_end(scan: Any, x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    made: torch.Tensor = scan(x.flip(dim), dim, dtype=dtype)
    return made.flip(dim)


# Each scan, and the one from the end.
REVERSED: dict[Any, Any] = {}
for _op in ("cumsum", "cumprod"):
    _library.define(f"reversed_{_op}(Tensor x, int dim, *, ScalarType? dtype=None) -> Tensor")
    _overload = getattr(aten, _op).default
    for _key in ("CompositeExplicitAutograd", "Meta"):
        _library.impl(f"reversed_{_op}", partial(_from_the_end, _overload), _key)
    REVERSED[_overload] = getattr(torch.ops.pyfuser, f"reversed_{_op}").default


def _scan(op: str, reverse: bool = False) -> Build:
    def build(call: Call, x: Any, dim: int, dtype: Any = None) -> Term:
        return call.held(x, call.dtype).scanned(op, dim, reverse).cast(call.dtype)

    return build


def _extreme(op: str) -> Build:
    """(values, indices); the last of equal elements counts, and so does the last NaN."""

    def build(call: Call, x: Any, dim: int) -> tuple[Term, Term]:
        term, shape = call.exact(x), meta_of(x).shape
        values = term.scanned(op, dim)
        if not shape:
            return values, call.filled([], 0, torch.int64)
        counts = term.equals(values) | term.differs(term)
        place = counts.choose(index_along(call, shape, dim), call.constant(0, DataType.Int))
        return values, place.scanned("cummax", dim)

    return build


def _some_elements(node: Any, x: Any, *rest: Any) -> str | None:
    return "no elements" if is_empty(meta_of(x)) else None


def _numbers(node: Any, x: Any, *rest: Any) -> str | None:
    """Eager gives numbers for Bool; only a request makes it scan Bool itself."""
    return "a result of Bool" if meta_of(node).dtype is torch.bool else None


TRANSLATIONS: Table = {
    aten.cumsum.default: Translation(_scan("cumsum"), "reduction", _numbers),
    aten.cumprod.default: Translation(_scan("cumprod"), "reduction", _numbers),
    REVERSED[aten.cumsum.default]: Translation(_scan("cumsum", True), "reduction", _numbers),
    REVERSED[aten.cumprod.default]: Translation(_scan("cumprod", True), "reduction", _numbers),
    aten.cummax.default: Translation(_extreme("cummax"), "reduction", _some_elements, True, (0,)),
    aten.cummin.default: Translation(_extreme("cummin"), "reduction", _some_elements, True, (0,)),
}
