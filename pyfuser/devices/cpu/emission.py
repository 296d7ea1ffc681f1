"""LLVM IR text -> an object file's bytes: parse, verify, passes, code generation.  Links nothing.

Needs only llvmlite, nothing of pyfuser or torch, so it starts in a tenth of a second as a program
of its own: `python emission.py FOLDER`, with the folder that contains llvmlite, answers requests
until its input ends or no request has come for a while. compiler_process.py talks to it.
"""

import contextlib
import functools
import os
import pickle
import signal
import sys
import threading
from typing import BinaryIO, NamedTuple

if __name__ == "__main__":
    sys.path.append(sys.argv[1])

import llvmlite.binding as llvm

IDLE_SECONDS = 60.0  # a waiting process holds some 50 MB


class LlvmProcessor(NamedTuple):
    """The processor to make code for, in LLVM's names; the host unless cross-compiling."""

    cpu_name: str
    features: str


class Request(NamedTuple):
    """A module's text and how to compile it; `passes` by llvmlite's names (`add_<name>_pass`)."""

    llvm_ir: str
    passes: tuple[str, ...]
    codegen_level: int
    processor: LlvmProcessor


class UnknownPassError(LookupError):
    """llvmlite has no pass of that name."""


def emit_object(request: Request) -> bytes:
    """The object file.  RuntimeError with LLVM's message if the text isn't valid."""
    with contextlib.closing(optimised(request)) as module:
        machine = target_machine(request.processor, request.codegen_level)
        return bytes(machine.emit_object(module))


def optimised(request: Request) -> llvm.ModuleRef:
    """The module parsed, verified and run through the passes, in an LLVM context of its own.

    The caller closes the module. If it were left to the garbage collector (an error's traceback can
    hold it in a cycle), it could be freed after its context, which crashes.
    """
    module = llvm.parse_assembly(request.llvm_ir, llvm.create_context())
    try:
        module.triple = target().triple
        module.data_layout = _data_layout(request.processor)
        module.verify()
        if request.passes:
            _run_passes(module, request)
    except BaseException:
        module.close()
        raise
    return module


def _run_passes(module: llvm.ModuleRef, request: Request) -> None:
    manager = llvm.create_new_module_pass_manager()
    for name in request.passes:
        add_pass = getattr(manager, f"add_{name}_pass", None)
        if add_pass is None:
            raise UnknownPassError(name)
        add_pass()
    machine = target_machine(request.processor, request.codegen_level)
    options = llvm.create_pipeline_tuning_options(0)
    manager.run(module, llvm.create_pass_builder(machine, options))


@functools.cache
def target() -> llvm.Target:
    """LLVM's target for this process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


@functools.cache
def target_machine(processor: LlvmProcessor, codegen_level: int) -> llvm.TargetMachine:
    """A code generator, position-independent, small code model."""
    return new_target_machine(processor, codegen_level)


def new_target_machine(processor: LlvmProcessor, codegen_level: int) -> llvm.TargetMachine:
    """A new one: the linker takes ownership of its own."""
    return target().create_target_machine(
        cpu=processor.cpu_name,
        features=processor.features,
        opt=codegen_level,
        reloc="pic",
        codemodel="small",
        jit=True,
    )


@functools.cache
def _data_layout(processor: LlvmProcessor) -> str:
    """Sizes and alignments of LLVM's types."""
    return str(target_machine(processor, 1).target_data)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers (number, request) with (number, object file), or (number, None) for an error."""
    while True:
        timer = threading.Timer(IDLE_SECONDS, os._exit, (0,))
        timer.daemon = True
        timer.start()
        try:
            number, fields = pickle.load(requests)
        except EOFError:
            return
        timer.cancel()
        text, passes, codegen_level, processor = fields
        try:
            answer = emit_object(Request(text, passes, codegen_level, LlvmProcessor(*processor)))
        except Exception:  # the requester compiles it again and gets the error there
            answer = None
        pickle.dump((number, answer), answers)
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for the requester
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
