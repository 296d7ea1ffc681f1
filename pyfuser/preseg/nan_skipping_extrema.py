"""NaN-skipping extrema: a maximum or minimum that needn't find NaN becomes one that skips it.

It needn't if a later sum over the same axes is NaN for the same rows: in a softmax, the sum of the
exponentials is NaN wherever the maximum is, and so is each quotient. Combining two numbers is then
one instruction instead of three. Runs after common_subexpressions, after which equal operands are
one tensor.

The proof is a walk over what depends on the extremum of x (`_Proof`). Of each tensor it knows
whether it may differ from what it was before, and where it is NaN for certain: at the elements at
which x is, or in whole rows with a NaN. What is NaN in whole rows, before and after, is equal
there. The extremum may be replaced if no output, and nothing that isn't understood, reads a tensor
that may differ.

Before:
    T1_l_float[rS1{i0}] = max(T0_g_float[iS0{i0}])
    T2_l_float[bS2{1}] = broadcast(T1_l_float[rS1{i0}], (True,))
    T3_l_float[iS3{i0}] = sub(T0_g_float[iS0{i0}], T2_l_float[bS2{1}])
    T4_l_float[iS4{i0}] = exp(T3_l_float[iS3{i0}])
    T5_g_float[rS5{i0}] = sum(T4_l_float[iS4{i0}])
After:
    T1_l_float[rS1{i0}] = nanmax(T0_g_float[iS0{i0}])
    T2_l_float[bS2{1}] = broadcast(T1_l_float[rS1{i0}], (True,))
    T3_l_float[iS3{i0}] = sub(T0_g_float[iS0{i0}], T2_l_float[bS2{1}])
    T4_l_float[iS4{i0}] = exp(T3_l_float[iS3{i0}])
    T5_g_float[rS5{i0}] = sum(T4_l_float[iS4{i0}])
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ..dtypes import is_floating
from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    PermuteOp,
    PointwiseOp,
    ReductionOp,
    SqueezeOp,
)
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val

_SKIPPING = {"max": "nanmax", "min": "nanmin"}

# Rows of the op table whose result is NaN if an operand is.
SPREADING_NAN = frozenset({
    "abs", "add", "cast", "cos", "div", "erf", "erfc", "exp", "exp2", "expm1", "log", "log10",
    "log1p", "log2", "maximum", "minimum", "mul", "neg", "reciprocal", "relu", "rsqrt", "set",
    "sigmoid", "silu", "sin", "sqrt", "sub", "tanh", "truediv",
})  # fmt: skip


def nan_skipping_extrema(fusion: Fusion) -> Fusion:
    """Replaces each maximum and minimum of floats that needn't find NaN."""
    outputs = set(fusion.outputs)
    for position, expr in enumerate(fusion.exprs):
        if not isinstance(expr, ReductionOp) or expr.op not in _SKIPPING:
            continue
        if is_floating(expr.tensor_outputs[0].dtype) and expr.output not in outputs:
            proof = _Proof(expr)
            if all(proof.step(later, outputs) for later in fusion.exprs[position + 1 :]):
                expr.op = _SKIPPING[expr.op]
    return fusion


