"""Handles of axes and expressions: the interface's methods over the IR's nouns.

Attributes of the IR (`extent`, `is_reduction`, `inputs`) are methods in the interface, so a handle
wraps each noun.  Handles are made on request; two handles of one noun are equal.  `type(handle)` is
the interface's class: Split, Merge, BroadcastOp, ...
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, cast

from ..dtypes import DataType
from ..errors import ScheduleError, expected
from ..ir import domains, exprs, vals
from ..ir.domains import ParallelType, Statement

if TYPE_CHECKING:
    from ..ir.fusion import Fusion


def require_member(operation: str, kind: type[enum.Enum], given: object) -> None:
    """Raises ScheduleError if something other than a member of the enum is given."""
    if isinstance(given, kind):
        return
    is_name = isinstance(given, str) and given in kind.__members__
    hint = f"did you mean {kind.__name__}.{given}?" if is_name else ""
    raise ScheduleError(expected(operation, f"a {kind.__name__}", repr(given), hint))


class IterDomain(Statement):
    """One axis of a tensor."""

    def __init__(self, fusion: object, axis: domains.IterDomain) -> None:
        self._fusion, self._axis = fusion, axis

    def is_reduction(self) -> bool:
        """True for an axis that is reduced over."""
        return self._axis.is_reduction

    def extent(self) -> vals.Scalar:
        """The size, as a scalar of the fusion."""
        fusion = cast("Fusion", self._fusion)
        extent = self._axis.extent
        value = extent.value if extent.is_constant else None
        return fusion.new_scalar(DataType.Int, constant=value, extent=extent)

    def parallelize(self, parallel_type: ParallelType) -> None:
        """Sets how the axis's loop runs."""
        require_member("parallelize", ParallelType, parallel_type)
        self._axis.parallel_type = parallel_type

    def definition(self) -> Split | Merge | domains.Swizzle | domains.Reverse | None:
        """The split or merge that made the axis; None for an axis of the definition."""
        return axis_expr_handle(self._fusion, self._axis.definition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IterDomain) and self._axis is other._axis

    def __hash__(self) -> int:
        return hash(self._axis)

    def __str__(self) -> str:
        return str(self._axis)

    __repr__ = __str__


class _AxisExpr(Statement):
    """Base class of the handles of Split and Merge."""

    def __init__(self, fusion: object, expr: domains.Split | domains.Merge) -> None:
        self._fusion, self._expr = fusion, expr

    def outer(self) -> IterDomain:
        """The outer of the two axes."""
        return IterDomain(self._fusion, self._expr.outer_id)

    def inner(self) -> IterDomain:
        """The inner of the two axes."""
        return IterDomain(self._fusion, self._expr.inner_id)

    def input(self, index: int) -> IterDomain:
        """An input axis."""
        return IterDomain(self._fusion, self._expr.inputs[index])

    def output(self, index: int) -> IterDomain:
        """An output axis."""
        return IterDomain(self._fusion, self._expr.outputs[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AxisExpr) and self._expr is other._expr

    def __hash__(self) -> int:
        return hash(self._expr)

    def __str__(self) -> str:
        return str(self._expr)

    __repr__ = __str__


class Split(_AxisExpr):
    """One axis that became two."""


class Merge(_AxisExpr):
    """Two axes that became one."""


def axis_expr_handle(
    fusion: object, expr: domains.IdExpr | None
) -> Split | Merge | domains.Swizzle | domains.Reverse | None:
    """The handle of the expression that made an axis."""
    match expr:
        case domains.Split():
            return Split(fusion, expr)
        case domains.Merge():
            return Merge(fusion, expr)
        case _:
            return expr


class Expr(Statement):
    """An expression of a definition."""

    def __init__(self, expr: exprs.Expr) -> None:
        self._expr = expr

    @property
    def name(self) -> str:
        """The operation's name."""
        return self._expr.name

    def input(self, index: int) -> vals.Val:
        """An input value."""
        return self._expr.inputs[index]

    def output(self, index: int) -> vals.Val:
        """An output value."""
        return self._expr.outputs[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._expr is other._expr

    def __hash__(self) -> int:
        return hash(self._expr)

    def __str__(self) -> str:
        return str(self._expr)

    __repr__ = __str__


class BroadcastOp(Expr):
    """New axes of size 1."""


class ReshapeOp(Expr):
    """Another shape for the same elements."""


class SqueezeOp(Expr):
    """Fewer axes of size 1."""


_EXPR_HANDLES: dict[type[exprs.Expr], type[Expr]] = {
    exprs.BroadcastOp: BroadcastOp,
    exprs.ReshapeOp: ReshapeOp,
    exprs.SqueezeOp: SqueezeOp,
}


def expr_handle(expr: exprs.Expr) -> Expr:
    """The handle of an expression, of the interface's class for its kind."""
    return _EXPR_HANDLES.get(type(expr), Expr)(expr)


class Scalar(vals.Scalar):
    """A number of a definition, with the interface's methods."""

    __slots__ = ()

    def definition(self) -> Expr | None:
        """The expression that computes it; None for inputs, constants and sizes."""
        return None if self.expr is None else expr_handle(self.expr)

    def uses(self) -> list[Expr]:
        """The expressions that read it."""
        return [expr_handle(expr) for expr in self.uses_list]
