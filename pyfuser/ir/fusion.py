"""Fusion: what to compute.

    fusion ::= inputs, expr..., outputs, aliases {output -> input that is updated in place},
               hidden outputs (of the aliases: not returned),
               random state (the inputs that are a generator's seed and offset)

A Fusion says nothing about loops.  Expressions are kept in definition order, which is topological.
`equal_extents` collects the pairs of sizes that the definition forces to be equal (by adding two
tensors, for example); a pass unifies them, and the executor checks them at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..dtypes import DataType
from ..errors import DefinitionError, InternalError, expected
from .domains import (
    IdExpr,
    IdFactory,
    IterDomain,
    Merge,
    Reverse,
    Split,
    Swizzle,
    TensorDomain,
    history,
)
from .exprs import Expr
from .scalar_queries import divides, substitute
from .scalars import CeilDiv, IntExpr, Symbol, ceil_div, floor_div
from .vals import PythonNumber, Scalar, TensorView, Val


class Fusion:
    """A graph of expressions over tensors and scalars."""

    tensor_type: type[TensorView] = TensorView
    scalar_type: type[Scalar] = Scalar

    def __init__(self) -> None:
        self.inputs: list[Val] = []
        self.outputs: list[Val] = []
        self.hidden_outputs: set[Val] = set()
        self.aliases: dict[Val, Val] = {}
        self.overwritten: set[Val] = set()
        """Of a segment: inputs whose memory an output may reuse, element by element."""
        self.repeats: dict[Val, Val] = {}
        """Of a segment: inputs that repeat another input, with its strides: see Segment.apart."""
        self.exprs: list[Expr] = []
        self.equal_extents: list[tuple[IntExpr, IntExpr]] = []
        self.required_by: dict[object, str] = {}
        """For messages: the operation that needs a pair of equal sizes, or a scalar as a size."""
        self.random_state: tuple[Scalar, ...] = ()
        """(seed, offset), the last inputs, if each call takes them from torch's generator."""
        self.random_count = 0
        """How many operations were defined that use them, each with its number as offset."""
        self.ids = IdFactory()
        self._tensor_count = 0
        self._scalar_count = 0
        self._extent_count = 0

    # -- making values

    def new_extent(self) -> IntExpr:
        """A fresh symbolic size, `i0`, `i1`, ..."""
        self._extent_count += 1
        return Symbol.of(f"i{self._extent_count - 1}")

    def new_tensor(
        self, domain: TensorDomain, dtype: DataType, is_cpu_scalar: bool = False
    ) -> TensorView:
        """A fresh tensor with this domain."""
        self._tensor_count += 1
        return self.tensor_type(self, self._tensor_count - 1, dtype, domain, is_cpu_scalar)

    def new_scalar(
        self,
        dtype: DataType,
        constant: PythonNumber | None = None,
        extent: IntExpr | None = None,
    ) -> Scalar:
        """A fresh scalar: a constant, a size, or (with neither given) symbolic."""
        self._scalar_count += 1
        return self.scalar_type(self, self._scalar_count - 1, dtype, constant, extent)

    def add_expr(self, expr: Expr) -> None:
        """Appends an expression and links it to its values."""
        self.exprs.append(expr)
        for output in expr.outputs:
            output.expr = expr
        for value in dict.fromkeys(expr.inputs):
            value.uses_list.append(expr)

    def insert_expr(self, expr: Expr, before: Expr) -> None:
        """Adds an expression before another one."""
        self.add_expr(expr)
        self.exprs.pop()
        self.exprs.insert(self.exprs.index(before), expr)

    def replace_input(self, expr: Expr, old: Val, new: Val) -> None:
        """Makes one expression read `new` where it read `old`."""
        expr.inputs = tuple(new if v is old else v for v in expr.inputs)
        old.uses_list.remove(expr)
        if expr not in new.uses_list:
            new.uses_list.append(expr)

    def remove_expr(self, expr: Expr) -> None:
        """Removes an expression; its outputs must be unused."""
        self.exprs.remove(expr)
        for value in dict.fromkeys(expr.inputs):
            value.uses_list.remove(expr)

    def redefine(self, old: Expr, new: Expr) -> None:
        """Replaces an expression by another with the same outputs."""
        position = self.exprs.index(old)
        self.remove_expr(old)
        self.add_expr(new)
        self.exprs.pop()
        self.exprs.insert(position, new)

    # -- inputs and outputs

    def add_input(self, value: Val) -> None:
        """Declares the next input."""
        self.inputs.insert(len(self.inputs) - len(self.random_state), value)

    def add_random_state(self) -> tuple[Scalar, ...]:
        """(seed, offset) as inputs that a call need not give, for one more operation."""
        self.random_count += 1
        if not self.random_state:
            self.random_state = (self.new_scalar(DataType.Int), self.new_scalar(DataType.Int))
            self.inputs += self.random_state
        return self.random_state

    @property
    def given_inputs(self) -> list[Val]:
        """The inputs that a call gives."""
        return self.inputs[: len(self.inputs) - len(self.random_state)]

    def add_output(self, value: Val, alias_input: Val | None = None) -> None:
        """Declares the next output; with `alias_input` it updates that input and isn't returned."""
        if alias_input is not None:
            if not any(alias_input is each for each in self.inputs):
                what = "an input of this fusion to update"
                raise DefinitionError(expected("add_output", what, repr(alias_input)))
            rank, given = (v.ndim if isinstance(v, TensorView) else 0 for v in (value, alias_input))
            if rank != given:
                what = f"an input of {rank} dimensions to update"
                raise DefinitionError(expected("add_output", what, given))
            if self.aliases.get(value, alias_input) is not alias_input:
                what = "one input to update with an output"
                raise DefinitionError(expected("add_output", what, "a second one", "copy it"))
            if any(i is alias_input and v is not value for v, i in self.aliases.items()):
                what = "one output to update an input with"
                raise DefinitionError(expected("add_output", what, "a second one"))
            self.aliases[value] = alias_input
            if value not in self.outputs:
                self.hidden_outputs.add(value)
                self.outputs.append(value)
            return
        if value in self.hidden_outputs:
            self.hidden_outputs.remove(value)
            self.outputs.remove(value)
        self.outputs.append(value)

    # -- reading

    @property
    def tensors(self) -> list[TensorView]:
        """Every tensor: inputs, then what the expressions define, in order."""
        found = [v for v in self.inputs if isinstance(v, TensorView)]
        for expr in self.exprs:
            found += expr.tensor_outputs
        return found

    @property
    def input_tensors(self) -> list[TensorView]:
        return [v for v in self.inputs if isinstance(v, TensorView)]

    def live_exprs(self) -> list[Expr]:
        """The expressions that the outputs need, in order."""
        needed: set[Val] = set(self.outputs)
        live: list[Expr] = []
        for expr in reversed(self.exprs):
            if any(output in needed for output in expr.outputs):
                live.append(expr)
                needed.update(expr.inputs)
        return live[::-1]

    def clone(
        self,
        extents: Mapping[Symbol, IntExpr] | None = None,
        composites: Mapping[IntExpr, IntExpr] | None = None,
    ) -> tuple[Fusion, Cloner]:
        """A copy that shares nothing, with sizes substituted, and the mapping from old to new."""
        target = Fusion()
        cloner = Cloner(self, target, extents, composites)
        target.inputs = [cloner.value(v) for v in self.inputs]
        cloner.exprs(self.exprs)
        target.outputs = [cloner.value(v) for v in self.outputs]
        target.hidden_outputs = {cloner.value(v) for v in self.hidden_outputs}
        target.aliases = {cloner.value(o): cloner.value(i) for o, i in self.aliases.items()}
        target.overwritten = {cloner.value(v) for v in self.overwritten}
        target.repeats = {cloner.value(a): cloner.value(b) for a, b in self.repeats.items()}
        pairs = ((cloner.extent(a), cloner.extent(b)) for a, b in self.equal_extents)
        target.random_count = self.random_count
        target.random_state = tuple(target.inputs[len(self.given_inputs) :])  # type: ignore[arg-type]
        target.equal_extents = [pair for pair in dict.fromkeys(pairs) if pair[0] is not pair[1]]
        return target, cloner

    def math_text(self, from_outputs_only: bool = False) -> str:
        """Inputs, outputs and expressions, one per line, with the axes of every tensor."""
        inputs = "".join(f"  {v}\n" for v in self.inputs)
        outputs = "".join(f"  {v}\n" for v in self.outputs)
        exprs = self.live_exprs() if from_outputs_only else self.exprs
        body = "".join(f"{expr}\n" for expr in exprs)
        math = f"%kernel_math {{\n{body}}} // %kernel_math "
        return f"Inputs:\n{inputs}Outputs:\n{outputs}\n{math}\n\n"

    def __str__(self) -> str:
        return self.math_text()


