"""Unify extents: sizes that the definition forces to be equal get one symbol, or their constant.

Runs before the passes that compare sizes (common subexpressions, empty tensors) and lets the
compiler see that tensors added to each other are indexed alike.  In the classes of the pairs in
`equal_extents` a constant wins, otherwise the first symbol in order represents its class.  Only
sizes of input tensors are replaced: binding the input then checks the equality.  Sizes that come
only from a scalar stay, with their pair, and are compared at run time.  A computed size (of two
tensors side by side) is replaced as a whole; binding the definition has checked it.

Before:
    T2_g_float[iS2{i0}] = add(T0_g_float[iS0{i0}], T1_g_float[iS1{i1}])
After:
    T2_g_float[iS2{i0}] = add(T0_g_float[iS0{i0}], T1_g_float[iS1{i0}])
"""

from __future__ import annotations

from ..ir.equal_sizes import SizeClasses
from ..ir.fusion import Fusion
from ..ir.scalar_queries import substitute
from ..ir.scalars import IntExpr, Symbol


def unify_extents(fusion: Fusion) -> Fusion:
    """Replaces equal sizes by one of them; a copy of the fusion if there are any."""
    values = _representatives(fusion)
    composites = _composites(fusion, values)
    if not values and not composites:
        return fusion
    unified, _ = fusion.clone(values, composites)
    return unified


def _representatives(fusion: Fusion) -> dict[Symbol, IntExpr]:
    """The representative of each size that is replaced."""
    shown = _shown(fusion)
    classes = SizeClasses()
    for pair in fusion.equal_extents:
        if all(extent.is_constant or extent in shown for extent in pair):
            classes.join(*pair)
    return {s: classes.find(s) for s in classes.replaced if isinstance(s, Symbol)}


def _composites(fusion: Fusion, values: dict[Symbol, IntExpr]) -> dict[IntExpr, IntExpr]:
    """The representative of each computed size that equals another size."""
    shown = _shown(fusion)
    classes = SizeClasses()
    for a, b in fusion.equal_extents:
        pair = (substitute(a, values), substitute(b, values))
        is_computed = any(not isinstance(extent, Symbol) for extent in pair)
        if is_computed or all(extent in shown for extent in pair):
            classes.join(*pair)
    return {e: classes.find(e) for e in classes.replaced if not isinstance(e, Symbol)}


def _shown(fusion: Fusion) -> set[IntExpr]:
    """The sizes of the input tensors."""
    return {axis.size for tensor in fusion.input_tensors for axis in tensor.axes}
