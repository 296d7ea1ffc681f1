"""What ptxas reports about kernels: CUDA C++ text -> registers, shared memory, spills of each.

NVRTC's log has the report if ptxas is asked for it (`--ptxas-options=-v`); needs no GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .nvrtc import compile_with_report

_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_NUMBERS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
}


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What a kernel needs on one architecture.

    registers                  of a thread
    shared_bytes               of a block, statically
    stack_bytes                of a thread, in local memory
    spill_stores, spill_loads  bytes of instructions that spill registers to it
    """

    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_stores: int = 0
    spill_loads: int = 0


def kernel_resources(source: str, architecture: str) -> dict[str, KernelResources]:
    """Of each kernel of a text with its prelude.  Raises as `nvrtc.compile_to_cubin` does."""
    return parsed(compile_with_report(source, architecture)[1])


def parsed(report: str) -> dict[str, KernelResources]:
    """The resources of each function in ptxas' report."""
    _, *parts = _FUNCTION.split(report)
    return {
        name: KernelResources(**{field: _number(each, text) for field, each in _NUMBERS.items()})
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def _number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found.group(1)) if found else 0
