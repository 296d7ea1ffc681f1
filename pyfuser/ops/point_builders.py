"""Point builders: reads and writes at points, x[i, j], with an index tensor for each dimension.

The indexed dimensions become one by a reshape, and the index tensors one index into it, so each is
a read, or a write, with one index. An index is checked for its own dimension, and counts from the
end if it is negative.

    index(x, [i, j], 0)  ->  k = wrapped(i) * 5 + wrapped(j)         x of [4, 5, 6]
                             index(reshape(x, [20, 6]), k, 0)
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import DataType
from ..errors import DefinitionError, expected
from ..ir.fusion import Fusion
from ..ir.strides import inverse
from ..ir.vals import Scalar, TensorView, Val
from . import gather_builders, scatter_builders
from .pointwise import Argument, as_index, as_tensor, cast_tensor, pointwise
from .reshape_builders import reshape
from .shape_builders import broadcast, permute, size, wrapped_dim

Indices = Val | Sequence[Val]
Dims = int | Sequence[int]


def index(fusion: Fusion, operand: Val, index: Indices, dim: Dims) -> TensorView:
    """operand[:, index] for dim 1, with an index of any rank: negatives count from the end.

    Several indices, which broadcast to one shape, are those of the dimensions from `dim` on, or of
    the dimensions `dim` lists: operand[i, :, j] is index(operand, [i, j], [0, 2]). The points take
    the place of adjacent dimensions; otherwise they come first, as in torch.
    """
    if isinstance(index, Val) and isinstance(dim, int):
        return gather_builders.index(fusion, operand, index, dim)
    points = _Points(fusion, "index", operand, index, dim)
    return gather_builders.index(fusion, points.flat(), points.place(), points.start)


def index_put(
    fusion: Fusion,
    arg: Val,
    index: Indices,
    src: Argument,
    dim: Dims,
    how: str = "set",
    op: str = "index_put",
) -> TensorView:
    """`arg` with arg[:, index] = src for dim 1; with several indices as for `index`.

    `src` has the shape that arg[:, index] has, or broadcasts to it; `how` is set, sum, prod, max or
    min. If several values go to one element, they do so in order.
    """
    if isinstance(index, Val) and isinstance(dim, int):
        return scatter_builders.index_put(fusion, arg, index, src, dim, how, op)
    points = _Points(fusion, op, arg, index, dim)
    flat, place = points.flat(), points.place()
    made = scatter_builders.index_put(fusion, flat, place, src, points.start, how, op)
    return points.restored(made)


class _Points:
    """Index tensors for dimensions of a tensor; `start` is the first dimension of the points."""

    def __init__(self, fusion: Fusion, op: str, operand: Val, indices: Indices, dims: Dims) -> None:
        tensor = as_tensor(fusion, operand, op)
        given = [indices] if isinstance(indices, Val) else list(indices)
        listed = list(range(dims, dims + len(given))) if isinstance(dims, int) else list(dims)
        at = [wrapped_dim(op, dim, tensor.ndim) for dim in listed]
        if not at or len(at) != len(given) or len(set(at)) != len(at):
            raise DefinitionError(expected(op, "a dimension for each index", listed))
        self.fusion = fusion
        is_block = at == list(range(at[0], at[-1] + 1))
        self.start = at[0] if is_block else 0
        others = [d for d in range(tensor.ndim) if d not in at]
        self.order = [*others[: self.start], *at, *others[self.start :]]
        is_ordered = self.order == list(range(tensor.ndim))
        self.tensor = tensor if is_ordered else permute(fusion, tensor, self.order)
        self.sizes = [size(fusion, self.tensor, d) for d in range(tensor.ndim)]
        self.indices = [
            cast_tensor(fusion, as_index(fusion, op, each), DataType.Int) for each in given
        ]

    def flat(self) -> TensorView:
        """The tensor with the indexed dimensions as one."""
        stop = self.start + len(self.indices)
        merged = self.sizes[self.start]
        for other in self.sizes[self.start + 1 : stop]:
            product = pointwise(self.fusion, "mul", merged, other)
            assert isinstance(product, Scalar)
            merged = product
        shape = [*self.sizes[: self.start], merged, *self.sizes[stop:]]
        return reshape(self.fusion, self.tensor, shape)

    def place(self) -> TensorView:
        """The index into the merged dimension."""
        rank = max(index.ndim for index in self.indices)
        place: Val | None = None
        for number, index in enumerate(self.indices):
            flags = [d < rank - index.ndim for d in range(rank)]
            aligned = broadcast(self.fusion, index, flags) if any(flags) else index
            counted = self._counted(aligned, self.sizes[self.start + number], number)
            if place is not None:
                scaled = pointwise(self.fusion, "mul", place, self.sizes[self.start + number])
                counted = pointwise(self.fusion, "add", scaled, counted)
            place = counted
        assert isinstance(place, TensorView)
        return place

    def restored(self, flat: TensorView) -> TensorView:
        """A result with the merged dimension as a tensor with the operand's dimensions."""
        made = reshape(self.fusion, flat, self.sizes)
        back = inverse(self.order)
        return made if back == self.order == sorted(back) else permute(self.fusion, made, back)

    def _counted(self, index: TensorView, extent: Val, number: int) -> Val:
        """The index, in [0, extent)."""
        fusion = self.fusion
        checked = pointwise(fusion, "checked_index", index, extent, number)
        negative = pointwise(fusion, "lt", checked, 0)
        from_end = pointwise(fusion, "add", checked, extent)
        return pointwise(fusion, "where", negative, from_end, checked)
