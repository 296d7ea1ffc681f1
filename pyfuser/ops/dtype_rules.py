"""Dtype rules: from the dtypes of an op's operands to the dtypes it computes in and returns.

Promotion has three categories, as in torch: tensors with dimensions outrank 0-dim tensors, which
outrank scalars; a lower category only counts if it is of a higher kind (bool < integer < floating <
complex).  Two differences from torch are intended, because nvfuser_direct has them: the promoting
rules return Float where torch returns Half or BFloat16, and scalars among themselves keep their own
dtypes (two Python floats give Double).

Invariant: every dtype in `Resolution.compute` is one that kernels compute in, never Half or
BFloat16; the result is the dtype that is stored.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Literal, Protocol

import torch

from pyfuser import dtypes
from pyfuser.dtypes import DataType
from pyfuser.errors import DefinitionError, UnsupportedError, expected

RankCategory = Literal["tensor", "zero_dim", "scalar"]


class DtypeRule(enum.Enum):
    """How the operands' dtypes determine the result; the value is the text of the docs table."""

    PROMOTE = "promote; half-precision results are Float"
    FLOAT = "promote; integers, Bool and half precision become Float"
    FLOAT_RESULT = "promote; Float or Double only"
    COMPARE = "promote; result Bool"
    KEEP = "dtype kept"
    KEEP_FLOATING = "dtype kept; integers and Bool become Float"
    KEEP_PROMOTED = "promote, half precision kept; the bounds are scalars"
    KEEP_FIRST = "dtype of the first kept; the others are scalars"
    REAL_PART = "dtype kept; the real dtype of a complex"
    IMAGINARY_PART = "complex only; its real dtype"
    TO_COMPLEX = "one real dtype; its complex dtype"
    PREDICATE = "any; result Bool"
    LOGICAL = "converted to Bool; result Bool"
    BITWISE = "promote; integers or Bool only"
    INTEGER = "promote; integers only"
    SELECT = "Bool, then promote; half precision kept"
    CAST = "any; the requested dtype"


