"""Term: a value of a fusion with Python's operators, so that translations read as formulas.

`x * 0.5 * (1 + (x * SQRT_HALF).op("erf"))` appends the rows of the op table that it names.  Each
operator is one row; the caller handles dtypes (operands of one term have the same dtype, Python
numbers take it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from ...dtypes import DataType, is_floating
from ...ir.fusion import Fusion
from ...ir.vals import PythonNumber, TensorView, Val
from ...ops.pointwise import as_tensor, cast, constant, pointwise
from ...ops.reduction_builders import (
    normalised_dims,
    reduce,
    reduced_element_count,
    restored,
    var_mean,
)
from ...ops.scan_builders import scan
from ...ops.shape_builders import broadcast

TermLike = Union["Term", Val, PythonNumber]


def value_of(operand: TermLike) -> Val | PythonNumber:
    """The value inside a term; anything else unchanged."""
    return operand.value if isinstance(operand, Term) else operand


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A value of `fusion`; an operator appends one expression and returns another term."""

    fusion: Fusion
    value: Val

    @property
    def tensor(self) -> TensorView:
        """The value, which has to be a tensor."""
        return as_tensor(self.fusion, self.value, "term")

    @property
    def dtype(self) -> DataType:
        """The dtype in which the value is held."""
        return self.value.dtype

    def op(self, name: str, *others: TermLike) -> Term:
        """The row `name` of the op table, with this term as its first operand."""
        operands = [value_of(other) for other in others]
        return Term(self.fusion, pointwise(self.fusion, name, self.value, *operands))

    def _reversed(self, name: str, other: TermLike) -> Term:
        return Term(self.fusion, pointwise(self.fusion, name, value_of(other), self.value))

    def __add__(self, other: TermLike) -> Term:
        return self.op("add", other)

    def __radd__(self, other: TermLike) -> Term:
        return self._reversed("add", other)

    def __sub__(self, other: TermLike) -> Term:
        return self.op("sub", other)

    def __rsub__(self, other: TermLike) -> Term:
        return self._reversed("sub", other)

    def __mul__(self, other: TermLike) -> Term:
        return self.op("mul", other)

    def __rmul__(self, other: TermLike) -> Term:
        return self._reversed("mul", other)

    def __truediv__(self, other: TermLike) -> Term:
        return self.op("div", other)

    def __rtruediv__(self, other: TermLike) -> Term:
        return self._reversed("div", other)

    def __neg__(self) -> Term:
        return self.op("neg")

    def __lt__(self, other: TermLike) -> Term:
        return self.op("lt", other)

    def __le__(self, other: TermLike) -> Term:
        return self.op("le", other)

    def __gt__(self, other: TermLike) -> Term:
        return self.op("gt", other)

    def __ge__(self, other: TermLike) -> Term:
        return self.op("ge", other)

    def __and__(self, other: TermLike) -> Term:
        return self.op("bitwise_and", other)

    def __or__(self, other: TermLike) -> Term:
        return self.op("bitwise_or", other)

    def __xor__(self, other: TermLike) -> Term:
        return self.op("bitwise_xor", other)

    def equals(self, other: TermLike) -> Term:
        """Where both are equal."""
        return self.op("eq", other)

    def differs(self, other: TermLike) -> Term:
        """Where they are not equal."""
        return self.op("ne", other)

    def choose(self, yes: TermLike, no: TermLike) -> Term:
        """`yes` where this Bool term is true, else `no`; at least one of them is a term."""
        model = next(t for t in (yes, no) if isinstance(t, Term))
        return self.op("where", *(typed(self.fusion, t, model.dtype) for t in (yes, no)))

    def cast(self, dtype: DataType) -> Term:
        """The value in another dtype; itself if it has that dtype."""
        if self.value.dtype is dtype:
            return self
        return Term(self.fusion, cast(self.fusion, self.value, dtype))

    def reduced(self, name: str, dims: Sequence[int] | None, keepdim: bool = False) -> Term:
        """The reduction `name` over `dims` (None: all; an empty list: none)."""
        if dims is not None and not len(dims):
            return self
        chosen = None if dims is None else list(dims)
        return Term(self.fusion, reduce(self.fusion, name, self.value, chosen, keepdim))

    def sum(self, dims: Sequence[int] | None, keepdim: bool = False) -> Term:
        """The sum over `dims`."""
        return self.reduced("sum", dims, keepdim)

    def scanned(self, name: str, dim: int, reverse: bool = False) -> Term:
        """The scan `name` along a dimension, perhaps from its end."""
        return Term(self.fusion, scan(name, self.fusion, self.value, dim, reverse=reverse))

    def mean(self, dims: Sequence[int] | None, keepdim: bool = False) -> Term:
        """The mean over `dims`.

        It is divided before its axes are restored, as a variance divides its own mean: those of
        the same tensor are one then.
        """
        mean = self.sum(dims) / self.count(dims)
        if not keepdim:
            return mean
        reduced = normalised_dims("mean", self.tensor, dims)
        return Term(self.fusion, restored(self.fusion, mean.tensor, reduced, self.tensor.ndim))

    def count(self, dims: Sequence[int] | None) -> Val | int:
        """The number of elements over `dims`."""
        chosen = range(self.tensor.ndim) if dims is None else dims
        return reduced_element_count(self.fusion, self.tensor, list(chosen))

    def moments(
        self, dims: Sequence[int] | None, correction: PythonNumber = 0, keepdim: bool = False
    ) -> tuple[Term, Term]:
        """(variance, mean) over `dims`."""
        chosen = None if dims is None else list(dims)
        variance, mean = var_mean(self.fusion, self.value, chosen, correction, keepdim)
        return Term(self.fusion, variance), Term(self.fusion, mean)

    def with_new_axes(self, is_new: Sequence[bool]) -> Term:
        """Inserts axes of size 1 where `is_new` (one entry per axis of the result) is True."""
        if not any(is_new):
            return self
        return Term(self.fusion, broadcast(self.fusion, self.value, is_new))


def typed(fusion: Fusion, operand: TermLike, dtype: DataType) -> Val:
    """A Python number as a constant of `dtype`; a value unchanged."""
    value = value_of(operand)
    if isinstance(value, Val):
        return value
    kind = _kind(dtype)
    return constant(fusion, kind(value.real), dtype)


def _kind(dtype: DataType) -> type[bool] | type[int] | type[float]:
    if dtype is DataType.Bool:
        return bool
    return float if is_floating(dtype) else int
