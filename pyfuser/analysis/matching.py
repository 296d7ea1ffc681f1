"""Whether an axis of a producer's loop domain is the same loop as one of its consumer's.

Two axes match if they come from mapped axes by the same splits, merges, swizzles and reversals.  A
broadcast axis of the producer matches any axis of its consumer in the same position: sharing the
loop means that the producer is computed (or its one value read) once per iteration.  `pairs`
collects these axes, so that their extents and indices can be taken from the consumer.
"""

from __future__ import annotations

from ..ir.domains import IterDomain, Merge, Reverse, Split, Swizzle
from .mapping import AxisMap

Pairs = dict[IterDomain, IterDomain]


def axes_match(producer: IterDomain, consumer: IterDomain, mapping: AxisMap, pairs: Pairs) -> bool:
    """True if the two loops are the same; fills `pairs` with producer broadcast -> consumer."""
    if producer in mapping:
        if mapping[producer] is not consumer:
            return False
        if producer.is_broadcast:
            pairs[producer] = consumer
        return True
    if producer.definition is None:
        if producer.is_broadcast:  # a stand-in made by propagation, or an axis that was squeezed
            pairs[producer] = consumer
        return producer.is_broadcast
    made, other = producer.definition, consumer.definition
    if other is None or type(made) is not type(other):
        return False
    if made.outputs.index(producer) != other.outputs.index(consumer):
        return False
    match made, other:
        case Split(), Split():
            if not made.is_like(other):
                return False
        case (Merge(), Merge()) | (Swizzle(), Swizzle()) | (Reverse(), Reverse()):
            pass
    return all(
        axes_match(p, c, mapping, pairs) for p, c in zip(made.inputs, other.inputs, strict=True)
    )
