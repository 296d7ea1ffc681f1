"""Broadcast and squeeze: runs of added and dropped axes of size 1 become one operation, or none.

A reduction that keeps its dimensions broadcasts, and a reader that doesn't need them squeezes: the
pair hides from the schedulers that both sides have the same axes.  Runs after cast_chains, which
removes the copies in between.

Before:
    T1_l_float[iS1{i0}, bS2{1}] = broadcast(T0_g_float[iS0{i0}], (False, True))
    T2_l_float[iS3{i0}] = squeeze(T1_l_float[iS1{i0}, bS2{1}], (False, True))
    T3_g_float[iS4{i0}] = exp(T2_l_float[iS3{i0}])
After:
    T1_l_float[iS1{i0}, bS2{1}] = broadcast(T0_g_float[iS0{i0}], (False, True))
    T3_g_float[iS4{i0}] = exp(T0_g_float[iS0{i0}])
"""

from __future__ import annotations

from ..ir.exprs import BroadcastOp, Expr, SqueezeOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView
from .rewriting import Rewriter, rewrite

Flags = tuple[bool, ...]


def broadcast_squeeze(fusion: Fusion) -> Fusion:
    """Joins consecutive broadcasts and squeezes."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    match expr:
        case SqueezeOp() | BroadcastOp():
            _join(rewriter, expr)
        case _:
            rewriter.emit(expr)


def _join(rewriter: Rewriter, expr: SqueezeOp | BroadcastOp) -> None:
    source, output = expr.tensor_inputs[0], expr.tensor_outputs[0]
    before = source.expr
    if output.domain.allocation is not None:
        rewriter.emit(expr)
        return
    match before, expr:
        case BroadcastOp(flags=added), BroadcastOp(flags=more):
            inner = iter(added)
            flags = tuple(new or next(inner) for new in more)
            rewriter.emit(BroadcastOp(before.inputs, (output,), flags))
        case SqueezeOp(flags=dropped), SqueezeOp(flags=more):
            inner = iter(more)
            flags = tuple(gone or next(inner) for gone in dropped)
            rewriter.emit(SqueezeOp(before.inputs, (output,), flags))
        case BroadcastOp(flags=added), SqueezeOp(flags=dropped) if _within(dropped, added):
            flags = tuple(a for a, d in zip(added, dropped, strict=True) if not d)
            if any(flags):
                rewriter.emit(BroadcastOp(before.inputs, (output,), flags))
            else:
                rewriter.replace(output, before.inputs[0])
        case SqueezeOp(flags=dropped), BroadcastOp(flags=added) if (
            dropped == added and not _is_expanded(before.tensor_inputs[0], dropped)
        ):
            rewriter.replace(output, before.inputs[0])
        case _:
            rewriter.emit(expr)


def _within(dropped: Flags, added: Flags) -> bool:
    """True if every dropped axis is one that was added."""
    return all(a or not d for a, d in zip(added, dropped, strict=True))


def _is_expanded(tensor: TensorView, flags: Flags) -> bool:
    marked = zip(tensor.axes, flags, strict=True)
    return any(axis.is_expanded for axis, flag in marked if flag)
