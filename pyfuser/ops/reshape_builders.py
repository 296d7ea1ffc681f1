"""Reshape builder: turns a change of shape into splits and merges of axes.

The two shapes are cut into the smallest groups whose products are provably equal: for (a, b, c) to
(a*b, c) the groups are {a, b} -> {a*b} and {c} -> {c}. Within a group everything is merged and the
new sizes are split off.  Axes of size 1 take no part: they are squeezed before and broadcast after.
If equality can't be proved (sizes from scalars, -1) it is recorded in `equal_extents`, so a wrong
size is an error at run time and never a wrong result; later reshapes rely on what is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import DefinitionError, expected
from ..ir.domains import IterDomain, TensorDomain
from ..ir.equal_sizes import EqualSizes
from ..ir.exprs import FullOp, ReshapeOp
from ..ir.fusion import Fusion, broadcast_contiguity
from ..ir.scalars import ONE, ZERO, Integer, IntExpr, ceil_div, product
from ..ir.vals import TensorView, Val
from ..ir.windows import Window
from .pointwise import as_tensor, copy, new_tensor, require_equal, size_of_scalar
from .read_builders import sliced
from .shape_builders import (
    Shape,
    broadcast,
    is_unchanged,
    new_axis,
    require_sequence,
    squeeze,
)


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive input axes that become consecutive output axes; `inferred` is where -1 was."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def reshape(fusion: Fusion, operand: Val, new_shape: Shape) -> TensorView:
    """The same elements in row-major order in another shape; one size may be -1."""
    tensor = as_tensor(fusion, operand, "reshape")
    old = [axis.size for axis in tensor.axes]
    new, inferred = _new_sizes(fusion, old, new_shape)
    if new == old:
        return copy(fusion, tensor)
    _check_total(old, new)
    if ZERO in old or ZERO in new:  # without elements, so there is no order to keep
        require_equal(fusion, "reshape", product(old), product(new))
        output = new_tensor(fusion, [new_axis(fusion, extent) for extent in new], tensor.dtype)
        fusion.add_expr(FullOp((fusion.new_scalar(tensor.dtype, constant=0),), (output,)))
        return output
    ones = [i for i, axis in enumerate(tensor.axes) if axis.is_broadcast and axis.size is ONE]
    flat = squeeze(fusion, tensor, ones) if ones else tensor
    kept = [extent for extent in new if extent is not ONE]
    position = None
    if inferred is not None and new[inferred] is not ONE:
        position = sum(extent is not ONE for extent in new[:inferred])
    if not kept or not flat.ndim:
        flat = _single_element(fusion, flat, kept)
        return broadcast(fusion, flat, [True] * len(new)) if new else flat
    if [axis.size for axis in flat.axes] != kept:
        flat = _regroup(fusion, flat, kept, position)
    flags = [extent is ONE for extent in new]
    return broadcast(fusion, flat, flags) if any(flags) else flat


def _single_element(fusion: Fusion, tensor: TensorView, sizes: Sequence[IntExpr]) -> TensorView:
    """The one element [] of a tensor, if the sizes and those of its axes turn out to be 1."""
    require_equal(fusion, "reshape", product(axis.size for axis in tensor.axes), product(sizes))
    if not tensor.ndim:
        return tensor
    first = sliced(fusion, tensor, (Window(ZERO, ONE, ZERO, ONE),) * tensor.ndim)
    return squeeze(fusion, first, range(tensor.ndim))


def _new_sizes(
    fusion: Fusion, old: Sequence[IntExpr], new_shape: Shape
) -> tuple[list[IntExpr], int | None]:
    """The requested sizes, with -1 computed, and its position."""
    require_sequence("reshape", new_shape, "sizes")
    unknown = [i for i, entry in enumerate(new_shape) if is_unchanged(entry)]
    if len(unknown) > 1:
        hint = "A maximum of one value of -1 can be given."
        raise DefinitionError(expected("reshape", "at most one -1", list(new_shape), hint))
    sizes = [
        ONE if i in unknown else size_of_scalar(fusion, "reshape", entry)
        for i, entry in enumerate(new_shape)
    ]
    if not unknown:
        return sizes, None
    numerator, denominator = list(old), [s for i, s in enumerate(sizes) if i != unknown[0]]
    if ZERO in denominator:
        raise DefinitionError(expected("reshape", "no -1 beside a size of 0", list(new_shape)))
    for extent in list(denominator):
        if extent in numerator:
            numerator.remove(extent)
            denominator.remove(extent)
    total = EqualSizes(fusion.equal_extents).find(product(numerator))
    sizes[unknown[0]] = ceil_div(total, product(denominator))
    return sizes, unknown[0]


def _check_total(old: Sequence[IntExpr], new: Sequence[IntExpr]) -> None:
    before, after = product(old), product(new)
    if before.is_constant and after.is_constant and before is not after:
        hint = "Total element counts across view operation must match."
        raise DefinitionError(expected("reshape", f"a shape of {before} elements", after, hint))


def _common_products(
    old: Sequence[IntExpr], new: Sequence[IntExpr], old_stop: int, new_stop: int
) -> tuple[list[Group], int, int]:
    """Groups from the front whose products are equal expressions, and where they end."""
    groups: list[Group] = []
    start_old = start_new = 0
    while start_old < old_stop and start_new < new_stop:
        products: dict[IntExpr, int] = {}
        total: IntExpr = ONE
        for stop in range(start_old, old_stop):
            total = total * old[stop]
            products.setdefault(total, stop + 1)
        total = ONE
        for stop in range(start_new, new_stop):
            total = total * new[stop]
            match = products.get(total)
            if match is not None:
                break
        else:
            break
        groups.append(Group(tuple(range(start_old, match)), tuple(range(start_new, stop + 1))))
        start_old, start_new = match, stop + 1
    return groups, start_old, start_new


def _mirrored(group: Group, old_rank: int, new_rank: int) -> Group:
    return Group(
        tuple(old_rank - 1 - i for i in reversed(group.inputs)),
        tuple(new_rank - 1 - i for i in reversed(group.outputs)),
    )


def group_sizes(
    old: Sequence[IntExpr], new: Sequence[IntExpr], inferred: int | None
) -> list[Group]:
    """Cuts both shapes (without ones) into groups of equal products, in order.

    Sizes that can't be proved equal, and those around the size that was -1, form one group.  Sizes
    that must be 1, to be dropped or added, belong to a group beside them.
    """
    return _complete(_groups(old, new, inferred))


def _complete(groups: Sequence[Group]) -> list[Group]:
    """Joins groups without inputs or without outputs to the ones before them, the first to the
    second."""
    found: list[Group] = []
    for group in groups:
        last = found[-1] if found else None
        is_part = not group.inputs or not group.outputs
        if last is not None and (is_part or not last.inputs or not last.outputs):
            found[-1] = Group(last.inputs + group.inputs, last.outputs + group.outputs)
        else:
            found.append(group)
    return found


def _groups(old: Sequence[IntExpr], new: Sequence[IntExpr], inferred: int | None) -> list[Group]:
    stop = len(new) if inferred is None else inferred
    front, old_at, new_at = _common_products(old, new, len(old), stop)
    old_left, new_left = len(old) - old_at, len(new) - new_at
    if not old_left and not new_left:
        return front
    back_stop = new_left if inferred is None else len(new) - 1 - inferred
    back, old_end, new_end = _common_products(
        old[old_at:][::-1], new[new_at:][::-1], old_left, back_stop
    )
    groups = list(front)
    middle = Group(
        tuple(range(old_at, len(old) - old_end)), tuple(range(new_at, len(new) - new_end))
    )
    if middle.inputs or middle.outputs:
        groups.append(middle)
    return groups + [_mirrored(group, len(old), len(new)) for group in reversed(back)]


def _regroup(
    fusion: Fusion, tensor: TensorView, new: Sequence[IntExpr], inferred: int | None
) -> TensorView:
    known = EqualSizes(fusion.equal_extents)
    old, wanted = [known.find(a.size) for a in tensor.axes], [known.find(size) for size in new]
    domain = regrouped_domain(fusion, tensor, new, group_sizes(old, wanted, inferred), inferred)
    output = fusion.new_tensor(domain, tensor.dtype)
    fusion.add_expr(ReshapeOp((tensor,), (output,)))
    return output


def regrouped_domain(
    fusion: Fusion,
    tensor: TensorView,
    new: Sequence[IntExpr],
    groups: Sequence[Group],
    inferred: int | None = None,
) -> TensorDomain:
    """The axes of a tensor, with those of each group merged and cut into the new sizes."""
    # An expanded axis is read element by element here, so it becomes a real one.
    root = [fusion.ids.new(axis.size) for axis in tensor.axes]
    logical: list[IterDomain] = []
    for group in groups:
        sizes = [new[i] for i in group.outputs]
        open_sizes = [n for n, size in enumerate(sizes) if not isinstance(size, Integer)]
        rest = open_sizes[0] if len(open_sizes) == 1 else 0  # the others are split off as constants
        if inferred is not None and inferred in group.outputs:
            rest = group.outputs.index(inferred)
        made = _regroup_axes(fusion, [root[i] for i in group.inputs], sizes, rest)
        if len(made) > 1:
            # What remains has the given size: without elements it isn't a quotient of the others,
            # and one that was -1 may be a quotient of a size that is equal, but written otherwise.
            made[rest].extent = sizes[rest]
        logical += made
    return TensorDomain(logical, broadcast_contiguity(logical), root=root)


def _regroup_axes(
    fusion: Fusion, axes: Sequence[IterDomain], sizes: Sequence[IntExpr], rest: int
) -> list[IterDomain]:
    """Merges the axes and splits the sizes off; the axis at `rest` gets the remainder."""
    require_equal(fusion, "reshape", product(axis.extent for axis in axes), product(sizes))
    merged = axes[0]
    for axis in axes[1:]:
        merged = fusion.ids.merge(merged, axis)
    before: list[IterDomain] = []
    after: list[IterDomain] = []
    for extent in reversed(sizes[rest + 1 :]):
        merged, inner = fusion.ids.split(merged, extent)
        after.insert(0, inner)
    for extent in sizes[:rest]:
        outer, merged = fusion.ids.split(merged, extent, inner_split=False)
        before.append(outer)
    return [*before, merged, *after]
