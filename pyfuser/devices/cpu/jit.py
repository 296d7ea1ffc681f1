"""LLVM IR text -> machine code in this process, and machine code as bytes for the disk cache.

The last stage of the CPU device. `compile_module` parses and verifies the text, runs a few passes,
generates an ELF/Mach-O object for this processor and links it; `load_object` links an object that
was generated earlier. Objects contain no address of the process (the code is position-independent;
everything outside is an external symbol: a libc or libm function, or one registered by
`add_symbol`), so they are valid in every process on the same processor with the same LLVM. A
module's code is freed with it.

The choices below were measured on a Zen 4 with a bias + tanh-GELU kernel of 280 lines and one of
1,226 (compile times in ms; in brackets the first kernel's time on 256x1024 floats in us):

    codegen level 0   2.9,  9.3 (128)    passes sroa, simplify_cfg   0.2, 0.3 (120)
    codegen level 1   9.8, 21.7 (120)    passes new_gvn              0.9, 2.9 (120)
    codegen level 2  11.0, 24.0 (120)    passes instcombine          1.1, 4.0 (120)
    linking, ORC      0.3                passes -O1                 13.5,  43 (120)
    linking, MCJIT    0.8                passes -O2                   15,  46 (120)

The result: level 1, `sroa` (accumulators may be written as allocas) and `simplify_cfg`, ORC with
JITLink.  An empty module costs 0.8 ms at level 1, 0.3 ms at level 0.  The small code model is used:
a constant is a memory operand, where LLVM's default for JITs loads its address first.

For authors of the IR: an explicit <16 x float> is one zmm register by default on every AVX-512
machine; the attributes of `function_attributes()` state this instead of relying on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import llvmlite
import llvmlite.binding as llvm

from ...errors import CompilationError, InternalError, expected
from ..runtime import ObjectCache
from . import compiler_process, emission
from .emission import LlvmProcessor, Request
from .host import host
from .processor import Processor

DEFAULT_PASSES = ("sroa", "simplify_cfg")
DEFAULT_CODEGEN_LEVEL = 1

_lock = threading.RLock()
_external_symbols: dict[str, int] = {}
_object_cache: ObjectCache | None = None
_library_numbers = itertools.count()
# Object files being made in another process, by the keys of `compile_module`.
_ahead: dict[str, compiler_process.Answer] = {}
_MOST_AHEAD = 1024

# A thread that is in LLVM while another one forks would leave the child's lock locked forever.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
os.register_at_fork(after_in_child=_ahead.clear)  # the answers go to the parent


@dataclass(eq=False, slots=True, weakref_slot=True)
class CompiledModule:
    """Machine code in memory; it is freed with the last reference to this object.

    Keep a reference as long as an address is in use: nothing else stops the memory from being
    reused.
    """

    object_code: bytes = field(repr=False)
    name: str
    _linker: llvm.LLJIT = field(repr=False)
    _library: llvm.orcjit.ResourceTracker = field(repr=False)
    _trackers: dict[str, llvm.orcjit.ResourceTracker] = field(default_factory=dict, repr=False)

    def address(self, symbol: str) -> int:
        """Address of a function of this module; CompilationError if it is missing or can't link."""
        with _lock:
            if symbol not in self._trackers:
                try:
                    self._trackers[symbol] = self._linker.lookup(self.name, symbol)
                except RuntimeError as error:
                    message = expected(
                        "link", f"a module that defines @{symbol}", str(error).strip()
                    )
                    raise CompilationError(message) from None
            return int(self._trackers[symbol][symbol])


def compile_module(
    llvm_ir: str,
    *,
    passes: Sequence[str] = DEFAULT_PASSES,
    codegen_level: int = DEFAULT_CODEGEN_LEVEL,
    processor: Processor | None = None,
) -> CompiledModule:
    """Compile a module's text and link it into this process.

    The module is compiled for `processor`, whose instructions this processor must have; by default
    for this processor.

    `passes` are llvmlite's names of new-pass-manager passes, without `add_` and `_pass`.
    Raises CompilationError with LLVM's message.  One thread compiles at a time; a module begun by
    `compile_ahead` is only waited for.
    """
    cache = _object_cache
    request = _request(llvm_ir, passes, codegen_level, processor)
    key = _key(request)
    object_code = None if cache is None else cache.load(key)
    if object_code is not None:
        # An object that doesn't link (another build of LLVM with the same version) is made again.
        with contextlib.suppress(CompilationError):
            return load_object(object_code)
    answer = _ahead.pop(key, None)
    object_code = None if answer is None else compiler_process.result(answer)
    if object_code is None:
        with _lock, contextlib.closing(_optimised(request)) as module:
            _check_external_symbols(module)
            machine = emission.target_machine(request.processor, codegen_level)
            object_code = bytes(machine.emit_object(module))
    if cache is not None:
        cache.store(key, object_code)
    return load_object(object_code)


def compile_ahead(llvm_ir: str, processor: Processor | None = None) -> None:
    """Lets another process, if there is one, begin what `compile_module` will be asked for."""
    request = _request(llvm_ir, DEFAULT_PASSES, DEFAULT_CODEGEN_LEVEL, processor)
    key = _key(request)
    cache = _object_cache
    if key in _ahead or (cache is not None and key in cache):
        return
    answer = compiler_process.submit(request)
    if answer is not None:
        _ahead[key] = answer
        while len(_ahead) > _MOST_AHEAD:  # these were never asked for
            _ahead.pop(next(iter(_ahead)), None)


