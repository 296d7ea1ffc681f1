"""The contestants of a kernel: pyfuser, eager torch, Inductor, each checked against float64.

gpu_kernels.py measures them on a GPU; functions.py measures the same cases on the CPU, with more
peers.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .cases import CASES, DTYPES, Case, definition
from .harness import (
    error_of,
    traffic_bytes,
)
from .report import Row

# How much a result may differ from float64, relative to the greatest value: 16 roundings of the
# storage dtype, or four times the difference of eager torch on the same inputs.
_ROUNDINGS = 16
_EAGER_FACTOR = 4


def selected(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    dtypes: Sequence[str],
    cases: Sequence[Case] = CASES,
) -> Iterator[tuple[Case, tuple[int, int], str]]:
    """The rows to measure, in the order of the table; a complete name selects only that case."""
    for case in cases:
        if not is_named(case.name, names, cases):
            continue
        for dtype in dtypes:
            for size in sizes:
                yield case, size, dtype


def is_named(case: str, names: Sequence[str], cases: Sequence[Case]) -> bool:
    """True if `names` are none, or have this case; part of a name will do if it is no other's."""
    complete = {each.name for each in cases}
    return not names or any(
        name == case if name in complete else name.lower() in case.lower() for name in names
    )


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
