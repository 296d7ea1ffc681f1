"""`profile FILE.py [--device sm_90]`: what a script's kernels do to a GPU's memory, without a GPU.

Runs each FusionDefinition of a script, and its graphs of torch.compile, on the emulated GPU and
prints the emulator's counts, a line for each launch.  A definition that the script never runs gets
inputs made up from its shapes.  The script's own output goes to standard error.  The emulator is
imported only when the command runs, and needs g++.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..devices.cuda.target import CudaTarget
from ..devices.registry import target_of
from ..errors import InputError, PyfuserError, expected
from .show import Recorded, made_up, recording

if TYPE_CHECKING:
    from ..devices.cuda.emulator.counters import Profile


def run(file: str, device: str, arguments: Sequence[str] = ()) -> int:
    """Prints the table; the status is 1 if the script failed or launched nothing."""
    try:
        found, failure = profiled(file, device, arguments)
    except PyfuserError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    from ..devices.cuda.emulator.table import table

    print(table(found, device))
    if failure is not None:
        print(expected("profile", "a script that ends", failure), file=sys.stderr)
    return 0 if found.launches and failure is None else 1


def profiled(file: str, device: str, arguments: Sequence[str] = ()) -> tuple[Profile, str | None]:
    """The counts of the script's kernels; how it failed, or None if it ran to its end.

    InputError for a device that isn't a GPU, or no script; UnsupportedError without g++.
    """
    from ..devices.cuda.emulator.counters import Profile
    from ..devices.cuda.emulator.harness import require_host_compiler
    from ..devices.cuda.emulator.runtime import emulated

    target = target_of(device)
    if not isinstance(target, CudaTarget):
        raise InputError(expected("profile", "a device sm_NN", device))
    if not Path(file).is_file():
        raise InputError(expected("profile", "a script", file))
    require_host_compiler()
    profile = Profile()
    with emulated(target, profile):
        recorder, failure = recording(file, arguments)
        for each in recorder.found.values():
            _run(each)
    return profile, failure


def _run(recorded: Recorded) -> None:
    definition, inputs = recorded.definition, recorded.inputs
    if inputs is None:
        inputs = [made_up(value) for value in definition.fusion.graph.definition.given_inputs]
    if recorded.by_hand:
        definition.manual_execute(inputs)
    else:
        definition.execute(inputs)
