"""Checks that tensors have the memory that their sizes and strides describe, and nothing else.

A kernel gets an address and reads everything that the sizes promise.  A tensor whose storage was
freed or shortened (`x.untyped_storage().resize_(0)`, as sharded training does with parameters)
would crash the process.  Every plan therefore begins with its device's `require_memory`: the one
below, or a faster equivalent.

The elements of some tensors aren't what lies at their address: they are negated when they are read
(`torch._neg_view`, the imaginary part of a conjugate), zeros without memory (gradients of
forward-mode differentiation), a batch (a transform's), or made up (a FakeTensor).  torch knows
these by dispatch keys that plain tensors don't have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import InputError, expected

# The flat arguments of `require_memory`: a tensor, the bytes from its first element to the end of
# its last one, and the bytes of an element; then the next tensor.
Needs = torch.Tensor | int
# (shape, stride, dtype) -> an uninitialised tensor; its memory is aligned to 64 bytes.
EmptyStrided = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
RequireMemory = Callable[..., bool]  # see `require_memory`


def span_bytes(shape: Sequence[int], stride: Sequence[int], bytes_each: int) -> int:
    """Bytes from the first element to the end of the last one; 0 without elements."""
    if 0 in shape:
        return 0
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (last + 1) * bytes_each


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Fills a tensor with NaN, or with ones if its dtype has no NaN: a kernel must overwrite it."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    storage.fill_(0xFF)
    return tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """True if a tensor's elements are what lies at its address."""
    return not torch._C._dispatch_keys(tensor).raw_repr() & ~plain_keys(tensor.device.type)


@functools.cache
def plain_keys(device: str) -> int:
    """The dispatch keys of a plain tensor, as the bits of torch's set."""
    with ordinary_tensors():
        return int(torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr())


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Makes new tensors plain ones, with keys for autograd, whatever mode the caller is in."""
    with _disable_current_modes(), torch.inference_mode(False):
        yield


def require_memory(*needs: Needs) -> bool:
    """True if one of the tensors isn't plain: torch has to compute with it.

    InputError for the first plain tensor that has less memory than it needs.
    """
    for tensor, needed, bytes_each in zip(needs[::3], needs[1::3], needs[2::3], strict=True):
        if not is_plain(tensor):  # type: ignore[arg-type]
            return True
        require_bytes(tensor, needed, bytes_each)  # type: ignore[arg-type]
    return False


def require_bytes(tensor: torch.Tensor, needed: int, bytes_each: int) -> None:
    """InputError if a tensor has less memory than `needed` bytes from its first element on."""
    lack = _lack(tensor, needed, bytes_each)
    if lack is not None:
        what = f"{needed} bytes of memory for a tensor of shape {tuple(tensor.shape)}"
        raise InputError(expected("execute", what, lack))


def _lack(tensor: torch.Tensor, needed: int, bytes_each: int) -> str | None:
    """What a tensor has instead of enough memory; None if it has enough."""
    if needed == 0:
        return None
    storage = tensor.untyped_storage()
    there, before = storage.nbytes(), tensor.storage_offset() * bytes_each
    if there < before + needed:
        return f"a storage of {there} bytes" + (f" that it begins {before} into" if before else "")
    has_data = storage.device == tensor.device and storage.data_ptr() != 0
    return None if has_data else f"a {type(tensor).__name__} without data"
