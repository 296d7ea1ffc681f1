"""Processes that judge programs, one at a time, so that a crash or a hang costs one program."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tests.programs.outcome import Outcome
from tests.programs.program import Program
from tests.programs.scheduled_case import ScheduledCase

# A process is replaced after this many programs, which bounds the memory of torch and kernels.
PROGRAMS_PER_PROCESS = 250
# How many times as long a process may take by the clock as it may compute.
PATIENCE = 10


@dataclass(frozen=True)
class ProgramSeed:
    """The number of a random program, and how many statements it may have."""

    number: int
    most: int = 25


@dataclass(frozen=True)
class FusionSeed:
    """The number of some random FusionDefinitions."""

    number: int


@dataclass(frozen=True)
class ScheduleSeed:
    """The number of a random schedule by hand."""

    number: int


Wanted = ProgramSeed | FusionSeed | ScheduleSeed | Program | ScheduledCase
Made = Program | ScheduledCase | None


def serve(connection: Connection, strict: bool, threads: int) -> None:
    """Judges incoming programs until the other side ends."""
    os.environ["PYFUSER_STRICT"] = "1" if strict else "0"
    os.environ.setdefault("PYFUSER_DISABLE_CACHE", "1")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    import torch

    from tests.programs.check import check
    from tests.programs.fusions import check_fusions
    from tests.programs.generate import generate
    from tests.programs.schedules import check_schedule, judge

    torch.set_num_threads(threads)
    while True:
        try:
            wanted = connection.recv()
        except EOFError:
            return
        begin = time.monotonic()
        program: Made = None
        match wanted:
            case FusionSeed(number):
                outcome = check_fusions(number)
            case ScheduleSeed(number):
                program, outcome = check_schedule(number)
            case ScheduledCase():
                program, outcome = wanted, judge(wanted)
            case ProgramSeed(number, most):
                program = generate(number, most)
                outcome = check(program)
            case Program():
                program, outcome = wanted, check(wanted)
        outcome.seconds = time.monotonic() - begin
        connection.send((program, outcome))


def processor_seconds(pid: int) -> float:
    """The CPU time of a process so far, or its age if the system doesn't report it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Worker:
    """One process, started when it is needed and again when it died."""

    def __init__(self, strict: bool = False, timeout: float = 120.0, threads: int = 1) -> None:
        self.strict, self.timeout, self.threads = strict, timeout, threads
        self.process: Any = None
        self.connection: Any = None
        self.served = 0

    def judge(self, wanted: Wanted) -> tuple[Made, Outcome]:
        """The outcome of a seed's program, or of a program."""
        if self.process is None or self.served >= PROGRAMS_PER_PROCESS:
            self.stop()
            self._start()
        self.served += 1
        given = wanted if isinstance(wanted, Program | ScheduledCase) else None
        self.connection.send(wanted)
        if not self._answers():
            self.stop()
            return given, Outcome("hang", f"no answer within {self.timeout:.0f} s")
        try:
            result: tuple[Made, Outcome] = self.connection.recv()
            return result
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            self.stop()
            return given, Outcome("crash", f"the process ended with {code}")

    def _answers(self) -> bool:
        """False when the time is up: the processor's, since others may keep it from the process.

        One that waits for something that doesn't come uses none of it, so there is a longer limit.
        """
        begin, used = time.monotonic(), processor_seconds(self.process.pid)
        while not self.connection.poll(1):
            if processor_seconds(self.process.pid) - used > self.timeout:
                return False
            if time.monotonic() - begin > PATIENCE * self.timeout:
                return False
        return True

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, self.strict, self.threads), daemon=True
        )
        self.process.start()
        theirs.close()
        self.served = 0

    def stop(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.connection.close()
            self.process.join(2)
            self.process.kill()
            self.process.join()
        self.process = None
