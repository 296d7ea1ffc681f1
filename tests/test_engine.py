"""The engine: what is compiled and when, sharing, and failures.

Counts kernels by `compiled_kernel_count`, and runs from many threads and processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, compiler, fallback, interface, parts
from pyfuser.devices.cpu import jit
from pyfuser.devices.registry import runtime_of
from pyfuser.errors import CompilationError
from pyfuser.interface import (
    can_fuse_on,
    compiled_kernel_count,
    override_can_fuse_on,
    register_fusion,
    run_fusion,
)
from tests.support.concurrency import in_threads
from tests.support.definitions import affine, float_tensor
from tests.support.folders import ROOT


def scaled_softmax(scale: float = 0.5) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.mul(float_tensor(fd, 2, True), scale)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        fd.add_output(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)))
    return fd


def engine_of(fd: FusionDefinition) -> Any:
    return fd.fec.engine.executor


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No kernel compiles."""

    def fail(*arguments: object) -> None:
        raise CompilationError("compile: expected a compiler in a good mood, got this test")

    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    monkeypatch.setenv("PYFUSER_REPRODUCER_DIR", str(tmp_path))
    monkeypatch.setattr(parts, "kept_code", lambda *_: None)
    monkeypatch.setattr(parts, "kernel_code", fail)
    monkeypatch.setattr(fallback, "_warned", OrderedDict())
    yield


# -- what is compiled


def test_a_thousand_shapes_compile_nothing_new() -> None:
    fd = affine(1.25)
    fd.execute([torch.randn(3, 5)])
    fd.execute([torch.randn(300, 50)])
    before = compiled_kernel_count()
    torch.manual_seed(0)
    data = torch.randn(64 * 64)
    for number in range(1000):
        rows, columns = 2 + number % 37, 2 + number // 37
        x = data[: rows * columns].view(rows, columns)
        (y,) = fd.execute([x])
        assert torch.equal(y, x * 1.25 + 1)
    assert compiled_kernel_count() == before


@pytest.mark.cpu
def test_shapes_of_a_normalisation_compile_by_parameters_alone() -> None:
    fd = scaled_softmax()
    parameters: set[object] = set()
    for rows in (1, 2, 3, 7, 31, 64, 100):
        for columns in (2, 3, 17, 64, 100, 257, 1000):
            x = torch.randn(rows, columns)
            count = compiled_kernel_count()
            (y,) = fd.execute([x])
            torch.testing.assert_close(y, torch.softmax(x * 0.5, 1))
            known = set(parameters)
            for program in engine_of(fd).programs._values.values():
                parameters |= {p for part in program.parts for p in part.kernels}
            assert compiled_kernel_count() - count <= len(parameters - known)
    assert len(parameters) < 12
    count = compiled_kernel_count()
    for rows in (3, 8, 50):
        for columns in (17, 33, 90, 1000):
            fd.execute([torch.randn(rows, columns)])
    assert compiled_kernel_count() - count <= 2


def test_equal_definitions_share_one_kernel() -> None:
    x = torch.randn(9, 21)
    affine(3.5).execute([x])
    before = compiled_kernel_count()
    for _ in range(3):
        (y,) = affine(3.5).execute([x])
        assert torch.equal(y, x * 3.5 + 1)
    assert compiled_kernel_count() == before


@pytest.mark.cpu
def test_equal_segments_compile_once() -> None:
    """Two softmaxes over different dimensions of one size: segments of equal structure."""
    with FusionDefinition() as fd:
        for _ in range(3):
            x = float_tensor(fd, 2, True)
            total = fd.ops.sum(fd.ops.mul(x, 1.75), [1])
            fd.add_output(total)
    inputs = [torch.randn(40, 7), torch.randn(50, 6), torch.randn(60, 5)]  # less than two vectors
    before = compiled_kernel_count()
    outputs = fd.execute(inputs)
    for x, y in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(y, (x * 1.75).sum(1))
    (program,) = engine_of(fd).programs._values.values()
    assert len(program.parts) == 3
    assert compiled_kernel_count() - before == 1


