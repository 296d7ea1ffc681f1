"""Measures every case at every size and dtype in this process: pyfuser, eager torch, Inductor.

The memory mode belongs to the process: `__main__` starts this module once with the system's memory
allocation (fresh) and once with glibc configured to keep freed blocks (warm), so all contestants
are treated alike.  Each result is compared with float64 before its time counts.  On a GPU
gpu_kernels.py measures the rows that are made here.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .cases import CASES, DTYPES, Case, definition
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
    rows, bandwidths = [], [copy_bandwidth(device)]
    for case, (height, width), dtype in selected(names, sizes, dtypes):
        progress(f"{case.name} {height}x{width} {dtype}")
        row, contestants = first_calls(case, height, width, dtype, device, compilable)
        row.seconds = interleaved(contestants, seconds, synchronise=synchroniser(device))
        rows.append(row)
        del contestants
        if len(rows) % 15 == 0:
            bandwidths.append(copy_bandwidth(device))
    return Results(mode, machine_facts(device), statistics.median(bandwidths), rows)


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


def first_calls(
    case: Case, height: int, width: int, dtype: str, device: str, inductor: bool
) -> tuple[Row, dict[str, Callable[[], Any]]]:
    """The row, and the functions whose results are right; each has been called once."""
    # Without the reset, Dynamo would count this shape as a recompilation of the last one.
    torch._dynamo.reset()
    inputs = inputs_of(case, height, width, dtype, device)
    eager = outputs_of(case.reference(*inputs))
    row = Row(case.name, height, width, dtype, traffic_bytes([*inputs, *eager]))
    error_of_outputs = _errors(case, inputs, eager)
    allowed = max(
        _ROUNDINGS * torch.finfo(DTYPES[dtype]).eps, _EAGER_FACTOR * error_of_outputs(eager)
    )
    del eager
    contestants: dict[str, Callable[[], Any]] = {"eager": lambda: case.reference(*inputs)}
    fused = _first_call(row, "pyfuser", lambda: pyfuser_function(case, inputs))
    if fused is not None:
        row.error = error_of_outputs(fused())
        if row.error <= allowed:
            contestants["pyfuser"] = fused
        else:
            row.failure = f"wrong by {row.error:.1e}"
    if inductor:
        compiled = _first_call(row, "inductor", lambda: _inductor(case, inputs))
        if compiled is not None:
            contestants["inductor"] = compiled
    return row, contestants


def inputs_of(case: Case, height: int, width: int, dtype: str, device: str) -> list[torch.Tensor]:
    """The inputs of a row, always the same."""
    generator = torch.Generator(device).manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device=device)
        return values.to(DTYPES[dtype])

    return case.inputs(height, width, make)


def _errors(
    case: Case, inputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> Callable[[Sequence[torch.Tensor]], float]:
    """How far outputs are from float64; of random ones only the shapes are compared."""
    if case.is_random:
        shapes = [each.shape for each in eager]
        return lambda outputs: 0.0 if [each.shape for each in outputs] == shapes else math.inf
    doubles = [_wide(each) for each in inputs]
    references = outputs_of(case.reference(*doubles))
    magnitudes = references
    if case.is_sum:
        magnitudes = outputs_of(case.reference(*(_magnitude(each) for each in doubles)))
    return lambda outputs: error_of(outputs, references, magnitudes)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _magnitude(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor


def pyfuser_function(case: Case, inputs: list[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """The case by pyfuser; its definition, or torch.compile of its reference."""
    if case.define is None:
        compiled = torch.compile(case.reference, backend="pyfuser", dynamic=False)
        return lambda: outputs_of(compiled(*inputs))
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


def outputs_of(result: Any) -> list[torch.Tensor]:
    """One or several outputs as a list."""
    return list(result) if isinstance(result, tuple | list) else [result]
