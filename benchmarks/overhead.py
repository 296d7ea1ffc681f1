"""The cost of a call besides its kernel, of a first call, and of a new shape.

Call overhead: three 8-element tensors (two in, one out), in this process.  First calls: each in a
new process, with empty caches and again with the caches that the first run left on disk; the
modules are imported and one unrelated kernel is compiled before timing starts.  New shapes: one
definition with symbolic sizes, its first call on each of many shapes against the second.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from pyfuser import FusionDefinition

from .cases import CASES, Case, definition
from .harness import interleaved, machine_facts

FIRST_CALLS = ("bias + GELU (tanh)", "layer norm")
ROWS, COLUMNS = 256, 1024
_REPETITIONS = 3
_NEW_SHAPES = 200


@dataclass
class Overheads:
    """Seconds: per call, per first call (contestant, cache -> case -> seconds), per new shape."""

    machine: dict[str, object]
    call: dict[str, float]
    first_call: dict[str, dict[str, float]]
    new_shape_first: float
    new_shape_steady: float

    def to_json(self) -> str:
        """The figures as JSON text; `from_json` reads it back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Overheads:
        """The figures that `to_json` wrote."""
        return Overheads(**json.loads(text))

    def table(self) -> str:
        """Three Markdown tables."""
        eager = self.call["eager"]
        lines = ["| one call on 8-element tensors | time | eager = 1 |", "|---|--:|--:|"]
        lines += [
            f"| {name} | {seconds * 1e6:.2f} µs | {seconds / eager:.1f} |"
            for name, seconds in self.call.items()
        ]
        lines += ["", f"| first call | {' | '.join(FIRST_CALLS)} |", "|---|--:|--:|"]
        for name, times in self.first_call.items():
            cells = [f"{times[case] * 1e3:.1f} ms" for case in FIRST_CALLS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        ratio = self.new_shape_first / self.new_shape_steady
        lines += [
            "",
            "| softmax, one definition, 200 shapes | median |",
            "|---|--:|",
            f"| first call on a new shape | {self.new_shape_first * 1e6:.1f} µs |",
            f"| second call on that shape | {self.new_shape_steady * 1e6:.1f} µs |",
            f"| ratio | {ratio:.1f} |",
        ]
        return "\n".join(lines)


def measure(inductor: bool) -> Overheads:
    """All figures; `inductor` says whether torch.compile can build kernels here."""
    first, steady = new_shapes()
    return Overheads(machine_facts(), call_overhead(inductor), first_calls(inductor), first, steady)


def call_overhead(inductor: bool) -> dict[str, float]:
    """Seconds per call of x + y on 8-element tensors."""
    x, y = torch.randn(8), torch.randn(8)
    inputs = [x, y]
    fd = definition(_case("add"), inputs)
    contestants: dict[str, Callable[[], object]] = {
        "eager": lambda: torch.add(x, y),
        "pyfuser": lambda: fd.execute(inputs),
    }
    if inductor:
        compiled = torch.compile(torch.add, dynamic=False)
        contestants["torch.compile"] = lambda: compiled(x, y)
    return interleaved(contestants, seconds=1.0)


def new_shapes() -> tuple[float, float]:
    """Median seconds of a definition's first and second call on each of many shapes."""
    fd = definition(_case("softmax"), [torch.randn(16, 32)])
    shapes = [(16 + index % 20, 32 + index) for index in range(_NEW_SHAPES + 10)]
    first, second = [], []
    for number, shape in enumerate(shapes):
        inputs = [torch.randn(*shape)]
        times = [_seconds(lambda inputs=inputs: fd.execute(inputs)) for _ in range(2)]
        if number >= 10:  # the first ones compile and warm up
            first.append(times[0])
            second.append(times[1])
    return statistics.median(first), statistics.median(second)


def first_calls(inductor: bool) -> dict[str, dict[str, float]]:
    """Seconds of first calls, by contestant and state of its disk cache."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(_REPETITIONS):
        for contestant in ("pyfuser", "torch.compile") if inductor else ("pyfuser",):
            with tempfile.TemporaryDirectory(prefix="pyfuser-bench-") as cache:
                for state in ("no caches", "disk cache"):
                    times = found.setdefault(f"{contestant}, {state}", {})
                    for case, seconds in _first_calls_in_child(contestant, cache).items():
                        times.setdefault(case, []).append(seconds)
    return {
        name: {case: statistics.median(samples) for case, samples in times.items()}
        for name, times in found.items()
    }


def _first_calls_in_child(contestant: str, cache: str) -> dict[str, float]:
    environment = {
        **os.environ,
        "PYFUSER_CACHE_DIR": os.path.join(cache, "pyfuser"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(cache, "inductor"),
    }
    command = [sys.executable, "-m", "benchmarks.overhead", contestant]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    times: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return times


def _child(contestant: str) -> None:
    """Prints the first-call times of this process as JSON."""
    _first_pyfuser() if contestant == "pyfuser" else _first_compiled(_case("mul chain"))
    times = {}
    for name in FIRST_CALLS:
        case = _case(name)
        inputs = case.inputs(ROWS, COLUMNS, torch.randn)
        if contestant == "pyfuser":
            times[name] = _seconds(lambda c=case, i=inputs: definition(c, i).execute(i))
        else:
            times[name] = _seconds(lambda c=case, i=inputs: torch.compile(c.reference)(*i))
    print(json.dumps(times))


def _first_pyfuser() -> FusionDefinition:
    inputs = _case("mul chain").inputs(ROWS, COLUMNS, torch.randn)
    fd = definition(_case("mul chain"), inputs)
    fd.execute(inputs)
    return fd


def _first_compiled(case: Case) -> None:
    torch.compile(case.reference)(*case.inputs(ROWS, COLUMNS, torch.randn))


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    _child(sys.argv[1])
