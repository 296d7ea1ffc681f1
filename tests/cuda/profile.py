"""`python -m tests.cuda.profile FILE.py [--device sm_90]`: what a script's kernels do to memory.

Runs each FusionDefinition of a script, and its graphs of torch.compile, on the emulated GPU and
prints the emulator's counts, a line for each launch.  A definition that the script never runs gets
inputs made up from its shapes.  The script's own output goes to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyfuser.command_line.show import Recorded, made_up, recording
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.devices.registry import target_of
from pyfuser.errors import InputError, PyfuserError, expected
from tests.cuda.counters import Profile
from tests.cuda.runtime import emulated


def profiled(file: str, device: str, arguments: Sequence[str] = ()) -> tuple[Profile, str | None]:
    """The counts of the script's kernels; how it failed, or None if it ran to its end.

    InputError for a device that isn't a GPU.
    """
    target = target_of(device)
    if not isinstance(target, CudaTarget):
        raise InputError(expected("profile", "a device sm_NN", device))
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


def main() -> int:
    """Prints the table; the status is 1 if the script failed or launched nothing."""
    parser = argparse.ArgumentParser(prog="profile", description=__doc__)
    parser.add_argument("file", metavar="FILE.py")
    parser.add_argument("arguments", nargs="*", help="the script's arguments")
    parser.add_argument("--device", default="sm_90", help="sm_80, sm_90 (the default), ...")
    parsed = parser.parse_args()
    try:
        profile, failure = profiled(parsed.file, parsed.device, parsed.arguments)
    except PyfuserError as error:
        print(error, file=sys.stderr)
        return 1
    print(profile.table())
    if failure is not None:
        print(expected("profile", "a script that ends", failure), file=sys.stderr)
    return 0 if profile.launches and failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
