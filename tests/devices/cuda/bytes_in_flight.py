"""`python -m tests.devices.cuda.bytes_in_flight`: what a multiprocessor has under way, by kernel.

Prints the table of docs/cuda.md: the bytes that all threads of a multiprocessor read before one of
them needs a value.  A thread's are those of the reads that no loop of unknown length separates;
how many threads a multiprocessor has is known from ptxas' report.  Needs NVRTC, and no GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

from pyfuser.devices.cuda.codegen import CudaSource
from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.devices.cuda.occupancy import occupancy
from pyfuser.devices.cuda.ptxas_report import kernel_resources
from pyfuser.dtypes import size_in_bytes
from pyfuser.ir.domains import ParallelType
from pyfuser.ir.kernel import Buffer, For, Statement
from pyfuser.ir.kernel_queries import accesses
from pyfuser.ir.scalars import ONE, Integer

from .benchmark_kernels import FUNCTIONS, codes_of

ARCHITECTURE, SHAPE, THREADS = "sm_90", (2048, 4096), 2048


def reads(
    body: Sequence[Statement], inputs: set[Buffer], scope: int = 0, times: int = 1
) -> Iterator[tuple[int, int]]:
    """(the loop of unknown length around it, bytes) for each read of an input by a thread."""
    for statement in body:
        if isinstance(statement, For):
            extent, kind = statement.stop, statement.parallel_type
            if kind.is_thread or (kind is ParallelType.unswitch and extent is ONE):
                inner = scope, times
            elif isinstance(extent, Integer):
                inner = scope, times * extent.value
            else:
                inner = id(statement), 1
            yield from reads(statement.body, inputs, *inner)
            continue
        for access in list(accesses(statement))[1:]:
            if access.buffer in inputs:
                yield scope, times * size_in_bytes(access.buffer.dtype)


def bytes_of_a_thread(code: CudaSource) -> int:
    """The most bytes that a thread of the first phase reads at once."""
    inputs = {tensor.buffer for tensor in code.kernel.tensors if not tensor.is_output}
    found: dict[int, int] = defaultdict(int)
    for scope, count in reads(code.kernel.phases[0].body, inputs):
        found[scope] += count
    return max(found.values(), default=0)


def main() -> None:
    """Prints a line for each kernel."""
    for dtype in (torch.float32, torch.bfloat16):
        for name in FUNCTIONS:
            for number, code in enumerate(codes_of(name, ARCHITECTURE, dtype, *SHAPE)):
                launch = code.launches[0]
                reports = kernel_resources(with_device_helpers(code.text), ARCHITECTURE)
                report = reports[launch.function]
                threads = 1
                for extent in launch.block:
                    assert isinstance(extent, Integer)
                    threads *= extent.value
                share = occupancy(ARCHITECTURE, threads, report.registers, report.shared_bytes)
                each = bytes_of_a_thread(code)
                cells = (dtype, f"{name} ({number})", f"{share:.0%}", each)
                print(*cells, f"{share * THREADS * each / 1024:.0f} KB", sep=" | ", flush=True)


if __name__ == "__main__":
    main()
