"""Compiles CUDA C++ text to a cubin or to PTX with NVRTC; no GPU and no driver are needed.

Generated text (after its prelude, see device_helpers.py) -> machine code for one architecture, or
PTX. NVRTC is called through `cuda.bindings`, because `cuda.core`'s Program asks the driver for its
version before it makes PTX and keeps the class of its compile errors private.  The packages (extra
`cuda`) are imported when a compilation needs them, never by importing this module.

Invariant: no fast-math and no contraction to fused multiply-add (docs/design.md).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from pyfuser.devices.cuda.device_helpers import KERNEL_FILE_NAME
from pyfuser.errors import CompilationError, UnsupportedError, expected

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
_ARCHITECTURE = re.compile(r"sm_\d+[af]?")
# Minimal: without textures, surfaces and launches by kernels, a fifth of a small kernel's time.
OPTIONS = ("--std=c++17", "--fmad=false", "--minimal")
_REPORT = ("--ptxas-options=-v",)
_HINT = "pip install 'pyfuser[cuda]'"


def compile_to_cubin(source: str, architecture: str) -> bytes:
    """Machine code for `architecture` ("sm_90"), an ELF image that the driver loads.

    Raises CompilationError with NVRTC's log and the numbered source, and UnsupportedError if the
    packages of the extra `cuda` are missing or NVRTC doesn't know the architecture.
    """
    nvrtc = _nvrtc()
    return _compile(source, architecture, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)


def compile_with_report(source: str, architecture: str) -> tuple[bytes, str]:
    """`compile_to_cubin`, with the log: warnings, and what ptxas reports about each kernel."""
    nvrtc = _nvrtc()
    size_of, copy = nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN
    return _compiled(source, architecture, size_of, copy, _REPORT)


def compile_to_ptx(source: str, architecture: str) -> str:
    """PTX text for `architecture`; raises as `compile_to_cubin` does."""
    nvrtc = _nvrtc()
    text = _compile(source, architecture, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    return text.rstrip(b"\0").decode()


def supported_architectures() -> tuple[str, ...]:
    """The architectures that the installed NVRTC compiles for, oldest first."""
    _, *numbers = _nvrtc().nvrtcGetSupportedArchs()
    return tuple(f"sm_{number}" for number in numbers[0])


def is_available() -> bool:
    """True if the packages of the extra `cuda` are installed and NVRTC loads."""
    try:
        version()
    except UnsupportedError:
        return False
    return True


def version() -> tuple[int, int]:
    """NVRTC's version; part of every cache key."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return (int(major), int(minor))


def numbered(source: str) -> str:
    """`source` with line numbers, starting from 1 again after each `#line 1`."""
    lines, number = [], 0
    for line in source.splitlines():
        restart = re.match(r"#line (\d+)", line)
        if restart:
            number = int(restart.group(1))
            lines.append(f"      {line}")
        else:
            number = number or 1
            lines.append(f"{number:5} {line}")
            number += 1
    return "\n".join(lines)


def _kernel_part(source: str) -> str:
    """The generated kernel without its prelude, which is the same for all kernels."""
    marker = f'#line 1 "{KERNEL_FILE_NAME}"\n'
    return source.partition(marker)[2] or source


def _compilation_error(source: str, architecture: str, log: str) -> CompilationError:
    return CompilationError(
        expected(
            "nvrtc",
            f"text that compiles for {architecture}",
            f"errors:\n{log.strip()}\n",
        )
        + f"the kernel:\n{numbered(_kernel_part(source))}"
    )


def _compile(
    source: str, architecture: str, size_of: Callable[..., Any], copy: Callable[..., Any]
) -> bytes:
    """Compiles and returns what `copy` fetches: `size_of` bytes."""
    return _compiled(source, architecture, size_of, copy)[0]


def _compiled(
    source: str,
    architecture: str,
    size_of: Callable[..., Any],
    copy: Callable[..., Any],
    more_options: Sequence[str] = (),
) -> tuple[bytes, str]:
    """What `copy` fetches, `size_of` bytes, and the log."""
    nvrtc = _nvrtc()
    _check_architecture(architecture)
    given = (f"--gpu-architecture={architecture}", *OPTIONS, *more_options)
    options = [each.encode() for each in given]
    name = KERNEL_FILE_NAME.encode()
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name, 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _compilation_error(source, architecture, text)
        result = bytearray(_checked(size_of(program)))
        _checked(copy(program, result))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(result), text


def _check_architecture(architecture: str) -> None:
    known = supported_architectures()
    plain = architecture.rstrip("af")  # sm_90a: the features of that architecture alone
    if not _ARCHITECTURE.fullmatch(architecture) or plain not in known:
        message = expected("nvrtc", f"one of {', '.join(known)}", architecture)
        raise UnsupportedError(message)


def _checked(answer: Any) -> Any:
    """The value that a call of cuda.bindings.nvrtc returned; CompilationError on a bad status."""
    status, *values = answer
    if int(status) != 0:
        raise CompilationError(expected("nvrtc", "NVRTC_SUCCESS", status.name))
    return values[0] if values else None


@functools.cache
def _nvrtc() -> Any:
    """The module cuda.bindings.nvrtc, its library loaded."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()  # loads the library; RuntimeError if only the module is installed
    except (ImportError, OSError, RuntimeError) as error:
        what = "the packages cuda-bindings and nvidia-cuda-nvrtc"
        raise UnsupportedError(expected("nvrtc", what, f"`{error}`", _HINT)) from error
    return nvrtc
