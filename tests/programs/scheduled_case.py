"""A definition with a schedule by hand, as lines of Python, and the inputs to run it with.

The lines are the body of a `with FusionDefinition() as fd:`, of the public interface only, so a
case runs as a user's program does, prints as a script, and shrinks by leaving lines out.
"""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pyfuser import DataType, FusionDefinition, MemoryType, ParallelType
from pyfuser.errors import CompilationError, DeviceError, InternalError, PyfuserError
from pyfuser.frontend import validation
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.reproducer import descriptions
from tests.support.fences import fenced

# What a schedule must not lead to, whatever it is.
BUGS = (InternalError, CompilationError, DeviceError, validation.ValidationError)


@dataclass(frozen=True, eq=False)
class ScheduledCase:
    """Lines that define and schedule, and inputs: tensors and numbers."""

    lines: tuple[str, ...]
    inputs: tuple[Any, ...]

    def run(self) -> None:
        """Runs the kernel in poisoned memory, if there is one; compares with the evaluator."""
        fd = FusionDefinition()
        definition = self.defined(fd)
        inputs = [fenced(x) if isinstance(x, torch.Tensor) else x for x in self.inputs]
        given = validation.kept(inputs)
        outputs = fd.manual_execute(inputs)
        validation.validate(definition, given, outputs)
        self._check_updates(definition, given, inputs)

    def defined(self, fd: FusionDefinition) -> Any:
        """Runs the lines; returns the definition without the schedule."""
        names = names_of(fd)
        # A definition prints the exception that interrupts it.
        with contextlib.redirect_stdout(io.StringIO()), fd:
            for line in self.lines:
                exec(line, names)
        return fd.fusion.definition

    def _check_updates(self, definition: Any, given: list[Any], inputs: list[Any]) -> None:
        """Compares the inputs that the fusion updates."""
        from pyfuser.ops.evaluator import evaluate

        if not definition.aliases:
            return
        wanted = validation.kept(given)
        evaluate(definition, wanted)
        for got, want in zip(inputs, wanted, strict=True):
            if isinstance(got, torch.Tensor):
                coarse = got.dtype.is_floating_point and got.dtype.itemsize < 4
                absolute = 0.5 if coarse else 1e-3
                torch.testing.assert_close(
                    got.double(), want.double(), rtol=1e-2, atol=absolute, equal_nan=True
                )

    def script(self) -> str:
        """A script that runs the case by itself; tensors have other numbers of the same kind."""
        inputs = ",\n    ".join(map(str, descriptions(self.inputs)))
        return SCRIPT.format(body=textwrap.indent("\n".join(self.lines), "    "), inputs=inputs)


SCRIPT = """import torch

from pyfuser import DataType, FusionDefinition, MemoryType, ParallelType

with FusionDefinition() as fd:
{body}

fd.manual_validate([
    {inputs},
])"""


def names_of(fd: FusionDefinition) -> dict[str, Any]:
    """The names that lines use."""
    return {
        "fd": fd,
        "DataType": DataType,
        "MemoryType": MemoryType,
        "ParallelType": ParallelType,
        "refused": lambda call: refused(fd, call),
    }


def refused(fd: FusionDefinition, call: Callable[[], object]) -> str | None:
    """Does a call, and returns the message if it is refused; nothing may have changed then."""
    scheduled = fd.fusion.user_schedule
    before = _text(scheduled)
    try:
        call()
    except BUGS:
        raise
    except PyfuserError as error:
        assert _text(scheduled) == before, f"a refused call changed the schedule: {error}"
        return str(error)
    return None


def _text(scheduled: ScheduledFusion) -> str:
    return f"{scheduled.fusion}\n{scheduled.transforms()}"
