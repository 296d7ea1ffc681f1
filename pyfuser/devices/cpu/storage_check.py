"""`require_memory` of tensor_memory.py as native code, because every call runs it on every tensor.

In Python, reading a storage's size and the offset into it takes 0.12 us per tensor, a tenth of a
small call, and its dispatch keys 0.3. torch's C interface for compiled models gives the former in a
few nanoseconds; it takes the address of an at::Tensor, and every Python tensor holds one.  Measured
on a Zen 4: a call takes 0.03 us, and 0.01 us for each tensor.

Invariant: only objects whose type is exactly one of torch's own two are inspected, at offsets where
several of them were found to hold the values of `_cdata` and of the dispatch keys.  For all others,
for a tensor that isn't plain and for one with too little memory, Python is called; it is always
called if no such offsets are found.
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
_WORDS_OF_TENSOR = 24  # torch's TensorImpl, which an at::Tensor points at, has at least as many


@functools.cache
def require_memory() -> Callable[..., bool]:
    """The fastest `require_memory` available here."""
    symbols = {name: loaded_symbol(name) for name in _QUESTIONS}
    with tensor_memory.ordinary_tensors():
        places = _places()
    if places is None or not all(symbols.values()):
        return tensor_memory.require_memory
    for name, address in symbols.items():
        add_symbol(name, address or 0)
    for name, kind in (("torch_tensor", torch.Tensor), ("torch_parameter", torch.nn.Parameter)):
        add_symbol(name, id(kind))
    # Without optimisation, like the other functions that are needed at once: it takes 1 ms.
    module = compile_module(_text(*places), passes=(), codegen_level=0)
    found: Callable[..., bool] = native_function(
        module, "require_memory", tensor_memory.require_memory
    )
    return found


def _places() -> tuple[int, int, int] | None:
    """Offsets in bytes: of the type and the at::Tensor in a tensor's object, and of the keys.

    None if they aren't found.
    """
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
    keys = _place_of_keys()
    return (*found.pop(), keys) if len(found) == 1 and keys is not None else None


def _place_of_keys() -> int | None:
    """The offset in bytes of the dispatch keys in what an at::Tensor points at."""
    plain, conjugate = torch.empty(2), torch.empty(2, dtype=torch.complex64).conj()
    common = set(range(_WORDS_OF_TENSOR))
    for probe in (plain, torch.nn.Parameter(plain), torch._neg_view(plain), conjugate):
        words = (ctypes.c_uint64 * _WORDS_OF_TENSOR).from_address(probe._cdata)
        keys = torch._C._dispatch_keys(probe).raw_repr()
        common &= {place for place, word in enumerate(words) if word == keys}
    return common.pop() * _WORD_BYTES if len(common) == 1 else None


def _text(type_place: int, tensor_place: int, keys_place: int) -> str:
    """The module: a native function whose `self` is the Python one; both take `Needs`."""
    return native_text(
        "require_memory",
        TYPE_PLACE=type_place,
        TENSOR_PLACE=tensor_place,
        KEYS_PLACE=keys_place,
        UNUSUAL_KEYS=~tensor_memory.plain_keys("cpu"),
    )
