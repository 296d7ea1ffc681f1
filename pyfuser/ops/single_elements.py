"""Axes of at most one element, which broadcast as an axis of exactly one element does.

A slice of a symbolic axis to one element has a size such as min(1, i0): an empty axis has none to
give.  Where another size is needed it is taken to be 1, as torch and nvFuser decide when they know
the sizes; the pair in `equal_extents` makes a call with an empty axis an error instead of a read
outside the tensor.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..ir.bounds import proves_at_most
from ..ir.domains import IterDomain
from ..ir.exprs import WindowOp
from ..ir.fusion import Fusion, plain_domain
from ..ir.scalars import ONE, ZERO, Symbol
from ..ir.vals import TensorView
from ..ir.windows import Window


def may_be_single(axis: IterDomain) -> bool:
    """True for a symbolic axis of at most one element, which isn't a broadcast axis yet."""
    if axis.is_broadcast or axis.size.is_constant or isinstance(axis.size, Symbol):
        return False
    return proves_at_most(axis.size, ONE)


def as_single(fusion: Fusion, tensor: TensorView, dims: Container[int]) -> TensorView:
    """The tensor with broadcast axes in place of those of `dims` that may be single."""
    chosen = [d in dims and may_be_single(axis) for d, axis in enumerate(tensor.axes)]
    if not any(chosen):
        return tensor
    axes = []
    for axis, single in zip(tensor.axes, chosen, strict=True):
        if single and (axis.size, ONE) not in fusion.equal_extents:
            fusion.equal_extents.append((axis.size, ONE))
        same = (axis.extent, axis.iter_type, axis.expanded_extent)
        axes.append(fusion.ids.broadcast() if single else fusion.ids.new(*same))
    output = fusion.new_tensor(plain_domain(axes), tensor.dtype)
    windows = tuple(Window(ZERO, ONE, ZERO, ONE) if single else None for single in chosen)
    fusion.add_expr(WindowOp((tensor,), (output,), windows))
    return output


def aligned_singles(fusion: Fusion, tensors: Sequence[TensorView]) -> list[TensorView]:
    """Tensors of one rank; an axis that may be single is, if another's size isn't the same."""
    columns = zip(*(tensor.axes for tensor in tensors), strict=True)
    dims = {d for d, column in enumerate(columns) if _is_joined_with_another(column)}
    return [as_single(fusion, tensor, dims) for tensor in tensors] if dims else list(tensors)


def _is_joined_with_another(column: Sequence[IterDomain]) -> bool:
    sizes = {axis.size for axis in column if axis.size is not ONE}
    if len(sizes) < 2:
        return False
    singles = [may_be_single(axis) for axis in column if axis.size is not ONE]
    return any(singles) and not all(singles)
