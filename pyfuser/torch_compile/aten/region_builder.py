"""RegionBuilder: a fusion under construction and its values; a `Call` is one node of it.

Half-precision values are *held* in Float: a value is either still in its half-precision dtype (an
input, the result of an explicit conversion, and views of them) or in Float and not rounded; the
fusion's outputs are cast to the metadata's dtypes.  Discontinuous ops (comparisons, rounding to
whole numbers) use `exact` operands, which are rounded to the dtype that they have in torch; what
else reads these values reads them rounded, too (`rounded_values.py`).

Invariant: `rounded` holds only values that the node's half-precision dtype represents exactly.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch.fx import Node

from ...dtypes import REDUCED_FLOATING, DataType, compute_dtype, from_torch, is_integer, to_torch
from ...errors import expected
from ...ir.domains import IterDomain, TensorDomain
from ...ir.fusion import Fusion
from ...ir.scalars import Integer
from ...ir.vals import TensorView, Val
from ...ops.binding import convert_number
from ...ops.dtype_rules import OperandType, promote
from ...ops.pointwise import cast_tensor, constant
from ...ops.shape_builders import full
from .sizes import Size, Sizes, is_one, short_row
from .term import Term

Result = Term | TensorView | tuple["Term | TensorView | None", ...]


class NotTranslated(Exception):
    """A node that can't be part of a fusion, and why."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(f"{node.target}: {reason}")
        self.node, self.reason = node, reason


def meta_of(argument: Any) -> Any:
    """The metadata of a node (a FakeTensor or a symbolic number); anything else unchanged."""
    return argument.meta["val"] if isinstance(argument, Node) else argument


def held_dtype(dtype: torch.dtype) -> DataType:
    """The dtype in which values of a torch dtype are computed."""
    return compute_dtype(from_torch(dtype))


class RegionBuilder:
    """A fusion under construction and the nodes of its values.

    `rows` are the lengths of the axes of its results' short rows in memory.
    """

    def __init__(self, rows: Set[int] = frozenset()) -> None:
        self.rows = rows
        self.fusion = Fusion()
        self.sizes = Sizes(self.fusion)
        self.values: dict[Node, Any] = {}
        self.rounded: set[Val] = set()
        self._casts: dict[tuple[Val, DataType], TensorView] = {}

    def define_input(self, node: Node) -> None:
        """A tensor from outside, with open sizes, except that a size of 1 is a broadcast axis, and
        that the length of short rows is known: kernels read or store several of them as vectors.
        """
        meta = node.meta["val"]
        ids, row = self.fusion.ids, short_row(meta)
        axes: list[IterDomain] = []
        for size in meta.shape:
            if is_one(size):
                axis = ids.broadcast()
            elif len(axes) in row or (isinstance(size, int) and size in self.rows):
                axis = ids.new(Integer.of(size))
            else:
                axis = ids.new(self.fusion.new_extent())
            axes.append(axis)
            if not axis.is_broadcast:
                self.sizes.learn(size, axis.extent)
        contiguity: list[bool | None] = [None if axis.is_broadcast else False for axis in axes]
        tensor = self.fusion.new_tensor(TensorDomain(axes, contiguity), from_torch(meta.dtype))
        self.fusion.add_input(tensor)
        self.values[node] = tensor

    def cast(self, tensor: TensorView, dtype: DataType) -> TensorView:
        """The tensor in another dtype, made once."""
        if tensor.dtype is dtype:
            return tensor
        found = self._casts.get((tensor, dtype))
        if found is None:
            found = self._casts[tensor, dtype] = cast_tensor(self.fusion, tensor, dtype)
            if tensor.dtype in REDUCED_FLOATING:
                self.rounded.add(found)
        return found

    def is_rounded(self, node: Node) -> bool:
        """True if a node's dtype represents its value exactly."""
        value = self.values[node]
        if not isinstance(value, TensorView):
            return False
        logical = from_torch(node.meta["val"].dtype)
        return value.dtype is logical or value in self.rounded


