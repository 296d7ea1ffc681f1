"""The check that tensors on a GPU have the memory that their sizes promise, quickly."""

from __future__ import annotations

from typing import Any

from .. import tensor_memory


def require_memory(*needs: Any) -> None:
    """See `tensor_memory.require_memory`, which words the error if something is missing."""
    given = iter(needs)
    for tensor, needed, bytes_each in zip(given, given, given, strict=True):
        if needed:
            try:
                storage = tensor.untyped_storage()
                end = tensor.storage_offset() * bytes_each + needed
                if storage.nbytes() >= end and storage.data_ptr():
                    continue
            except (RuntimeError, NotImplementedError):  # no storage, or no data
                pass
            tensor_memory.require_memory(tensor, needed, bytes_each)
