"""The interface's profiler: what the kernels of an execution did, and how fast.

    with PythonProfiler() as prof:
        fd.execute(inputs)
    print(prof.profile)

Times are in milliseconds, bandwidths in GB/s (1e9 bytes), percentages of the bandwidth of a copy
out of cache, measured on the same device.  While a profiler is active, every execution waits for
the device after each kernel; the last one is the profile.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import InputError, expected

if TYPE_CHECKING:
    from ..profiling import CallProfile, PartProfile, Recorder

_HEADER = ("kernel", "time", "bandwidth", "of copy", "read", "written", "grid", "block")


@dataclass
class KernelProfile:
    """One kernel, library call or view of an execution."""

    name: str = ""
    segment_id: int = 0
    device: int = 0
    stream: int = 0
    correlation_id: int = 0
    compile_time_ms: float = 0.0
    time_ms: float = 0.0
    effective_bandwidth_gbs: float = 0.0
    percentage_peak_bandwidth: float = 0.0
    grid_str: str = ""
    block_str: str = ""
    cluster_str: str = ""
    shared_mem_str: str = ""
    registers: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    scheduler: str = ""


@dataclass
class FusionProfile:
    """One execution.  `fusion_id` counts the profiles of the process; -1 is an empty one."""

    verbose: bool = False
    fusion_id: int = -1
    segments: int = 0
    cuda_evt_time_ms: float = 0.0
    host_time_ms: float = 0.0
    compile_time_ms: float = 0.0
    kernel_time_ms: float = 0.0
    effective_bandwidth_gbs: float = 0.0
    percentage_peak_bandwith: float = 0.0  # the interface's spelling
    input_bytes: int = 0
    output_bytes: int = 0
    kernel_profiles: list[KernelProfile] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [_HEADER]
        rows += [
            (
                kernel.name,
                f"{kernel.time_ms:.4f} ms",
                f"{kernel.effective_bandwidth_gbs:.1f} GB/s",
                f"{kernel.percentage_peak_bandwidth:.0f} %",
                f"{kernel.input_bytes:,} B",
                f"{kernel.output_bytes:,} B",
                kernel.grid_str,
                kernel.block_str,
            )
            for kernel in self.kernel_profiles
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        total = (
            f"fusion {self.fusion_id}: {self.segments} segments, host {self.host_time_ms:.3f} ms, "
            f"kernels {self.kernel_time_ms:.3f} ms, compilation {self.compile_time_ms:.3f} ms"
        )
        return "\n".join((total, *lines))


class _Last(threading.local):
    profile: FusionProfile | None = None


_last = _Last()
_numbers = count()


class PythonProfiler:
    """Profiles the executions inside `with`; `profile` is the last one.

    `auto_scheduled` is False for `manual_execute`, whose one kernel has the scheduler "user".
    """

    def __init__(self, auto_scheduled: bool = True) -> None:
        self.auto_scheduled = auto_scheduled
        self.profile = FusionProfile()
        self._recording: AbstractContextManager[Recorder] | None = None
        self._recorder: Recorder | None = None

    def __enter__(self) -> PythonProfiler:
        from ..profiling import Recorder, recording

        reset_profiler()
        self._recording = recording(Recorder())
        self._recorder = self._recording.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._recording is not None and self._recorder is not None
        self._recording.__exit__(kind, error, trace)
        if self._recorder.calls:
            self.profile = _last.profile = _fusion_profile(
                self._recorder.calls[-1], self.auto_scheduled
            )


def get_fusion_profile() -> FusionProfile:
    """The last profile of this thread.  InputError if there is none."""
    found = _last.profile
    if found is None or not found.segments:
        hint = "execute a fusion inside `with PythonProfiler():`"
        raise InputError(expected("get_fusion_profile", "a profiled execution", "none", hint))
    return found


def reset_profiler() -> None:
    """Forgets the last profile."""
    _last.profile = None


def _fusion_profile(call: CallProfile, auto_scheduled: bool) -> FusionProfile:
    from ..devices.bandwidth import copy_bandwidth

    peak = copy_bandwidth(call.device)
    number = next(_numbers)
    kernels = [_kernel_profile(part, peak, number, auto_scheduled) for part in call.parts]
    seconds = sum(part.seconds for part in call.parts)
    made = FusionProfile(
        fusion_id=number,
        segments=len(kernels),
        cuda_evt_time_ms=seconds * 1e3,
        host_time_ms=call.host_seconds * 1e3,
        compile_time_ms=call.compile_seconds * 1e3,
        kernel_time_ms=seconds * 1e3,
        input_bytes=sum(part.read for part in call.parts),
        output_bytes=sum(part.written for part in call.parts),
        kernel_profiles=kernels,
    )
    rate = _rate(made.input_bytes + made.output_bytes, seconds)
    made.effective_bandwidth_gbs = rate / 1e9
    made.percentage_peak_bandwith = 100 * rate / peak
    return made


def _kernel_profile(
    part: PartProfile, peak: float, fusion: int, auto_scheduled: bool
) -> KernelProfile:
    scheduler = part.scheduler if auto_scheduled else "user"
    rate = _rate(part.read + part.written, part.seconds)
    return KernelProfile(
        name=f"pyfuser_{scheduler}_f{fusion}_g{part.number}",
        segment_id=part.number,
        device=part.device.index or 0,
        time_ms=part.seconds * 1e3,
        effective_bandwidth_gbs=rate / 1e9,
        percentage_peak_bandwidth=100 * rate / peak,
        grid_str=str(list(part.grid)),
        block_str=str(list(part.block)),
        input_bytes=part.read,
        output_bytes=part.written,
        scheduler=scheduler,
    )


def _rate(size: int, seconds: float) -> float:
    return size / seconds if seconds else 0.0