class Call:
    """One node under translation: its metadata, and its arguments as terms."""

    def __init__(self, builder: RegionBuilder, node: Node) -> None:
        self.builder, self.node = builder, node
        self.fusion = builder.fusion
        self.meta = node.meta["val"]

    @property
    def dtype(self) -> DataType:
        """The held dtype of the (first) result."""
        first = self.meta[0] if isinstance(self.meta, (tuple, list)) else self.meta
        return held_dtype(first.dtype)

    def refuse(self, reason: str) -> NotTranslated:
        """The exception that says why this node can't be translated."""
        return NotTranslated(self.node, reason)

    # -- arguments

    def tensor(self, argument: Any) -> TensorView:
        """The value of a node, in the dtype in which it is kept."""
        found = self.builder.values.get(argument) if isinstance(argument, Node) else None
        if not isinstance(found, TensorView):
            raise self.refuse(expected("argument", "a tensor of the region", argument))
        return found

    def held(self, argument: Any, dtype: DataType | None = None) -> Term:
        """A tensor in `dtype`, or in its own held dtype."""
        chosen = held_dtype(meta_of(argument).dtype) if dtype is None else dtype
        return self.term(self.builder.cast(self.tensor(argument), chosen))

    def exact(self, argument: Any, dtype: DataType | None = None) -> Term:
        """A tensor rounded to its logical dtype, then in `dtype` or its held dtype."""
        logical = from_torch(meta_of(argument).dtype)
        chosen = compute_dtype(logical) if dtype is None else dtype
        tensor = self.tensor(argument)
        if tensor.dtype is not logical and tensor not in self.builder.rounded:
            tensor = self.builder.cast(tensor, logical)
        return self.term(self.builder.cast(tensor, chosen))

    def operand(self, argument: Any, dtype: DataType) -> Term:
        """A tensor or a number in `dtype`."""
        is_tensor = isinstance(meta_of(argument), torch.Tensor)
        return self.held(argument, dtype) if is_tensor else self.number(argument, dtype)

    def exact_operand(self, argument: Any, dtype: DataType, logical: DataType) -> Term:
        """A tensor or number in `dtype`, rounded to `logical`, in which torch compares."""
        value = meta_of(argument)
        if isinstance(value, torch.Tensor):
            if logical in REDUCED_FLOATING and from_torch(value.dtype) is not logical:
                return self.exact(argument, logical).cast(dtype)  # has no axis, or is of integers
            return self.exact(argument, dtype)
        if logical not in REDUCED_FLOATING:
            return self.number(value, dtype)
        if isinstance(value, (bool, int, float)):
            return self.number(convert_number(value, logical), dtype)
        return self.number(value, logical).cast(dtype)

    def number(self, argument: Any, dtype: DataType) -> Term:
        """A Python number as a constant of `dtype`, a symbolic one in it; a scalar unchanged."""
        value = meta_of(argument)
        if isinstance(value, Val):
            return self.term(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            if isinstance(value, torch.SymInt) and value.node.maybe_as_int() is not None:
                return self.number(int(value), dtype)
            return self.term(self.builder.sizes.number(value)).cast(dtype)
        if not isinstance(value, (bool, int, float)):
            raise self.refuse(expected("argument", "a number", value))
        if dtype is DataType.Bool:
            return self.term(constant(self.fusion, bool(value), dtype))
        if is_integer(dtype):
            limits = torch.iinfo(to_torch(dtype))
            if value != value or not limits.min <= value <= limits.max:
                raise self.refuse(expected("argument", f"a number of {dtype}", value))
            return self.term(constant(self.fusion, int(value), dtype))
        return self.term(constant(self.fusion, float(value), dtype))

    def compared_dtype(self, *arguments: Any) -> DataType:
        """The dtype to which torch promotes these operands; half precision is kept."""
        found: list[OperandType] = []
        for argument in arguments:
            value = meta_of(argument)
            if isinstance(value, torch.Tensor):
                rank = "tensor" if value.dim() else "zero_dim"
                found.append(OperandType(from_torch(value.dtype), rank))  # type: ignore[arg-type]
            elif isinstance(value, (bool, torch.SymBool)):
                found.append(OperandType(DataType.Bool, "scalar"))
            elif isinstance(value, (int, torch.SymInt)):
                found.append(OperandType(DataType.Int, "scalar"))
            else:
                found.append(OperandType(DataType.Double, "scalar"))
        return promote(found)

    # -- sizes

    def sizes_of(self, argument: Any) -> list[Size]:
        """The sizes of a tensor argument, by its metadata."""
        return list(meta_of(argument).shape)

    def entries(self, sizes: Any) -> list[Any]:
        """Sizes for the builders."""
        return [self.builder.sizes.entry(meta_of(size)) for size in sizes]

    # -- results

    def filled(self, shape: Any, value: Any, dtype: torch.dtype) -> Term:
        """A tensor of this shape whose elements are all `value`, rounded to `dtype`."""
        held, logical = held_dtype(dtype), from_torch(dtype)
        number = meta_of(value)
        if logical in REDUCED_FLOATING and isinstance(number, (bool, int, float)):
            number = convert_number(number, logical)
        made = full(self.fusion, self.entries(shape), self.number(number, held).value, held)
        return self.term(made)

    def scalar(self, number: Val | float, dtype: DataType) -> Term:
        """A number on the host as a scalar of `dtype`."""
        if isinstance(number, Val):
            return self.term(number).cast(dtype)
        return self.number(number, dtype)

    def term(self, value: Val) -> Term:
        """A value as a term."""
        return Term(self.fusion, value)

    def constant(self, value: float, dtype: DataType | None = None) -> Term:
        """A constant in `dtype`, or in the result's."""
        return self.number(value, self.dtype if dtype is None else dtype)