@dataclass(frozen=True, slots=True)
class OperandType:
    """What a dtype rule needs to know about an operand."""

    dtype: DataType
    rank_category: RankCategory = "tensor"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The dtype each operand is converted to before the op, and the dtype of the stored result.

    A kernel's own value has the type `dtypes.compute_dtype(result)`: a Half result is rounded
    where it is stored, or where a later op would see the difference.
    """

    compute: tuple[DataType, ...]
    result: DataType


class HasDtypeRule(Protocol):
    """The part of an op that `resolve` reads (the op table's `Op` has it)."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...
    @property
    def arity(self) -> int: ...
    @property
    def rule(self) -> DtypeRule: ...
    @property
    def is_real(self) -> bool: ...


_NARROW = (
    DataType.Float8_e4m3fn,
    DataType.Float8_e5m2,
    DataType.Float8_e8m0fnu,
    DataType.Float4_e2m1fn,
    DataType.Float4_e2m1fn_x2,
)
_REAL_OF = {
    DataType.ComplexFloat: DataType.Float,
    DataType.ComplexDouble: DataType.Double,
}
_COMPLEX_OF = {real: complex_ for complex_, real in _REAL_OF.items()}


def upcast(dtype: DataType) -> DataType:
    """Float for every floating type narrower than Float, else the dtype itself."""
    return DataType.Float if dtype in (*dtypes.REDUCED_FLOATING, *_NARROW) else dtype


def promote_types(left: DataType, right: DataType) -> DataType:
    """The smallest dtype that holds both, as in torch; Index wins over other integers.

    Raises UnsupportedError if torch has no answer (UInt64 with another dtype).
    """
    if left is right:
        return left
    left, right = (DataType.Float if d in _NARROW else d for d in (left, right))
    for one, other in ((left, right), (right, left)):
        if one is DataType.Index and (dtypes.is_integer(other) or other is DataType.Bool):
            return DataType.Index
    try:
        promoted = torch.promote_types(dtypes.to_torch(left), dtypes.to_torch(right))
        return dtypes.from_torch(promoted)
    except (KeyError, RuntimeError):
        message = expected("promotion", "two dtypes that torch promotes", f"{left} and {right}")
        raise UnsupportedError(message) from None


def _kind(dtype: DataType) -> int:
    """Bool 0, integers 1, floating 2, complex 3."""
    if dtype is DataType.Bool:
        return 0
    if dtypes.is_integer(dtype):
        return 1
    return 3 if dtypes.is_complex(dtype) else 2


def _weak(dtype: DataType) -> DataType:
    """The dtype of a scalar next to a tensor: torch's default dtype of its kind."""
    return {2: DataType.Float, 3: DataType.ComplexFloat}.get(_kind(dtype), dtype)


def _combine(higher: DataType, lower: DataType) -> DataType:
    """The promotion of two categories: `lower` counts only if it is of a higher kind."""
    if _kind(lower) <= _kind(higher):
        return higher
    if _kind(lower) == 3 and _kind(higher) == 2:
        return _COMPLEX_OF[upcast(higher)]
    return promote_types(higher, lower)


def promote(operands: Iterable[OperandType]) -> DataType:
    """The common dtype of the operands by torch's categories; half-precision dtypes are kept."""
    found: list[DataType] = []
    operands = tuple(operands)
    for category in ("tensor", "zero_dim", "scalar"):
        members = [o.dtype for o in operands if o.rank_category == category]
        if category == "scalar" and found:
            members = [_weak(d) for d in members]
        if members:
            found.append(reduce(promote_types, members))
    return reduce(_combine, found)


def _error(name: str, what: str, operands: Sequence[OperandType]) -> DefinitionError:
    return DefinitionError(expected(name, what, ", ".join(str(o.dtype) for o in operands)))


def _uniform(common: DataType, count: int, result: DataType) -> Resolution:
    return Resolution((dtypes.compute_dtype(common),) * count, result)


def _promoted(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    common = upcast(promote(operands))
    return _uniform(common, len(operands), common)


def _float(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    common = upcast(promote(operands))
    common = common if _kind(common) >= 2 else DataType.Float
    return _uniform(common, len(operands), common)


def _float_result(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    resolution = _promoted(name, operands)
    if resolution.result not in (DataType.Float, DataType.Double):
        raise _error(name, "operands that promote to Float or Double", operands)
    return resolution


def _compare(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    return _uniform(upcast(promote(operands)), len(operands), DataType.Bool)


def _keep(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    return _uniform(operands[0].dtype, 1, operands[0].dtype)


def _keep_floating(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    dtype = operands[0].dtype
    dtype = dtype if _kind(dtype) >= 2 else DataType.Float
    return _uniform(dtype, 1, dtype)


def _check_scalars(name: str, operands: tuple[OperandType, ...]) -> None:
    for position, operand in enumerate(operands[1:], start=1):
        if operand.rank_category != "scalar":
            raise DefinitionError(expected(name, f"a scalar as operand {position}", "a tensor"))


def _keep_promoted(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    _check_scalars(name, operands)
    # With a scalar x too, the bounds don't widen its dtype.
    first = OperandType(operands[0].dtype, "tensor")
    common = promote((first, *operands[1:]))
    return _uniform(common, len(operands), common)


def _keep_first(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    _check_scalars(name, operands)
    return _uniform(operands[0].dtype, len(operands), operands[0].dtype)


def _real_part(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    dtype = operands[0].dtype
    return _uniform(dtype, 1, _REAL_OF.get(dtype, dtype))


def _imaginary_part(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    if operands[0].dtype not in _REAL_OF:
        raise _error(name, "a complex operand", operands)
    return _real_part(name, operands)


def _to_complex(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    real, imaginary = operands
    if real.dtype is not imaginary.dtype or real.dtype not in _COMPLEX_OF:
        raise _error(name, "two operands of one dtype, Float or Double", operands)
    if (real.rank_category == "scalar") != (imaginary.rank_category == "scalar"):
        got = f"a {real.rank_category} and a {imaginary.rank_category}"
        raise DefinitionError(expected(name, "two tensors or two scalars", got))
    return _uniform(real.dtype, 2, _COMPLEX_OF[real.dtype])


def _predicate(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    return _uniform(operands[0].dtype, 1, DataType.Bool)


def _logical(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    return _uniform(DataType.Bool, len(operands), DataType.Bool)


def _bitwise(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    if any(_kind(o.dtype) >= 2 for o in operands):
        raise _error(name, "integer or Bool operands", operands)
    return _promoted(name, operands)


def _integer(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    if any(_kind(o.dtype) != 1 for o in operands):
        raise _error(name, "integer operands", operands)
    return _promoted(name, operands)


def _select(name: str, operands: tuple[OperandType, ...]) -> Resolution:
    condition, *branches = operands
    if condition.dtype is not DataType.Bool:
        what = "Condition should be of DataType Bool"
        raise DefinitionError(f"{name}: {what}, got {condition.dtype}")
    common = promote(branches)
    compute = dtypes.compute_dtype(common)
    return Resolution((DataType.Bool, compute, compute), common)


_RULES: dict[DtypeRule, Callable[[str, tuple[OperandType, ...]], Resolution]] = {
    DtypeRule.PROMOTE: _promoted,
    DtypeRule.FLOAT: _float,
    DtypeRule.FLOAT_RESULT: _float_result,
    DtypeRule.COMPARE: _compare,
    DtypeRule.KEEP: _keep,
    DtypeRule.KEEP_FLOATING: _keep_floating,
    DtypeRule.KEEP_PROMOTED: _keep_promoted,
    DtypeRule.KEEP_FIRST: _keep_first,
    DtypeRule.REAL_PART: _real_part,
    DtypeRule.IMAGINARY_PART: _imaginary_part,
    DtypeRule.TO_COMPLEX: _to_complex,
    DtypeRule.PREDICATE: _predicate,
    DtypeRule.LOGICAL: _logical,
    DtypeRule.BITWISE: _bitwise,
    DtypeRule.INTEGER: _integer,
    DtypeRule.SELECT: _select,
}


@lru_cache(maxsize=4096)
def _resolve(
    op: HasDtypeRule, operands: tuple[OperandType, ...], target: DataType | None
) -> Resolution:
    if len(operands) != op.arity:
        raise DefinitionError(expected(op.name, f"{op.arity} operands", len(operands)))
    if op.is_real and any(_kind(operand.dtype) == 3 for operand in operands):
        raise _error(op.name, "real operands", operands)
    if op.rule is not DtypeRule.CAST:
        return _RULES[op.rule](op.name, operands)
    if target is None:
        raise DefinitionError(expected(op.name, "a dtype to cast to", None))
    return _uniform(operands[0].dtype, 1, target)


def resolve(
    op: HasDtypeRule, operands: Sequence[OperandType], target: DataType | None = None
) -> Resolution:
    """The dtypes that `op` computes in and returns for operands of these types.

    `target` is the requested dtype, which only `cast` reads.  Raises DefinitionError if the op
    doesn't accept these dtypes.
    """
    return _resolve(op, tuple(operands), target)


def resolve_reduction(
    name: str, dtype: DataType, requested: DataType, *, widens: bool
) -> Resolution:
    """The dtypes of the reduction `name` over a tensor of `dtype`.

    `requested` is the dtype argument (Null if absent).  With `widens` (sum, prod), Bool and the
    integers reduce in Int, and a requested dtype is cast to first; for other reductions a request
    is an error.  Half-precision types are accumulated in Float and rounded once, at the end.
    """
    if not widens and requested is not DataType.Null:
        raise DefinitionError(expected(name, "no dtype", requested))
    result = dtype
    if requested is not DataType.Null:
        result = requested
    elif widens and _kind(dtype) < 2:
        result = DataType.Int
    return _uniform(result, 1, result)
