"""Random numbers inside kernels, with `torch.compile(..., options={"fused_random": True})`.

Eager's numbers come from a generator that makes one after the other, so by default torch makes them
outside of the kernels.  With this option, each random operation takes one number of 64 bits from
the device's generator, its seed, and

    pyfuser::random(seed, sizes, distribution, dtype)

makes the rest in the kernel that reads them, by Philox, a function of the seed and the position: a
backward has no mask to read, it computes the same one again.  The numbers aren't eager's; they
depend on `torch.manual_seed` alike, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ...dtypes import from_torch
from ...ir.strides import inverse
from ...ops.builders import normal, uniform
from ...ops.random_builders import RANDOM_DTYPES
from ...ops.random_numbers import random
from .region_builder import Call
from .translation import Table, Translation

aten = torch.ops.aten

_new_library: Any = torch.library.Library
_library = _new_library("pyfuser", "FRAGMENT")  # its definitions last as long as it does
_library.define(
    "random(Tensor seed, SymInt[] sizes, str distribution, ScalarType dtype) -> Tensor",
)
_BUILDERS = {"uniform": uniform, "normal": normal}


def _eager(
    seed: torch.Tensor, sizes: Sequence[int], distribution: str, dtype: torch.dtype
) -> torch.Tensor:
    index = torch.arange(torch.Size(sizes).numel(), device=seed.device)
    numbers = random(distribution, seed, torch.zeros_like(seed), index, from_torch(dtype))
    return numbers.to(dtype).reshape(sizes)


def _metadata(
    seed: torch.Tensor, sizes: Sequence[Any], distribution: str, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device=seed.device)


_library.impl("random", _eager, "CompositeExplicitAutograd")
_library.impl("random", _metadata, "Meta")
_random_op: Any = torch.ops.pyfuser.random


# -- the translation


def _random(call: Call, seed: Any, sizes: Any, distribution: str, dtype: torch.dtype) -> Any:
    build, entries = _BUILDERS[distribution], call.entries(sizes)
    return build(call.fusion, 0.0, 1.0, entries, call.tensor(seed), 0, dtype=from_torch(dtype))


TRANSLATIONS: Table = {_random_op.default: Translation(_random)}


# -- the decompositions that insert it


def in_memory_order(
    x: torch.Tensor, make: Callable[[list[Any]], torch.Tensor], memory_format: Any = None
) -> torch.Tensor:
    """What `make` makes of the sizes in the memory order of an empty_like of x, in x's order."""
    kept = torch.preserve_format if memory_format is None else memory_format
    strides = torch.empty_like(x, device="meta", memory_format=kept).stride()
    order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
    back = inverse(order)
    made = make([x.shape[dim] for dim in order])
    return made if back == sorted(back) else made.permute(back)


def _numbers(
    sizes: Sequence[Any], distribution: str, dtype: torch.dtype, device: Any
) -> torch.Tensor:
    """Random numbers with a seed of their own."""
    most = (1 << 63) - 1
    seed = torch.randint(-most - 1, most, (), dtype=torch.int64, device=device)
    made: torch.Tensor = _random_op(seed, sizes, distribution, dtype)
    return made


def random_mask(x: torch.Tensor, keep: float) -> torch.Tensor:
    """True with a probability of `keep`, in the shape and the memory order of x."""
    make = partial(_numbers, distribution="uniform", dtype=torch.float32, device=x.device)
    return in_memory_order(x, make) < keep


def _bernoulli(x: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor | Any:
    if generator is not None or not 0 <= p <= 1 or not _is_plain(x.dtype, x.layout, None):
        return NotImplemented
    return random_mask(x, p).to(x.dtype)


def _filled(
    distribution: str,
    size: Sequence[Any],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor | Any:
    chosen = dtype or torch.get_default_dtype()
    if not _is_plain(chosen, layout, pin_memory):
        return NotImplemented
    return _numbers(size, distribution, chosen, device)


def _filled_like(
    distribution: str,
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: Any = None,
) -> torch.Tensor | Any:
    chosen = dtype or x.dtype
    if x.layout is not torch.strided or not _is_plain(chosen, layout, pin_memory):
        return NotImplemented
    make = partial(
        _numbers,
        distribution=distribution,
        dtype=chosen,
        device=x.device if device is None else device,
    )
    return in_memory_order(x, make, memory_format)


def _is_plain(dtype: torch.dtype, layout: Any, pin_memory: bool | None) -> bool:
    """True for dense tensors of a floating dtype that random numbers have."""
    is_floating = dtype.is_floating_point and from_torch(dtype) in RANDOM_DTYPES
    return is_floating and layout in (None, torch.strided) and not pin_memory


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli.p: _bernoulli,
    aten.rand.default: partial(_filled, "uniform"),
    aten.randn.default: partial(_filled, "normal"),
    aten.rand_like.default: partial(_filled_like, "uniform"),
    aten.randn_like.default: partial(_filled_like, "normal"),
}
