"""Values: the operands and results of a fusion's expressions.

    val    ::= Scalar | TensorView
    Scalar ::= constant | input | output of an expression over scalars | size of a tensor's axis

A Scalar of an integer type may carry `extent`, the symbolic integer it represents, so that shapes
passed as values take part in index arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dtypes import DataType
from .domains import IterDomain, Statement, TensorDomain, without_reductions
from .scalars import IntExpr

if TYPE_CHECKING:
    from .exprs import Expr
    from .fusion import Fusion

_SHORT_NAMES = {
    DataType.Double: "double",
    DataType.Float: "float",
    DataType.Half: "__half",
    DataType.BFloat16: "__bfloat",
    DataType.Int: "int64_t",
    DataType.Int32: "int",
    DataType.Bool: "bool",
}

PythonNumber = bool | int | float | complex


class Val(Statement):
    """A value of a fusion; compared and hashed by identity."""

    __slots__ = ("dtype", "expr", "fusion", "name", "uses_list")
    dtype: DataType
    fusion: Fusion
    name: int
    expr: Expr | None
    uses_list: list[Expr]

    def __init__(self, fusion: Fusion, name: int, dtype: DataType) -> None:
        self.fusion, self.name, self.dtype = fusion, name, dtype
        self.expr = None
        self.uses_list = []

    def is_tensor(self) -> bool:
        """True for a TensorView."""
        return isinstance(self, TensorView)


class Scalar(Val):
    """A number: a constant, an input, or computed from other scalars on the host."""

    __slots__ = ("constant", "extent")
    constant: PythonNumber | None
    extent: IntExpr | None

    def __init__(
        self,
        fusion: Fusion,
        name: int,
        dtype: DataType,
        constant: PythonNumber | None = None,
        extent: IntExpr | None = None,
    ) -> None:
        super().__init__(fusion, name, dtype)
        self.constant, self.extent = constant, extent

    def is_symbolic(self) -> bool:
        """True unless the value is a constant."""
        return self.constant is None

    def __str__(self) -> str:
        if self.constant is not None:
            return str(self.constant)
        if self.extent is not None:
            return str(self.extent)
        return f"{_prefix(self.dtype)}{self.name}"

    __repr__ = __str__


def _prefix(dtype: DataType) -> str:
    return {DataType.Double: "d", DataType.Float: "f", DataType.Bool: "b"}.get(dtype, "i_")


class TensorView(Val):
    """A tensor: its dtype and its axes.  `is_cpu_scalar` marks a 0-d tensor kept on the host."""

    __slots__ = ("domain", "is_cpu_scalar")
    domain: TensorDomain
    is_cpu_scalar: bool

    def __init__(
        self,
        fusion: Fusion,
        name: int,
        dtype: DataType,
        domain: TensorDomain,
        is_cpu_scalar: bool = False,
    ) -> None:
        super().__init__(fusion, name, dtype)
        self.domain, self.is_cpu_scalar = domain, is_cpu_scalar

    @property
    def ndim(self) -> int:
        """The rank, without reduction axes."""
        return len(self.axes)

    @property
    def axes(self) -> list[IterDomain]:
        """The logical axes its consumers see."""
        return without_reductions(self.domain.logical)

    @property
    def concrete_rank(self) -> int:
        """How many axes have more than one element in memory, whatever their size is."""
        return sum(not axis.is_broadcast for axis in self.axes)

    @property
    def has_expanded_axis(self) -> bool:
        """True if an axis is expanded: it has one element in memory, whatever its stride."""
        return any(axis.is_expanded for axis in self.axes)

    def label(self) -> str:
        """`T3_g_float`: name, memory (g for inputs and outputs, l otherwise), dtype."""
        memory = "g" if self in self.fusion.inputs or self in self.fusion.outputs else "l"
        return f"T{self.name}_{memory}_{_SHORT_NAMES.get(self.dtype, self.dtype.value)}"

    def __str__(self) -> str:
        return f"{self.label()}{self.domain}"

    __repr__ = __str__
