"""The interface's timers for benchmarks: callables that return seconds, as pytest-benchmark takes.

A timer is called before and after what is measured; the difference of the two values counts.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from .errors import UnsupportedError, expected
from .frontend.profiler import PythonProfiler


class Timer:
    """Wall-clock time on an idle GPU."""

    def __init__(self) -> None:
        self.current_time = 0.0

    def __call__(self) -> float:
        """Seconds of a clock that never goes back."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.current_time = time.perf_counter()
        return self.current_time

    def cleanup(self) -> None:
        """Ends a measurement that was begun."""


class FusionProfileTimer(Timer):
    """The time that a fusion's kernels take, without what the host does."""

    def __init__(self) -> None:
        super().__init__()
        self._profiler: PythonProfiler | None = None

    def __call__(self) -> float:
        """Begins a profile, or adds the kernels' time of the one that was begun."""
        if self._profiler is None:
            self._profiler = PythonProfiler().__enter__()
        else:
            profiler = self._profiler
            self.cleanup()
            self.current_time += profiler.profile.kernel_time_ms / 1e3
        return self.current_time

    def cleanup(self) -> None:
        """Ends a profile that was begun."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.__exit__(None, None, None)


class CuptiProfiler:
    """NVIDIA's profiling interface; UnsupportedError without a GPU."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise UnsupportedError(expected("CuptiProfiler", "an NVIDIA GPU", "none"))
        self._profiler: Any = None

    def start(self) -> None:
        """Begins to record kernels."""
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._profiler.__enter__()

    def stop(self) -> list[tuple[str, float]]:
        """(name, seconds) of every kernel since `start`."""
        torch.cuda.synchronize()
        profiler, self._profiler = self._profiler, None
        profiler.__exit__(None, None, None)
        events = [event for event in profiler.events() if event.device_time > 0]
        return [(demangle_kernel_name(event.name), event.device_time * 1e-6) for event in events]


class CuptiTimer(Timer):
    """The time that all kernels on the GPU take; UnsupportedError without a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._profiler = CuptiProfiler()
        self._is_started = False

    def __call__(self) -> float:
        """Begins to record, or adds the time of what was recorded."""
        if self._is_started:
            self.current_time += sum(seconds for _, seconds in self._profiler.stop())
        else:
            self._profiler.start()
        self._is_started = not self._is_started
        return self.current_time

    def cleanup(self) -> None:
        """Ends a recording that was begun."""
        if self._is_started:
            self._profiler.stop()
            self._is_started = False


def demangle_kernel_name(mangled_name: str) -> str:
    """The C++ name of a mangled one; any other name unchanged."""
    demangle = getattr(torch._C, "_demangle", None)
    return str(demangle(mangled_name)) if demangle is not None else mangled_name
