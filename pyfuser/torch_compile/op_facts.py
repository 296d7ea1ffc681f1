"""Facts about aten ops that don't follow from their schemas, tags or translations.

One row per op (a packet: all its overloads).  The passes, the partitioner and the order of steps
use these facts; what an op computes is defined by its translation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Facts:
    """refuses     raises for the values of its operands
    may_view    may return a view of its first operand, though its schema doesn't say so
    copies      the result is the first operand: the same values in new memory
    converts    a copy, perhaps in another dtype or on another device
    writes      its first operand gets the second one's values, perhaps from another device
    finds_each  torch finds the place of each element by itself, also along rows
    """

    refuses: bool = False
    may_view: bool = False
    copies: bool = False
    converts: bool = False
    writes: bool = False
    finds_each: bool = False


_REFUSING = Facts(refuses=True)

FACTS: dict[Any, Facts] = {
    aten.index: Facts(refuses=True, finds_each=True),
    aten._unsafe_index: Facts(finds_each=True),
    aten.flip: Facts(finds_each=True),
    aten.roll: Facts(finds_each=True),
    aten.index_put: _REFUSING,
    aten.index_select: _REFUSING,
    aten.index_add: _REFUSING,
    aten.index_copy: _REFUSING,
    aten.index_fill: _REFUSING,
    aten.gather: _REFUSING,
    aten.scatter: _REFUSING,
    aten.scatter_add: _REFUSING,
    aten.scatter_reduce: _REFUSING,
    aten.embedding: _REFUSING,
    aten.take: _REFUSING,
    aten.put: _REFUSING,
    aten._assert_async: _REFUSING,
    aten._unsafe_view: Facts(may_view=True),
    aten.reshape: Facts(may_view=True),
    aten.lift_fresh: Facts(may_view=True),
    aten.contiguous: Facts(may_view=True),
    aten._reshape_alias: Facts(may_view=True),
    aten.clone: Facts(copies=True),
    aten.lift_fresh_copy: Facts(copies=True),
    aten._to_copy: Facts(converts=True),
    aten.copy: Facts(writes=True),
    aten.copy_: Facts(writes=True),
}
_NONE = Facts()


def facts(node: Node) -> Facts:
    """The facts about a node's op."""
    packet = getattr(node.target, "overloadpacket", None)
    return _NONE if packet is None else FACTS.get(packet, _NONE)


def is_random(node: Node) -> bool:
    """True if each run gives different numbers."""
    return _has_tag(node, torch.Tag.nondeterministic_seeded)


def is_pointwise(node: Node) -> bool:
    """True if each element of the result is computed from one element of each operand."""
    return _has_tag(node, torch.Tag.pointwise) or facts(node).converts


def has_effects(node: Node) -> bool:
    """True for nodes that run even without readers: writes, random draws, assertions."""
    target = node.target
    if not isinstance(target, OpOverload) or is_random(node):
        return True
    return target._schema.is_mutable or not target._schema.returns or node.is_impure()


def is_ordered(node: Node) -> bool:
    """True for calls that stay in the order of tracing (updates only follow reads)."""
    return has_effects(node) and node.target is not torch.ops.aten.copy_.default


def _has_tag(node: Node, tag: torch.Tag) -> bool:
    return isinstance(node.target, OpOverload) and tag in node.target.tags
