"""torch's random numbers on a CPU, bit for bit, several times as fast as torch draws them.

torch draws one number after the other from its generator, an MT19937: a mask for dropout takes as
long as fifty additions of its size.  The sequence can be computed eight words at a time.  These
functions have the arguments and results of torch's own, take the default generator's state, draw
from it (native/mersenne_twister.ll), and put it back, so the next number is the one that torch
would draw.  Measured with AVX2, one thread, 1.5 million numbers: a Bernoulli mask 17.5 -> 2.3 ms
(two words each), uniform float32 6.0 -> 1.4 ms, float64 10.3 -> 4.0 ms.

How torch makes numbers of words isn't documented, and differs: on some processors its Bernoulli
mask comes from another library and generator.  So each function is used only if, when it is first
called, its numbers and the state after them are torch's for another generator.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...locks import ForkSafeLock
from .jit import CompiledModule, compile_module
from .memory_pool import pool
from .native_text import native_text

aten = torch.ops.aten

# Below this, torch's own function is faster: getting and setting the state takes some microseconds.
_LEAST_NUMBERS = 1024
_STATE_BYTES = 5056
_FLOAT_BITS, _DOUBLE_BITS = 24, 53

_CPU = torch.device("cpu")

_draws = ForkSafeLock()


def bernoulli(x: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
    """`aten.bernoulli.p`: True with a probability of `p`."""
    is_plain = x.dtype is torch.bool and x.is_contiguous() and x.device == _CPU
    if is_plain and generator is None and 0 <= p <= 1:
        mask = _drawn("bernoulli", x.shape, p)
        if mask is not None:
            return mask
    return aten.bernoulli.p(x, p, generator=generator)  # type: ignore[no-any-return]


def rand(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """`aten.rand.default`: uniform numbers in [0, 1)."""
    if layout in (None, torch.strided) and not pin_memory and device == _CPU:
        numbers = _uniform(size, dtype or torch.get_default_dtype())
        if numbers is not None:
            return numbers
    return aten.rand.default(  # type: ignore[no-any-return]
        size, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory
    )


def rand_like(
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: Any = None,
) -> torch.Tensor:
    """`aten.rand_like.default`."""
    formats = (None, torch.preserve_format, torch.contiguous_format)
    if x.is_contiguous() and memory_format in formats:
        place = device or x.device
        return rand(
            x.shape, dtype=dtype or x.dtype, layout=layout, device=place, pin_memory=pin_memory
        )
    return aten.rand_like.default(  # type: ignore[no-any-return]
        x,
        dtype=dtype,
        layout=layout,
        device=device,
        pin_memory=pin_memory,
        memory_format=memory_format,
    )


# What compiled graphs call instead of torch's functions.
FUNCTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    aten.bernoulli.p: bernoulli,
    aten.rand.default: rand,
    aten.rand_like.default: rand_like,
}


def _uniform(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    kind = {torch.float32: "uniform_float", torch.float64: "uniform_double"}.get(dtype)
    return None if kind is None else _drawn(kind, size)


def _drawn(kind: str, size: Sequence[int], p: float = 0.0) -> torch.Tensor | None:
    """Numbers of the default generator; None if torch is to draw them."""
    count = math.prod(size)
    if count < _LEAST_NUMBERS or not _is_equal_to_torch(kind):
        return None
    return _draw(kind, size, count, p, torch.default_generator)


def _draw(
    kind: str, size: Sequence[int], count: int, p: float, generator: torch.Generator
) -> torch.Tensor | None:
    """Numbers of this generator; None if its state has changed while they were drawn."""
    drawer = _drawer()
    dtype, words_each = _KINDS[kind]
    stride = torch.empty(size, device="meta").stride()
    numbers = pool().empty_strided(tuple(size), stride, dtype)
    parameter = (1 << _FLOAT_BITS) - 1
    if kind == "bernoulli":
        parameter = math.ceil(p * (1 << _DOUBLE_BITS))  # n / 2**53 < p: n is less than this
    with _draws:
        before = generator.get_state()
        state = before.clone()
        drawer.draw(
            state.data_ptr(),
            numbers.data_ptr(),
            count,
            drawer.converters[kind],
            words_each,
            dtype.itemsize,
            parameter,
        )
        if not torch.equal(generator.get_state(), before):
            return None
        generator.set_state(state)
    return numbers


# The dtype of each kind of numbers, and how many words of 32 bits one takes.
_KINDS = {
    "bernoulli": (torch.bool, 2),
    "uniform_float": (torch.float32, 1),
    "uniform_double": (torch.float64, 2),
}


class _Drawer:
    """The compiled functions."""

    def __init__(self) -> None:
        self.module: CompiledModule = compile_module(native_text("mersenne_twister"))
        address, number = ctypes.c_void_p, ctypes.c_int64
        signature = (None, address, address, number, address, number, number, number)
        self.draw = ctypes.CFUNCTYPE(*signature)(self.module.address("draw"))
        self.converters = {kind: self.module.address(kind) for kind in _KINDS}


_drawer = functools.cache(_Drawer)


@functools.cache
def _is_equal_to_torch(kind: str) -> bool:
    """True if numbers and states are torch's, over several blocks and from the middle of one."""
    dtype, _ = _KINDS[kind]
    theirs, ours = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    if theirs.get_state().numel() != _STATE_BYTES:
        return False
    for count in (5, 1021, 624, 2):
        wanted = torch.empty(count, dtype=dtype)
        if kind == "bernoulli":
            wanted.bernoulli_(0.7, generator=theirs)
        else:
            wanted.uniform_(generator=theirs)
        made = _draw(kind, (count,), count, 0.7, ours)
        if made is None or not torch.equal(wanted, made):
            return False
        if not torch.equal(theirs.get_state(), ours.get_state()):
            return False
    return True
