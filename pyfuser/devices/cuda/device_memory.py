"""The check that tensors on a GPU have the memory that their sizes promise, quickly."""

from __future__ import annotations

from typing import Any

import torch

from .. import tensor_memory


def require_memory(*needs: Any) -> bool:
    """See `tensor_memory.require_memory`, which words the error if something is missing."""
    given = iter(needs)
    plain = tensor_memory.plain_keys("cuda")
    for tensor, needed, bytes_each in zip(given, given, given, strict=True):
        if torch._C._dispatch_keys(tensor).raw_repr() & ~plain:
            return tensor_memory.require_memory(*needs)
        if needed:
            storage = tensor.untyped_storage()
            end = tensor.storage_offset() * bytes_each + needed
            if storage.nbytes() < end or not storage.data_ptr():
                tensor_memory.require_memory(tensor, needed, bytes_each)
    return False
