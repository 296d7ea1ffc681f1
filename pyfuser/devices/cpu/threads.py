"""Runs a kernel's range functions on torch's own threads, and makes kernels callable from Python.

A compiled kernel is one or more *range functions*, its phases, each

    void <name>(ptr args, i64 thread, i64 threads)

that does share `thread` of `threads` equal shares of the work (any `threads` >= 1 must give the
same result) and takes everything else from `args`, an array of 8-byte slots: pointers, sizes,
and scalars (a Python float arrives as the bits of a double, an int as an i64). `launcher(module,
names)` gives a callable `launch(most_threads, *slots)` that fills the slots and runs the phases
one after the other (the end of a phase is a barrier), without the GIL, on min(most_threads,
torch.get_num_threads()) threads; OpenMP may give fewer, for instance inside a parallel region.
Behind the given slots there is one more, the status of this call: `launch` gives True if a range
function has set it, because the kernel refuses the call, and else None.

`launch` is a C function that the JIT compiles once per process, from the text below; it follows
CPython's vector call convention and uses only its stable interface.  Measured on a Zen 4, a launch
with 3 pointers and a size: 0.08 us on one thread (ctypes: 0.52 us with c_void_p arguments, 0.30 us
packed into an array), 0.7 us with an empty parallel region of two threads.  Its body calls
`pyfuser_parallel(range, args, threads)`, which is one of

    gomp     GOMP_parallel           torch's runtime is libgomp (or speaks its interface)
    kmpc     __kmpc_fork_call        it is LLVM's libomp, as on macOS
    python   a ThreadPoolExecutor    there is none, or its symbols are hidden

The runtime is never loaded here, only looked up in the order in which torch's own calls were bound,
so there is one set of threads.  After `fork` the threads of the parent are gone and no OpenMP
runtime promises to work, so a child runs every kernel on one thread.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ...errors import InternalError, expected
from .jit import CompiledModule, add_symbol, compile_module
from .native_function import native_function

Launch = Callable[..., bool | None]

_RANGE_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def thread_count() -> int:
    """Threads that a launch from this thread may use: torch's number, 1 in a forked child."""
    return 1 if _forked else torch.get_num_threads()


def runtime_name() -> str:
    """What runs the threads: `gomp`, `kmpc` or `python` (see the module's text)."""
    return _find_runtime()[0]


def launcher(module: CompiledModule, range_functions: Sequence[str]) -> Launch:
    """A callable `launch(most_threads, *slots)` that runs `range_functions` of `module` in turn.

    It keeps the module alive.  It takes ints (8 bytes, wrapped) and floats only, else TypeError;
    that there are as many slots as the kernel reads is the caller's duty.
    """
    if not range_functions:
        raise InternalError(expected("launcher", "at least one range function", "none"))
    addresses = [module.address(name) for name in range_functions]
    table = (ctypes.c_void_p * (len(addresses) + 1))(*addresses, None)
    # `self` of the C function is the table's address.
    launch: Launch = native_function(
        _runtime_module(), "launch", ctypes.addressof(table), keep_alive=(module, table)
    )
    return launch


