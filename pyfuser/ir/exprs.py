"""Expressions: how a value is computed from others.

    expr ::= out = op(in, ...)                      PointwiseOp; `op` names a row of the op table
           | out = sum|prod|max|min(in)             ReductionOp; over the reduction axes of out
           | avg, m2, n = welford(in | avg, m2, n)  WelfordOp
           | out = broadcast(in, flags) | expand(in) | squeeze(in, flags) | permute(in, dims)
           | out = reshape(in)                      root -> logical of out says how
           | out = full(value) | iota(start, step)

Pointwise expressions map the logical axes of their inputs to the root axes of their output by
position; `consumer_map` of `pyfuser.analysis` says so for every kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .vals import TensorView, Val


@dataclass(slots=True, eq=False)
class Expr:
    """Common form: `inputs` in order, `outputs` in order."""

    inputs: tuple[Val, ...]
    outputs: tuple[Val, ...]

    @property
    def name(self) -> str:
        """The operation's name in printed IR."""
        return "expr"

    @property
    def output(self) -> Val:
        """The first output."""
        return self.outputs[0]

    @property
    def tensor_inputs(self) -> list[TensorView]:
        return [v for v in self.inputs if isinstance(v, TensorView)]

    @property
    def tensor_outputs(self) -> list[TensorView]:
        return [v for v in self.outputs if isinstance(v, TensorView)]

    def attributes(self) -> tuple[Any, ...]:
        """What else identifies the computation, beside inputs, outputs and their axes."""
        return ()

    def rebuild(self, inputs: Sequence[Val], outputs: Sequence[Val]) -> Expr:
        """The same operation over other values."""
        return type(self)(tuple(inputs), tuple(outputs), *self.attributes())

    def __str__(self) -> str:
        outputs = ", ".join(str(v) for v in self.outputs)
        arguments = [str(v) for v in self.inputs]
        arguments += [str(a) for a in self.attributes() if a != self.name]
        return f"{outputs} = {self.name}({', '.join(arguments)})"


@dataclass(slots=True, eq=False)
class PointwiseOp(Expr):
    """`op` of the table on every element; also on scalars only, then computed on the host."""

    op: str

    @property
    def name(self) -> str:
        return self.op

    def attributes(self) -> tuple[Any, ...]:
        return (self.op,)


@dataclass(slots=True, eq=False)
class ReductionOp(Expr):
    """Combines, with `op` (sum, prod, max, min), over the reduction axes of the output."""

    op: str

    @property
    def name(self) -> str:
        return self.op

    def attributes(self) -> tuple[Any, ...]:
        return (self.op,)


@dataclass(slots=True, eq=False)
class WelfordOp(Expr):
    """(avg, m2, n) of the input, or of partial (avg, m2, n) triples, over the reduction axes."""

    @property
    def name(self) -> str:
        return "welford"


@dataclass(slots=True, eq=False)
class BroadcastOp(Expr):
    """New broadcast axes where `flags` (one an output axis) are True."""

    flags: tuple[bool, ...]

    @property
    def name(self) -> str:
        return "broadcast"

    def attributes(self) -> tuple[Any, ...]:
        return (self.flags,)


@dataclass(slots=True, eq=False)
class SqueezeOp(Expr):
    """Drops the input axes whose `flags` are True; they must be broadcast."""

    flags: tuple[bool, ...]

    @property
    def name(self) -> str:
        return "squeeze"

    def attributes(self) -> tuple[Any, ...]:
        return (self.flags,)


@dataclass(slots=True, eq=False)
class ExpandOp(Expr):
    """Broadcast axes get the expanded extents of the output's axes."""

    @property
    def name(self) -> str:
        return "expand"


@dataclass(slots=True, eq=False)
class PermuteOp(Expr):
    """Output axis i is input axis dims[i]."""

    dims: tuple[int, ...]

    @property
    def name(self) -> str:
        return "permute"

    def attributes(self) -> tuple[Any, ...]:
        return (self.dims,)


@dataclass(slots=True, eq=False)
class ReshapeOp(Expr):
    """The output's root axes are the input's; splits and merges lead to its logical axes."""

    @property
    def name(self) -> str:
        return "reshape"


@dataclass(slots=True, eq=False)
class FullOp(Expr):
    """A tensor filled with one scalar, its only input."""

    @property
    def name(self) -> str:
        return "full"


@dataclass(slots=True, eq=False)
class IotaOp(Expr):
    """start + step * i; inputs are (start, step)."""

    @property
    def name(self) -> str:
        return "iota"
