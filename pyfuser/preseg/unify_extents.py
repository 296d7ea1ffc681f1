"""Unify extents: sizes that the definition forces to be equal get one symbol, or their constant.

It stands before the passes that compare sizes (common subexpressions, empty tensors) and lets the
compiler see that tensors added to each other are indexed alike.  A union-find over the pairs in
`equal_extents`; constants win, else the symbol first in order stands for all.  Only sizes that an
input tensor shows are replaced: binding that input then checks the equality.  Sizes that only a
scalar gives stay, with their pair, and are compared at run time.

Before:
    T2_g_float[iS2{i0}] = add(T0_g_float[iS0{i0}], T1_g_float[iS1{i1}])
After:
    T2_g_float[iS2{i0}] = add(T0_g_float[iS0{i0}], T1_g_float[iS1{i0}])
"""

from __future__ import annotations

from ..ir.fusion import Cloner, Fusion
from ..ir.scalars import IntExpr, Symbol


def unify_extents(fusion: Fusion) -> Fusion:
    """Replaces equal sizes by one of them; a copy of the fusion where there are any."""
    values = _representatives(fusion)
    if not values:
        return fusion
    target = Fusion()
    cloner = Cloner(fusion, target, values)
    target.inputs = [cloner.value(v) for v in fusion.inputs]
    cloner.exprs(fusion.exprs)
    target.outputs = [cloner.value(v) for v in fusion.outputs]
    target.hidden_outputs = {cloner.value(v) for v in fusion.hidden_outputs}
    target.aliases = {cloner.value(o): cloner.value(i) for o, i in fusion.aliases.items()}
    pairs = ((cloner.extent(a), cloner.extent(b)) for a, b in fusion.equal_extents)
    target.equal_extents = [pair for pair in dict.fromkeys(pairs) if pair[0] is not pair[1]]
    return target


def _rank(extent: IntExpr) -> tuple[bool, int, str]:
    """Constants first, then i0, i1, ..., i10."""
    return (not extent.is_constant, len(str(extent)), str(extent))


def _representatives(fusion: Fusion) -> dict[Symbol, IntExpr]:
    """What stands for each size that is replaced."""
    shown = {axis.size for tensor in fusion.input_tensors for axis in tensor.axes}
    parent: dict[IntExpr, IntExpr] = {}

    def find(extent: IntExpr) -> IntExpr:
        root = extent
        while (up := parent.get(root, root)) is not root:
            root = up
        while extent is not root:
            parent[extent], extent = root, parent[extent]
        return root

    for pair in fusion.equal_extents:
        if all(extent.is_constant or extent in shown for extent in pair):
            first, second = sorted((find(pair[0]), find(pair[1])), key=_rank)
            # Two different constants can't be equal: the pair stays and fails when it is bound.
            if first is not second and not second.is_constant:
                parent[second] = first
    return {s: find(s) for s in parent if isinstance(s, Symbol)}
