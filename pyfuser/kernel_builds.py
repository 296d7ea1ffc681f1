"""From a schedule to a kernel that can be launched: lowering, text, machine code.

Kernels with equal text share their machine code, in the process and, by the runtime, on disk; each
is compiled once, whichever thread asks first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import options
from .caches.code_cache import load_code
from .caches.disk_cache import DiskCache, disk_cache
from .devices.runtime import LaunchCode, LoadedKernel, Runtime
from .ir.fusion import Fusion
from .ir.kernel import Kernel, Predicate, all_hold
from .ir.schedule import ScheduledFusion
from .kernel_cache import KernelCache
from .target.target import Code, Target
from .trace import DUMP, Trace

_binaries: KernelCache[tuple[Runtime, str], Any] = KernelCache()
_connected: dict[Runtime, DiskCache | None] = {}

_TEXTS = ("llvm", "asm", "cuda", "ptx")  # the stages that belong to targets


def lowered(scheduled: ScheduledFusion, target: Target, trace: Trace = DUMP) -> Kernel:
    """The kernel of a schedule."""
    from .lower.lowering import lower  # not needed if all kernels are on disk

    trace.stage("scheduled", scheduled)
    kernel = lower(scheduled, target, after=trace.after, verify=options.strict())
    trace.stage("kernel", kernel)
    return kernel


def kernel_code(kernel: Kernel, target: Target, trace: Trace = DUMP) -> Code:
    """The text of a kernel."""
    code = target.generate(kernel)
    if trace.wants(*_TEXTS):
        for stage, text in target.texts(code).items():
            trace.stage(stage, text)
    return code


def kept_code(fusion: Fusion, scheduler: str, parameters: object, target: Target) -> Code | None:
    """The code that an earlier process made of a fusion with these parameters, if it was kept.

    None if the stages have to run because they are to be shown or verified.
    """
    if options.strict() or DUMP.wants("scheduled", "kernel", *_TEXTS):
        return None
    return load_code(fusion, scheduler, parameters, target)


def build_kernel(code: Code, runtime: Runtime) -> LoadedKernel:
    """A kernel that can be launched; equal texts share their machine code."""
    return runtime.load(code, _binary(code, runtime))


def launch_function(code: LaunchCode, runtime: Runtime) -> object:
    """The launch function of a kernel of which nothing else is needed."""
    return runtime.launch_function(_binary(code, runtime))


def _binary(code: Code | LaunchCode, runtime: Runtime) -> Any:
    share_objects(runtime)
    return _binaries.get_or_create((runtime, code.text), lambda: runtime.compile(code))


def compiled_kernel_count() -> int:
    """Kernels that were compiled, or loaded from the disk cache, in this process so far.

    Failed compilations don't count.
    """
    return _binaries.created


def share_objects(runtime: Runtime) -> None:
    """Connects a runtime with the disk cache that the options select now."""
    cache = disk_cache()
    if runtime not in _connected or _connected[runtime] is not cache:
        runtime.keep_objects_in(cache)
        _connected[runtime] = cache  # only now: a failure is tried again


def compile_ahead(code: Code, runtime: Runtime) -> None:
    """Lets the runtime begin compiling a text, unless that has been done."""
    share_objects(runtime)
    if (runtime, code.text) not in _binaries:
        runtime.compile_ahead(code)


def index_bits(narrow: Predicate | None, sizes: Mapping[str, int]) -> int:
    """The width of indices, for the conditions under which they may be narrow."""
    return 64 if narrow is None or not all_hold(narrow, sizes) else 32
