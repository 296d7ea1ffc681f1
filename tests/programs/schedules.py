"""Judges random schedules by hand.

A schedule may be refused, with an error of pyfuser's own that isn't a bug.  Any other error, and a
result that isn't the evaluator's, is a failure.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest

from pyfuser.errors import PyfuserError
from pyfuser.frontend.validation import ValidationError
from tests.programs.draw_schedules import drawn
from tests.programs.outcome import Outcome
from tests.programs.scheduled_case import BUGS, ScheduledCase
from tests.support.poison import poisoned_memory


def check_schedule(seed: int) -> tuple[ScheduledCase, Outcome]:
    """Draws and judges the case of a seed; the outcome lists the calls that were refused."""
    try:
        made = drawn((), seed)
    except Exception as error:
        return ScheduledCase((), ()), _failure("raised", error, _place(error))
    outcome = judge(made.case)
    outcome.refusals = made.refusals
    return made.case, outcome


def judge(case: ScheduledCase) -> Outcome:
    """The outcome of running a case."""
    with pytest.MonkeyPatch.context() as patch, poisoned_memory():
        patch.setenv("PYFUSER_STRICT", "1")
        try:
            case.run()
        except BUGS as error:
            kind = "wrong" if isinstance(error, ValidationError) else "raised"
            return _failure(kind, error, str(error).partition("\n")[0])
        except PyfuserError as error:
            return Outcome("refused", str(error).partition("\n")[0])
        except Exception as error:
            return _failure("raised", error, _place(error))
    return Outcome("ok")


def _failure(kind: str, error: Exception, what: str) -> Outcome:
    message = f"{type(error).__name__}: {what}"
    if kind == "wrong":  # by how much isn't what it has in common with others
        message = f"{type(error).__name__}: {re.split(r'[0-9]', what)[0]}"
    return Outcome(kind, message[:300], "".join(traceback.format_exception(error)))


def _place(error: Exception) -> str:
    """Where an error comes from, and its message where that is no name of a value."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f": {error}" if isinstance(error, AssertionError) else ""
    return f"{Path(frame.filename).name}, {frame.name}{text}".partition("\n")[0]
