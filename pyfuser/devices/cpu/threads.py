"""Runs a kernel's range functions on torch's own threads, and makes kernels callable from Python.

A compiled kernel is one or more *range functions*, its phases, each

    void <name>(ptr args, i64 thread, i64 threads)

that does share `thread` of `threads` equal shares of the work (any `threads` >= 1 must give the
same result) and takes everything else from `args`, an array of 8-byte slots: pointers, sizes, and
scalars (a Python float arrives as the bits of a double, an int as an i64). `launcher(module,
names)` returns a callable `launch(most_threads, *slots)` that fills the slots and runs the phases
one after the other (the end of a phase is a barrier), without the GIL, on min(most_threads,
torch.get_num_threads()) threads; OpenMP may give fewer, for instance inside a parallel region.
After the given slots there is one more, the status of this call: `launch` returns True if a range
function has set it because the kernel refuses the call, and otherwise None.

`launch` is a C function that the JIT compiles once per process, from native/launch.ll; it follows
CPython's vector call convention and uses only its stable interface.  Measured on a Zen 4, a launch
with 3 pointers and a size: 0.08 us on one thread (ctypes: 0.52 us with c_void_p arguments, 0.30 us
packed into an array), 0.7 us with an empty parallel region of two threads.  Its body calls
`pyfuser_parallel(range, args, threads)`, which is one of

    gomp     GOMP_parallel           if torch's runtime is libgomp (or has its interface)
    kmpc     __kmpc_fork_call        if it is LLVM's libomp, as on macOS
    python   a ThreadPoolExecutor    if there is none, or its symbols are hidden

The runtime is never loaded here, only looked up in the order in which torch's own calls were bound,
so there is only one set of threads.  After `fork` the threads of the parent are gone and no OpenMP
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
from .native_text import native_text

Launch = Callable[..., bool | None]

_RANGE_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def thread_count() -> int:
    """Threads that a launch from this thread may use: torch's number, 1 in a forked child."""
    return 1 if _forked else torch.get_num_threads()


def runtime_name() -> str:
    """What runs the threads: `gomp`, `kmpc` or `python` (see the module's docstring)."""
    return _find_runtime()[0]


def launcher(module: CompiledModule, range_functions: Sequence[str]) -> Launch:
    """A callable `launch(most_threads, *slots)` that runs `range_functions` of `module` in turn.

    The callable keeps the module alive.  It takes only ints (8 bytes, wrapped) and floats, else
    raises TypeError; the caller ensures that there are as many slots as the kernel reads.
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
            # RTLD_NOLOAD: a handle only if it is loaded; its look-ups include its dependencies.
            found.append(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    return tuple(found)


def _address_of(function: Any) -> int:
    """Address of a ctypes function (CFUNCTYPE instances have no common public base class)."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def loaded_symbol(name: str) -> int | None:
    """Address of a function that is already loaded, or None."""
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
    """Runs share 0 here, the others in the pool; ctypes drops the GIL during a range function."""
    run = _RANGE_TYPE(range_address)
    others = [_pool().submit(run, arguments, thread, threads) for thread in range(1, threads)]
    run(arguments, 0, threads)
    for other in others:
        other.result()


# C functions: torch's thread count, in case its C++ function can't be found, and the above.
_THREAD_LIMIT = ctypes.CFUNCTYPE(ctypes.c_int32)(torch.get_num_threads)
_PYTHON_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(
    _python_parallel
)


# ---- the text that is compiled once ----------------------------------------------------------


def runtime_text(runtime: str) -> str:
    """The LLVM IR of `pyfuser_parallel` and `launch` for the runtime `gomp`, `kmpc` or `python`."""
    shared = [] if runtime == "python" else ["share"]
    return native_text(*shared, f"fork_join_{runtime}", "launch")


@functools.cache
def _runtime_module() -> CompiledModule:
    """The compiled text; its functions stay for the life of the process."""
    runtime, symbols = _find_runtime()
    # at::get_num_threads(): only it sees a set_num_threads() that another thread has called.
    limit = loaded_symbol("_ZN2at15get_num_threadsEv") or _address_of(_THREAD_LIMIT)
    for name, address in {**symbols, "pyfuser_thread_limit": limit}.items():
        add_symbol(name, address)
    # Without optimisation: this takes 1 ms instead of 5, and a launch is 1 ns slower.
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
