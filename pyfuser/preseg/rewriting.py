"""Rewriting: one walk over a fusion's expressions that keeps, replaces or adds.

A pass provides a rule, which is called for each expression in order, with its operands already
replaced.  The rule decides through the `Rewriter` what becomes of the expression.  The links of the
graph are rebuilt at the end, so a pass takes linear time.  Invariant: outputs stay the same values;
an output that equals another value becomes a copy of it (`set`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeGuard

from ..analysis.costs import recomputation_cost
from ..ir.domains import TensorDomain
from ..ir.exprs import Expr, FullOp, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import PythonNumber, Scalar, TensorView, Val

# The cost that a copy may have, in additions per element: a position, scaled, cast and clamped.
_MOST_COST = 8


class Rewriter:
    """The expressions of a fusion while a rule rewrites them."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.exprs: list[Expr] = []
        self._replaced: dict[Val, Val] = {}
        self._outputs = set(fusion.outputs)

    def emit(self, expr: Expr) -> None:
        """Appends an expression, which becomes the definition of its outputs."""
        for output in expr.outputs:
            output.expr = expr
        self.exprs.append(expr)

    def replace(self, old: Val, new: Val) -> None:
        """Makes every later reader of `old` read `new`, a value with the same elements."""
        if old not in self._outputs:
            self._replaced[old] = new
            return
        if isinstance(old, TensorView):
            without_history(old)
        self.emit(PointwiseOp((new,), (old,), "set"))

    def replace_or_copy(self, old: TensorView, new: TensorView) -> None:
        """The same; a tensor with a layout of its own becomes a copy."""
        if has_natural_layout(old):
            self.replace(old, new)
        else:
            self.emit(PointwiseOp((new,), (old,), "set"))

    def is_output(self, value: Val) -> bool:
        """True for an output of the fusion."""
        return value in self._outputs

    def operands_replaced(self, expr: Expr) -> Expr:
        """The expression over the current replacements of its operands."""
        if any(value in self._replaced for value in expr.inputs):
            expr.inputs = tuple(self._replaced.get(value, value) for value in expr.inputs)
        return expr


Rule = Callable[[Rewriter, Expr], None]


def rewrite(fusion: Fusion, rule: Rule) -> Fusion:
    """Applies a rule to each expression, in order; changes the fusion and returns it."""
    rewriter = Rewriter(fusion)
    for expr in fusion.exprs:
        rule(rewriter, rewriter.operands_replaced(expr))
    return relink(fusion, rewriter.exprs)


def relink(fusion: Fusion, exprs: Iterable[Expr]) -> Fusion:
    """Gives a fusion these expressions, and every value the list of its readers."""
    fusion.exprs = list(exprs)
    for value in fusion.inputs:
        value.uses_list = []
    for expr in fusion.exprs:
        for value in (*expr.inputs, *expr.outputs):
            value.uses_list = []
    for expr in fusion.exprs:
        for value in dict.fromkeys(expr.inputs):
            value.uses_list.append(expr)
    return fusion


def without_history(tensor: TensorView) -> None:
    """Leaves the tensor only the axes that consumers see, for a new, simpler definition."""
    old = tensor.domain
    for axis in tensor.axes:
        axis.definition = None
    tensor.domain = TensorDomain(tensor.axes, old.contiguity, allocation=old.allocation)


def fill(rewriter: Rewriter, tensor: TensorView, value: PythonNumber) -> None:
    """Defines the tensor by a fill; it loses its reduction and root axes."""
    without_history(tensor)
    constant = rewriter.fusion.new_scalar(tensor.dtype, constant=value)
    rewriter.emit(FullOp((constant,), (tensor,)))


def is_cast(expr: Expr | None) -> TypeGuard[PointwiseOp]:
    """True for a conversion of elements to another dtype."""
    return isinstance(expr, PointwiseOp) and expr.op == "cast"


def is_constant(value: Val, number: int) -> bool:
    """True for a scalar that is the constant."""
    return isinstance(value, Scalar) and value.constant is not None and value.constant == number


def note_cost(expr: Expr, costs: dict[TensorView, int]) -> None:
    """Records the cost of a tensor, including everything it is computed from, if that is cheap.

    `costs` begins with the inputs that may be read again, if any.
    """
    price = recomputation_cost(expr)
    operands = expr.tensor_inputs
    if price is None or not all(t in costs and _may_be_read_again(t) for t in operands):
        return
    total = price + sum(costs[tensor] for tensor in operands)
    if total <= _MOST_COST:
        costs.update((tensor, total) for tensor in expr.tensor_outputs)


def _may_be_read_again(tensor: TensorView) -> bool:
    return tensor.expr is None or has_natural_layout(tensor)


def has_natural_layout(tensor: TensorView) -> bool:
    """True unless the definition specifies a layout."""
    return tensor.domain.allocation is None


def same_shape(a: TensorView, b: TensorView) -> bool:
    """True if kind and size agree for each axis, so that one can replace the other."""
    return [(x.iter_type, x.size) for x in a.axes] == [(y.iter_type, y.size) for y in b.axes]
