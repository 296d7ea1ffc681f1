"""Drafts of segments: units accepted by one scheduler, and the bytes that a cut into drafts moves.

A draft computes its own units and, `again`, expressions of units in other drafts.  A `Cut` knows
which tensors its drafts read from each other, and therefore which have to be stored.  It counts
bytes: a tensor once for each draft that reads it and once where it is written.  Invariant: drafts
are in an order in which they can run, and every unit that is needed is in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..dtypes import size_in_bytes
from ..ir.exprs import Expr
from ..ir.scalar_queries import evaluate
from ..ir.scalars import product
from ..ir.segmented import PartKind, SegmentedFusion
from ..ir.vals import TensorView
from ..schedule.facts import Facts, examine_exprs
from ..schedule.registry import AutomaticScheduler
from ..schedule.size_info import SizeInfo
from .units import Unit, UnitGraph, free_exprs

# The value of an unknown size: it only distinguishes tensors of different rank.
_UNKNOWN_SIZE = 256


@dataclass(slots=True, eq=False)
class SegmentDraft:
    """Units that one scheduler has accepted as one segment, and the expressions it recomputes.

    `exprs` are all its expressions in the fusion's order, `reads` the tensors from outside.
    """

    graph: UnitGraph
    units: list[Unit]
    scheduler: AutomaticScheduler
    reason: str = ""
    again: frozenset[Expr] = frozenset()
    exprs: list[Expr] = field(init=False)
    reads: dict[TensorView, None] = field(init=False)

    def __post_init__(self) -> None:
        self.exprs = with_free(self.graph, {*(unit.expr for unit in self.units), *self.again})
        made = {tensor for expr in self.exprs for tensor in expr.tensor_outputs}
        read = (tensor for expr in self.exprs for tensor in expr.tensor_inputs)
        self.reads = dict.fromkeys(tensor for tensor in read if tensor not in made)

    @property
    def moves_data(self) -> bool:
        """True for kernels; views cost nothing, and library calls aren't counted."""
        return self.scheduler.kind is PartKind.kernel

    def needed_for(self, wanted: Collection[TensorView]) -> SegmentDraft | None:
        """The draft reduced to the units needed for these tensors; None if none is needed."""
        needed = {t for unit in self.units for t in unit.outputs if t in wanted}
        for expr in reversed(self.exprs):
            if not needed.isdisjoint(expr.tensor_outputs):
                needed.update(expr.tensor_inputs)
        units = [unit for unit in self.units if not needed.isdisjoint(unit.outputs)]
        again = {expr for expr in self.again if not needed.isdisjoint(expr.tensor_outputs)}
        if len(units) == len(self.units) and len(again) == len(self.again):
            return self
        if not units:
            return None
        return SegmentDraft(self.graph, units, self.scheduler, self.reason, frozenset(again))

    def computing(self, exprs: Iterable[Expr]) -> SegmentDraft:
        """The draft with more expressions that it recomputes."""
        again = self.again.union(expr for expr in exprs if expr not in self.graph.free)
        return SegmentDraft(self.graph, self.units, self.scheduler, self.reason, again)


def with_free(graph: UnitGraph, exprs: Iterable[Expr]) -> list[Expr]:
    """The expressions and the free ones that they need, in the fusion's order."""
    chosen = set(exprs)
    return sorted(chosen | free_exprs(chosen, graph.free), key=graph.places.__getitem__)


def bytes_of(tensor: TensorView, sizes: SizeInfo) -> int:
    """About how many bytes a tensor has."""
    known = {n: 1 << (bits - 1) if bits else 0 for n, bits in sizes.magnitudes}
    extent = product(axis.extent for axis in tensor.axes)
    values = {s.name: known.get(s.name, _UNKNOWN_SIZE) for s in extent.symbols}
    try:
        elements = int(evaluate(extent, values))
    except ZeroDivisionError:
        elements = 0
    return elements * size_in_bytes(tensor.dtype)


def cost_of(segmented: SegmentedFusion, sizes: SizeInfo) -> int:
    """About what running the segments costs, in bytes moved."""
    kernels = [each for each in segmented.segments if each.kind is PartKind.kernel]
    moved = (value for each in kernels for value in (*each.inputs, *each.outputs))
    total = sum(bytes_of(value, sizes) for value in moved if isinstance(value, TensorView))
    return total + sizes.target.launch_bytes * len(kernels)


class Cut:
    """A fusion cut into drafts, with the tensors that each reads and stores."""

    def __init__(self, graph: UnitGraph, sizes: SizeInfo, drafts: list[SegmentDraft]) -> None:
        self.graph, self.sizes, self.drafts = graph, sizes, drafts
        self.maker = {t: i for i, p in enumerate(drafts) for u in p.units for t in u.outputs}
        self.readers: dict[TensorView, list[int]] = {}
        for number, draft in enumerate(drafts):
            for tensor in draft.reads:
                self.readers.setdefault(tensor, []).append(number)

    def is_stored(self, tensor: TensorView) -> bool:
        """True for a tensor that one draft computes and another, or the caller, reads."""
        return tensor in self.readers or tensor in self.graph.outputs

    def outputs(self, draft: SegmentDraft) -> list[TensorView]:
        """The tensors that leave a draft."""
        made = (tensor for unit in draft.units for tensor in unit.outputs)
        return [tensor for tensor in made if self.is_stored(tensor)]

    def facts(self, draft: SegmentDraft) -> Facts:
        """The facts of one draft for the schedulers."""
        outputs = self.outputs(draft)
        stored = [tensor for tensor in outputs if tensor in self.readers]
        return examine_exprs(draft.exprs, outputs, set(self.graph.fusion.aliases), stored)

    def bytes_of(self, tensor: TensorView) -> int:
        """About how many bytes of a tensor a kernel reads or writes."""
        return bytes_of(tensor, self.sizes)

    def bytes_moved(self) -> int:
        """About how many bytes all kernels read and write."""
        kernels = (draft for draft in self.drafts if draft.moves_data)
        return sum(self.bytes_of(t) for p in kernels for t in (*p.reads, *self.outputs(p)))

    def without_dead_units(self) -> Cut:
        """The cut without units and drafts whose results are no longer read."""
        wanted = set(self.graph.outputs)
        kept: list[SegmentDraft] = []
        for draft in reversed(self.drafts):
            needed = draft.needed_for(wanted)
            if needed is not None:
                kept.append(needed)
                wanted.update(needed.reads)
        return Cut(self.graph, self.sizes, kept[::-1])
