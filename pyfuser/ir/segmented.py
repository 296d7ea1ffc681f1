"""SegmentedFusion: a fusion cut into groups that become one part of a program each.

segmented ::= fusion, segment...
segment   ::= exprs, inputs, outputs, scheduler, kind, reason
kind      ::= kernel | library | view
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .domains import TensorDomain
from .exprs import Expr
from .fusion import Cloner, Fusion
from .vals import TensorView, Val


class PartKind(Enum):
    """What runs a segment: a generated kernel, calls of torch's library, or nothing.

    The outputs of a view are empty, or views of an input.
    """

    kernel = "kernel"
    library = "library"
    view = "view"


@dataclass(eq=False)
class Segment:
    """Expressions that one scheduler has accepted, as one part of a program.

    `scheduler` is its name, for human readers; `kind` says what runs the part.  `reason` says why
    the group ends where it does; `inputs` and `outputs` are values of the whole fusion.
    An input that expressions read along two axes of the loops is in `inputs` once for each way, and
    `apart` has the readers of each but the first.
    """

    exprs: list[Expr]
    inputs: list[Val]
    outputs: list[TensorView]
    scheduler: str
    kind: PartKind
    reason: str = ""
    apart: list[tuple[TensorView, list[Expr]]] = field(default_factory=list)

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
    for value in dict.fromkeys(segment.inputs):
        if isinstance(value, TensorView) and value not in whole.inputs:
            target.inputs.append(cloner.boundary(value))
        else:
            target.inputs.append(cloner.value(value))
    cloner.exprs(segment.exprs)
    _separate(segment, target, cloner)
    for output in segment.outputs:
        copy = cloner.values[output]
        target.outputs.append(copy)
        if output not in whole.outputs and isinstance(copy, TensorView):
            for axis in copy.axes:
                axis.expanded_extent = None
        if whole.aliases.get(output) in segment.inputs:
            target.aliases[copy] = cloner.value(whole.aliases[output])
    target.overwritten = {cloner.value(v) for v in segment.inputs if v in whole.overwritten}
    known = {
        symbol
        for tensor in target.tensors
        for axis in tensor.domain.root_and_logical
        for symbol in axis.size.symbols
    }
    target.equal_extents = [
        (a, b) for a, b in whole.equal_extents if a.symbols | b.symbols <= known
    ]
    equal = target.ids.equal.items()
    target.ids.equal = {a: b for a, b in equal if a.symbols | b.symbols <= known}
    return target, cloner


def _separate(segment: Segment, target: Fusion, cloner: Cloner) -> None:
    """Gives the readers of an input that are `apart` one of their own."""
    for value, readers in segment.apart:
        shared = cloner.values[value]
        assert isinstance(shared, TensorView)
        domain = shared.domain
        axes = {a: target.ids.new(a.extent, a.iter_type, a.expanded_extent) for a in shared.axes}
        order = domain.allocation and [axes[axis] for axis in domain.allocation]
        copied = TensorDomain(list(axes.values()), list(domain.contiguity), allocation=order)
        own = target.new_tensor(copied, shared.dtype)
        for reader in readers:
            copy = cloner.values[reader.outputs[0]].expr
            assert copy is not None
            target.replace_input(copy, shared, own)
        target.inputs.append(own)
        target.repeats[own] = shared
