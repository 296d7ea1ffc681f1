"""Judges a program: the results of torch.compile(backend="pyfuser") against eager's three runs.

Values have at most 4 times the error of eager; integers are equal.  Dtypes, shapes, strides,
sharing of memory and every byte of the inputs' memory are as in eager.  A difference that
"aot_eager" has too is torch's own and not a failure.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pyfuser import fallback
from tests.programs.outcome import Outcome
from tests.programs.program import Program
from tests.programs.running import Run, difference, finished, given, references, storage
from tests.programs.traced import TracedLayouts
from tests.support.poison import poisoned_memory

FACTOR = 4
# AOTAutograd refuses this of any backend whose results are views only by address, as Inductor's.
LIMITS = ("aot_autograd() does not yet handle non-differentiable view input mutations",)


class Wrong(Exception):
    """A difference from eager; the first argument names its kind, the second is the detail."""


@contextmanager
def recorded_fallbacks(found: list[str]) -> Iterator[None]:
    """Collects the reasons why something ran through torch."""
    original = fallback.warn

    def warn(error: Exception, *what: Any) -> None:
        found.append(f"{type(error).__name__}: {error}")
        original(error, *what)

    fallback.warn = warn
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        fallback.warn = original


def check(program: Program) -> Outcome:
    """Runs a program in eager and compiled, and compares."""
    sets = range(len(program.inputs[0].shapes))
    try:
        wanted = [references(program, which) for which in sets]
    except Exception as error:  # Whatever eager raises: then it is no program.
        return Outcome("invalid", f"{type(error).__name__}: {error}")
    found: list[str] = []
    outcome = judged(program, wanted, "pyfuser", found)
    outcome.fallbacks = list(dict.fromkeys(found))
    if outcome.failed:
        if any(limit in outcome.message for limit in LIMITS):
            return Outcome("torch", outcome.signature, outcome.detail)
        theirs = judged(program, wanted, "aot_eager", [])
        if _same_failure(outcome, theirs) or _laid_out_as_traced(program, wanted, outcome):
            return Outcome("torch", outcome.signature, outcome.detail)
    return outcome


def _laid_out_as_traced(
    program: Program, wanted: Sequence[tuple[Run, Run, Run]], outcome: Outcome
) -> bool:
    """True for strides that torch's tracing promises and that only differ in axes of size 1.

    That is: nothing in torch's graph gives other strides on longer axes, if its operands have the
    traced ones.
    """
    if (outcome.kind, outcome.message) != ("wrong", "output: strides"):
        return False
    layouts = TracedLayouts()
    theirs = judged(program, wanted, layouts, [])
    return _same_failure(outcome, theirs) and not layouts.false


def _same_failure(ours: Outcome, theirs: Outcome) -> bool:
    """True if torch's own tracing causes the difference; strides must be exactly the same."""
    if ours.kind != theirs.kind:
        return False
    if ours.kind == "wrong" and ours.message == "output: strides":
        return ours.detail == theirs.detail
    return ours.kind == "raised" or ours.message == theirs.message


def judged(
    program: Program,
    wanted: Sequence[tuple[Run, Run, Run]],
    backend: str | TracedLayouts,
    found: list[str],
) -> Outcome:
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(str(program), f"<program {program.seed}>", "exec"), scope)
    torch._dynamo.reset()
    try:
        with recorded_fallbacks(found), poisoned_memory():
            # Traced layouts are compared with those of a call: they want numbers.
            traced = isinstance(backend, TracedLayouts)
            options = {"dynamic": False} if traced else {"dynamic": True} if program.dynamic else {}
            compiled = torch.compile(scope["f"], backend=backend, **options)
            for which, (eager, exact, noisy) in enumerate(wanted):
                for _ in range(2):
                    made = given(program, which, exact=False)
                    ours = finished(program, made, compiled(*made.views))
                    compare(ours, eager, exact, noisy)
    except Wrong as error:
        return Outcome("wrong", *error.args)
    except Exception as error:
        return Outcome("raised", reason(error), traceback.format_exc())
    finally:
        torch._dynamo.reset()
    return Outcome("ok")


