"""Tunes one kernel: its candidates are made, checked against the heuristics' kernel, measured.

(kernel part, inputs) -> a stored Result.  A candidate that can't be compiled, is refused or has
other results is dropped and counted; equal texts are measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..analysis.size_conditions import SizeConditions
from ..caches.tuning_store import Result, operations_of, sizes_of, tuning_store
from ..compiler import Program
from ..devices.runtime import LoadedKernel, Runtime
from ..executor import strides_of
from ..ir.segmented import PartKind, Segment
from ..ir.vals import TensorView
from ..ops.binding import bind
from ..parts import KernelPart, Part
from ..plans.plan import write_plan
from .measuring import Contestant, judge
from .report import Row
from .samples import copied
from .session import Session

# How much results may differ by the order of additions, relative to the largest of a tensor.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def tune_kernel(
    part: KernelPart, inputs: Sequence[Any], runtime: Runtime, session: Session
) -> None:
    """Measures the candidates of a kernel on its inputs, stores the result, and reports it."""
    name, operations = part.scheduler.name, operations_of(part.fusion)

    def row(result: Result | None, note: str = "") -> None:
        session.rows.append(Row(name, operations, result, note))

    sizes = bind(part.fusion, inputs).sizes
    known = tuning_store().result(runtime.target, part.scheduler, part.fusion, sizes)
    if known is not None:
        row(known, "known from an earlier measurement")
        return
    if not session.has_time():
        row(None, "not measured: the time is up")
        return
    try:
        result = _measured(part, inputs, sizes, runtime, session)
    except Exception as error:  # such as values, made up, that the kernel refuses
        row(None, f"not measured: {error}")
        return
    if result is None:
        row(None, "not measured to the end: the time is up")
        return
    tuning_store().add(runtime.target, part.scheduler, part.fusion, result)
    row(result)


def _measured(
    part: KernelPart,
    inputs: Sequence[Any],
    sizes: Mapping[str, int],
    runtime: Runtime,
    session: Session,
) -> Result | None:
    """The result; None if the time is up.  Making the candidates may take half of the time."""
    target, until = runtime.target, session.left() / 2
    limited = {**strides_of(part.fusion, inputs), **sizes}
    heuristic = part.scheduler.heuristics(part.fusion, sizes, target)
    offered = part.scheduler.candidates(part.fusion, heuristic, sizes, target)
    first = part.measurable(heuristic, limited, runtime)
    contestants = [_contestant(part, heuristic, first, inputs, runtime)]
    reference = _results(part, first, inputs, runtime)
    texts, dropped, is_complete = {first.code.text}, 0, True
    for parameters in offered:
        if session.left() < until:
            is_complete = False
            break
        try:
            made = part.measurable(parameters, limited, runtime)
            if made.code.text in texts:
                continue
            if not _agree(_results(part, made, inputs, runtime), reference):
                dropped += 1
                continue
        except Exception:  # whatever is wrong with a candidate, there are others
            dropped += 1
            continue
        texts.add(made.code.text)
        contestants.append(_contestant(part, parameters, made, inputs, runtime))
    cost = session.cost_on(runtime)
    verdict = judge(contestants, cost, runtime.has_exact_costs, session.has_time)
    if verdict is None:
        return None
    if not is_complete and not verdict.wins:
        return None  # others may be better
    measured = len(contestants) - 1
    known = sizes_of(part.fusion, sizes)
    best = verdict.best.parameters
    return Result(known, heuristic, best, verdict.ratio, verdict.wins, measured, dropped)


def _contestant(
    part: KernelPart,
    parameters: Any,
    built: LoadedKernel,
    inputs: Sequence[Any],
    runtime: Runtime,
) -> Contestant:
    """The kernel on copies of the inputs that it updates: the results of updates don't matter."""
    run, given = _call(part, built, inputs, runtime)
    return Contestant(parameters, lambda: run(given))


def _results(
    part: KernelPart, built: LoadedKernel, inputs: Sequence[Any], runtime: Runtime
) -> list[torch.Tensor]:
    """The outputs, and the inputs that it updates."""
    run, given = _call(part, built, inputs, runtime)
    outputs = run(given)
    return [*outputs, *(x for x, old in zip(given, inputs, strict=True) if x is not old)]


def _call(
    part: KernelPart, built: LoadedKernel, inputs: Sequence[Any], runtime: Runtime
) -> tuple[Callable[[list[Any]], list[torch.Tensor]], list[Any]]:
    """(a plan for a program of this kernel alone, its inputs: copies of those that it updates)."""
    fusion = part.fusion
    outputs = [t for t in dict.fromkeys(fusion.outputs) if isinstance(t, TensorView)]
    exprs: Any = fusion.live_exprs()
    segment = Segment(exprs, list(fusion.inputs), outputs, part.scheduler.name, PartKind.kernel)
    program = Program(fusion, [Part(segment, fusion)], runtime)
    plan = write_plan(fusion, program, (built,), inputs, SizeConditions())
    updated = set(fusion.aliases.values())
    given = [
        copied(x) if value in updated else x for value, x in zip(fusion.inputs, inputs, strict=True)
    ]

    def run(values: list[Any]) -> list[torch.Tensor]:
        found = plan.run(values)
        assert found is not None, "a plan for its own inputs"
        return found

    return run, given


def _agree(outputs: Sequence[torch.Tensor], references: Sequence[torch.Tensor]) -> bool:
    """True if results are equal but for the order of a sum's additions."""
    return all(_agrees(a, b) for a, b in zip(outputs, references, strict=True))


def _agrees(output: torch.Tensor, reference: torch.Tensor) -> bool:
    if torch.equal(output, reference):
        return True
    if not output.dtype.is_floating_point:
        return False
    wide = torch.float64 if output.dtype is torch.float64 else torch.float32
    a, b = output.to(wide), reference.to(wide)
    largest = b.nan_to_num(0.0, 0.0, 0.0).abs().max()
    far = ~((a - b).abs() <= _TOLERANCES.get(output.dtype, 0.2) * largest)
    return not far.any() or torch.allclose(a[far], b[far], 0.0, 0.0, equal_nan=True)
