"""The seed and the offset of random numbers, as torch's generators give them to a call.

A fusion whose random ops don't get a seed has two inputs more than its callers know: a seed and an
offset, the last inputs, which everything after this module treats as ordinary scalars.  They are
taken once per call from the default generator of the call's device, whose state advances.  Ops of
one fusion add their number to the offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.fusion import Fusion
from .metadata import device_of

# A GPU's offset counts words; torch wants it to be a multiple of those of a Philox call.
_OFFSET_STEP = 4


def with_random_state(fusion: Fusion, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs of a call with seed and offset, drawn unless they are given."""
    if not _is_missing(fusion, inputs):
        return inputs
    return [*inputs, *_drawn(device_of(inputs), fusion.random_count)]


def with_any_random_state(fusion: Fusion, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs with zeros for a missing seed and offset, for what doesn't depend on them."""
    return [*inputs, 0, 0] if _is_missing(fusion, inputs) else inputs


def _is_missing(fusion: Fusion, inputs: Sequence[Any]) -> bool:
    return bool(fusion.random_state) and len(inputs) == len(fusion.given_inputs)


def _drawn(device: torch.device, count: int) -> tuple[int, int]:
    """(seed, offset) for a call with this many random operations.

    A GPU's generator is counter-based as well: its own seed and offset are used.  That of the CPU
    isn't: 64 of its bits are the seed, so that its state decides everything.
    """
    known = getattr(getattr(torch, device.type, None), "default_generators", None)
    if known is None:
        generator = torch.default_generator
        bits = torch.empty((), dtype=torch.int64, device=generator.device)
        return int(bits.random_(-(1 << 63), None, generator=generator)), 0
    generator = known[device.index or 0]
    offset, seed = generator.get_offset(), generator.initial_seed()
    generator.set_offset(offset + _OFFSET_STEP * count)
    return seed - ((seed >> 63) << 64), offset // _OFFSET_STEP
