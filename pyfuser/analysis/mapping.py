"""Which axis of a producer corresponds to which axis of its consumer.

`producer_to_consumer` is the only place that knows, for every kind of expression, how the logical
axes of an input correspond to the root axes of an output.  Indexing, propagation, inlining and
segmentation all use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import InternalError
from ..ir.domains import IterDomain
from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    GatherOp,
    PermuteOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    ReshapeOp,
    ScanOp,
    ScatterOp,
    SqueezeOp,
    WelfordOp,
    WindowOp,
    WriteOp,
)
from ..ir.vals import TensorView

AxisMap = dict[IterDomain, IterDomain]


def producer_to_consumer(expr: Expr, producer: TensorView, consumer: TensorView) -> AxisMap:
    """Logical axis of the producer -> root axis of the consumer.

    Axes without a partner are absent: new broadcast axes, squeezed axes, axes of a read's source,
    and all axes of a scatter's operands.
    """
    if producer not in expr.aligned_inputs or isinstance(expr, ScatterOp):
        return {}
    source, target = producer.axes, consumer.domain.root_or_logical
    match expr:
        case BroadcastOp(flags=flags):
            target = [axis for axis, new in zip(target, flags, strict=True) if not new]
        case SqueezeOp(flags=flags):
            source = [axis for axis, gone in zip(source, flags, strict=True) if not gone]
        case PermuteOp(dims=dims) if consumer.domain.root is None:
            source = [source[d] for d in dims]
        case WriteOp(index_axes=positions) if producer is expr.index:
            target = [target[position] for position in positions]
        case GatherOp(index_axes=positions):
            target = [target[position] for position in positions]
        case PermuteOp() | PointwiseOp() | ReductionOp() | WelfordOp() | ExpandOp() | ReshapeOp():
            pass
        case WindowOp() | RandomOp() | ScanOp() | WriteOp():
            pass
        case _:
            raise InternalError(f"mapping: expected an expression over tensors, got {expr.name}")
    if len(source) != len(target):
        raise InternalError(
            f"mapping: expected equal ranks in {expr}, got {len(source)} and {len(target)}"
        )
    return dict(zip(source, target, strict=True))


def consumer_to_producer(expr: Expr, producer: TensorView, consumer: TensorView) -> AxisMap:
    """Root axis of the consumer -> logical axis of the producer."""
    return {c: p for p, c in producer_to_consumer(expr, producer, consumer).items()}


def consumers(tensor: TensorView) -> list[tuple[Expr, TensorView]]:
    """The expressions that read a tensor, with each tensor they define."""
    return [(expr, output) for expr in tensor.uses_list for output in expr.tensor_outputs]


def downstream(tensors: Iterable[TensorView]) -> set[TensorView]:
    """The tensors and everything computed from them."""
    return _closure(tensors, consumers)


def upstream(tensors: Iterable[TensorView]) -> set[TensorView]:
    """The tensors and everything they are computed from."""
    return _closure(tensors, producers)


def _closure(
    tensors: Iterable[TensorView], step: Callable[[TensorView], list[tuple[Expr, TensorView]]]
) -> set[TensorView]:
    found: set[TensorView] = set()
    pending = list(tensors)
    while pending:
        tensor = pending.pop()
        if tensor not in found:
            found.add(tensor)
            pending += [other for _, other in step(tensor)]
    return found


def producers(tensor: TensorView) -> list[tuple[Expr, TensorView]]:
    """The tensors that a tensor's definition reads, each once."""
    expr = tensor.expr
    return [] if expr is None else [(expr, p) for p in dict.fromkeys(expr.tensor_inputs)]
