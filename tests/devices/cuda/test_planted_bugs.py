"""Bugs planted into generated kernels: the emulator reports each one, with the kernel's line.

A bug is a change of the kernel's text, or of the helpers' text before it.  The kernel without it
runs, so that a test fails if it is not the bug that was reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from pyfuser.devices.cuda.emulator.harness import SimtError
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ops import builders
from tests.cuda.emulate import run_emulated
from tests.cuda.examples import (
    grid_sum,
    input_tensor,
    row_softmax,
    shared_sum,
    tiled_transpose,
    vector_schedule,
)
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = requires_host_compiler


def doubled() -> ScheduledFusion:
    """Twice a vector: 32 threads of 4 elements, in vectors where they are aligned."""
    fusion = Fusion()
    fusion.add_output(builders.mul(fusion, input_tensor(fusion, 1), 2.0))
    return vector_schedule(ScheduledFusion(fusion), 32, 4)


def columns() -> list[torch.Tensor]:
    return [torch.randn(60, 70)]


def rows() -> list[torch.Tensor]:
    return [torch.randn(5, 256)]


def vector() -> list[torch.Tensor]:
    return [torch.randn(1025)[1:]]  # its first element is not at a multiple of 16 bytes


def long_vector() -> list[torch.Tensor]:
    return [torch.randn(1025)]


@dataclass(frozen=True)
class Bug:
    """`pattern` is replaced, everywhere; the message, and what is in the kernel's line."""

    schedule: Callable[[], ScheduledFusion]
    inputs: Callable[[], list[torch.Tensor]]
    pattern: str
    replacement: str
    message: str
    line: str


TILE = r"T2\[(?=threadIdx_x \+ )"
BARRIER = r"__syncthreads\(\);(?=\n  if)"
END = r"\n\}\n\Z"
TWO_BARRIERS = "if (threadIdx_x < 7) __syncthreads();\nelse __syncthreads();"
UNORDERED = "race in shared memory|has not written yet"

