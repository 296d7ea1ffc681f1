"""Measures every case at every size and dtype in this process: pyfuser, eager torch, Inductor.

On a GPU (mode "gpu") times are those of gpu.py.  On the CPU, the memory mode belongs to the
process: `__main__` starts this module once with the system's memory allocation (fresh) and once
with glibc configured to keep freed blocks (warm), so all contestants are treated alike.  Each
result is compared with float64 before its time counts.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from . import gpu
from .cases import CASES, DTYPES, Case, definition
from .gradients import GRADIENTS
from .harness import (
    copy_bandwidth,
    error_of,
    interleaved,
    machine_facts,
    synchroniser,
    traffic_bytes,
)
from .report import Results, Row

# How much a result may differ from float64, relative to the greatest value: 16 roundings of the
# storage dtype, or four times the difference of eager torch on the same inputs.
_ROUNDINGS = 16
_EAGER_FACTOR = 4


def measure(
    mode: str,
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    dtypes: Sequence[str],
    device: str = "cpu",
    seconds: float = 0.3,
    inductor: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Results:
    """The rows of one mode.  `names` are parts of case names; empty means all of them."""
    compilable = inductor and inductor_works(device)
    clock = gpu.CudaClock(device) if mode == "gpu" else None

    def bandwidth() -> float:
        return copy_bandwidth(device) if clock is None else gpu.copy_bandwidth(clock, device)

    rows, bandwidths = [], [bandwidth()]
    cases = CASES if clock is None else (*CASES, *GRADIENTS)
    for case, (height, width), dtype in selected(names, sizes, dtypes, cases):
        progress(f"{case.name} {height}x{width} {dtype}")
        row, contestants = _first_calls(case, height, width, dtype, device, compilable)
        if clock is None:
            row.seconds = interleaved(contestants, seconds, synchronise=synchroniser(device))
        else:
            row.seconds = gpu.cold_seconds(contestants, clock, seconds)
            row.host_seconds = gpu.host_seconds(contestants, clock)
        rows.append(row)
        del contestants
        if len(rows) % 15 == 0:
            bandwidths.append(bandwidth())
    facts = machine_facts(device)
    return Results(mode, facts, statistics.median(bandwidths), rows)


def selected(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    dtypes: Sequence[str],
    cases: Sequence[Case] = CASES,
) -> Iterator[tuple[Case, tuple[int, int], str]]:
    """The rows to measure, in the order of the table; a complete name selects only that case."""
    complete = {case.name for case in cases}
    for case in cases:
        if names and not any(
            name == case.name if name in complete else name.lower() in case.name.lower()
            for name in names
        ):
            continue
        for dtype in dtypes:
            for size in sizes:
                yield case, size, dtype


def inductor_works(device: str) -> bool:
    """True if torch.compile can build kernels: it needs a C++ compiler for the CPU."""
    if device.startswith("cuda"):
        return True
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def _first_calls(
    case: Case, height: int, width: int, dtype: str, device: str, inductor: bool
) -> tuple[Row, dict[str, Callable[[], Any]]]:
    """The row, and the functions whose results are right; each has been called once."""
    # Without the reset, Dynamo would count this shape as a recompilation of the last one.
    torch._dynamo.reset()
    generator = torch.Generator(device).manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device=device)
        return values.to(DTYPES[dtype])

    inputs = case.inputs(height, width, make)
    eager = _outputs(case.reference(*inputs))
    row = Row(case.name, height, width, dtype, traffic_bytes([*inputs, *eager]))
    doubles = [each.double() for each in inputs]
    references = _outputs(case.reference(*doubles))
    magnitudes = (
        _outputs(case.reference(*(each.abs() for each in doubles))) if case.is_sum else references
    )
    eager_error = error_of(eager, references, magnitudes)
    allowed = max(_ROUNDINGS * torch.finfo(DTYPES[dtype]).eps, _EAGER_FACTOR * eager_error)
    contestants: dict[str, Callable[[], Any]] = {"eager": lambda: case.reference(*inputs)}
    fused = _first_call(row, "pyfuser", lambda: _pyfuser(case, inputs))
    if fused is not None:
        row.error = error_of(fused(), references, magnitudes)
        if row.error <= allowed:
            contestants["pyfuser"] = fused
        else:
            row.failure = f"wrong by {row.error:.1e}"
    if inductor:
        compiled = _first_call(row, "inductor", lambda: _inductor(case, inputs))
        if compiled is not None:
            contestants["inductor"] = compiled
    return row, contestants


def _pyfuser(case: Case, inputs: list[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    if case.define is None:
        compiled = torch.compile(case.reference, backend="pyfuser", dynamic=False)
        return lambda: _outputs(compiled(*inputs))
    fd = definition(case, inputs)
    return lambda: fd.execute(inputs)


def _inductor(case: Case, inputs: list[torch.Tensor]) -> Callable[[], Any]:
    compiled = torch.compile(case.reference, dynamic=False)
    return lambda: compiled(*inputs)


def _first_call(
    row: Row, contestant: str, make: Callable[[], Callable[[], Any]]
) -> Callable[[], Any] | None:
    """Defines and calls once, recording the time; a failure is written into the row, not raised."""
    start = time.perf_counter()
    try:
        function = make()
        function()
    except Exception as error:  # whatever a contestant raises belongs in its row
        if contestant == "pyfuser":
            row.failure = f"{type(error).__name__}"
        return None
    row.first_call_seconds[contestant] = time.perf_counter() - start
    return function


def _outputs(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]
