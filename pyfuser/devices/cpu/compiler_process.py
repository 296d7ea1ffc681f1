"""A second process that makes object files, so that Python continues while LLVM works.

LLVM is behind one lock per process, and a thread that calls it gets the GIL back only every
few milliseconds.  Measured on a training step of Llama with 28 kernels, a thread hides none of
LLVM's time, and this process hides all of it.  The process runs emission.py, which imports nothing
of pyfuser.  It starts with the first request (0.1 s, concurrent with the work here) and ends with
this process or when idle.  If anything goes wrong with it, the object is simply made in this
process.

The process that started it waits for its end as soon as its answers end, so no zombie is left; a
forked child lets go of it.  No other process is involved: requests and answers go through pipes
that only these two have, and `-I -S` keeps the environment and stray files from changing its
imports.
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
        """Raises OSError if no process can be started."""
        if getattr(sys, "frozen", False) or "python" not in Path(sys.executable or "").name.lower():
            raise OSError("this program isn't Python's own and can't be started as such")
        folder = Path(llvmlite.__file__).parents[1]
        self._process = subprocess.Popen(
            # Only the standard library and that folder: -S leaves out whatever a site adds.
            [sys.executable, "-I", "-S", emission.__file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._lock = threading.Lock()  # of what follows
        self._writing = threading.Lock()  # of the pipe to the process
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
        """A future object file; None if the other process can't make it."""
        answer: Answer = Future()
        plain = (*request[:3], tuple(request.processor))
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = answer
            if not self.is_alive:
                self._give_up()
                return answer
        try:
            self._send(pickle.dumps((number, plain)))
        except (OSError, ValueError):  # ValueError: closed meanwhile
            with self._lock:
                self._give_up()
        return answer

    def _send(self, request: bytes) -> None:
        """Waits while the pipe is full, without the lock that the answers need."""
        with self._writing:
            assert self._process.stdin is not None
            self._process.stdin.write(request)
            self._process.stdin.flush()

    def close(self) -> None:
        """Ends the process; requests without an answer won't get one."""
        with self._lock:
            self.is_alive = False
        with contextlib.suppress(OSError), self._writing:
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._reap()

    def abandon(self) -> None:
        """In a forked child: the other end belongs to the parent.

        Otherwise the process wouldn't see the end of its requests while the child lives, and data
        that a thread of the parent was about to write would be written twice.
        """
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None and not pipe.closed:
                    os.dup2(nowhere, pipe.fileno(), inheritable=False)
            os.close(nowhere)

    def _reap(self) -> None:
        """Ends the process if it still runs, and takes its status, or else it stays a zombie."""
        self._process.kill()
        self._process.wait()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            while True:
                number, object_code = pickle.load(self._process.stdout)
                with self._lock:
                    answer = self._waiting.pop(number, None)
                if answer is not None:  # otherwise a request couldn't be sent, and it was given up
                    answer.set_result(object_code)
        with self._lock:
            self._give_up()
        self._reap()

    def _give_up(self) -> None:
        """Completes all pending answers with None."""
        self.is_alive = False
        for answer in self._waiting.values():
            answer.set_result(None)
        self._waiting.clear()


_lock = threading.Lock()
_process: CompilerProcess | None = None
_abandoned: list[CompilerProcess] = []  # a parent's, kept so that a child never cleans up after it


def submit(request: Request) -> Answer | None:
    """An object file made in the other process; None if there is no process or none is wanted."""
    global _process
    if not options.compiler_process():
        return None
    with _lock:
        if _process is None or not _process.is_alive:
            try:
                _process = CompilerProcess()
            except (OSError, RuntimeError):  # no permission, or the interpreter is exiting
                return None
        return _process.submit(request)


def result(answer: Answer) -> bytes | None:
    """Waits for an object file; None if it has to be made here."""
    try:
        return answer.result(_PATIENCE_SECONDS)
    except TimeoutError:
        return None


def close() -> None:
    """Ends the other process, if there is one; the next request starts a new one."""
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
