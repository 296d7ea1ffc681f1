"""Common subexpressions: one value for expressions that compute the same.

Two expressions are the same if kind, attributes, operands, dtype and output axes (with the steps of
a reshape) are.  Constants are compared by value, bit by bit.  Runs after the passes that make
operands equal (extents, casts, identities, joined chains) and before the last dead_code.

Before:
    T1_l_float[iS1{i0}] = exp(T0_g_float[iS0{i0}])
    T2_l_float[iS2{i0}] = exp(T0_g_float[iS0{i0}])
    T3_g_float[iS3{i0}] = add(T1_l_float[iS1{i0}], T2_l_float[iS2{i0}])
After:
    T1_l_float[iS1{i0}] = exp(T0_g_float[iS0{i0}])
    T3_g_float[iS3{i0}] = add(T1_l_float[iS1{i0}], T1_l_float[iS1{i0}])
"""

from __future__ import annotations

from collections.abc import Hashable

from ..analysis.costs import is_repeatable
from ..ir.domains import IterDomain, Split, history
from ..ir.exprs import Expr, FullOp, IotaOp
from ..ir.fusion import Fusion
from ..ir.vals import Scalar, TensorView, Val
from .rewriting import Rewriter, rewrite


def common_subexpressions(fusion: Fusion) -> Fusion:
    """Computes each value once."""
    known: dict[Hashable, tuple[Val, ...]] = {}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        # These are made from nothing and cost nothing; one iota for the rows and the columns of a
        # mask would be a tensor that is read along two axes.
        if not is_repeatable(expr) or isinstance(expr, (IotaOp, FullOp)):
            rewriter.emit(expr)
            return
        key = (
            type(expr),
            expr.attributes(),
            tuple(map(_operand_key, expr.inputs)),
            tuple(map(_result_key, expr.outputs)),
        )
        earlier = known.setdefault(key, expr.outputs)
        # Outputs would be copied; expressions with several outputs stay unchanged.
        many = len(expr.outputs) > 1 and any(rewriter.is_output(v) for v in expr.outputs)
        if earlier is expr.outputs or many:
            rewriter.emit(expr)
            return
        for old, new in zip(expr.outputs, earlier, strict=True):
            rewriter.replace(old, new)

    return rewrite(fusion, rule)


def _operand_key(value: Val) -> Hashable:
    if isinstance(value, Scalar) and value.expr is None:
        if value.constant is not None:
            return value.dtype, repr(value.constant)
        if value.extent is not None:
            return value.dtype, value.extent
    return value


def _result_key(value: Val) -> Hashable:
    """What identifies an output besides the operands: dtype, axes, layout, steps of a reshape."""
    if not isinstance(value, TensorView):
        return value.dtype
    domain = value.domain
    roots = domain.root_or_logical
    numbers: dict[IterDomain, int] = {axis: i for i, axis in enumerate(roots)}
    steps: list[Hashable] = []
    if domain.root is not None:
        for step in history(domain.logical, roots):
            how = (step.factor, step.inner_split) if isinstance(step, Split) else ()
            steps.append((type(step), tuple(numbers[axis] for axis in step.inputs), how))
            for axis in step.outputs:
                numbers[axis] = len(numbers)
    sizes = tuple((a.extent, a.iter_type, a.expanded_extent) for a in domain.logical)
    logical = tuple(numbers[axis] for axis in domain.logical)
    layout = domain.allocation and tuple(numbers.get(axis, -1) for axis in domain.allocation)
    return value.dtype, sizes, logical, layout, tuple(steps)
