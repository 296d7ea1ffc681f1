"""`require_memory` of tensor_memory.py as native code, since every call asks it of every tensor.

In Python, the size of a storage and the offset into it take 0.12 us a tensor, a tenth of a small
call.  torch's C interface for compiled models answers both in a few nanoseconds; it takes the
address of an at::Tensor, and every Python tensor holds one.  Measured on a Zen 4: a call takes
0.03 us, and 0.01 us for each tensor.

Invariant: nothing is looked into but objects whose type is exactly one of torch's own two, at the
place where one of them was found to hold what `_cdata` says.  For all others, and for a tensor that
has too little, Python is asked; and always, where no such place is found.
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
    """The fastest `require_memory` that there is here."""
    symbols = {name: loaded_symbol(name) for name in _QUESTIONS}
    places = _places()
    if places is None or not all(symbols.values()):
        return tensor_memory.require_memory
    for name, address in symbols.items():
        add_symbol(name, address or 0)
    for name, kind in (("torch_tensor", torch.Tensor), ("torch_parameter", torch.nn.Parameter)):
        add_symbol(name, id(kind))
    # Without optimisation, as the other functions that are needed at once: it takes 1 ms.
    module = compile_module(_text(*places), passes=(), codegen_level=0)
    found: Callable[..., None] = native_function(
        module, "require_memory", tensor_memory.require_memory
    )
    return found


def _places() -> tuple[int, int] | None:
    """How many bytes into a tensor's object its type and its at::Tensor are; None if not there."""
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
    """The module: a native function whose `self` is the one in Python; they take `Needs`."""
    return native_text("require_memory", TYPE_PLACE=type_place, TENSOR_PLACE=tensor_place)