def set_object_cache(cache: ObjectCache | None) -> None:
    """Sets where `compile_module` looks for and keeps objects from now on; None for nowhere."""
    global _object_cache
    _object_cache = cache


def load_object(object_code: bytes) -> CompiledModule:
    """Link an object that `compile_module` made on this processor, in any process."""
    name = f"pyfuser{next(_library_numbers)}"
    with _lock:
        builder = llvm.JITLibraryBuilder().add_object_img(object_code).add_current_process()
        for symbol, address in _external_symbols.items():
            builder.import_symbol(symbol, address)
        linker = _linkers.next()
        try:
            library = builder.link(linker, name)
        except RuntimeError as error:
            message = expected(
                "load_object", "an object file of this processor", str(error).strip()
            )
            raise CompilationError(message) from None
        return CompiledModule(object_code, name, linker, library)


def assembly(
    llvm_ir: str,
    processor: Processor | None = None,
    *,
    passes: Sequence[str] = DEFAULT_PASSES,
    codegen_level: int = DEFAULT_CODEGEN_LEVEL,
) -> str:
    """The assembly text that `compile_module` would make, for this processor or another one.

    For human readers (`show --stage asm`).
    """
    request = _request(llvm_ir, passes, codegen_level, processor)
    with _lock, contextlib.closing(_optimised(request)) as module:
        machine = emission.target_machine(request.processor, codegen_level)
        return str(machine.emit_assembly(module))


def add_symbol(name: str, address: int) -> None:
    """Let modules linked from now on call `@name`; the address must stay valid forever."""
    with _lock:
        _external_symbols[name] = address


def function_attributes(processor: Processor | None = None, calls: bool = False) -> str:
    """Attributes for every generated function, as text for `attributes #0 = { ... }`.

    They allow the processor's full vector width; `nounwind` code needs no unwind tables.  One that
    `calls` others keeps vectors on the stack meanwhile, which then has their alignment: LLVM finds
    too late that it would be useful.  Measured on a Zen 4: sin of bfloat16 in 0.8, sines and
    cosines joined in 0.5 of the time.
    """
    width = (processor or host()).vector_bits
    stack = f"alignstack={width // 8} " if calls else ""
    return f'nounwind {stack}"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'


@functools.cache
def versions() -> str:
    """The versions that the machine code depends on: part of every object's key."""
    return f"llvmlite {llvmlite.__version__} LLVM {'.'.join(map(str, llvm.llvm_version_info))}"


def _processor(processor: Processor | None = None) -> LlvmProcessor:
    """The processor to make code for: the one of this process, or another one."""
    chosen = processor or host()
    return LlvmProcessor(chosen.cpu_name, chosen.features)


def _request(
    llvm_ir: str, passes: Sequence[str], codegen_level: int, processor: Processor | None
) -> Request:
    """A text to compile, and the processor to compile it for."""
    return Request(llvm_ir, tuple(passes), codegen_level, _processor(processor))


def _key(request: Request) -> str:
    """Everything that the object depends on."""
    level, parts = str(request.codegen_level), (host().architecture, *request.processor)
    return "\n".join((versions(), *parts, level, *request.passes, request.llvm_ir))


def _optimised(request: Request) -> llvm.ModuleRef:
    """The module after the passes; the caller closes it.  CompilationError with LLVM's message."""
    try:
        return emission.optimised(request)
    except emission.UnknownPassError as error:
        what = "a pass that llvmlite has"
        raise InternalError(expected("compile_module", what, error)) from None
    except RuntimeError as error:
        message = expected("compile_module", "valid LLVM IR", str(error).strip())
        raise CompilationError(message) from None


def _check_external_symbols(module: llvm.ModuleRef) -> None:
    """CompilationError that names the undefined functions: the linker's error wouldn't."""
    process = ctypes.CDLL(None)
    missing = [
        function.name
        for function in module.functions
        if function.is_declaration
        and not function.name.startswith("llvm.")
        and function.name not in _external_symbols
        and not hasattr(process, function.name)
    ]
    if missing:
        names = ", ".join(f"@{name}" for name in missing)
        raise CompilationError(expected("link", "functions of libc, libm or add_symbol", names))


class _Linkers:
    """Linkers, each for several modules: it owns their memory and is freed with the last of them.

    A linker keeps some 10 KB of every module forever, freed or not, so one linker for the whole
    process would grow with every kernel it ever linked.  Making a linker takes 0.5 ms.
    """

    def __init__(self, most_modules: int) -> None:
        self.most_modules = most_modules
        self.count = 0
        self.current: llvm.LLJIT | None = None

    def next(self) -> llvm.LLJIT:
        """The linker for the next module; the caller holds the lock."""
        if self.current is None or self.count >= self.most_modules:
            self.count = 0
            self.current = llvm.create_lljit_compiler(
                emission.new_target_machine(_processor(), DEFAULT_CODEGEN_LEVEL),
                use_jit_link=True,
                suppress_errors=True,  # every error is raised as well, so none is printed to stderr
            )
        self.count += 1
        return self.current


_linkers = _Linkers(64)