BUGS = {
    "a missing barrier": Bug(tiled_transpose, columns, BARRIER, "", UNORDERED, "T2"),
    "a missing barrier in a helper": Bug(
        shared_sum, rows, r"__syncthreads\(\);(?=\n    result = )", "", UNORDERED, "block_reduce"
    ),
    "partial results read by every block": Bug(
        *(grid_sum, long_vector, r"if \(is_last_block\(arrived, .*\{", "__syncthreads(); {"),
        *("race in global memory.* another block", "T4"),
    ),
    "no fence before the counter": Bug(
        *(grid_sum, long_vector, r"__threadfence\(\);", ""),
        *("race in global memory.* another block", "T4"),
    ),
    "a barrier for some threads": Bug(
        *(tiled_transpose, columns, END, "\nif (threadIdx_x < 7) __syncthreads();\n}\n"),
        *("barrier divergence: .* has left the kernel", "__syncthreads"),
    ),
    "two barriers that different threads wait at": Bug(
        *(tiled_transpose, columns, BARRIER, TWO_BARRIERS),
        *("barrier divergence: .* waits at another barrier", "__syncthreads"),
    ),
    "a barrier after some threads have left": Bug(
        *(tiled_transpose, columns, BARRIER, "if (threadIdx_x == 9) return; __syncthreads();"),
        *("barrier divergence: .* has left the kernel", "__syncthreads"),
    ),
    "an input read beyond its end": Bug(
        *(tiled_transpose, columns, r"T0\[", "T0[1 + "),
        *("reads 4 bytes outside of every buffer .4 bytes past the end of buffer 0", r"T0\["),
    ),
    "an input read before its start": Bug(
        *(tiled_transpose, columns, r"T0\[", "T0[-1 + "),
        *("reads 4 bytes outside of every buffer .4 bytes before buffer 0", r"T0\["),
    ),
    "an output written beyond its end": Bug(
        *(tiled_transpose, columns, r"T1\[", "T1[1 + "),
        *("writes 4 bytes outside of every buffer .4 bytes past the end of buffer 1", r"T1\["),
    ),
    "a vector read beyond the end": Bug(
        *(doubled, lambda: [torch.randn(1022)], r"\+ 3 < i0", "< i0"),
        *("reads 16 bytes outside of every buffer .8 bytes past the end of buffer 0", "load_"),
    ),
    "an index beyond shared memory": Bug(
        *(tiled_transpose, columns, TILE, "T2[992 + "),
        *("an index is outside of its array", r"T2\["),
    ),
    "an index beyond dynamic shared memory": Bug(
        *(shared_sum, rows, r"T2\[(?=.* = )", "T2[1 + "),
        *("writes 4 bytes outside of every buffer", r"T2\["),
    ),
    "an address beyond shared memory": Bug(
        *(tiled_transpose, columns, TILE, "(&T2[0])[992 + "),
        *("writes 4 bytes outside of every buffer", r"T2\["),
    ),
    "an index beyond registers": Bug(
        *(row_softmax, lambda: [torch.randn(3, 48)], r"T1\[(?=j1\*4 \+ j3\] = )", "T1[1 + "),
        *("an index is outside of its array", r"T1\["),
    ),
    "shared memory that nobody wrote": Bug(
        *(tiled_transpose, columns, r"threadIdx_y < i0 &&", "threadIdx_y < i0 - 1 &&"),
        *("reads byte .* of shared memory, which this block has not written yet", r"= T2\["),
    ),
    "a race in shared memory": Bug(
        *(tiled_transpose, columns, r"T2\[threadIdx_x \+ threadIdx_y\*32\]", "T2[threadIdx_x]"),
        *("race in shared memory: writes byte", r"T2\["),
    ),
    "blocks that write the same element": Bug(
        *(tiled_transpose, columns, r"T1\[blockIdx_x\*i0", "T1[0*i0"),
        *("race in global memory: writes byte .* where another thread wrote", r"T1\["),
    ),
    "blocks that update the same element": Bug(
        *(shared_sum, rows, r"T1\[blockIdx_x\]", "T1[0]"),
        *("race in global memory: .* which another block touched|wrote something else", r"T1\["),
    ),
    "threads that read what others write": Bug(
        *(doubled, vector, r"T2\[j3\] \* 2.0f", r"T2[j3] * 2.0f + T1[0]"),
        *("race in global memory: .*(touched|wrote)", r"T1\["),
    ),
    "a vector that is not aligned": Bug(
        *(doubled, vector, r"is_aligned<widest<T, N>::bytes>\(from\)", "true"),
        *("a load or store is not aligned to its type", "load_contiguous"),
    ),
    "a mask that leaves out lanes": Bug(
        *(shared_sum, rows, r"__shfl_down_sync\(0xffffffffu", "__shfl_down_sync(0x0000ffffu"),
        *("the mask 0x0000ffff leaves out the calling lane", "block_reduce"),
    ),
    "a mask that names lanes that have left": Bug(
        *(shared_sum, rows, "T3 = 0.0f;", "T3 = 0.0f; if (threadIdx_x == 40) return;"),
        *("names lane 8 of warp 1, which has left the kernel|has left the kernel", "T3|__sync"),
    ),
    "a shuffle that some lanes skip": Bug(
        *(shared_sum, rows, r"(?<=; delta /= 2\) \{\n)      value", "if (threadIdx.x != 3) value"),
        *("barrier divergence|the mask .* names lane", "block_reduce"),
    ),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_reported_with_its_line(name: str, seed: int) -> None:
    bug = BUGS[name]
    scheduled, inputs = bug.schedule(), bug.inputs()
    run_emulated(scheduled, inputs, (seed,))
    texts = []

    def planted(text: str) -> str:
        texts.append(re.sub(bug.pattern, bug.replacement, text))
        assert texts[0] != text
        return texts[0]

    with pytest.raises(SimtError, match=bug.message) as caught:
        run_emulated(scheduled, inputs, (seed,), edited=planted)
    found = re.search(r"kernel\.cu:(\d+)", str(caught.value))
    assert found, caught.value
    kernel = texts[0].partition('#line 1 "kernel.cu"\n')[2]
    assert re.search(bug.line, kernel.splitlines()[int(found.group(1)) - 1]), caught.value
