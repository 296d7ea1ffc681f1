"""SegmentedFusion: a fusion cut into groups that each become one kernel, with the reason.

segmented ::= fusion, segment...
segment   ::= exprs, inputs, outputs, scheduler, reason
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .exprs import Expr
from .fusion import Cloner, Fusion
from .vals import TensorView, Val


@dataclass(eq=False)
class Segment:
    """Expressions that one scheduler turns into one kernel.

    `reason` says why the group ends where it does; `inputs` and `outputs` are values of the whole
    fusion.
    """

    exprs: list[Expr]
    inputs: list[Val]
    outputs: list[TensorView]
    scheduler: str
    reason: str = ""

    def __str__(self) -> str:
        body = "".join(f"  {expr}\n" for expr in self.exprs)
        reason = f"  // {self.reason}\n" if self.reason else ""
        inputs = ", ".join(_name(v) for v in self.inputs)
        outputs = ", ".join(_name(v) for v in self.outputs)
        return f"segment {self.scheduler} ({inputs}) -> ({outputs}) {{\n{reason}{body}}}\n"


def _name(value: Val) -> str:
    return f"T{value.name}" if isinstance(value, TensorView) else str(value)


@dataclass(eq=False)
class SegmentedFusion:
    """The whole fusion and its segments in an order in which they can run."""

    fusion: Fusion
    segments: list[Segment] = field(default_factory=list)

    def __str__(self) -> str:
        return "".join(map(str, self.segments))


def segment_fusion(whole: Fusion, segment: Segment) -> tuple[Fusion, Cloner]:
    """A Fusion of its own for one segment.

    Inputs that other segments compute become dense inputs.  A tensor that is stored only for other
    segments has one element along an expanded axis.  Sizes keep their symbols; a size that no input
    has (it comes from a scalar) stays a scalar input of the segment.
    """
    target = Fusion()
    cloner = Cloner(whole, target)
    for value in segment.inputs:
        if isinstance(value, TensorView) and value not in whole.inputs:
            target.inputs.append(cloner.boundary(value))
        else:
            target.inputs.append(cloner.value(value))
    cloner.exprs(segment.exprs)
    for output in segment.outputs:
        copy = cloner.values[output]
        target.outputs.append(copy)
        if output not in whole.outputs and isinstance(copy, TensorView):
            for axis in copy.axes:
                axis.expanded_extent = None
        if output in whole.aliases:
            target.aliases[copy] = cloner.value(whole.aliases[output])
    target.overwritten = {cloner.value(v) for v in segment.inputs if v in whole.overwritten}
    known = {
        symbol
        for tensor in target.tensors
        for axis in tensor.domain.root_or_logical
        for symbol in axis.size.symbols
    }
    target.equal_extents = [
        (a, b) for a, b in whole.equal_extents if a.symbols | b.symbols <= known
    ]
    return target, cloner