def reason(error: Exception) -> str:
    """The first line of an error, or of the inner error if a backend's exception wraps it."""
    inner = getattr(error, "inner_exception", error)
    lines = str(inner).strip().splitlines() or [""]
    return f"{type(inner).__name__}: {lines[0].strip()}"[:300]


def compare(ours: Run, eager: Run, exact: Run, noisy: Run) -> None:
    """Raises Wrong at the first difference."""
    groups = zip(ours.groups(), eager.groups(), exact.groups(), noisy.groups(), strict=True)
    scales = [scale(t) for _, group in exact.groups() for t in group if t is not None]
    least = max(scales, default=0.0) / 100
    # Sums in another order than eager's: their errors grow with the square root of their length.
    roundings = max(1.0, noisy.terms**0.5 / 4)
    for (name, mine), (_, theirs), (_, precise), (_, shaken) in groups:
        for number, quad in enumerate(zip(mine, theirs, precise, shaken, strict=True)):
            _compare_tensors(f"{name} {number}", name, *quad, least, roundings)
    _compare_layouts(ours, eager)


def scale(value: Tensor) -> float:
    """The greatest absolute value of a floating-point tensor."""
    if not value.is_floating_point() or not value.numel():
        return 0.0
    return value.detach().abs().max().item()


def _compare_tensors(
    label: str,
    group: str,
    got: Tensor | None,
    eager: Tensor | None,
    exact: Tensor | None,
    noisy: Tensor | None,
    least: float,
    roundings: float,
) -> None:
    if got is None or eager is None:
        # A gradient that is zero everywhere may be missing.
        present = got if got is not None else eager
        if present is not None and bool(present.count_nonzero()):
            raise Wrong(f"{group}: missing", label)
        return
    assert exact is not None and noisy is not None
    for what in ("dtype", "shape"):
        if getattr(got, what) != getattr(eager, what):
            raise Wrong(
                f"{group}: {what}", f"{label}: {getattr(got, what)}, {getattr(eager, what)}"
            )
    if not got.is_floating_point():
        if not torch.equal(got, eager):
            raise Wrong(
                f"{group}: values", f"{label}: {got.tolist()}, eager {eager.tolist()}"[:600]
            )
        return
    if torch.equal(got, eager):
        return
    error, eagers, noise = (difference(value, exact) for value in (got, eager, noisy))
    floor = torch.finfo(got.dtype).eps * max(scale(exact), least) * roundings
    allowed = FACTOR * (max(eagers, noise) + floor)
    if not error <= allowed:
        raise Wrong(
            f"{group}: values",
            f"{label}: error {error:.2e}, eager's {eagers:.2e}, noise {noise:.2e}, "
            f"scale {scale(exact):.2e}",
        )


def _compare_layouts(ours: Run, eager: Run) -> None:
    for number, (mine, theirs) in enumerate(zip(ours.outputs, eager.outputs, strict=True)):
        if strides(mine) != strides(theirs):
            raise Wrong("output: strides", f"{number}: {strides(mine)}, eager {strides(theirs)}")
        if mine.requires_grad != theirs.requires_grad:
            raise Wrong("output: requires_grad", f"{number}: {mine.requires_grad}")
    if sharing([*ours.inputs, *ours.outputs]) != sharing([*eager.inputs, *eager.outputs]):
        raise Wrong("output: sharing of memory", "")


def strides(value: Tensor) -> list[int]:
    """Strides of the axes for which they are meaningful."""
    sizes = zip(value.shape, value.stride(), strict=True)
    return [stride for size, stride in sizes if size > 1 and value.numel()]


def sharing(values: Sequence[Any]) -> list[list[int]]:
    """For each tensor, which of the tensors share its memory."""
    found = [each for each in values if isinstance(each, Tensor) and each.numel()]
    return [
        [place for place, other in enumerate(found) if storage(other) == storage(each)]
        for each in found
    ]
