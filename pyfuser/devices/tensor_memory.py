"""Whether tensors have the memory that their sizes and strides speak of.

A kernel gets an address and reads all that the sizes promise.  A tensor whose storage was freed or
cut short (`x.untyped_storage().resize_(0)`, as sharded training does with parameters), or that only
stands for others (a FakeTensor), would end the process.  A plan asks its device's `lacks_memory`,
which must be fast and may suspect too many, and then `require_memory`, which knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..errors import InputError, expected

# What the two functions below take, flat: a tensor, the bytes from its first element to the end of
# its last one, and the bytes of an element; then the next tensor.
Needs = torch.Tensor | int


def span_bytes(shape: Sequence[int], stride: Sequence[int], bytes_each: int) -> int:
    """Bytes from the first element to the end of the last one; 0 without elements."""
    if 0 in shape:
        return 0
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (last + 1) * bytes_each


def lacks_memory(*needs: Needs) -> bool:
    """True where a tensor has less memory than it needs."""
    return any(_lack(*need) is not None for need in _triples(needs))


def require_memory(*needs: Needs) -> None:
    """InputError for the first tensor that has less memory than it needs."""
    for tensor, needed, bytes_each in _triples(needs):
        lack = _lack(tensor, needed, bytes_each)
        if lack is not None:
            what = f"{needed} bytes of memory for a tensor of shape {tuple(tensor.shape)}"
            raise InputError(expected("execute", what, lack))


def _triples(needs: Sequence[Needs]) -> Iterator[tuple[torch.Tensor, int, int]]:
    return zip(needs[::3], needs[1::3], needs[2::3], strict=True)  # type: ignore[arg-type]


def _lack(tensor: torch.Tensor, needed: int, bytes_each: int) -> str | None:
    """What a tensor has instead of its memory; None where it has enough."""
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