def parallel(range_address: int, arguments_address: int, threads: int) -> None:
    """Run one range function on `threads` threads: what `launch` does for each phase, for tests."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    function(_runtime_module().address("pyfuser_parallel"))(
        range_address, arguments_address, threads
    )


# ---- the runtime torch uses ------------------------------------------------------------------


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Where to look symbols up, in the dynamic linker's own order: global ones, then torch's.

    A preloaded runtime replaces the one that torch names, so the global scope has to come first.
    """
    found = [ctypes.CDLL(None)]
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            # RTLD_NOLOAD: only a handle to what is loaded; its look-ups include its dependencies.
            found.append(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    return tuple(found)


def _address_of(function: Any) -> int:
    """Address of a ctypes function (CFUNCTYPE instances have no common public base class)."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def loaded_symbol(name: str) -> int | None:
    """Address of a function that is loaded already, or None."""
    for library in _libraries():
        try:
            return _address_of(getattr(library, name))
        except AttributeError:
            continue
    return None


@functools.cache
def _find_runtime() -> tuple[str, dict[str, int]]:
    """The name of the runtime and the addresses its text calls."""
    for name, symbols in {
        "gomp": ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"),
        "kmpc": (
            *(
                "__kmpc_fork_call",
                "__kmpc_push_num_threads",
                "__kmpc_global_thread_num",
            ),
            *("omp_get_thread_num", "omp_get_num_threads"),
        ),
    }.items():
        addresses = {symbol: address for symbol in symbols if (address := loaded_symbol(symbol))}
        if len(addresses) == len(symbols):
            return name, addresses
    return "python", {"pyfuser_python_parallel": _address_of(_PYTHON_PARALLEL)}


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """The threads of the `python` runtime; idle ones cost nothing."""
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="pyfuser")


def _python_parallel(range_address: int, arguments: int, threads: int) -> None:
    """Share 0 here and the others in the pool; ctypes drops the GIL while a range function runs."""
    run = _RANGE_TYPE(range_address)
    others = [_pool().submit(run, arguments, thread, threads) for thread in range(1, threads)]
    run(arguments, 0, threads)
    for other in others:
        other.result()


# As C functions: torch's thread count, for where its C++ function can't be found, and the above.
_THREAD_LIMIT = ctypes.CFUNCTYPE(ctypes.c_int32)(torch.get_num_threads)
_PYTHON_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(
    _python_parallel
)


# ---- the text that is compiled once ----------------------------------------------------------

_SHARE = """
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

define internal void @share(ptr %job) nounwind {
  %range = load ptr, ptr %job
  %slot = getelementptr ptr, ptr %job, i64 1
  %args = load ptr, ptr %slot
  %thread = call i32 @omp_get_thread_num()
  %threads = call i32 @omp_get_num_threads()
  %wide_thread = zext i32 %thread to i64
  %wide_threads = zext i32 %threads to i64
  call void %range(ptr %args, i64 %wide_thread, i64 %wide_threads)
  ret void
}
"""

_FORK_JOIN = {
    "gomp": f"""{_SHARE}
declare void @GOMP_parallel(ptr, ptr, i32, i32)

define internal void @fork_join(ptr %range, ptr %args, i32 %threads) nounwind {{
  %job = alloca [2 x ptr]
  store ptr %range, ptr %job
  %slot = getelementptr ptr, ptr %job, i64 1
  store ptr %args, ptr %slot
  call void @GOMP_parallel(ptr @share, ptr %job, i32 %threads, i32 0)
  ret void
}}
""",
    # An ident_t says where in a source file the region is; 2 marks it as made by a compiler.
    "kmpc": f"""{_SHARE}
@source = private constant [24 x i8] c";pyfuser;parallel;0;0;;\\00", align 8
%ident_t = type {{ i32, i32, i32, i32, ptr }}
@ident = private constant %ident_t {{ i32 0, i32 2, i32 0, i32 23, ptr @source }}
declare i32 @__kmpc_global_thread_num(ptr)
declare void @__kmpc_push_num_threads(ptr, i32, i32)
declare void @__kmpc_fork_call(ptr, i32, ptr, ...)

define internal void @microtask(ptr %global_thread, ptr %bound_thread, ptr %job) nounwind {{
  call void @share(ptr %job)
  ret void
}}

define internal void @fork_join(ptr %range, ptr %args, i32 %threads) nounwind {{
  %job = alloca [2 x ptr]
  store ptr %range, ptr %job
  %slot = getelementptr ptr, ptr %job, i64 1
  store ptr %args, ptr %slot
  %self = call i32 @__kmpc_global_thread_num(ptr @ident)
  call void @__kmpc_push_num_threads(ptr @ident, i32 %self, i32 %threads)
  call void (ptr, i32, ptr, ...) @__kmpc_fork_call(ptr @ident, i32 1, ptr @microtask, ptr %job)
  ret void
}}
""",
    "python": """
declare void @pyfuser_python_parallel(ptr, ptr, i32)

define internal void @fork_join(ptr %range, ptr %args, i32 %threads) nounwind {
  call void @pyfuser_python_parallel(ptr %range, ptr %args, i32 %threads)
  ret void
}
""",
}

_ENTRY = """
@serial_only = global i32 0  ; not 0 in a forked child
@_Py_NoneStruct = external global i8
@_Py_TrueStruct = external global i8
declare i32 @pyfuser_thread_limit()
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare i32 @PyErr_BadArgument()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)

define void @pyfuser_parallel(ptr %range, ptr %args, i32 %threads) nounwind {
  %serial_only = load i32, ptr @serial_only
  %forked = icmp ne i32 %serial_only, 0
  %one = icmp sle i32 %threads, 1
  %serial = or i1 %forked, %one
  br i1 %serial, label %alone, label %together
alone:
  call void %range(ptr %args, i64 0, i64 1)
  ret void
together:
  call void @fork_join(ptr %range, ptr %args, i32 %threads)
  ret void
}

