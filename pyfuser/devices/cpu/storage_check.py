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
    return f"""
@torch_tensor = external global i8
@torch_parameter = external global i8
@_Py_NoneStruct = external global i8
declare i32 @aoti_torch_get_storage_size(ptr, ptr)
declare i32 @aoti_torch_get_storage_offset(ptr, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)

define ptr @require_memory(ptr %self, ptr %arguments, i64 %count) nounwind {{
entry:
  %size_slot = alloca i64
  %offset_slot = alloca i64
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i3, %measure ]
  %i1 = add i64 %i, 1
  %i2 = add i64 %i, 2
  %i3 = add i64 %i, 3
  %is_last = icmp sgt i64 %i3, %count
  br i1 %is_last, label %answer, label %look
look:
  %object_slot = getelementptr ptr, ptr %arguments, i64 %i
  %object = load ptr, ptr %object_slot
  %type_slot = getelementptr i8, ptr %object, i64 {type_place}
  %type = load ptr, ptr %type_slot
  %is_tensor = icmp eq ptr %type, @torch_tensor
  %is_parameter = icmp eq ptr %type, @torch_parameter
  %is_known = or i1 %is_tensor, %is_parameter
  br i1 %is_known, label %ask, label %suspect
ask:
  %tensor = getelementptr i8, ptr %object, i64 {tensor_place}
  %no_size = call i32 @aoti_torch_get_storage_size(ptr %tensor, ptr %size_slot)
  %no_offset = call i32 @aoti_torch_get_storage_offset(ptr %tensor, ptr %offset_slot)
  %errors = or i32 %no_size, %no_offset
  %is_error = icmp ne i32 %errors, 0
  br i1 %is_error, label %suspect, label %measure
measure:  ; the bytes from the first element to the end of the storage, against those needed
  %needed_slot = getelementptr ptr, ptr %arguments, i64 %i1
  %needed_object = load ptr, ptr %needed_slot
  %needed = call i64 @PyLong_AsLongLong(ptr %needed_object)
  %each_slot = getelementptr ptr, ptr %arguments, i64 %i2
  %each_object = load ptr, ptr %each_slot
  %each = call i64 @PyLong_AsLongLong(ptr %each_object)
  %size = load i64, ptr %size_slot
  %offset = load i64, ptr %offset_slot
  %before = mul i64 %offset, %each
  %there = sub i64 %size, %before
  %is_short = icmp slt i64 %there, %needed
  br i1 %is_short, label %suspect, label %next
answer:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
suspect:
  %verdict = call ptr @PyObject_Vectorcall(ptr %self, ptr %arguments, i64 %count, ptr null)
  ret ptr %verdict
}}
"""
