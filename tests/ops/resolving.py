"""Of the op table: resolutions of ops whose operands are all of one dtype, and which ops check."""

from __future__ import annotations

from pyfuser.dtypes import DataType
from pyfuser.errors import DefinitionError
from pyfuser.ops.dtype_rules import DtypeRule, OperandType, Resolution, resolve
from pyfuser.ops.op import Op

# What kernels compute in.
COMPUTE_DTYPES = (
    DataType.Double,
    DataType.Float,
    DataType.Int,
    DataType.Int32,
    DataType.Int16,
    DataType.Int8,
    DataType.UInt8,
    DataType.Bool,
)
# Ops that check their operands: not in the interface.
CHECKED = (
    *("checked_class", "checked_index", "checked_place", "checked_probability", "checked_target"),
    "checked_target_probability",
)


def resolve_same(op: Op, dtype: DataType) -> Resolution:
    """The resolution of an op whose operands are of one dtype (scalars where required)."""
    operands = [OperandType(dtype) for _ in range(op.arity)]
    if op.rule is DtypeRule.SELECT:
        operands[0] = OperandType(DataType.Bool)
    if op.rule in (DtypeRule.KEEP_PROMOTED, DtypeRule.KEEP_FIRST):
        operands[1:] = [OperandType(dtype, "scalar")] * (op.arity - 1)
    return resolve(op, operands, DataType.Double)


def takes(op: Op, dtype: DataType) -> bool:
    """Whether the op has a resolution for operands of `dtype`."""
    try:
        resolve_same(op, dtype)
    except DefinitionError:
        return False
    return True
