"""The check that tensors on a GPU have the memory that their sizes promise, quickly."""

from __future__ import annotations

from typing import Any

from .. import tensor_memory


def require_memory(*needs: Any) -> bool:
    """See `tensor_memory.require_memory`, which is asked if a tensor is short, or isn't plain.

    Of those that aren't plain, only negated ones have a storage with an address.
    """
    given = iter(needs)
    for tensor, needed, bytes_each in zip(given, given, given, strict=True):
        if needed:
            try:
                storage = tensor.untyped_storage()
                end = tensor.storage_offset() * bytes_each + needed
                if storage.nbytes() >= end and storage.data_ptr() and not tensor.is_neg():
                    continue
            except (RuntimeError, NotImplementedError):  # no storage, or no data
                pass
            if tensor_memory.require_memory(tensor, needed, bytes_each):
                return True
    return False
