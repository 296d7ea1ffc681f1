"""A second process that makes object files, so that Python goes on while LLVM works.

LLVM is behind one lock in a process (D1), and a thread that calls it gets Python's lock back only
every few milliseconds: measured on a training step of Llama with 28 kernels, a thread hides
nothing, and this process all of LLVM's time.  It runs emission.py, which knows no pyfuser; it
starts with the first request (0.1 s, beside the work here), ends with this process or when idle,
and whatever goes wrong with it only means that the object is made here after all.

Whoever started it waits for its end as soon as its answers end, so that no zombie is left; a forked
child lets go of it.  Nobody else takes part: requests and answers go through pipes that only the
two have, and `-I -S` keeps the environment and whatever lies about from changing what it imports.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import llvmlite

from ... import options
from . import emission
from .emission import Request

_PATIENCE_SECONDS = 30.0  # a process that takes longer for one object has been stopped

Answer = Future[bytes | None]


class CompilerProcess:
    """The other end of emission.py; any thread may ask."""

    def __init__(self) -> None:
        """OSError where no process can be started."""
        if getattr(sys, "frozen", False) or "python" not in Path(sys.executable or "").name.lower():
            raise OSError("this program isn't Python's own and can't be started as such")
        folder = Path(llvmlite.__file__).parents[1]
        self._process = subprocess.Popen(
            # Alone with the standard library and that folder: -S leaves out whatever a site adds.
            [sys.executable, "-I", "-S", emission.__file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, Answer] = {}
        self._number = 0
        self.is_alive = True
        name = "pyfuser compiler answers"
        try:
            threading.Thread(target=self._read_answers, name=name, daemon=True).start()
        except RuntimeError:
            self.close()
            raise

    def submit(self, request: Request) -> Answer:
        """The object file to come; None in its place if the other process can't make it."""
        answer: Answer = Future()
        plain = (*request[:3], tuple(request.processor))
        with self._lock:
            self._number += 1
            self._waiting[self._number] = answer
            if self.is_alive:
                try:
                    assert self._process.stdin is not None
                    pickle.dump((self._number, plain), self._process.stdin)
                    self._process.stdin.flush()
                except OSError:
                    self._give_up()
            else:
                self._give_up()
        return answer

    def close(self) -> None:
        """Ends the process; what was asked for and isn't there yet won't come."""
        with contextlib.suppress(OSError), self._lock:
            self.is_alive = False
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._reap()

    def abandon(self) -> None:
        """In a forked child: the other end is the parent's alone.

        Else the process wouldn't see the end of its requests as long as the child lives, and what a
        thread of the parent was about to write would be written twice.
        """
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None and not pipe.closed:
                    os.dup2(nowhere, pipe.fileno(), inheritable=False)
            os.close(nowhere)

    def _reap(self) -> None:
        """Ends the process if it hasn't ended, and takes its status: else it stays as a zombie."""
        self._process.kill()
        self._process.wait()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            while True:
                number, object_code = pickle.load(self._process.stdout)
                with self._lock:
                    answer = self._waiting.pop(number, None)
                if answer is not None:  # else it was given up, when a request couldn't be sent
                    answer.set_result(object_code)
        with self._lock:
            self._give_up()
        self._reap()

    def _give_up(self) -> None:
        """Nothing will be answered any more."""
        self.is_alive = False
        for answer in self._waiting.values():
            answer.set_result(None)
        self._waiting.clear()


_lock = threading.Lock()
_process: CompilerProcess | None = None
_abandoned: list[CompilerProcess] = []  # a parent's, kept so that a child never cleans up after it


def submit(request: Request) -> Answer | None:
    """An object file made in the other process; None where there is none, or none is wanted."""
    global _process
    if not options.compiler_process():
        return None
    with _lock:
        if _process is None or not _process.is_alive:
            try:
                _process = CompilerProcess()
            except (OSError, RuntimeError):  # no such right, or the interpreter exits
                return None
        return _process.submit(request)


def result(answer: Answer) -> bytes | None:
    """Waits for an object file; None where it has to be made here."""
    try:
        return answer.result(_PATIENCE_SECONDS)
    except TimeoutError:
        return None


def close() -> None:
    """Ends the other process, if there is one; the next request starts it anew."""
    global _process
    with _lock:
        process, _process = _process, None
    if process is not None:
        process.close()


def _after_fork_in_child() -> None:
    """The process belongs to the parent, and the thread that reads its answers is gone."""
    global _lock, _process
    _lock = threading.Lock()
    if _process is not None:
        _process.abandon()
        _abandoned.append(_process)
        _process = None


atexit.register(close)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
