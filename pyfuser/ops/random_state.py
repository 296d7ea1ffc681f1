"""The seed and the offset of random numbers, as torch's generators give them to a call.

A fusion whose random ops don't get a seed has two inputs more than its callers know: a seed and an
offset, the last inputs, which everything after this module treats as ordinary scalars.  They are
taken once per call from the default generator of the call's device, whose state advances: after
seeding, the n-th random op has the seed and the offset n.

While a CUDA graph is captured, the host can't know them, because each replay of the graph has other
ones.  Then the seed is a tensor without dimensions, which an operation of torch's fills when the
graph is replayed and kernels read from there, and the offset is 0.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..ir.fusion import Fusion
from .metadata import device_of

# A GPU's offset counts words; torch wants it to be a multiple of those of a Philox call.
_OFFSET_STEP = 4

_LEAST = -(1 << 63)  # of the numbers of 64 bits

# Bytes of the CPU generator's state: seed, flags, words used of the block, and its first two words.
_HEAD = 40


def with_random_state(fusion: Fusion, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs of a call with seed and offset, drawn unless they are given."""
    if not _is_missing(fusion, inputs):
        return inputs
    device = device_of(inputs)
    if is_capturing(device):
        return [*inputs, seed_in_memory(device), 0]
    return [*inputs, *_drawn(device, fusion.random_count)]


def with_any_random_state(fusion: Fusion, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs with zeros for a missing seed and offset, for what doesn't depend on them."""
    return [*inputs, 0, 0] if _is_missing(fusion, inputs) else inputs


def _is_missing(fusion: Fusion, inputs: Sequence[Any]) -> bool:
    return bool(fusion.random_state) and len(inputs) == len(fusion.given_inputs)


def is_capturing(device: torch.device) -> bool:
    """True if what this thread launches on the device becomes part of a graph."""
    cuda: Any = torch.cuda
    if device.type != "cuda" or not cuda.is_initialized():
        return False
    with cuda.device(device):
        return bool(cuda.is_current_stream_capturing())


def seed_in_memory(device: torch.device) -> torch.Tensor:
    """A seed that the device's generator draws when the operation runs."""
    return torch.empty((), dtype=torch.int64, device=device).random_(_LEAST, None)


def _drawn(device: torch.device, count: int) -> tuple[int, int]:
    """(seed, offset) for a call with this many random operations, the n-th of which adds n."""
    known = getattr(getattr(torch, device.type, None), "default_generators", None)
    if known is None:
        return _of_cpu(torch.default_generator, count)
    generator = known[device.index or 0]
    offset, seed = generator.get_offset(), generator.initial_seed()
    generator.set_offset(offset + _OFFSET_STEP * count)
    return _signed(seed), offset // _OFFSET_STEP


def _of_cpu(generator: torch.Generator, count: int) -> tuple[int, int]:
    """The generator's own seed and the count of numbers drawn since, as on a GPU.

    It is a Mersenne Twister, which doesn't count: its state says how many only in the first block
    of words after seeding.  From then on, 64 of its bits are the seed.  Either way its state
    decides everything, and each operation takes a number of 64 bits from it.
    """
    place = _numbers_drawn(generator)
    numbers = torch.empty(count, dtype=torch.int64, device=generator.device)
    first = int(numbers.random_(_LEAST, None, generator=generator)[0])
    return (first, 0) if place is None else (_signed(generator.initial_seed()), place)


def _numbers_drawn(generator: torch.Generator) -> int | None:
    """How many 64-bit numbers were drawn since the generator was seeded; None if unknown."""
    state = generator.get_state()
    if state.numel() < _HEAD:
        return None
    _, _, words, *block = state[:_HEAD].view(torch.int64).tolist()
    fresh, first = _first_blocks(generator.initial_seed())
    is_first = block == (first if words else fresh)
    return words // 2 if is_first and words % 2 == 0 else None


@functools.lru_cache(64)
def _first_blocks(seed: int) -> tuple[list[int], list[int]]:
    """How the state's words begin after seeding, and after the first number."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(2):
        found.append(generator.get_state()[:_HEAD].view(torch.int64).tolist()[3:])
        torch.empty(1, device=generator.device).uniform_(generator=generator)
    return found[0], found[1]


def _signed(seed: int) -> int:
    """A seed of 64 bits as an Int."""
    return seed - ((seed >> 63) << 64) if seed >= 0 else seed
