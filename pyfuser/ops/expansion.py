"""Expansion: turns an op of the table into primitive ops, for a code generator or evaluator.

A definition is a function `(scope, *operands)`.  The scope has a method for each op of the table,
`constant(number)`, and the `dtype` in which the definition is computed, so a definition can treat
integers differently.  The caller of the expansion passes two callbacks, one that emits a primitive
op and one that makes a constant, and never sees a defined op.

Invariant: a value is always paired with its dtype, and a nested op gets operands of exactly the
dtypes in which its rule computes; a definition that mixes dtypes is a bug of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyfuser import dtypes
from pyfuser.dtypes import DataType
from pyfuser.errors import InternalError, UnsupportedError, expected
from pyfuser.ops.dtype_rules import OperandType, Resolution, resolve
from pyfuser.ops.op import Number, Op

V = TypeVar("V")

# Emits a primitive op: the row, the operands, the dtype they are computed in, the dtype of the
# result.  Operands of `where` are a Bool and two of the compute dtype.
Emit = Callable[[Op, tuple[V, ...], DataType, DataType], V]
MakeConstant = Callable[[Number, DataType], V]


@dataclass(frozen=True, slots=True)
class TypedValue(Generic[V]):
    """A value inside a definition, with its dtype."""

    value: V
    dtype: DataType


class Scope(Generic[V]):
    """The parameter `o` of a definition: `o.mul(x, o.sigmoid(x))`, `o.constant(0)`, `o.dtype`."""

    __slots__ = ("_constant", "_emit", "_ops", "dtype")

    def __init__(
        self,
        ops: Mapping[str, Op],
        emit: Emit[V],
        constant: MakeConstant[V],
        dtype: DataType,
    ) -> None:
        self._ops = ops
        self._emit = emit
        self._constant = constant
        self.dtype = dtype

    @property
    def is_floating(self) -> bool:
        """True if the definition is computed in Float or Double."""
        return dtypes.is_floating(self.dtype)

    @property
    def is_unsigned(self) -> bool:
        """True if the definition is computed in a dtype without negative numbers."""
        return dtypes.is_unsigned(self.dtype)

    def constant(self, number: Number, dtype: DataType | None = None) -> TypedValue[V]:
        """A constant of the compute dtype, or of `dtype`."""
        dtype = dtype or self.dtype
        if dtype is DataType.Bool:
            number = bool(number)
        return TypedValue(self._constant(number, dtype), dtype)

    def __getattr__(self, name: str) -> Callable[..., TypedValue[V]]:
        op = self._ops.get(name)
        if op is None:
            raise AttributeError(expected("definition", "the name of an op", name))

        def apply(*operands: TypedValue[V]) -> TypedValue[V]:
            resolution = resolve(op, [OperandType(t.dtype) for t in operands])
            given = tuple(t.dtype for t in operands)
            if given != resolution.compute:
                raise InternalError(expected(name, f"operands of {resolution.compute}", given))
            return _expand(self._ops, op, operands, resolution, self._emit, self._constant)

        return apply


def _expand(
    ops: Mapping[str, Op],
    op: Op,
    operands: tuple[TypedValue[V], ...],
    resolution: Resolution,
    emit: Emit[V],
    constant: MakeConstant[V],
) -> TypedValue[V]:
    compute = resolution.compute[-1]
    result = dtypes.compute_dtype(resolution.result)
    if op.definition is not None:
        made = op.definition(Scope(ops, emit, constant, compute), *operands)
        if not isinstance(made, TypedValue) or made.dtype is not result:
            raise InternalError(expected(op.name, f"a definition that gives {result}", made))
        return made
    if not op.in_kernels:
        raise UnsupportedError(expected(op.name, "an op that kernels compute", "one they don't"))
    return TypedValue(emit(op, tuple(t.value for t in operands), compute, result), result)


def expand(
    ops: Mapping[str, Op],
    op: Op,
    operands: Sequence[V],
    resolution: Resolution,
    emit: Emit[V],
    constant: MakeConstant[V],
) -> V:
    """Computes `op` on operands already converted to `resolution.compute`, by primitive ops only.

    Returns a value of `dtypes.compute_dtype(resolution.result)`.  Raises UnsupportedError for a row
    without a spelling and for complex operands, which definitions don't support.
    """
    for dtype in resolution.compute:
        if dtypes.is_complex(dtype):
            raise UnsupportedError(expected(op.name, "operands that kernels compute", dtype))
    terms = tuple(TypedValue(v, d) for v, d in zip(operands, resolution.compute, strict=True))
    return _expand(ops, op, terms, resolution, emit, constant).value


def refused(
    ops: Mapping[str, Op],
    op: Op,
    operands: Sequence[V],
    resolution: Resolution,
    emit: Emit[V],
    constant: MakeConstant[V],
) -> V:
    """A Bool: true where the op's check refuses the operands (given as for `expand`)."""
    if op.check is None:
        raise InternalError(expected(op.name, "an op that has a check", "one without"))
    terms = tuple(TypedValue(v, d) for v, d in zip(operands, resolution.compute, strict=True))
    made: TypedValue[V] = op.check.refuses(
        Scope(ops, emit, constant, resolution.compute[-1]), *terms
    )
    return made.value
