"""Kernels are entered on torch's threads, or on Python's, with the same results."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from pyfuser import explain
from pyfuser.devices.cpu import jit, threads
from pyfuser.devices.cpu.host import host
from pyfuser.errors import InternalError

# range: slots = (ptr counts, ptr total, i64 n, double scale); count[thread] = threads,
# total[i] += scale for this thread's share of 0..n.   check: total[i] *= 2 in a second phase.
KERNELS = """
define void @fill(ptr %args, i64 %thread, i64 %threads) {
entry:
  %counts = load ptr, ptr %args
  %count = getelementptr i64, ptr %counts, i64 %thread
  store i64 %threads, ptr %count
  br label %start
start:
  %p1 = getelementptr i64, ptr %args, i64 1
  %total = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %args, i64 3
  %scale = load double, ptr %p3
  %nb = mul i64 %n, %thread
  %begin = sdiv i64 %nb, %threads
  %t1 = add i64 %thread, 1
  %ne = mul i64 %n, %t1
  %end = sdiv i64 %ne, %threads
  br label %head
head:
  %i = phi i64 [ %begin, %start ], [ %i1, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %slot = getelementptr double, ptr %total, i64 %i
  %old = load double, ptr %slot
  %new = fadd double %old, %scale
  store double %new, ptr %slot
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}

; second phase: total[0] = the sum of all that the first phase wrote; needs its barrier
define void @sum(ptr %args, i64 %thread, i64 %threads) {
entry:
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %start, label %out
start:
  %p1 = getelementptr i64, ptr %args, i64 1
  %total = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %p2
  br label %body
body:
  %i = phi i64 [ 0, %start ], [ %i1, %body ]
  %s = phi double [ 0.0, %start ], [ %s1, %body ]
  %slot = getelementptr double, ptr %total, i64 %i
  %x = load double, ptr %slot
  %s1 = fadd double %s, %x
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %body, label %end
end:
  store double %s1, ptr %total
  br label %out
out:
  ret void
}
"""

# A stand-in for LLVM's OpenMP runtime that runs the threads one after the other.
FAKE_KMPC = """
@thread = global i32 0
@asked = global i32 0
define i32 @omp_get_thread_num() {
  %t = load i32, ptr @thread
  ret i32 %t
}
define i32 @omp_get_num_threads() {
  %n = load i32, ptr @asked
  ret i32 %n
}
define i32 @__kmpc_global_thread_num(ptr %ident) {
  ret i32 7
}
define void @__kmpc_push_num_threads(ptr %ident, i32 %global_thread, i32 %threads) {
  %right = icmp eq i32 %global_thread, 7
  %n = select i1 %right, i32 %threads, i32 0
  store i32 %n, ptr @asked
  ret void
}
declare void @llvm.va_start(ptr)
declare void @llvm.va_end(ptr)
define void @__kmpc_fork_call(ptr %ident, i32 %count, ptr %microtask, ...) {
entry:
  %list = alloca [4 x i64], align 16
  call void @llvm.va_start(ptr %list)
  %job = va_arg ptr %list, ptr
  call void @llvm.va_end(ptr %list)
  br label %body
body:
  %t = phi i32 [ 0, %entry ], [ %t1, %body ]
  store i32 %t, ptr @thread
  call void %microtask(ptr @thread, ptr @thread, ptr %job)
  %t1 = add i32 %t, 1
  %n = load i32, ptr @asked
  %more = icmp slt i32 %t1, %n
  br i1 %more, label %body, label %done
done:
  ret void
}
"""


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Looks up and compiles the runtime again in the test, and once more after it."""
    monkeypatch.setattr(jit, "_external_symbols", {})
    threads._runtime_module.cache_clear()
    yield
    threads._runtime_module.cache_clear()


class Call:
    """The buffers of one launch of KERNELS."""

    def __init__(self, *phases: str, n: int = 1000) -> None:
        self.n = n
        self.launch = threads.launcher(jit.compile_module(KERNELS), phases or ("fill",))
        self.counts = (ctypes.c_int64 * 64)()
        self.total = (ctypes.c_double * n)()

    def __call__(self, most_threads: int, scale: float = 1.5) -> list[int]:
        ctypes.memset(self.counts, 0, ctypes.sizeof(self.counts))
        counts, total = ctypes.addressof(self.counts), ctypes.addressof(self.total)
        assert self.launch(most_threads, counts, total, self.n, scale) is None
        return [count for count in self.counts if count]


@pytest.mark.skipif(
    sys.platform != "linux" or not torch.backends.openmp.is_available(),
    reason="torch has no OpenMP here",
)
def test_torch_brings_a_runtime_on_linux() -> None:
    assert threads.runtime_name() in ("gomp", "kmpc")


def test_every_share_is_run_once() -> None:
    call = Call()
    assert call(4) == [4] * 4
    assert list(call.total) == [1.5] * call.n


@pytest.mark.parametrize("most", [1, 2, 3])
def test_at_most_the_threads_asked_for(most: int) -> None:
    assert Call()(most) == [most] * most


def test_set_num_threads_is_obeyed() -> None:
    call = Call()
    torch.set_num_threads(2)
    assert call(64) == [2, 2]
    torch.set_num_threads(1)
    assert call(64) == [1]
    assert threads.thread_count() == 1


def test_set_num_threads_is_obeyed_in_a_new_thread() -> None:
    call, seen = Call(), []
    torch.set_num_threads(3)
    thread = threading.Thread(target=lambda: seen.append(call(64)))
    thread.start()
    thread.join()
    assert seen == [[3, 3, 3]]


def test_phases_run_in_turn() -> None:
    call = Call("fill", "sum")
    for _ in range(50):
        ctypes.memset(call.total, 0, ctypes.sizeof(call.total))
        call(4)
        assert call.total[0] == 1.5 * call.n


def test_slots_take_all_ints_and_floats() -> None:
    text = """
define void @copy(ptr %args, i64 %thread, i64 %threads) {
  %to = load ptr, ptr %args
  %from = getelementptr i64, ptr %args, i64 1
  %x = load [6 x i64], ptr %from
  store [6 x i64] %x, ptr %to
  ret void
}
"""
    launch = threads.launcher(jit.compile_module(text), ["copy"])
    got = (ctypes.c_int64 * 6)()
    launch(1, ctypes.addressof(got), -1, 2**63 - 1, -(2**63), True, -1.0, float("inf"))
    floats = (ctypes.c_double * 2).from_buffer(got, 32)
    assert list(got)[:4] == [-1, 2**63 - 1, -(2**63), 1]
    assert list(floats) == [-1.0, float("inf")]


@pytest.mark.parametrize("arguments", [(), ("text",), (1, None), (1, 2, "3")])
def test_wrong_arguments_are_type_errors(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        Call().launch(*arguments)


def test_launcher_needs_a_function() -> None:
    with pytest.raises(InternalError, match=r"launcher: expected at least one range function"):
        threads.launcher(jit.compile_module(KERNELS), [])


def test_launcher_keeps_the_module() -> None:
    calls = [Call() for _ in range(10)]
    for call in calls:
        assert call(2) == [2, 2]


def test_eight_callers_share_nothing() -> None:
    calls = [Call("fill", "sum") for _ in range(8)]
    wrong = []

    def work(call: Call) -> None:
        for _ in range(100):
            ctypes.memset(call.total, 0, ctypes.sizeof(call.total))
            call(2)
            if call.total[0] != 1.5 * call.n:
                wrong.append(call.total[0])

    workers = [threading.Thread(target=work, args=(call,)) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_python_threads_give_the_same(fresh_runtime: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case that neither torch's OpenMP runtime nor its thread count can be found."""
    monkeypatch.setattr(threads, "_libraries", lambda: ())
    threads._find_runtime.cache_clear()
    try:
        assert threads.runtime_name() == "python"
        call = Call("fill", "sum")
        assert call(64) == [4] * 4
        assert call.total[0] == 1.5 * call.n
        torch.set_num_threads(2)
        assert call(64) == [2, 2]
    finally:
        threads._find_runtime.cache_clear()


def test_llvm_openmp_is_called_by_its_convention(
    fresh_runtime: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = jit.compile_module(FAKE_KMPC)
    names = (
        *("__kmpc_fork_call", "__kmpc_push_num_threads", "__kmpc_global_thread_num"),
        *("omp_get_thread_num", "omp_get_num_threads"),
    )
    addresses = {name: fake.address(name) for name in names}
    monkeypatch.setattr(threads, "_find_runtime", lambda: ("kmpc", addresses))
    call = Call("fill", "sum")
    assert call(3) == [3] * 3
    assert call.total[0] == 1.5 * call.n


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_runs_on_one_thread() -> None:
    call = Call()
    assert call(4) == [4] * 4  # the parent's OpenMP threads exist; the child has none of them
    child = os.fork()
    if child == 0:
        right = call(4) == [1] and threads.thread_count() == 1 and Call()(4) == [1]
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert call(4) == [4] * 4


def test_a_launch_says_what_its_range_functions_say() -> None:
    """The slot after the given ones is the status of this call, initially 0."""
    refuse = """
    define void @refuse(ptr %args, i64 %thread, i64 %threads) {
      %wanted = load i64, ptr %args
      %status = getelementptr i64, ptr %args, i64 2
      %before = load i64, ptr %status
      %mine = icmp eq i64 %thread, %wanted
      br i1 %mine, label %set, label %done
    set:
      %value = add i64 %before, 1
      store i64 %value, ptr %status
      br label %done
    done:
      ret void
    }
    """
    launch = threads.launcher(jit.compile_module(refuse), ["refuse"])
    for _ in range(3):
        assert launch(4, 3, 1.5) is True
        assert launch(1, 0, 1.5) is True
        assert launch(4, 4, 1.5) is None
        assert launch(1, 1, -1) is None


# ---- how many threads a kernel takes ---------------------------------------------------------


def threads_of(function: Callable[..., Tensor], *given: Tensor) -> str:
    """The only launch's first argument: how many threads at most."""
    (graph,) = explain(function, *given).graphs
    (threads,) = re.findall(r"launch0\((\w+),", graph.source)
    return str(threads)


def test_work_is_counted_where_tensors_are_read_repeatedly() -> None:
    x, few = torch.randn(1000), torch.randn(10)
    assert threads_of(lambda x: (x[:, None] * x).sum(), x) == str(host().cores)
    assert threads_of(lambda x: (x[:, None] * x).sum(), few) == "1"
    assert threads_of(lambda x: x * 2, x) == "1"
