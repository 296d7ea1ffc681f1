"""The nouns of the op table: one row per pointwise op (`Op`), reduction (`Reduction`) and scan.

    Op        = name, arity, rule, reference, spelling, test range, accuracy
    spelling  = definition (in terms of other rows)  |  llvm and cuda (primitive)  |  nothing
    Reduction = name, combine (the name of an Op), identity, reference
    ScanRow   = name, reduction (the name of a Reduction), reference

A row with no spelling at all (complex results) runs through the fallback.
Invariant: a row is immutable and compared by identity; an op's meaning is its `reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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

Language = Literal["llvm", "cuda"]
LANGUAGES: tuple[Language, ...] = ("llvm", "cuda")

_GIVING_BOOL = (DtypeRule.COMPARE, DtypeRule.PREDICATE, DtypeRule.LOGICAL)
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
    cuda_unsigned  the same for unsigned integers and Bool, where it differs from cuda_integer
    definition  the op in terms of others: (scope, *operands), see `pyfuser.ops.expansion`
    check       the operands that torch refuses; `reference` returns some value for these
    cost        the cost per element, in additions (DIVISION, EXPENSIVE)
    is_copy     the result is the operand
    is_cut      its readers are in another kernel than its operands
    keeps_values  a result is an operand's value, its negation, or 0: half precision stays exact
    is_stepped  a rounding of an operand may move the result by a whole step
    is_real     the operands are real numbers: torch has no such function of complex ones
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
    cuda_unsigned: str | None = None
    definition: Callable[..., object] | None = None
    check: ValueCheck | None = None
    cost: int = 1
    is_copy: bool = False
    is_cut: bool = False
    keeps_values: bool = False
    is_stepped: bool = False
    is_real: bool = False
    samples: tuple[float, float] = (-10.0, 10.0)
    ulp32: int = 0
    ulp64: int = 0
    aten: str | None = None

    @property
    def is_expensive(self) -> bool:
        """True if the result is better kept than recomputed."""
        return self.cost >= EXPENSIVE

    @property
    def is_discontinuous(self) -> bool:
        """True if the last bit of an operand may change the result by more than a rounding."""
        return self.is_stepped or self.rule in _GIVING_BOOL

    @property
    def in_kernels(self) -> bool:
        """True if some code generator can spell the op; the fallback runs the others."""
        return any(map(self.is_spelled_in, LANGUAGES))

    def is_spelled_in(self, language: Language) -> bool:
        """True if the code generator for a language can spell the op, or other ops define it."""
        if self.definition is not None:
            return True
        spelling = self.llvm if language == "llvm" else self.cuda or self.cuda_integer
        return spelling is not None

    def llvm_for(self, dtype: DataType) -> str:
        """The LLVM spelling of a primitive op whose operands are computed in `dtype`."""
        spellings = (self.llvm or "-").split("|")
        spelling = spellings[_column(dtype) if len(spellings) > 1 else 0]
        if spelling == "-":
            raise InternalError(expected(self.name, "a dtype with an LLVM spelling", dtype))
        return spelling

    def cuda_for(self, dtype: DataType, *operands: str) -> str:
        """The CUDA C++ expression of a primitive op on `operands` computed in `dtype`."""
        suffix = "f" if dtype is DataType.Float else ""
        return self._cuda_template(dtype).format(*operands, f=suffix)

    def cuda_uses(self, dtype: DataType, count: int) -> list[int]:
        """How often each of `count` operands occurs in the CUDA C++ expression."""
        template = self._cuda_template(dtype)
        return [template.count(f"{{{position}}}") for position in range(count)]

    def _cuda_template(self, dtype: DataType) -> str:
        template = self.cuda
        if dtypes.is_unsigned(dtype):
            template = self.cuda_unsigned or self.cuda_integer or template
        elif not dtypes.is_floating(dtype):
            template = self.cuda_integer or template
        if template is None:
            raise InternalError(expected(self.name, "a dtype with a CUDA spelling", dtype))
        return template


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
    repeated    the Op that reduces n equal elements: (element, n); None if n doesn't matter
    rounds      True if each floating step rounds: the order and length of a chain matter
    may_overflow  True if combining some of the elements often overflows where combining all of
                  them doesn't: a scan keeps their order
    """

    name: str
    combine: str
    identity: Callable[[DataType], Number]
    reference: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    widens: bool
    doc: str
    repeated: str | None = None
    rounds: bool = False
    may_overflow: bool = False

    def resolve(self, dtype: DataType, requested: DataType = DataType.Null) -> Resolution:
        """The accumulation and result dtypes; see `dtype_rules.resolve_reduction`."""
        return resolve_reduction(self.name, dtype, requested, widens=self.widens)


@dataclass(frozen=True, slots=True, eq=False)
class ScanRow:
    """A scan: gives the partial results of `reduction` (a row's name), one for each element.

    reference   torch, on a tensor and the dimension to scan
    aten        the ATen op that gives one tensor: (tensor, dim, dtype); None if there is none
    is_exact    True if no step rounds; otherwise Float accumulates in Double, as torch's loops do
    """

    name: str
    reduction: str
    reference: Callable[[torch.Tensor, int], torch.Tensor]
    doc: str
    aten: str | None = None
    is_exact: bool = False

    def running_dtype(self, dtype: DataType) -> DataType:
        """The dtype of the running result of a scan that gives `dtype`."""
        if dtype is DataType.Float and not self.is_exact:
            return DataType.Double
        return dtypes.compute_dtype(dtype)
