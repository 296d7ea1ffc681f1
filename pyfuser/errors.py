"""The errors of pyfuser: a wrong call, something not supported yet, a bug in pyfuser.

Every message reads `<operation>: expected <what>, got <what>`, says where it happened if that is
known, and ends with a hint if there is one.  A refusal by a scheduler is not an error but a value
with a reason (`pyfuser.schedule.Refusal`).
"""

from __future__ import annotations


class PyfuserError(Exception):
    """Base class of every error that pyfuser raises on purpose."""


class DefinitionError(PyfuserError, RuntimeError):
    """A fusion was defined wrongly: a wrong rank, dtype, dimension or argument."""


class ArgumentTypeError(DefinitionError, TypeError):
    """An argument of a definition has the wrong Python type: a float where a dimension belongs."""


class ScheduleError(PyfuserError, RuntimeError):
    """A schedule is illegal; the message names the tensor and the axis."""


class InputError(PyfuserError, RuntimeError):
    """The inputs of a call don't match the definition: a wrong count, dtype, rank, size, stride."""


class UnsupportedError(PyfuserError, NotImplementedError):
    """A correct definition that the device can't compile yet; the fallback runs it."""


class CompilationError(PyfuserError, RuntimeError):
    """The text a code generator printed didn't compile; the fallback runs the fusion instead."""


class DeviceError(PyfuserError, RuntimeError):
    """A device failed: it can't load or launch a kernel, or a kernel that it ran has failed."""


class InternalError(PyfuserError, AssertionError):
    """A bug in pyfuser: an invariant of an IR noun or of a pass doesn't hold."""


def expected(operation: str, what: str, got: object, hint: str = "") -> str:
    """The standard form of a message: `<operation>: expected <what>, got <got>[; <hint>]`."""
    return f"{operation}: expected {what}, got {got}" + (f"; {hint}" if hint else "")


def unsupported(operation: str, needs: str) -> str:
    """The message of what no device can do that pyfuser runs on, and what it needs."""
    return f"{operation}: not supported on this device; it needs {needs}"
