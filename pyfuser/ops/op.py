"""The nouns of the op table: one row per pointwise op (`Op`) and per reduction (`Reduction`).

    Op        = name, arity, rule, reference, spelling, test range, accuracy
    spelling  = definition (in terms of other rows)  |  llvm and cuda (primitive)  |  nothing
    Reduction = name, combine (the name of an Op), identity, reference

A row with no spelling at all (complex results, random numbers) runs through the fallback.
Invariant: a row is immutable and compared by identity; an op's meaning is its `reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pyfuser import dtypes
from pyfuser.dtypes import DataType
from pyfuser.errors import InternalError, expected
from pyfuser.ops.dtype_rules import DtypeRule, Resolution, resolve_reduction
from pyfuser.ops.value_checks import ValueCheck

Number = bool | int | float

# The cost of rows, in additions.  A division takes several times as long as an addition, but less
# than reading an element from memory.  An expensive op takes longer than reading its operands again
# from a private cache (some 10 cycles per vector), so passes keep its result instead of recomputing
# it.
DIVISION = 4
EXPENSIVE = 8

_FLOATING, _SIGNED, _UNSIGNED, _BOOL = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """A pointwise op.

    reference   torch, on tensors of the compute dtypes (scalars come as 0-dim tensors); applied to
                Double instead of Float operands it is the more precise reference
    llvm        `floating|signed|unsigned|bool`, or one spelling for all four: an instruction
                (`fadd`, `icmp slt`), `copy` (the operand itself), `-` (never used), or
                `@routine` (vector math, or an emission routine of the code generator)
    cuda        a C++ expression of operands that are names of variables of the compute dtype, to
                be assigned to a variable of the result type; {f} is "f" for Float and "" for
                Double; functions missing in C++ come from the CUDA device's helpers
    cuda_integer  the same for integers and Bool, where it differs
    definition  the op in terms of others: (scope, *operands), see `pyfuser.ops.expansion`
    check       the operands that torch refuses; `reference` returns some value for these
    cost        the cost per element, in additions (DIVISION, EXPENSIVE)
    is_repeatable  False if computing it twice differs from computing it once: random numbers, cuts
    samples     range of floating test inputs that contains the op's interesting part
    ulp32, ulp64  accuracy in Float and Double: 0 means the bits of `reference` run in the compute
                dtype, n means within n units in the last place of the correctly rounded result (or,
                for a definition with a subnormal step such as silu, within the least normal number)
    aten        the ATen op that equals the row on floating and complex operands if `reference` is
                a function of pyfuser, which also covers integers
    """

    name: str
    arity: int
    rule: DtypeRule
    reference: Callable[..., torch.Tensor]
    doc: str
    llvm: str | None = None
    cuda: str | None = None
    cuda_integer: str | None = None
    definition: Callable[..., object] | None = None
    check: ValueCheck | None = None
    cost: int = 1
    is_repeatable: bool = True
    samples: tuple[float, float] = (-10.0, 10.0)
    ulp32: int = 0
    ulp64: int = 0
    aten: str | None = None

    @property
    def is_expensive(self) -> bool:
        """True if the result is better kept than recomputed."""
        return self.cost >= EXPENSIVE

    @property
    def in_kernels(self) -> bool:
        """True if code generators can spell the op; the fallback runs the others."""
        return self.definition is not None or self.llvm is not None

    def llvm_for(self, dtype: DataType) -> str:
        """The LLVM spelling of a primitive op whose operands are computed in `dtype`."""
        spellings = (self.llvm or "-").split("|")
        spelling = spellings[_column(dtype) if len(spellings) > 1 else 0]
        if spelling == "-":
            raise InternalError(expected(self.name, "a dtype with an LLVM spelling", dtype))
        return spelling

    def cuda_for(self, dtype: DataType, *operands: str) -> str:
        """The CUDA C++ expression of a primitive op on `operands` computed in `dtype`."""
        floating = dtypes.is_floating(dtype)
        template = self.cuda if floating else self.cuda_integer or self.cuda
        if template is None:
            raise InternalError(expected(self.name, "a dtype with a CUDA spelling", dtype))
        return template.format(*operands, f="f" if dtype is DataType.Float else "")


def _column(dtype: DataType) -> int:
    """The column of an LLVM spelling that `dtype` takes."""
    if dtypes.is_floating(dtype):
        return _FLOATING
    if dtype is DataType.Bool:
        return _BOOL
    return _SIGNED if dtypes.is_signed(dtype) else _UNSIGNED


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """A reduction: folds `combine` (an Op's name) over dimensions, from `identity` on.

    reference   torch, on a tensor of the accumulation dtype and the dimensions to remove
    widens      True if Bool and the integers accumulate in Int and a dtype may be requested
    """

    name: str
    combine: str
    identity: Callable[[DataType], Number]
    reference: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    widens: bool
    doc: str

    def resolve(self, dtype: DataType, requested: DataType = DataType.Null) -> Resolution:
        """The accumulation and result dtypes; see `dtype_rules.resolve_reduction`."""
        return resolve_reduction(self.name, dtype, requested, widens=self.widens)
