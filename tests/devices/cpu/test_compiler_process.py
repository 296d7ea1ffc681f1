"""The second process that makes object files: the same bytes, and nothing depends on it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import llvmlite
import pytest
import torch

from pyfuser import kernel_builds
from pyfuser.devices.cpu import compiler_process, emission, jit
from pyfuser.devices.cpu.host import host
from pyfuser.devices.registry import runtime_of
from pyfuser.errors import CompilationError

TEXT = "define i64 @answer{}() {{\n  ret i64 {}\n}}\n"


def request(text: str) -> emission.Request:
    processor = emission.LlvmProcessor(host().cpu_name, host().features)
    return emission.Request(text, jit.DEFAULT_PASSES, jit.DEFAULT_CODEGEN_LEVEL, processor)


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process for each test, and no disk cache that would make it idle."""
    monkeypatch.delenv("PYFUSER_COMPILER_PROCESS", raising=False)
    kernel_builds.share_objects(runtime_of(torch.device("cpu")))
    monkeypatch.setattr(jit, "_object_cache", None)
    compiler_process.close()
    yield
    compiler_process.close()


def started() -> compiler_process.CompilerProcess:
    found = compiler_process._process
    assert found is not None
    return found


def test_objects_are_those_that_are_made_here() -> None:
    wanted = request(TEXT.format(1, 42))
    answer = compiler_process.submit(wanted)
    assert answer is not None
    assert compiler_process.result(answer) == emission.emit_object(wanted)


def test_what_was_begun_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT.format(2, 43)
    jit.compile_ahead(text)

    def here(*_: object) -> None:
        raise AssertionError("compiled in this process")

    monkeypatch.setattr(jit, "_optimised", here)
    module = jit.compile_module(text)
    assert module.address("answer2")