def test_plans_are_kept_by_metadata() -> None:
    fd = affine(0.75)
    fd.execute([torch.randn(4, 6)])
    assert fd.fec.is_compiled([torch.randn(4, 6)])
    assert not fd.fec.is_compiled([torch.randn(4, 700_000)])
    plans = len(engine_of(fd).plans)
    fd.execute([torch.randn(4, 6)])
    assert len(engine_of(fd).plans) == plans


def test_old_plans_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyfuser import executor

    monkeypatch.setattr(executor, "MOST_PLANS", 3)
    fd = affine(0.875, rank=1)
    for size in (1, 3, 40, 1 << 18, 1 << 20, 3, 1, 1 << 22, 0):
        (y,) = fd.execute([torch.ones(size)])
        assert torch.equal(y, torch.full((size,), 1.875))
    assert len(engine_of(fd).plans) == 3


def test_registered_fusions_are_shared_by_structure() -> None:
    first, second = (affine(7.0).fusion.definition for _ in range(2))
    key = register_fusion(first)
    assert register_fusion(second) == key
    assert register_fusion(affine(8.0).fusion.definition) != key
    assert interface.cached_spec_count() >= 2
    x = torch.randn(2, 3)
    stack: list[Any] = ["below", x]
    run_fusion(key, stack)
    assert stack[0] == "below" and torch.equal(stack[1], x * 7 + 1)


def _doubled(
    order: list[int] | None = None,
    contiguity: bool = True,
    constant: float | int = 2.0,
    shape: list[int] | None = None,
) -> int:
    """The key of x * 2 with some fact that isn't printed."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[contiguity] * 2, dtype=DataType.Float)
        y = fd.ops.mul(x, fd.define_scalar(constant))
        y = fd.ops.stride_order(y, order) if order else fd.ops.set(y)
        fd.add_output(fd.ops.reshape(y, shape) if shape else y)
    return register_fusion(fd.fusion.definition)


def test_registered_fusions_differ_in_what_is_not_printed() -> None:
    """They would share kernels, and one of them would read or write the other's places."""
    keys = [
        _doubled(),
        _doubled(order=[0, 1]),
        _doubled(contiguity=False),
        _doubled(constant=2),
        _doubled(shape=[6, 4]),
        _doubled(shape=[4, 6]),
    ]
    assert len(set(keys)) == len(keys)
    assert _doubled(order=[0, 1]) == keys[1]


def test_fusing_can_be_switched_off() -> None:
    assert can_fuse_on("cpu") and not can_fuse_on("no_such_device")
    override_can_fuse_on("cpu", False)
    assert not can_fuse_on("cpu")
    override_can_fuse_on("cpu", None)
    assert can_fuse_on("cpu")


# -- threads and processes


def test_eight_threads_call_one_definition() -> None:
    fd = scaled_softmax(0.3)

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for size in (5, 17, 64):
            x = torch.randn(number + 1, size, generator=generator)
            for _ in range(5):
                (y,) = fd.execute([x])
                torch.testing.assert_close(y, torch.softmax(x * 0.3, 1))

    in_threads(8, work)


def test_eight_threads_compile_different_definitions() -> None:
    def work(number: int) -> None:
        scale = 1.0 + number / 16
        x = torch.full((6, 10), float(number))
        (y,) = affine(scale).execute([x])
        assert torch.equal(y, x * scale + 1)
        (z,) = scaled_softmax(scale).execute([x])
        torch.testing.assert_close(z, torch.softmax(x * scale, 1))

    in_threads(8, work)


def test_eight_threads_compile_one_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels may be compiled meanwhile, by threads of earlier tests."""
    x = torch.randn(5, 33)
    runtime, compiled = type(runtime_of(x.device)), []
    original = runtime.compile

    def compile_and_note(self: Any, code: Any) -> Any:
        compiled.append(code.text)
        return original(self, code)

    monkeypatch.setattr(runtime, "compile", compile_and_note)

    def work(number: int) -> None:
        (y,) = affine(11.5).execute([x])
        assert torch.equal(y, x * 11.5 + 1)

    in_threads(8, work)
    assert compiled and len(compiled) == len(set(compiled))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_after_use() -> None:
    """The child runs old kernels and compiles new ones."""
    fd, x = affine(2.5), torch.randn(300, 40)
    fd.execute([x])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            (y,) = fd.execute([x])
            (z,) = affine(9.25).execute([x])
            status = int(not (torch.equal(y, x * 2.5 + 1) and torch.equal(z, x * 9.25 + 1)))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


WARM_START = """
import sys, torch
from pyfuser import FusionDefinition
from pyfuser.devices.cpu import jit
from pyfuser.devices.registry import runtime_of

