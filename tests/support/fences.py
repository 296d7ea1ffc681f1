"""Fenced memory: what is outside of a tensor can't be read or written; trying ends the process.

A kernel that reads beyond the end of its input gets whatever is there, and mostly that is memory
of the process: the results are right, and a run in thousands crashes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from pyfuser.devices.tensor_memory import span_bytes

_LINE_BYTES = 64  # kernels may count on the alignment of torch's own tensors


def fenced_strided(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A new tensor of ones (bits) between two unreadable pages; it ends at the second one.

    If its bytes are no multiple of 64, it ends up to 63 bytes before it.
    """
    wanted = span_bytes(shape, stride, dtype.itemsize)
    if wanted == 0:
        return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype)
    page = mmap.PAGESIZE
    taken = -(-wanted // _LINE_BYTES) * _LINE_BYTES
    end = page - (-taken // page) * page
    memory = mmap.mmap(-1, end + page)
    memory[page:end] = b"\xff" * (end - page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (address, address + end):
        _protect(fence, page)
    count = wanted // dtype.itemsize
    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=end - taken)
    # A kernel's result is no view.
    made = torch.empty(0, dtype=dtype)
    return made.set_(flat.untyped_storage(), 0, tuple(shape), tuple(stride))


def fenced(tensor: Tensor) -> Tensor:
    """A copy with the same strides in fenced memory; what isn't strided memory is itself."""
    if tensor.layout is not torch.strided or type(tensor) is not Tensor:
        return tensor
    strides = tensor.stride()
    copy = fenced_strided(tensor.shape, strides, tensor.dtype)
    if tensor.numel():  # element by element of the memory: those of the tensor may overlap
        memory = ((span_bytes(tensor.shape, strides, 1),), (1,))
        copy.as_strided(*memory).copy_(tensor.detach().as_strided(*memory))
    return copy.requires_grad_(tensor.requires_grad)


def _protect(address: int, size: int) -> None:
    no_access = 0
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), size, no_access):
        raise OSError(ctypes.get_errno(), "mprotect")
