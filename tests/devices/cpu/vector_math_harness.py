"""Compiles a function of a few vectors, written with `FunctionWriter`, and runs it over arrays.

A case is a callback that gets a writer and one `Value` per argument and returns the result.  The
harness prints a loop over 16 lanes at a time around it, compiles that with llvmlite and calls it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm
import numpy as np

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, LLVMType, Value

LANES = 16

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
_FEATURES = llvm.get_host_cpu_features()
HAS_AVX512 = bool(_FEATURES.get("avx512f") and _FEATURES.get("avx512dq"))
HAS_FMA = bool(_FEATURES.get("fma") or _FEATURES.get("neon"))
# A machine with its modules in it must outlive every pointer handed out.
_ENGINES: list[object] = []

Body = Callable[..., Value]


def function_text(
    body: Body,
    arguments: Sequence[LLVMType],
    result: LLVMType,
    *,
    has_fma: bool = HAS_FMA,
    has_avx512: bool = HAS_AVX512,
    lanes: int = LANES,
) -> str:
    """LLVM text of `f(ptr out, ptr in0, ..., i64 chunks)`; a bool is stored as an i8."""
    writer = FunctionWriter(has_fma=has_fma, has_avx512=has_avx512)
    operands = [_load(writer, i, type.with_lanes(lanes)) for i, type in enumerate(arguments)]
    value = body(writer, *operands)
    assert value.type == result.with_lanes(lanes), (value.type, result)
    if result.element == "i1":
        value = writer.zext(value, "i8")
    pointer = writer.pure(LLVMType("ptr"), f"getelementptr {value.type}, ptr %out, i64 %i")
    writer.store(value, pointer, 1)
    back = [line[:-1] for line in writer.lines if line.endswith(":")]
    block = back[-1] if back else "loop"
    parameters = "".join(f", ptr noalias %in{i}" for i in range(len(arguments)))
    bits = 512 if has_avx512 else 256
    width = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    lines = [
        *writer.declarations.values(),
        *writer.definitions.values(),
        f"define void @kernel(ptr noalias %out{parameters}, i64 %n) {width} {{",
        "entry:",
        "  br label %loop",
        "loop:",
        f"  %i = phi i64 [ 0, %entry ], [ %next, %{block} ]",
        *writer.lines,
        "  %next = add i64 %i, 1",
        "  %more = icmp ult i64 %next, %n",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _load(writer: FunctionWriter, index: int, type: LLVMType) -> Value:
    stored = type.with_element("i8") if type.element == "i1" else type
    pointer = writer.pure(LLVMType("ptr"), f"getelementptr {stored}, ptr %in{index}, i64 %i")
    value = writer.load(stored, pointer, 1)
    if type.element == "i1":
        value = writer.icmp("ne", value, writer.constant(0, stored))
    return value


def target_machine() -> llvm.TargetMachine:
    """The machine this test runs on."""
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_FEATURES.flatten(), opt=2, jit=True
    )


def assembly(text: str) -> str:
    """The assembly of a module, to count instructions by eye."""
    return str(target_machine().emit_assembly(llvm.parse_assembly(text)))


def compile_text(text: str, arguments: int) -> Callable[..., None]:
    """The compiled kernel as a ctypes function."""
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, target_machine())
    engine.finalize_object()
    _ENGINES.append(engine)
    prototype = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * (arguments + 1)), ctypes.c_int64)
    return prototype(engine.get_function_address("kernel"))


def run(
    function: Callable[..., None],
    inputs: Sequence[np.ndarray],
    result: np.dtype | type,
    lanes: int = LANES,
) -> np.ndarray:
    """Applies a compiled kernel to arrays of one length; the tail is padded with ones."""
    length = inputs[0].size
    chunks = -(-length // lanes)
    padded = []
    for array in inputs:
        whole = np.ones(chunks * lanes, array.dtype)
        whole[:length] = array.ravel()
        padded.append(whole)
    out = np.empty(chunks * lanes, result)
    function(out.ctypes.data, *(array.ctypes.data for array in padded), chunks)
    return out[:length]