compiled = []
optimised = jit._optimised

def counting(text, *rest):
    compiled.append(text.llvm_ir)
    return optimised(text, *rest)

jit._optimised = counting
with FusionDefinition() as fd:
    x = fd.define_tensor([-1, -1], contiguity=True)
    fd.add_output(fd.ops.tanh(fd.ops.mul(x, 2.0)))
    fd.add_output(fd.ops.sum(x, [1]))
x = torch.linspace(-1, 1, 35).view(5, 7)
y, z = fd.execute([x])
torch.testing.assert_close(y, torch.tanh(x * 2))
torch.testing.assert_close(z, x.sum(1))
print(sum("@kernel_phase0" in text for text in compiled))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"PYFUSER_CACHE_DIR": str(tmp_path), "PYFUSER_STRICT": "1"}
    environment.pop("PYFUSER_DISABLE_CACHE", None)
    compiled = [
        int(
            subprocess.run(
                [sys.executable, "-c", WARM_START],
                cwd=ROOT,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for _ in range(2)
    ]
    assert compiled[0] > 0
    assert compiled[1] == 0


def test_thread_counts_change_nothing() -> None:
    before = torch.get_num_threads()
    x = torch.randn(700, 300)
    fd = scaled_softmax(0.7)
    try:
        results = []
        for threads in (1, 2, 5, 1):
            torch.set_num_threads(threads)
            results += fd.execute([x])
    finally:
        torch.set_num_threads(before)
    for result in results:
        torch.testing.assert_close(result, torch.softmax(x * 0.7, 1))


# -- failures


@pytest.mark.usefixtures("failing")
def test_a_failed_compilation_is_one_warning_and_right() -> None:
    x = torch.randn(4, 6)
    fd = affine(13.0)
    with pytest.warns(RuntimeWarning, match="runs through torch instead .*in a good mood") as seen:
        (y,) = fd.execute([x])
    assert len(seen) == 1
    assert torch.equal(y, x * 13 + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (y,) = fd.execute([x])
        (z,) = fd.execute([x[:2]])
    assert torch.equal(y, x * 13 + 1) and torch.equal(z, x[:2] * 13 + 1)


@pytest.mark.usefixtures("failing")
def test_a_failed_compilation_is_an_error_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with pytest.raises(CompilationError, match="in a good mood"):
        affine(14.0).execute([torch.randn(4, 6)])


@pytest.mark.usefixtures("failing")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_fallback_updates_inputs_in_place() -> None:
    x = torch.arange(6.0).view(2, 3)
    with FusionDefinition() as fd:
        t = float_tensor(fd, 2)
        y = fd.ops.mul(t, 2.0)
        fd.add_output(y, t)
        fd.add_output(fd.ops.sum(y, [1]))
    (total,) = fd.execute([x])
    assert torch.equal(x, torch.arange(6.0).view(2, 3) * 2)
    assert torch.equal(total, x.sum(1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_failed_segmentation_runs_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("segments are out today")

    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    monkeypatch.setattr(compiler, "cut", fail)
    x = torch.randn(4, 6)
    (y,) = scaled_softmax(1.5).execute([x])
    torch.testing.assert_close(y, torch.softmax(x * 1.5, 1))


def test_no_llvm_module_is_left_to_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could free a module after the module's context."""
    modules = []
    optimised = jit._optimised

    def recording(*arguments: Any) -> Any:
        modules.append(optimised(*arguments))
        return modules[-1]

    monkeypatch.setattr(jit, "_optimised", recording)
    monkeypatch.setattr(jit, "_object_cache", None)
    jit.compile_module("define void @left_to_the_collector() { ret void }")
    with pytest.raises(CompilationError, match="nobody_defines_this"):
        jit.compile_module(
            "declare void @nobody_defines_this()\n"
            "define void @f() { call void @nobody_defines_this() ret void }"
        )
    assert len(modules) == 2 and all(module.closed for module in modules)
