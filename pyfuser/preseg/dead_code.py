"""Dead code: drops the expressions that no output needs.

Runs first, so that no other pass does useless work, and last, because the others leave expressions
whose readers they replaced.

Before:
    T1_l_float[iS1{i0}] = exp(T0_g_float[iS0{i0}])
    T2_g_float[iS2{i0}] = neg(T0_g_float[iS0{i0}])
After:
    T2_g_float[iS2{i0}] = neg(T0_g_float[iS0{i0}])
"""

from __future__ import annotations

from ..ir.fusion import Fusion
from .rewriting import relink


def dead_code(fusion: Fusion) -> Fusion:
    """Keeps the live expressions."""
    return relink(fusion, fusion.live_exprs())