class _NaN(IntEnum):
    """Where a tensor is NaN for certain: nowhere, where x is, or in every row in which x is."""

    UNKNOWN = 0
    AT_ELEMENTS = 1
    IN_ROWS = 2


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of a tensor.

    axes     the axis of x along each axis; None for one that isn't an axis of x
    nan      where the tensor is NaN for certain
    differs  True if the tensor may differ from what it was, in rows with a NaN
    """

    axes: tuple[int | None, ...]
    nan: _NaN
    differs: bool


class _Proof:
    """The facts about the tensors that depend on x or its extremum; no others have facts."""

    def __init__(self, extremum: Expr) -> None:
        x, result = extremum.tensor_inputs[0], extremum.tensor_outputs[0]
        is_reduced = [axis.is_reduction for axis in result.domain.root_or_logical]
        self.reduced = {d for d, reduced in enumerate(is_reduced) if reduced}
        self.kept = {d for d, reduced in enumerate(is_reduced) if not reduced}
        axes = tuple(range(len(is_reduced)))
        self.facts = {
            x: _Facts(axes, _NaN.AT_ELEMENTS, False),
            result: _Facts(tuple(sorted(self.kept)), _NaN.UNKNOWN, True),
        }

    def step(self, expr: Expr, outputs: Container[Val]) -> bool:
        """Notes the facts about an expression's results; False if the proof ends here."""
        known = [(t, self.facts[t]) for t in expr.tensor_inputs if t in self.facts]
        if not known:
            return True
        result = self._result(expr, known)
        if result is None:
            return not any(facts.differs for _, facts in known)
        self.facts[expr.tensor_outputs[0]] = result
        return not (result.differs and expr.output in outputs)

    def _result(self, expr: Expr, known: list[tuple[TensorView, _Facts]]) -> _Facts | None:
        """The facts about the result; None if there are none."""
        facts = known[0][1]
        match expr:
            case PointwiseOp():
                return self._pointwise(expr, known)
            case ReductionOp(op="sum" | "prod"):
                return self._summed(expr, facts)
            case BroadcastOp():
                source = iter(facts.axes)
                axes = tuple(None if flag else next(source) for flag in expr.flags)
            case SqueezeOp():
                pairs = zip(facts.axes, expr.flags, strict=True)
                axes = tuple(axis for axis, dropped in pairs if not dropped)
            case PermuteOp():
                axes = tuple(facts.axes[d] for d in expr.dims)
            case ExpandOp():
                return self._spread(expr.tensor_outputs[0], known, facts.nan)
            case _:
                return None
        nan = facts.nan if self._covers(axes, facts.nan) else _NaN.UNKNOWN
        return _Facts(axes, nan, facts.differs)

    def _pointwise(self, expr: PointwiseOp, known: list[tuple[TensorView, _Facts]]) -> _Facts:
        output = expr.tensor_outputs[0]
        spreads = expr.op in SPREADING_NAN and is_floating(output.dtype)
        nan = max(facts.nan for _, facts in known) if spreads else _NaN.UNKNOWN
        return self._spread(output, known, nan)

    def _spread(
        self, output: TensorView, known: list[tuple[TensorView, _Facts]], nan: _NaN
    ) -> _Facts:
        """The facts about a result whose axes are those of its operands."""
        axes: list[int | None] = []
        for d, axis in enumerate(output.axes):
            same = [f.axes[d] for t, f in known if t.axes[d].size is axis.size]
            found = {along for along in same if along is not None}
            axes.append(found.pop() if len(found) == 1 else None)
        nan = nan if self._covers(axes, nan) else _NaN.UNKNOWN
        differs = nan is not _NaN.IN_ROWS and any(facts.differs for _, facts in known)
        return _Facts(tuple(axes), nan, differs)

    def _covers(self, axes: Sequence[int | None], nan: _NaN) -> bool:
        """True if the axes suffice to say where x is NaN."""
        needed = self.kept if nan is _NaN.IN_ROWS else self.kept | self.reduced
        known = [along for along in axes if along is not None]
        return needed <= set(known) and len(known) == len(set(known))

    def _summed(self, expr: Expr, facts: _Facts) -> _Facts:
        """A sum over the rows is NaN where x is; it had the same value before."""
        given = expr.tensor_outputs[0].domain.root_or_logical
        pairs = list(zip(facts.axes, given, strict=True))
        axes = tuple(along for along, axis in pairs if not axis.is_reduction)
        summed = {along for along, axis in pairs if axis.is_reduction}
        if facts.nan is _NaN.AT_ELEMENTS and summed == self.reduced:
            return _Facts(axes, _NaN.IN_ROWS, False)
        return _Facts(axes, _NaN.UNKNOWN, facts.differs)
