"""Is the CPU's memory pool worth having?  Kernels and models with each allocator's memory.

    python -m benchmarks.allocators [--models gpt2,resnet]

Each allocator has its own processes, in turn.  A row is the speed of pyfuser over eager, measured
in interleaved rounds in one process, so the columns can be compared; or the most memory that
training steps hold. docs/design.md has the table that decided the question.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import child
from benchmarks.harness import interleaved
from benchmarks.models import measure, zoo
from pyfuser.devices.cpu.runtime import CpuRuntime

_PACKAGE = "benchmarks.allocators"
_SECONDS, _WARM_UP_CALLS, _ROUNDS = 1.0, 4, 2
# M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX of glibc's mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4

Rows = dict[str, float]


def _pool() -> None:
    """pyfuser's default."""


def _torch() -> None:
    """torch.empty_strided, through the function without a Python frame that Inductor calls."""
    empty_strided = torch._C._dynamo.guards._empty_strided_cpu
    CpuRuntime.empty_strided = staticmethod(empty_strided)  # type: ignore[assignment, method-assign]


def _tuned_malloc() -> None:
    """The same, from a heap that never returns memory to the system."""
    _torch()
    libc = ctypes.CDLL(None)
    for parameter, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20)):
        assert libc.mallopt(parameter, value) == 1


ALLOCATORS: dict[str, tuple[Callable[[], None], dict[str, str]]] = {
    "pool": (_pool, {}),
    "torch": (_torch, {}),
    "tuned malloc": (_tuned_malloc, {}),
    # Huge pages for the heap can only be requested before a process starts.
    "tuned malloc, huge pages": (_tuned_malloc, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
}
KERNELS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "GELU, 64 KiB": (torch.nn.functional.gelu, (128, 128)),
    "GELU, 1 MiB": (torch.nn.functional.gelu, (512, 512)),
    "softmax, 16 MiB": (partial(torch.softmax, dim=-1), (2048, 2048)),
    "add, 64 MiB": (lambda x: x + 1.0, (4096, 4096)),
}


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="", help="names with commas between: gpt2,vit")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child.answer(sys.modules[__name__], arguments.child)
    names = zoo.selected([each for each in arguments.models.split(",") if each], zoo.MODELS)
    found: dict[str, list[Rows]] = {allocator: [] for allocator in ALLOCATORS}
    for _ in range(_ROUNDS):
        for allocator, (_, environment) in ALLOCATORS.items():
            rows: Rows = child.run(_PACKAGE, "kernels", allocator, PYFUSER_STRICT="", **environment)
            for what, name in itertools.product(("model", "memory"), names):
                rows |= child.run(_PACKAGE, what, allocator, name, PYFUSER_STRICT="", **environment)
            found[allocator].append(rows)
    print(f"| | {' | '.join(ALLOCATORS)} |\n|---|{'--:|' * len(ALLOCATORS)}")
    for row in found["pool"][0]:
        values = [statistics.mean(rows[row] for rows in each) for each in found.values()]
        in_full = row.endswith(("us", "MiB"))
        cells = [f"{value:.0f}" if in_full else f"{value:.2f}x" for value in values]
        print(f"| {row} | {' | '.join(cells)} |")
    return 0


def kernels(allocator: str) -> Rows:
    """Microseconds of a call, by kernel: eager allocates as well, so it is no measure."""
    ALLOCATORS[allocator][0]()
    rows: Rows = {}
    for name, (function, shape) in KERNELS.items():
        x = torch.randn(shape)
        steps = {
            "eager": partial(function, x),
            "pyfuser": partial(torch.compile(function, backend="pyfuser"), x),
        }
        rows[f"{name}, us"] = _seconds(steps)["pyfuser"] * 1e6
    return rows


def model(allocator: str, name: str) -> Rows:
    """Times eager of a training step and a forward pass."""
    ALLOCATORS[allocator][0]()
    found = measure.steady(name, ["pyfuser"], _SECONDS)["seconds"]
    return {f"{name}, {what}": each["eager"] / each["pyfuser"] for what, each in found.items()}


def memory(allocator: str, name: str) -> Rows:
    """The most MiB that training steps hold."""
    ALLOCATORS[allocator][0]()
    return {f"{name}, MiB": measure.peak(name, "pyfuser") / 2**20}


def _seconds(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    for step in steps.values():
        for _ in range(_WARM_UP_CALLS):
            step()
    return interleaved(steps, _SECONDS, fewest_rounds=7)


if __name__ == "__main__":
    sys.exit(main())
