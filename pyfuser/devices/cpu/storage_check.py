"""`require_memory` of tensor_memory.py as native code, because every call runs it on every tensor.

In Python, reading a storage's size and the offset into it takes 0.12 us per tensor, a tenth of a
small call. torch's C interface for compiled models gives both in a few nanoseconds; it takes the
address of an at::Tensor, and every Python tensor holds one.  Measured on a Zen 4: a call takes 0.03
us, and 0.01 us for each tensor.

Invariant: only objects whose type is exactly one of torch's own two are inspected, at an offset
where one of them was found to hold the value of `_cdata`.  For all others, and for a tensor with
too little memory, Python is called; it is always called if no such offset is found.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from .. import tensor_memory
from .jit import add_symbol, compile_module
from .native_function import native_function
from .native_text import native_text
from .threads import loaded_symbol

_QUESTIONS = ("aoti_torch_get_storage_size", "aoti_torch_get_storage_offset")
_WORD_BYTES = ctypes.sizeof(ctypes.c_void_p)


@functools.cache
def require_memory() -> Callable[..., None]:
    """The fastest `require_memory` available here."""
    symbols = {name: loaded_symbol(name) for name in _QUESTIONS}
    places = _places()
    if places is None or not all(symbols.values()):
        return tensor_memory.require_memory
    for name, address in symbols.items():
        add_symbol(name, address or 0)
    for name, kind in (("torch_tensor", torch.Tensor), ("torch_parameter", torch.nn.Parameter)):
        add_symbol(name, id(kind))
    # Without optimisation, like the other functions that are needed at once: it takes 1 ms.
    module = compile_module(_text(*places), passes=(), codegen_level=0)
    found: Callable[..., None] = native_function(
        module, "require_memory", tensor_memory.require_memory
    )
    return found


def _places() -> tuple[int, int] | None:
    """Offsets in bytes of the type and the at::Tensor in a tensor's object; None if not found."""
    found = set()
    for probe in (torch.empty(2), torch.nn.Parameter(torch.empty(2))):
        words = (ctypes.c_size_t * (type(probe).__basicsize__ // _WORD_BYTES)).from_address(
            id(probe)
        )
        try:
            places = [list(words).index(value) for value in (id(type(probe)), probe._cdata)]
        except (AttributeError, ValueError):
            return None
        found.add((places[0] * _WORD_BYTES, places[1] * _WORD_BYTES))
    return found.pop() if len(found) == 1 else None


def _text(type_place: int, tensor_place: int) -> str:
    """The module: a native function whose `self` is the Python one; both take `Needs`."""
    return native_text("require_memory", TYPE_PLACE=type_place, TENSOR_PLACE=tensor_place)
