"""Scans: cumsum and cumprod.

The operand is converted to the requested dtype first, as in eager. The running result of
half-precision types is Float, and it is rounded at outputs only. (cummax and cummin give indices
too, which no kernel computes.)
"""

from __future__ import annotations

from typing import Any

import torch

from .region_builder import Call, meta_of
from .term import Term
from .translation import Build, Table, Translation

aten = torch.ops.aten


def _scan(op: str) -> Build:
    def build(call: Call, x: Any, dim: int, dtype: Any = None) -> Term:
        return call.held(x, call.dtype).scanned(op, dim).cast(call.dtype)

    return build


def _numbers(node: Any, x: Any, *rest: Any) -> str | None:
    """Eager gives numbers for Bool; only a request makes it scan Bool itself."""
    return "a result of Bool" if meta_of(node).dtype is torch.bool else None


TRANSLATIONS: Table = {
    aten.cumsum.default: Translation(_scan("cumsum"), "reduction", _numbers),
    aten.cumprod.default: Translation(_scan("cumprod"), "reduction", _numbers),
}
