"""The copy bandwidth of a device: the yardstick for every memory-bound kernel."""

from __future__ import annotations

import functools
import statistics
import time

import torch


@functools.cache
def copy_bandwidth(
    device: torch.device, size_bytes: int = 256 << 20, repetitions: int = 7
) -> float:
    """Bytes read plus bytes written per second by torch's `copy_` between two big float tensors.

    `size_bytes` is the size of one of the two; the result is the median of `repetitions` copies, on
    torch's current threads or stream.  Measured once.
    """
    source = torch.ones(size_bytes // 4, device=device)
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(repetitions):
        _wait(device)
        start = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size_bytes / statistics.median(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
