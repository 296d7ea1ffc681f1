"""Measures every case on a GPU, in the order of importance, until the time is up.

All forward and backward passes at 256 MiB come first, then at 4 MiB, then very long and very short
rows, then 2 GiB (sizes in float32, bfloat16 has half of it).  A run of eight minutes may not get to
the end, and says what it left out; `--minutes` gives it more.  A row whose tensors don't fit into
the GPU's memory is left out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from . import gpu
from .cases import CASES, Case
from .gradients import GRADIENTS
from .harness import machine_facts
from .kernels import first_calls, selected
from .report import LEFT_OUT, Key, Results, Row
from .torch_cases import TORCH_CASES

ALL_CASES = (*CASES, *TORCH_CASES, *GRADIENTS)
SIZES = ((16384, 4096), (1024, 1024), (64, 1 << 20), (1 << 20, 64), (131072, 4096))
MINUTES = 7.0  # of measuring; starting, and the bandwidth of copies, take the rest of eight
_DRY_SIZES = ((128, 192),)
# A row needs some tensors of its size in float32, and as many in float64 to check the results.
_TENSORS = 20
_BYTES = 4


def measure(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    dtypes: Sequence[str],
    device: str,
    seconds: float = gpu.SECONDS,
    inductor: bool = True,
    minutes: float = MINUTES,
    predicted: Mapping[Key, float] | None = None,
    progress: Callable[[str], None] = lambda text: None,
    clock: gpu.Clock | None = None,
    copied_bytes: int = gpu.COPIED_BYTES,
) -> Results:
    """The rows; `names` are parts of case names, empty means all.  `clock`: CUDA events if None."""
    timer = clock or gpu.CudaClock(device)
    end = time.monotonic() + 60 * minutes
    rows: list[Row] = []
    left_out: list[str] = []
    bandwidths = [gpu.copy_bandwidth(timer, device, copied_bytes)]
    for case, (height, width), dtype in ordered(names, sizes, dtypes):
        title = f"{case.name} {height}x{width} {dtype}"
        if time.monotonic() > end:
            left_out.append(f"{title}: no time")
        elif not fits(height, width, device):
            left_out.append(f"{title}: no memory")
        else:
            progress(title)
            row = _measured(case, height, width, dtype, device, inductor, seconds, timer)
            row.predicted = (predicted or {}).get(row.key)
            rows.append(row)
            if len(rows) % 30 == 0:
                bandwidths.append(gpu.copy_bandwidth(timer, device, copied_bytes))
    facts = machine_facts(device) | {LEFT_OUT: left_out}
    return Results("gpu", facts, statistics.median(bandwidths), rows)


def dry_run(
    names: Sequence[str],
    dtypes: Sequence[str],
    inductor: bool,
    progress: Callable[[str], None] = lambda text: None,
) -> Results:
    """All of `measure` on the CPU, at tiny sizes: its numbers mean nothing."""
    found = measure(
        *(names, _DRY_SIZES, dtypes, "cpu", 0.0, inductor),
        minutes=math.inf,
        predicted={(case.name, *_DRY_SIZES[0], "float32"): 0.5 for case in ALL_CASES},
        progress=progress,
        clock=gpu.HostClock(),
        copied_bytes=1 << 20,
    )
    return found


def ordered(
    names: Sequence[str], sizes: Sequence[tuple[int, int]], dtypes: Sequence[str]
) -> Iterator[tuple[Case, tuple[int, int], str]]:
    """The rows of a run: all cases at the first size, then at the next one."""
    for size in sizes:
        for dtype in dtypes:
            yield from selected(names, [size], [dtype], ALL_CASES)


def fits(height: int, width: int, device: str) -> bool:
    """True if the GPU has memory for a row; it is always true for the CPU."""
    if not device.startswith("cuda"):
        return True
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return height * width * _BYTES * _TENSORS <= free + cached


def _measured(
    case: Case,
    height: int,
    width: int,
    dtype: str,
    device: str,
    inductor: bool,
    seconds: float,
    clock: gpu.Clock,
) -> Row:
    """A row; what eager torch raises is its failure, and the run goes on."""
    try:
        row, contestants = first_calls(case, height, width, dtype, device, inductor)
        row.seconds = gpu.cold_seconds(contestants, clock, seconds)
        row.host_seconds = gpu.host_seconds(contestants, clock)
    except (RuntimeError, NotImplementedError) as error:  # out of memory is one of them
        row = Row(case.name, height, width, dtype, 0, failure=type(error).__name__)
    if height * width * _BYTES >= 1 << 30 and device.startswith("cuda"):
        torch.cuda.empty_cache()  # large blocks of one row don't fit those of the next
    return row


def comparison(rows: Sequence[Row], copy_bytes_per_second: float) -> str:
    """How well the emulator's counts predict: measured shares over predicted ones."""
    ratios = [
        bandwidth / copy_bytes_per_second / row.predicted
        for row in rows
        if row.predicted and (bandwidth := row.bandwidth())
    ]
    if not ratios:
        return "No row has a prediction (python -m benchmarks.predictions makes them)."
    logarithms = [math.log(each) for each in ratios]
    mean, spread = math.exp(statistics.fmean(logarithms)), math.exp(statistics.pstdev(logarithms))
    return (
        f"Measured share of the copy bandwidth over the predicted share, {len(ratios)} rows: "
        f"geometric mean {mean:.2f}, spread a factor of {spread:.2f}, "
        f"from {min(ratios):.2f} to {max(ratios):.2f}."
    )
