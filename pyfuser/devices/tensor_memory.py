"""Checks that tensors have the memory that their sizes and strides describe.

A kernel gets an address and reads everything that the sizes promise.  A tensor whose storage was
freed or shortened (`x.untyped_storage().resize_(0)`, as sharded training does with parameters), or
that has no data of its own (a FakeTensor), would crash the process.  Every plan therefore begins
with its device's `require_memory`: the one below, or a faster equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..errors import InputError, expected

# The flat arguments of `require_memory`: a tensor, the bytes from its first element to the end of
# its last one, and the bytes of an element; then the next tensor.
Needs = torch.Tensor | int
# (shape, stride, dtype) -> an uninitialised tensor; its memory is aligned to 64 bytes.
EmptyStrided = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
RequireMemory = Callable[..., None]  # InputError for a tensor with less memory than it needs


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


def require_memory(*needs: Needs) -> None:
    """InputError for the first tensor that has less memory than it needs."""
    for tensor, needed, bytes_each in zip(needs[::3], needs[1::3], needs[2::3], strict=True):
        lack = _lack(tensor, needed, bytes_each)  # type: ignore[arg-type]
        if lack is not None:
            what = f"{needed} bytes of memory for a tensor of shape {tuple(tensor.shape)}"  # type: ignore[union-attr]
            raise InputError(expected("execute", what, lack))


def _lack(tensor: torch.Tensor, needed: int, bytes_each: int) -> str | None:
    """What a tensor has instead of enough memory; None if it has enough."""
    if needed == 0:
        return None
    kind = type(tensor).__name__
    try:
        storage = tensor.untyped_storage()
        has_data = storage.device == tensor.device and storage.data_ptr() != 0
        there, before = storage.nbytes(), tensor.storage_offset() * bytes_each
    except (RuntimeError, NotImplementedError):  # an opaque layout, a transform's tensor
        return f"a {kind} without a storage"
    if there < before + needed:
        return f"a storage of {there} bytes" + (f" that it begins {before} into" if before else "")
    return None if has_data else f"a {kind} without data"
