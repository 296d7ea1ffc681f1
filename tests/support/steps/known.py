"""What a definition's values are for its inputs, while it is being built, and which are reliable.

Three evaluators compute every expression as it is added: one in float64, as validation will, and
two in the definition's own precision, in which every result that may be rounded is moved by about
the error of a kernel, in one direction and in the other.  A value on which they agree doesn't hang
on the last bit of a rounded number, so a kernel must agree too.  The others (floor of a sum of
thirds, the order of equal elements) are no outputs, and nothing reads them.
"""

from __future__ import annotations

from typing import Any

import torch

from pyfuser.dtypes import FLOATING, DataType
from pyfuser.frontend.validation import coarsest_dtypes, reduction_sizes, tolerances
from pyfuser.ir.exprs import (
    Expr,
    IndexedWrite,
    LibraryOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    ScanOp,
    WelfordOp,
)
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.vals import TensorView, Val
from pyfuser.ops.binding import bind
from pyfuser.ops.evaluator import Evaluator
from pyfuser.ops.table import OPS, REDUCTIONS, SCANS

# The error of one operation, relative to its result: twice the unit in the last place of Float,
# half of it in half precision, where only the rounding differs.
_ERRORS = {
    DataType.Double: 2.0**-40,
    DataType.Float: 2.0**-22,
    DataType.Half: 2.0**-11,
    DataType.BFloat16: 2.0**-8,
}
# The share of validation's tolerance that these errors may take.
_SHARE = 0.5


def may_round(expr: Expr) -> bool:
    """True if kernels may give another result than torch where it isn't exact."""
    match expr:
        case PointwiseOp(op="cast"):
            return False
        case PointwiseOp(op=op):
            return not (OPS[op].is_copy or OPS[op].keeps_values)
        case ReductionOp(op=op):
            return REDUCTIONS[op].rounds or REDUCTIONS[op].may_overflow
        case ScanOp(op=op):
            return not SCANS[op].is_exact
        case IndexedWrite(how=how):
            return how in ("sum", "prod")
        case RandomOp(distribution=distribution):
            return distribution != "uniform"
        case LibraryOp() | WelfordOp():
            return True
    return False


def has_certain_bits(expr: Expr) -> bool:
    """True if a kernel has the bits of torch where those are the exact result."""
    match expr:
        case PointwiseOp(op=op):
            return OPS[op].ulp32 == 0
        case WelfordOp() | RandomOp():
            return False
    return True


class KnownValues:
    """The numbers behind the tensors of a definition that is being built."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion, self.inputs = fusion, list[Any]()
        self.binding = bind(fusion, [])
        self.wide = Evaluator(fusion, [], self.binding, torch.float64, True)
        self.moved = [Evaluator(fusion, [], self.binding, None, False) for _ in range(2)]
        self.exact: set[Val] = set()
        self._generator = torch.Generator().manual_seed(0)
        self._count = 0

    def give(self, value: Val, given: torch.Tensor | float) -> None:
        """The next input of the fusion."""
        self.inputs.append(given)
        if isinstance(given, torch.Tensor):
            for evaluator in (self.wide, *self.moved):
                evaluator.give(value, given)
        self.exact.add(value)

    def of(self, tensor: TensorView) -> torch.Tensor | None:
        """A tensor's numbers in float64; None if torch can't compute them, or they hang on noise.

        First computes the expressions that were added since the last call.
        """
        self._compute()
        found = self.wide.values.get(tensor)
        return found if found is not None and self._is_reliable(tensor) else None

    def _compute(self) -> None:
        exprs = self.fusion.exprs[self._count :]
        if not exprs:
            return
        self.binding = bind(self.fusion, self.inputs)
        for evaluator in (self.wide, *self.moved):
            evaluator.binding = self.binding
        self._count = len(self.fusion.exprs)
        for expr in exprs:
            known = self.wide.values
            if all(value in known for value in expr.inputs if isinstance(value, TensorView)):
                self._run(expr)

    def _run(self, expr: Expr) -> None:
        try:
            for evaluator in (self.wide, *self.moved):
                evaluator.run(expr)
        except (NotImplementedError, RuntimeError) as error:
            if "not implemented for" not in str(error) and "not supported" not in str(error):
                raise
            for value in expr.outputs:
                self.wide.values.pop(value, None)
            return
        for value in expr.tensor_outputs:
            self._move(expr, value)

    def _move(self, expr: Expr, value: TensorView) -> None:
        """Notes whether a result is exact; if it isn't, moves it in both directions."""
        operands_are_exact = self.exact.issuperset(expr.tensor_inputs)
        wide, near = self.wide.values[value], self.moved[0].values[value]
        if value.dtype not in FLOATING or (
            operands_are_exact and has_certain_bits(expr) and _same(wide, near)
        ):
            self.exact.add(value)
            return
        error = _ERRORS.get(value.dtype)
        if error is None or not may_round(expr):
            return
        signs = torch.randint(0, 2, wide.shape, generator=self._generator) * 2 - 1
        for evaluator, direction in zip(self.moved, (1, -1), strict=True):
            x = evaluator.values[value]
            shift = x.double() * (signs * (direction * error))
            if isinstance(expr, WelfordOp):
                shift = shift + error**2 * self._largest(expr) * signs * direction
            evaluator.values[value] = torch.where(x.isfinite(), x + shift, x.double()).to(x.dtype)

    def _largest(self, expr: Expr) -> float:
        """The square of the largest operand: the scale of what cancels in a variance."""
        x = self.wide.values[expr.inputs[0]]
        return float(x.square().max()) if x.numel() else 0.0

    def _is_reliable(self, tensor: TensorView) -> bool:
        wide = self.wide.values[tensor]
        near = [evaluator.values[tensor] for evaluator in self.moved]
        if tensor.dtype not in FLOATING:
            return all(torch.equal(wide, each) for each in near)
        absolute, relative = self.tolerance(tensor)
        return all(
            torch.allclose(each.double(), wide, relative * _SHARE, absolute * _SHARE, True)
            for each in near
        )

    def tolerance(self, tensor: TensorView) -> tuple[float, float]:
        """(absolute, relative), as validation has them."""
        coarsest = coarsest_dtypes(self.fusion).get(tensor, tensor.dtype)
        size = reduction_sizes(self.fusion, self.binding).get(tensor, 1)
        return tolerances(coarsest, size)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(0.5), b.double().nan_to_num(0.5)) and bool(
        (a.isnan() == b.isnan()).all()
    )
