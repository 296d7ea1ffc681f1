"""Updates of inputs in place: a kernel writes a new value over the old one.

Functional graphs end with `copy_(input, value)`.  If a kernel computes the value element by element
from the old one, it can write it over the old one, and the copy disappears.  This is safe if the
old value isn't read later, and if the kernel itself reads each element only where it writes it and
before it does: another result of the old value may have loops of its own, after these.  A call that
raises because of the values of its tensors must leave its inputs unchanged: neither the kernel nor
anything after it may refuse values.

A custom op that changes the input (`mutating_calls.py`) does so itself.

A scatter whose base is the input writes only where its index says, so nothing is copied at all.  If
it refuses an index itself, the elements of valid indices are written, as in eager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from ..analysis.mapping import upstream
from ..executor import Resolved
from ..ir.exprs import PointwiseOp, ScatterOp
from ..ir.vals import TensorView
from ..ops.checking import may_refuse
from ..parts import Part
from .fusion_nodes import FusionNode
from .mutating_calls import mutating_call
from .op_facts import facts
from .steps import Step
from .traced_layouts import is_dense
from .views import Views, tensor_of

aten = torch.ops.aten


def updates_in_place(
    steps: Sequence[Step], resolved: Sequence[Resolved], views: Views, results: Sequence[Node]
) -> dict[Node, Node]:
    """The computed value -> the input over which it may be written."""
    returned = {each for node in results for each in views.memory(node)}
    fusions = [number for number, step in enumerate(steps) if step.fusion is not None]
    resolved_at = dict(zip(fusions, resolved, strict=True))
    calls = {number: mutating_call(step.node) for number, step in enumerate(steps)}
    makers = (number for number in calls if number in resolved_at or calls[number] is not None)
    maker = {node: number for number in makers for node in steps[number].makes}
    refusing = _last_refusing(steps, resolved_at)
    found: dict[Node, Node] = {}
    for update in (step for step in steps if step.is_update):
        target, value = update.node.args[0], update.node.args[1]
        if not isinstance(target, Node) or not isinstance(value, Node):
            continue
        number = maker.get(value)
        if number is None or value in returned or value in found or target in found.values():
            continue
        if target in returned or not _same_memory(target, value):
            continue
        later = (step for step in steps[number + 1 :] if step is not update)
        if any(target in step.reads for step in later):
            continue
        fusion, call = steps[number].fusion, calls[number]
        if fusion is None:
            assert call is not None
            node = steps[number].node
            if number >= refusing[0] and call.gives(node, value, target, views):
                found[value] = target
            continue
        place = number, _writing_part(fusion, resolved_at[number], value)
        if place < refusing:
            continue
        if place == refusing and not _only_scatters_refuse(resolved_at, place):
            continue
        if _is_elementwise(fusion, resolved_at[number], value, target, views):
            found[value] = target
    return found


def _last_refusing(steps: Sequence[Step], resolved_at: Mapping[int, Resolved]) -> tuple[int, int]:
    """The last step, and the part of its program, that may refuse values; (-1, -1) for none."""
    for number in reversed(range(len(steps))):
        step = steps[number]
        if step.fusion is None:
            if facts(step.node).refuses:
                return number, 0
            continue
        parts = resolved_at[number].program.parts
        for position in reversed(range(len(parts))):
            if any(may_refuse(expr) for expr in parts[position].fusion.exprs):
                return number, position
    return -1, -1


def _only_scatters_refuse(resolved_at: Mapping[int, Resolved], place: tuple[int, int]) -> bool:
    """True if nothing in a part of a program refuses values but the indices of scatters."""
    number, part = place
    exprs = resolved_at[number].program.parts[part].fusion.exprs
    return all(isinstance(expr, ScatterOp) for expr in exprs if may_refuse(expr))


def _writing_part(fusion: FusionNode, resolved: Resolved, value: Node) -> int:
    """The part of a program that writes a value."""
    output = resolved.program.fusion.outputs[fusion.outputs.index(value)]
    parts = resolved.program.parts
    return next((i for i, p in enumerate(parts) if output in p.segment.outputs), -1)


def _same_memory(target: Node, value: Node) -> bool:
    """True if the input has the layout that a kernel would give the value."""
    if target.op != "placeholder":
        return False
    old, new = tensor_of(target), tensor_of(value)
    if old is None or new is None or old.dtype != new.dtype or old.device != new.device:
        return False
    return old.shape == new.shape and old.stride() == new.stride() and is_dense(old)


def _is_elementwise(
    fusion: FusionNode, resolved: Resolved, value: Node, target: Node, views: Views
) -> bool:
    """True if the part that writes the value reads the input only elementwise."""
    definition = resolved.program.fusion
    output = definition.outputs[fusion.outputs.index(value)]
    reading = {
        tensor: node
        for tensor, node in zip(definition.input_tensors, fusion.inputs, strict=True)
        if target in views.memory(node)
    }
    readers = list(reading)
    parts = resolved.program.parts
    writing = _writing_part(fusion, resolved, value)
    if writing < 0 or definition.outputs.count(output) > 1 or output in readers:
        return False
    if any(reader in part.segment.inputs for part in parts[writing + 1 :] for reader in readers):
        return False
    if resolved.kernels[writing] is None:
        return False
    if not any(reader in parts[writing].segment.inputs for reader in readers):
        return True
    if isinstance(output.expr, ScatterOp):
        own = [
            t for t, n in zip(definition.input_tensors, fusion.inputs, strict=True) if n is target
        ]
        return readers == own and _only_base_of(parts[writing], output.expr, own)
    whole = views[target]
    if any(views.base(n) is not target or not views[n].is_whole(whole) for n in reading.values()):
        return False  # such as the transposed input
    assert isinstance(output, TensorView)
    return _reads_before_it_writes(parts[writing], readers, output)


def _only_base_of(part: Part, scatter: ScatterOp, readers: Sequence[TensorView]) -> bool:
    """True if the part reads the tensors only as the base of one scatter."""
    if scatter.base not in readers or not set(scatter.aligned_inputs).isdisjoint(readers):
        return False
    others = (expr for expr in part.segment.exprs if expr is not scatter)
    return all(set(readers).isdisjoint(expr.tensor_inputs) for expr in others)


def _reads_before_it_writes(part: Part, readers: Sequence[TensorView], output: TensorView) -> bool:
    """True if everything computed from the input, up to every output, is pointwise, and the output
    needs all that reads the input: what else reads it may run after the output has been written.
    """
    if any(expr.accumulates for expr in part.segment.exprs):
        return False
    needed = upstream([output])
    for expr in part.segment.exprs:
        if any(t in readers for t in expr.tensor_inputs) and not needed.issuperset(expr.outputs):
            return False
        touched = any(reader in upstream(expr.tensor_inputs) for reader in readers)
        if touched and not isinstance(expr, PointwiseOp):
            return False
        if touched and expr.tensor_outputs[0].concrete_rank > output.concrete_rank:
            return False  # an element is read for several results
    return True