def test_many_requests_from_many_threads() -> None:
    """More answers than a pipe holds, before any of them is read."""
    found: dict[int, bytes | None] = {}

    def ask(first: int) -> None:
        numbers = range(first, first + 40)
        answers = {n: compiler_process.submit(request(TEXT.format(n, n))) for n in numbers}
        for number, answer in answers.items():
            assert answer is not None
            found[number] = compiler_process.result(answer)

    threads = [threading.Thread(target=ask, args=(100 * i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    for number in (100, 239, 410):
        assert found[number] == emission.emit_object(request(TEXT.format(number, number)))


def test_an_invalid_text_is_reported_by_whoever_compiles_it() -> None:
    text = "define i64 @broken() { ret i32 0 }"
    answer = compiler_process.submit(request(text))
    assert answer is not None and compiler_process.result(answer) is None
    jit.compile_ahead(text)
    with pytest.raises(CompilationError, match="valid LLVM IR"):
        jit.compile_module(text)


def test_a_killed_process_costs_nothing_but_time() -> None:
    answer = compiler_process.submit(request(TEXT.format(3, 3)))
    assert answer is not None and compiler_process.result(answer)
    process = started()
    os.kill(process._process.pid, signal.SIGSTOP)  # so that it can no longer answer
    jit.compile_ahead(TEXT.format(4, 4))
    os.kill(process._process.pid, signal.SIGKILL)
    assert jit.compile_module(TEXT.format(4, 4)).address("answer4")
    again = compiler_process.submit(request(TEXT.format(5, 5)))
    assert again is not None and compiler_process.result(again)
    assert started() is not process


def test_an_interrupt_from_the_terminal_leaves_it_alone() -> None:
    answer = compiler_process.submit(request(TEXT.format(6, 6)))
    assert answer is not None and compiler_process.result(answer)
    os.kill(started()._process.pid, signal.SIGINT)
    answer = compiler_process.submit(request(TEXT.format(7, 7)))
    assert answer is not None and compiler_process.result(answer)


@pytest.mark.parametrize("reason", ["switched off", "frozen", "embedded", "missing"])
def test_without_it_everything_is_compiled_here(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    match reason:
        case "switched off":
            monkeypatch.setenv("PYFUSER_COMPILER_PROCESS", "0")
        case "frozen":
            monkeypatch.setattr(sys, "frozen", True, raising=False)
        case "embedded":
            monkeypatch.setattr(sys, "executable", "/usr/bin/editor")
        case _:
            monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    jit.compile_ahead(TEXT.format(8, 8))
    assert compiler_process._process is None
    assert jit.compile_module(TEXT.format(8, 8)).address("answer8")


def test_idle_it_ends(tmp_path: Path) -> None:
    """With a short timeout instead of a minute."""
    source = Path(emission.__file__).read_text()
    script = tmp_path / "emission.py"
    script.write_text(source.replace("IDLE_SECONDS = 60.0", "IDLE_SECONDS = 0.2"))
    command = [sys.executable, "-I", "-S", str(script), str(Path(llvmlite.__file__).parents[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        wanted = request(TEXT.format(9, 9))
        pickle.dump((1, (*wanted[:3], tuple(wanted.processor))), process.stdin)
        process.stdin.flush()
        assert pickle.load(process.stdout)[1] == emission.emit_object(wanted)
        assert process.wait(timeout=30) == 0  # its input is still open


def test_a_forked_child_waits_for_nobody() -> None:
    answer = compiler_process.submit(request(TEXT.format(10, 10)))
    assert answer is not None and compiler_process.result(answer)
    os.kill(started()._process.pid, signal.SIGSTOP)
    jit.compile_ahead(TEXT.format(11, 11))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            compiled = jit.compile_module(TEXT.format(11, 11)).address("answer11")
            status = 0 if compiled and compiler_process._process is None else 2
        finally:
            os._exit(status)
    os.kill(started()._process.pid, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    assert jit.compile_module(TEXT.format(11, 11)).address("answer11")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_status_to_take(pid: int) -> bool:
    """True for a child that has ended and hasn't been waited for: a zombie."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


@pytest.mark.parametrize("end", ["killed", "idle"])
def test_a_process_that_has_ended_is_no_zombie(end: str) -> None:
    answer = compiler_process.submit(request(TEXT.format(12, 12)))
    assert answer is not None and compiler_process.result(answer)
    process = started()._process
    if end == "killed":
        os.kill(process.pid, signal.SIGKILL)
    else:
        assert process.stdin is not None
        process.stdin.close()
    wait_until(lambda: process.returncode is not None)  # `poll` would do what is tested
    assert not has_status_to_take(process.pid)


def test_a_process_whose_answers_nobody_can_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int | None] = []
    reap = compiler_process.CompilerProcess._reap

    def recording(self: compiler_process.CompilerProcess) -> None:
        reap(self)
        ended.append(self._process.returncode)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(compiler_process.CompilerProcess, "_reap", recording)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert compiler_process.submit(request(TEXT.format(13, 13))) is None
    assert ended == [-signal.SIGKILL]


def test_a_forked_child_does_not_keep_it_alive() -> None:
    answer = compiler_process.submit(request(TEXT.format(14, 14)))
    assert answer is not None and compiler_process.result(answer)
    process = started()._process
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        assert process.stdin is not None
        process.stdin.close()  # as the end of this process would
        wait_until(lambda: process.returncode is not None)
        assert process.returncode == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_it_ends_with_whoever_started_it() -> None:
    script = (
        "from pyfuser.devices.cpu import compiler_process, jit\n"
        f"jit.compile_ahead({TEXT.format(15, 15)!r})\n"
        "print(compiler_process._process._process.pid)\n"
    )
    environment = {**os.environ, "PYFUSER_DISABLE_CACHE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(result.stdout), 0)


def test_a_graph_s_kernels_are_compiled_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    here: list[str] = []
    optimised = jit._optimised

    def recording(text: str, *others: object) -> object:
        here.append(text)
        return optimised(text, *others)  # type: ignore[arg-type]

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x * 1.375 + 2.0) @ y, -1) - 0.8125

    x, y = torch.randn(33, 17), torch.randn(17, 65)
    monkeypatch.setattr(jit, "_optimised", recording)
    actual = torch.compile(function, backend="pyfuser")(x, y)
    torch.testing.assert_close(actual, function(x, y))
    assert compiler_process._process is not None
    assert not [text for text in here if "@kernel" in text]