class Cloner:
    """Copies values, axes and expressions into another fusion, keeping names.

    `extents` are substituted in every size, `composites` where a whole size matches, or is a
    multiple.
    """

    def __init__(
        self,
        source: Fusion,
        target: Fusion,
        extents: Mapping[Symbol, IntExpr] | None = None,
        composites: Mapping[IntExpr, IntExpr] | None = None,
    ) -> None:
        self.target = target
        self.extents = extents or {}
        self.composites = dict(composites or {})
        self.values: dict[Val, Val] = {}
        self.axes: dict[IterDomain, IterDomain] = {}
        target.ids.next_name = max(target.ids.next_name, source.ids.next_name)
        target._tensor_count = max(target._tensor_count, source._tensor_count)
        target._scalar_count = max(target._scalar_count, source._scalar_count)
        target._extent_count = max(target._extent_count, source._extent_count)
        equal = {self.extent(a): self.extent(b) for a, b in source.ids.equal.items()}
        target.ids.equal |= equal | self.composites

    def extent(self, expr: IntExpr) -> IntExpr:
        """A size with the substitutions applied."""
        found = substitute(expr, self.extents)
        if isinstance(found, CeilDiv) and found not in self.composites:
            # What remains of a size that is split is what a split of its representative leaves.
            found = ceil_div(self.composites.get(found.a, found.a), found.b)
        if found not in self.composites:
            for whole, representative in self.composites.items():
                if found.symbols >= whole.symbols and divides(whole, found):
                    return floor_div(found, whole) * representative
        return self.composites.get(found, found)

    def axis(self, axis: IterDomain) -> IterDomain:
        """The copy of one axis (without its history)."""
        copy = self.axes.get(axis)
        if copy is None:
            expanded = None if axis.expanded_extent is None else self.extent(axis.expanded_extent)
            copy = IterDomain(
                axis.name, self.extent(axis.extent), axis.iter_type, expanded, axis.parallel_type
            )
            self.axes[axis] = copy
        return copy

    def axis_list(self, axes: Sequence[IterDomain]) -> list[IterDomain]:
        """The copies of several axes."""
        return [self.axis(axis) for axis in axes]

    def histories(self, loop: Sequence[IterDomain], roots: Sequence[IterDomain]) -> None:
        """Copies the splits and merges between two lists of axes."""
        for expr in history(loop, roots):
            axes = self.axis_list((*expr.inputs, *expr.outputs))
            copy: IdExpr
            match expr:
                case Split():
                    source, outer, inner = axes
                    factor = self.extent(expr.factor)
                    known = (expr.inner_split, expr.is_whole, expr.is_even)
                    copy = Split(source, outer, inner, factor, *known)
                case Merge():
                    copy = Merge(*axes)
                case Swizzle():
                    copy = Swizzle(*axes)
                case Reverse():
                    copy = Reverse(*axes)
            for output in copy.outputs:
                output.definition = copy

    def domain(self, domain: TensorDomain) -> TensorDomain:
        """The copy of a tensor's domain."""
        root = None if domain.root is None else self.axis_list(domain.root)
        logical = self.axis_list(domain.logical)
        if domain.root is not None:
            self.histories(domain.logical, domain.root)
        self.histories(domain.loop, domain.logical)
        allocation = None
        if domain.allocation is not None:
            allocation = self.axis_list(domain.allocation)
            self.histories(domain.allocation, domain.logical)
        loop = self.axis_list(domain.loop)
        return TensorDomain(logical, list(domain.contiguity), root, allocation, loop)

    def value(self, value: Val) -> Val:
        """The copy of a value (without its definition)."""
        copy = self.values.get(value)
        if copy is not None:
            return copy
        match value:
            case TensorView():
                copy = self.target.tensor_type(
                    self.target,
                    value.name,
                    value.dtype,
                    self.domain(value.domain),
                    value.is_cpu_scalar,
                )
            case Scalar():
                extent = None if value.extent is None else self.extent(value.extent)
                copy = self.target.scalar_type(
                    self.target, value.name, value.dtype, value.constant, extent
                )
            case _:
                raise InternalError(f"clone: expected a tensor or a scalar, got {value!r}")
        self.values[value] = copy
        return copy

    def boundary(self, tensor: TensorView) -> TensorView:
        """A contiguous input tensor in place of a tensor that another segment computes."""
        axes = self.axis_list(tensor.axes)
        for axis in axes:
            axis.definition = None
        allocation = tensor.domain.allocation
        copies = None if allocation is None else self.axis_list(allocation)
        contiguity: list[bool | None] = [
            None if axis.is_broadcast else True for axis in (copies or axes)
        ]
        domain = TensorDomain(axes, contiguity, allocation=copies)
        copy = self.target.tensor_type(self.target, tensor.name, tensor.dtype, domain)
        self.values[tensor] = copy
        return copy

    def exprs(self, exprs: Iterable[Expr]) -> None:
        """Copies expressions, appending them to the target."""
        for expr in exprs:
            inputs = [self.value(v) for v in expr.inputs]
            outputs = [self.value(v) for v in expr.outputs]
            copy = expr.rebuild(inputs, outputs)
            if self.extents or self.composites:
                copy.resized(self.extent)
            self.target.add_expr(copy)


def broadcast_contiguity(axes: Sequence[IterDomain]) -> list[bool | None]:
    """The contiguity of a dense tensor with these axes."""
    return [None if axis.is_broadcast else True for axis in axes if not axis.is_reduction]


def plain_domain(axes: Sequence[IterDomain]) -> TensorDomain:
    """A dense domain over these logical axes."""
    return TensorDomain(list(axes), broadcast_contiguity(axes))
