"""Reshapes whose axes fall into smaller groups once the sizes of a call are known.

A definition with symbolic sizes reshapes [i0, i1, i2] to [8, 512, 8, 64] by merging all axes and
splitting them again: nothing says that i0 is 8.  Where an axis begins is a division then, for each
element of what is computed before the reshape, along other axes.  The sizes of a call usually say
more: {i0} -> {8}, {i1} -> {512}, {i2} -> {8, 64}.  The definition that is made of them is right for
all sizes for which the products of the groups are equal.  If axes are merged into one of a constant
size, as in {i1, i2} -> {512}, it is for these sizes alone: the divisions are by constants then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.disjoint_sets import DisjointSets
from ..ir.domains import IterDomain, TensorDomain, history
from ..ir.exprs import ReshapeOp
from ..ir.fusion import Fusion
from ..ir.scalar_queries import evaluate
from ..ir.scalars import Integer, IntExpr, Symbol, as_expr, product
from .reshape_builders import Group, group_sizes, regrouped_domain


@dataclass(frozen=True, slots=True)
class Regrouping:
    """The positions of reshapes among the expressions of a definition, and their new groups.

    `constants` are sizes that are merged into constant ones, by name.
    """

    reshapes: tuple[tuple[int, tuple[Group, ...]], ...]
    constants: tuple[tuple[str, int], ...]


def regrouping(fusion: Fusion, sizes: Mapping[str, int]) -> Regrouping | None:
    """The reshapes that have more groups at these sizes than in the definition; None if none has.

    What is compared for it is compared as numbers of `sizes`, which may record that.
    """
    reshapes: list[tuple[int, tuple[Group, ...]]] = []
    constants: dict[str, int] = {}
    for place, expr in enumerate(fusion.exprs):
        if isinstance(expr, ReshapeOp):
            domain = expr.tensor_outputs[0].domain
            groups = _groups_at(domain, sizes)
            if groups is not None:
                reshapes.append((place, groups))
                constants |= _merged_sizes(domain, groups, sizes)
    return Regrouping(tuple(reshapes), tuple(constants.items())) if reshapes else None


def regrouped(fusion: Fusion, regrouping: Regrouping) -> Fusion:
    """A copy of a definition with these groups; their products are among its equal sizes."""
    values = {Symbol.of(name): as_expr(value) for name, value in regrouping.constants}
    copy, _ = fusion.clone(values)
    for place, groups in regrouping.reshapes:
        expr = copy.exprs[place]
        (output,) = expr.tensor_outputs
        old, new = output.domain, [axis.size for axis in output.axes]
        made = regrouped_domain(copy, expr.tensor_inputs[0], new, groups)
        of = dict(zip(old.logical, made.logical, strict=True))
        allocation = None if old.allocation is None else [of[axis] for axis in old.allocation]
        output.domain = TensorDomain(
            made.logical, old.contiguity, root=made.root, allocation=allocation
        )
    return copy


def _groups_at(domain: TensorDomain, sizes: Mapping[str, int]) -> tuple[Group, ...] | None:
    """The groups of a reshape at these sizes; None if they aren't more than it has."""
    root, logical = domain.root or (), domain.logical
    shapes = [axis.size for axis in root], [axis.size for axis in logical]
    names = {symbol.name for shape in shapes for size in shape for symbol in size.symbols}
    if not names or not names <= sizes.keys():
        return None
    plain = {name: int(sizes[name]) for name in names}
    old, new = ([evaluate(size, plain) for size in shape] for shape in shapes)
    if 0 in old or 0 in new:
        return None
    groups = group_sizes([*map(Integer.of, old)], [*map(Integer.of, new)], None)
    if len(groups) <= _count_groups(domain) or not all(g.inputs and g.outputs for g in groups):
        return None
    # Records under which conditions other sizes have these groups.
    are_equal = [
        _total(shapes[0], group.inputs, sizes) == _total(shapes[1], group.outputs, sizes)
        for group in groups
    ]
    return tuple(groups) if all(are_equal) else None


def _merged_sizes(
    domain: TensorDomain, groups: Sequence[Group], sizes: Mapping[str, int]
) -> dict[str, int]:
    """The sizes of axes of which several are merged into some of constant sizes."""
    assert domain.root is not None
    found = {}
    for group in groups:
        merged = [domain.root[place].size for place in group.inputs]
        if len(merged) > 1 and all(domain.logical[p].size.is_constant for p in group.outputs):
            for symbol in {symbol for size in merged for symbol in size.symbols}:
                size, value = sizes[symbol.name], int(sizes[symbol.name])
                if size == value:  # which may record it
                    found[symbol.name] = value
    return found


def _total(shape: list[IntExpr], places: tuple[int, ...], sizes: Mapping[str, int]) -> int:
    return evaluate(product(shape[place] for place in places), sizes)


def _count_groups(domain: TensorDomain) -> int:
    sets: DisjointSets[IterDomain] = DisjointSets()
    for step in history(domain.logical, domain.root or ()):
        first, *others = (*step.inputs, *step.outputs)
        for axis in others:
            sets.join(first, axis)
    return len({sets.find(axis) for axis in domain.logical})
