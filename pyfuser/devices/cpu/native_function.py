"""A compiled function with CPython's vector call convention -> a Python builtin function.

    PyObject *f(PyObject *self, PyObject *const *arguments, Py_ssize_t count)

The cheapest way from Python into generated code: nothing is converted except what the function
itself converts, through CPython's stable C interface (threads.py has the measurement against
ctypes). Invariant: the machine code lives as long as the function object.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .jit import CompiledModule

_METH_FASTCALL = 0x80


class _MethodDefinition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


def native_function(
    module: CompiledModule, symbol: str, self: object = None, keep_alive: object = None
) -> Callable[..., Any]:
    """The function `symbol` of `module` as a Python callable without keyword arguments.

    `self` is passed to every call; `keep_alive` lives as long as the callable.
    """
    definition = _MethodDefinition(symbol.encode(), module.address(symbol), _METH_FASTCALL, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    make.restype = ctypes.py_object
    # The third argument, the `__module__` of a builtin, is a reference that nothing else uses.
    function: Callable[..., Any] = make(
        ctypes.addressof(definition), self, (module, definition, keep_alive)
    )
    return function
