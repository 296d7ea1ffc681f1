"""`tune FILE.py`: measures the kernels of a script; `tune --show`: what has been stored.

Tunes each FusionDefinition of a script on the inputs of its run, and each fusion of its graphs.  A
definition that the script never runs gets inputs made up from its shapes.  For a GPU, kernels run
in the emulator, and their costs are predicted from its counts.  The script's own output goes to
standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ..autotuning import tune_definition
from ..caches.tuning_store import tuning_store
from ..devices.cuda.target import CudaTarget
from ..devices.registry import target_of
from ..errors import InputError, PyfuserError, expected
from ..executor import Executor
from ..target.target import Target
from ..tuning.programs import tune
from ..tuning.report import Report, rows_of
from ..tuning.session import Session
from .show import Recorded, made_up, recording


def run(
    file: str | None, device: str, seconds: float, shows: bool, arguments: Sequence[str] = ()
) -> int:
    """Prints a line for each kernel; the status is 1 if there is none."""
    try:
        target = target_of(device)
        if shows:
            if file is not None:
                raise InputError(expected("tune --show", "no script", file))
            report, failure = stored(target), None
        else:
            report, failure = tuned(file, target, seconds, arguments)
    except PyfuserError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    print(report if report.rows else f"nothing is stored for {device}" if shows else report)
    if failure is not None:
        print(expected("tune", "a script that ends", failure), file=sys.stderr)
    return 0 if report.rows and failure is None else 1


def stored(target: Target) -> Report:
    """What is stored for a target on this machine."""
    entries = tuning_store().entries()
    machine = dict(target.machine())
    here = [each for each in entries if dict(each.machine) == machine and each.is_for_this_version]
    return Report(tuple(row for each in here for row in rows_of(each)))


def tuned(
    file: str | None, target: Target, seconds: float, arguments: Sequence[str] = ()
) -> tuple[Report, str | None]:
    """What was found for the script's kernels; how it failed, or None if it ran to its end.

    InputError without a script, or a budget; UnsupportedError without g++ for a GPU.
    """
    if file is None or not Path(file).is_file():
        raise InputError(expected("tune", "a script, or --show", file or "neither"))
    if not seconds > 0:
        raise InputError(expected("tune --seconds", "a positive number", seconds))
    with _emulated(target) if isinstance(target, CudaTarget) else nullcontext():
        recorder, failure = recording(file, arguments)
        session = Session(seconds)
        for each in recorder.found.values():
            _tune(each, session)
        for graph in recorder.graphs:
            for fusion, inputs in graph.fusions:
                tune(Executor(fusion), inputs, session)
    return session.report(), failure


@contextmanager
def _emulated(target: CudaTarget) -> Iterator[None]:
    """While it lasts, CPU tensors are run by counted kernels of a GPU."""
    from ..devices.cuda.emulator.counters import Profile
    from ..devices.cuda.emulator.harness import require_host_compiler
    from ..devices.cuda.emulator.runtime import emulated

    require_host_compiler()
    with emulated(target, Profile()):
        yield


def _tune(recorded: Recorded, session: Session) -> None:
    """A schedule that was written by hand stays as it is."""
    if recorded.by_hand:
        return
    definition, inputs = recorded.definition, recorded.inputs
    if inputs is None:
        inputs = [made_up(value) for value in definition.fusion.graph.definition.given_inputs]
    tune_definition(definition, inputs, session)
