"""Whether an axis of a producer's loop domain is the same loop as one of its consumer's.

Two axes match if they come from mapped axes by the same splits, merges, swizzles and reversals.  A
broadcast axis of the producer matches any axis of its consumer in the same position: sharing the
loop means that the producer is computed (or its one value read) once per iteration.  `pairs`
collects these axes, so that their extents and indices can be taken from the consumer.
"""

from __future__ import annotations

from ..ir.domains import IterDomain, Merge, Reverse, Split, Swizzle
from ..ir.scalars import ONE
from .mapping import AxisMap

Pairs = dict[IterDomain, IterDomain]


def axes_match(producer: IterDomain, consumer: IterDomain, mapping: AxisMap, pairs: Pairs) -> bool:
    """True if the two loops are the same; fills `pairs` with producer broadcast -> consumer."""
    # Both results of a split lead to the same axes, which are compared once.
    compared: set[tuple[IterDomain, IterDomain]] = set()
    to_compare = [(producer, consumer)]
    while to_compare:
        pair = to_compare.pop()
        if pair in compared:
            continue
        compared.add(pair)
        sources = _sources(*pair, mapping, pairs)
        if sources is None:
            return False
        to_compare += reversed(sources)
    return True


def _sources(
    producer: IterDomain, consumer: IterDomain, mapping: AxisMap, pairs: Pairs
) -> list[tuple[IterDomain, IterDomain]] | None:
    """The axes that must be the same so that these two are; None if they can't be the same."""
    are_one = _have_one_element(producer, consumer)
    if producer in mapping:
        if mapping[producer] is not consumer and not are_one:
            return None
        if producer.is_broadcast:
            pairs[producer] = consumer
        return []
    if producer.definition is None:
        if producer.is_broadcast:  # a stand-in made by propagation, or an axis that was squeezed
            pairs[producer] = consumer
        return [] if producer.is_broadcast else None
    made, other = producer.definition, consumer.definition
    if other is None and are_one and isinstance(made, Merge):
        return [(made.outer_id, consumer)]  # the other one has one iteration in any case
    if other is None or type(made) is not type(other):
        return None
    if made.outputs.index(producer) != other.outputs.index(consumer):
        return None
    match made, other:
        case Split(), Split():
            if not made.is_like(other):
                return None
        case (Merge(), Merge()) | (Swizzle(), Swizzle()) | (Reverse(), Reverse()):
            pass
    return list(zip(made.inputs, other.inputs, strict=True))


def _have_one_element(*axes: IterDomain) -> bool:
    """True for axes of one iteration each: a reference may have merged its own, and what is made
    like it has a stand-in for these.
    """
    return all(axis.is_broadcast and axis.size is ONE for axis in axes)
