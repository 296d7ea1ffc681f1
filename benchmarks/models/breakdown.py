"""Where the time of a compiled model's call goes: kernels, library calls, dispatch, guards.

A model -> by phase, seconds of a call in

    library    the library calls that eager makes, run again by themselves (library.py)
    kernels    pyfuser's kernels, by the clocks that graphs have if a Recorder records
    dispatch   the rest of the compiled graphs: allocation, launches, views, calls into the library
    outside    what comes before and after the graphs: guards, AOTAutograd, the model's own code

The first is measured on its own, so `dispatch` also has what the library loses or gains among other
work; it may be below zero where the compiled graph makes fewer or faster library calls.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pyfuser.profiling import Recorder, recording
from pyfuser.torch_compile import compiled_graph

from .library import library_calls, replay
from .work import compiled, contestants, made_in, warm_up

_CALLS = 15


class _Clock:
    """Adds up the seconds spent in compiled graphs."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Any]:
        """The call of a graph, on the clock."""

        def run(args: list[Any]) -> Sequence[Any]:
            start = time.perf_counter()
            try:
                return call(args)
            finally:
                self.seconds += time.perf_counter() - start

        return run


@contextmanager
def _clocked() -> Iterator[_Clock]:
    """Graphs that are compiled meanwhile are on the clock, for as long as they live."""
    clock, made = _Clock(), compiled_graph.CompiledGraph.__init__

    def make(self: compiled_graph.CompiledGraph, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self.call = clock.timed(self.call)

    compiled_graph.CompiledGraph.__init__ = make  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        compiled_graph.CompiledGraph.__init__ = made  # type: ignore[method-assign]


def breakdown(name: str, precision: str) -> dict[str, dict[str, float]]:
    """Seconds of a call by phase and kind, and "launches", the number of kernels it runs."""
    return {phase: _of_phase(name, precision, phase) for phase in ("training", "forward")}


def _of_phase(name: str, precision: str, phase: str) -> dict[str, float]:
    model, inputs = made_in(name, precision)
    torch._dynamo.reset()
    calls = {"eager": model, "pyfuser": compiled(model, "pyfuser")}
    timed = contestants(model, calls, inputs, phase, precision)
    library, call = replay(library_calls(timed["eager"])), timed["pyfuser"]
    with _clocked() as clock:
        warm_up(call)
        library()
        totals, inside, by_library = [], [], []
        for _ in range(_CALLS):
            clock.seconds = 0.0
            totals.append(_seconds(call))
            inside.append(clock.seconds)
            by_library.append(_seconds(library))
    kernels, launches = _kernels(call)
    graphs, floor = statistics.median(inside), statistics.median(by_library)
    return {
        "library": floor,
        "kernels": kernels,
        "dispatch": graphs - floor - kernels,
        "outside": statistics.median(totals) - graphs,
        "launches": launches,
    }


def _kernels(call: Callable[[], object]) -> tuple[float, float]:
    """(seconds in kernels, their number) of one call, from graphs compiled with clocks."""
    torch._dynamo.reset()
    recorder = Recorder()
    seconds, counts = [], []
    with recording(recorder):
        warm_up(call)
        for _ in range(_CALLS):
            recorder.calls.clear()
            call()
            parts = [part for made in recorder.calls for part in made.parts]
            kernels = [part for part in parts if part.scheduler not in ("library", "view")]
            seconds.append(sum(part.seconds for part in kernels))
            counts.append(len(kernels))
    return statistics.median(seconds), statistics.median(counts)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