; PyObject *launch(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
define ptr @launch(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %empty = icmp slt i64 %count, 1
  br i1 %empty, label %wrong_count, label %begin
wrong_count:
  %ignored = call i32 @PyErr_BadArgument()
  ret ptr null
begin:
  %table = call ptr @PyLong_AsVoidPtr(ptr %self)
  %with_status = add i64 %count, 1
  %slots = alloca i64, i64 %with_status, align 64
  %status = getelementptr i64, ptr %slots, i64 %count
  store i64 0, ptr %status
  br label %convert

convert:  ; slots[i] = the bits of argument i
  %i = phi i64 [ 0, %begin ], [ %next, %store ]
  %argument_slot = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument_slot
  %integer = call i64 @PyLong_AsUnsignedLongLongMask(ptr %argument)
  %maybe_error = icmp eq i64 %integer, -1
  br i1 %maybe_error, label %check_integer, label %store
check_integer:
  %error = call ptr @PyErr_Occurred()
  %no_error = icmp eq ptr %error, null
  br i1 %no_error, label %store, label %try_float
try_float:
  call void @PyErr_Clear()
  %float = call double @PyFloat_AsDouble(ptr %argument)
  %bits = bitcast double %float to i64
  %float_error = call ptr @PyErr_Occurred()
  %is_float = icmp eq ptr %float_error, null
  br i1 %is_float, label %store, label %failed
failed:
  ret ptr null
store:
  %bits_to_store = phi i64 [ %integer, %convert ], [ -1, %check_integer ], [ %bits, %try_float ]
  %slot = getelementptr i64, ptr %slots, i64 %i
  store i64 %bits_to_store, ptr %slot
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %convert, label %limit

limit:  ; threads = min(most_threads, torch's number), asked for only if it matters
  %most = load i64, ptr %slots
  %several = icmp sgt i64 %most, 1
  br i1 %several, label %ask, label %run
ask:
  %torch_limit = call i32 @pyfuser_thread_limit()
  %wide_limit = zext i32 %torch_limit to i64
  %fewer = icmp slt i64 %most, %wide_limit
  %least = select i1 %fewer, i64 %most, i64 %wide_limit
  br label %run
run:
  %wide_threads = phi i64 [ 1, %limit ], [ %least, %ask ]
  %threads = trunc i64 %wide_threads to i32
  %args = getelementptr i64, ptr %slots, i64 1
  %saved = call ptr @PyEval_SaveThread()
  br label %phase
phase:
  %p = phi i64 [ 0, %run ], [ %next_p, %run_phase ]
  %range_slot = getelementptr ptr, ptr %table, i64 %p
  %range = load ptr, ptr %range_slot
  %last = icmp eq ptr %range, null
  br i1 %last, label %done, label %run_phase
run_phase:
  call void @pyfuser_parallel(ptr %range, ptr %args, i32 %threads)
  %next_p = add i64 %p, 1
  br label %phase
done:
  call void @PyEval_RestoreThread(ptr %saved)
  %set = load i64, ptr %status
  %refused = icmp ne i64 %set, 0
  %result = select i1 %refused, ptr @_Py_TrueStruct, ptr @_Py_NoneStruct
  call void @Py_IncRef(ptr %result)
  ret ptr %result
}
"""


def runtime_text(runtime: str) -> str:
    """The LLVM IR of `pyfuser_parallel` and `launch` for the runtime `gomp`, `kmpc` or `python`."""
    return _FORK_JOIN[runtime] + _ENTRY


@functools.cache
def _runtime_module() -> CompiledModule:
    """The compiled text; its functions stay for the life of the process."""
    runtime, symbols = _find_runtime()
    # at::get_num_threads(): it alone knows a set_num_threads() that another thread has called.
    limit = loaded_symbol("_ZN2at15get_num_threadsEv") or _address_of(_THREAD_LIMIT)
    for name, address in {**symbols, "pyfuser_thread_limit": limit}.items():
        add_symbol(name, address)
    # Without optimisation: it takes 1 ms and not 5, and a launch is slower by 1 ns.
    module = compile_module(runtime_text(runtime), passes=(), codegen_level=0)
    if _forked:
        _set_serial_only(module)
    return module


# ---- fork ------------------------------------------------------------------------------------

_forked = False


def _set_serial_only(module: CompiledModule) -> None:
    ctypes.c_int32.from_address(module.address("serial_only")).value = 1


def _after_fork_in_child() -> None:
    """From now on one thread: neither OpenMP's nor the pool's threads exist in the child."""
    global _forked
    _forked = True
    if _runtime_module.cache_info().currsize:
        _set_serial_only(_runtime_module())


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
