"""Corner cases of the interface: devices without kernels, switches, bounds of caches, scripts.

Results computed by torch must be correct and the reason reported once; switching off and on must
apply to compiled fusions; a process that makes fusions forever must not grow; a failure must leave
a program that reproduces it.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pyfuser import (
    DataType,
    FusionDefinition,
    compiler,
    explain,
    fallback,
    interface,
    reproducer,
)
from pyfuser.devices.cpu.runtime import CpuRuntime
from pyfuser.errors import CompilationError, InputError, InternalError, UnsupportedError
from pyfuser.interface import (
    CompiledFusion,
    compiled_kernel_count,
    override_can_fuse_on,
    override_can_fuse_on_cpu,
    register_fusion,
    registered_fusion,
    run_fusion,
)
from pyfuser.ir.fusion import Fusion
from pyfuser.kernel_cache import KernelCache
from pyfuser.torch_compile import graph as graphs
from tests.support.folders import ROOT


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A state without earlier warnings or switches, and scripts in a folder of the test."""
    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    monkeypatch.setenv("PYFUSER_REPRODUCER_DIR", str(tmp_path / "scripts"))
    monkeypatch.setattr(fallback, "_warned", OrderedDict())
    monkeypatch.setattr(reproducer, "_written", 0)
    torch._dynamo.reset()
    yield
    override_can_fuse_on_cpu(None)


def scaled(number: float, contiguity: bool | None = None) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Float)
        fd.add_output(fd.ops.add(fd.ops.mul(x, number), 1.0))
    return fd


def definition(number: float) -> Fusion:
    return scaled(number).fusion.definition


# -- devices without kernels


def test_a_device_without_kernels_runs_through_torch_with_one_warning() -> None:
    fd, x = scaled(2.0), torch.empty(3, 4, device="meta")
    with pytest.warns(RuntimeWarning, match="expected a device that has kernels, got meta") as seen:
        (y,) = fd.execute([x])
        (z,) = scaled(3.0).execute([x[:2]])
    assert len(seen) == 1 and "reproduces" not in str(seen[0].message)
    assert (y.shape, y.device, y.dtype) == (x.shape, x.device, x.dtype)
    assert z.shape == (2, 4)
    (real,) = fd.execute([torch.ones(2, 2)])
    assert torch.equal(real, torch.full((2, 2), 3.0))


def test_a_device_without_kernels_is_an_error_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with pytest.raises(UnsupportedError, match="got meta tensors"):
        scaled(2.0).execute([torch.empty(3, 4, device="meta")])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_kind_of_definition_runs_on_such_a_device() -> None:
    """CPU numbers with its tensors, tensors of rank 0, updates, reads by index."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Float)
        s = fd.define_tensor([], dtype=DataType.Float)
        i = fd.define_tensor([-1], dtype=DataType.Int)
        y = fd.ops.mul(x, s)
        fd.add_output(y, x)
        fd.add_output(fd.ops.sum(y, [1]))
        fd.add_output(fd.ops.index_select(y, i, 0))
        fd.add_output(fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.mul(s, s))
    x = torch.empty(5, 4, device="meta")
    index = torch.empty(3, dtype=torch.int64, device="meta")
    for number in (torch.tensor(2.0), torch.tensor(2.0, device="meta")):
        outputs = fd.execute([x, number, index])
        assert [tuple(y.shape) for y in outputs] == [(5,), (3, 4), (4, 5), ()]
        assert {y.device.type for y in outputs} == {"meta"}
    with pytest.raises(InputError, match="expected all tensors on meta, got one on cpu"):
        fd.execute([x, number, torch.zeros(3, dtype=torch.int64)])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_default_device_without_kernels() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.full([2, 3], fd.define_scalar(2.0), DataType.Float))
    with torch.device("meta"):
        (made,) = fd.execute([])
    assert made.device.type == "meta" and made.shape == (2, 3)
    assert fd.execute([])[0].tolist() == [[2.0] * 3] * 2


def test_a_graph_on_a_device_without_kernels() -> None:
    program = torch.compile(lambda x, n: torch.tanh(x) * n, backend="pyfuser")
    with pytest.warns(RuntimeWarning, match="a graph isn't supported .*a device with kernels, got"):
        y = program(torch.empty(3, 4, device="meta"), torch.tensor(2.0))
    assert (y.shape, y.device.type) == ((3, 4), "meta")


def test_explain_says_why_torch_runs_a_graph() -> None:
    report = explain(lambda x: torch.tanh(x) * 2, torch.empty(3, 4, device="meta"))
    (graph,) = report.graphs
    assert graph.regions == () and graph.library_calls["aten::tanh"] == 1
    assert "expected a device with kernels, got meta" in str(list(graph.outside))


# -- switches


def test_switching_off_holds_for_plans_and_graphs_that_are_there() -> None:
    x = torch.randn(6, 7)
    fd, key = scaled(4.5), register_fusion(definition(4.5))
    program = torch.compile(lambda x: torch.tanh(x) * 4.5 + x, backend="pyfuser")
    want = program(x)
    fd.execute([x])
    calls: list[str] = []
    original = fallback.evaluate

    def noted(*arguments: Any, **keywords: Any) -> Any:
        calls.append("evaluate")
        return original(*arguments, **keywords)

    fallback.evaluate = noted
    try:
        for off, expected in ((None, 0), (False, 2), (None, 2), (True, 2), (False, 4)):
            override_can_fuse_on_cpu(off)
            stack: list[Any] = [x]
            run_fusion(key, stack)
            (y,) = fd.execute([x])
            assert torch.equal(stack[0], y) and torch.equal(y, x * 4.5 + 1)
            torch.testing.assert_close(program(x), want)
            assert torch_ran_ops_of(program, x) is (off is False)
            assert len(calls) == expected
    finally:
        fallback.evaluate = original


def torch_ran_ops_of(program: Any, x: torch.Tensor) -> bool:
    """True if torch computed a tanh during the call."""
    with torch.profiler.profile() as profile:
        program(x)
    return any(event.name == "aten::tanh" for event in profile.events())


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_that_is_compiled_while_off_gets_kernels_when_on(dynamic: bool) -> None:
    scale = 5.25 + dynamic  # else the kernel would be there already
    program = torch.compile(lambda x: torch.tanh(x) * scale + x, backend="pyfuser", dynamic=dynamic)
    override_can_fuse_on_cpu(False)
    before = compiled_kernel_count()
    x = torch.randn(6, 7, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # it was requested: no warning
        y = program(x)
    y.sum().backward()
    assert compiled_kernel_count() == before
    override_can_fuse_on_cpu(None)
    torch.testing.assert_close(program(x), y)
    assert compiled_kernel_count() > before
    assert not torch_ran_ops_of(program, x)


def test_a_switch_for_a_device_that_does_not_exist() -> None:
    override_can_fuse_on("meta", True)
    try:
        with pytest.warns(RuntimeWarning, match="got meta tensors"):
            scaled(2.5).execute([torch.empty(2, 2, device="meta")])
    finally:
        override_can_fuse_on("meta", None)


# -- registration


def test_a_definition_that_cannot_be_simplified_shows_at_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object, **keywords: object) -> Fusion:
        raise InternalError("pass: expected a simple definition, got this one")

    monkeypatch.setattr(compiler, "simplify", fail)
    with pytest.warns(RuntimeWarning, match="a simple definition, got this .* reproduces it"):
        key = register_fusion(definition(6.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stack: list[Any] = [torch.ones(2, 2)]
        run_fusion(key, stack)
    assert torch.equal(stack[0], torch.full((2, 2), 7.5))
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with pytest.raises(InternalError, match="a simple definition"):
        register_fusion(definition(6.75))
    monkeypatch.delenv("PYFUSER_STRICT")
    x = torch.randn(5)
    program = torch.compile(lambda x: torch.exp(x) * 6.5, backend="pyfuser")
    torch.testing.assert_close(program(x), torch.exp(x) * 6.5)


@pytest.fixture
def room_for_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_kept", KernelCache(4))


@pytest.mark.usefixtures("room_for_four")
def test_a_key_works_while_somebody_holds_it() -> None:
    key = register_fusion(definition(7.5))
    number = int(register_fusion(definition(7.75)))
    for n in range(6):
        register_fusion(definition(20.5 + n))
    gc.collect()
    assert interface.cached_spec_count() == 4
    stack: list[Any] = [torch.ones(1, 1)]
    run_fusion(key, stack)
    assert stack[0].item() == 8.5
    assert register_fusion(definition(7.5)) == key
    with pytest.raises(InputError, match=r"a key from register_fusion, got \d+; of keys that nob"):
        run_fusion(number, stack)
    assert register_fusion(definition(7.75)) != number
    assert pickle.loads(pickle.dumps(key)) == key
    assert registered_fusion(int(key)).fusion is key.fusion.fusion


@pytest.mark.usefixtures("room_for_four")
def test_a_number_that_is_used_stays() -> None:
    number = int(register_fusion(definition(8.5)))
    for n in range(20):
        register_fusion(definition(30.5 + n))
        stack: list[Any] = [torch.ones(1, 1)]
        run_fusion(number, stack)
        assert stack[0].item() == 9.5


@pytest.mark.usefixtures("room_for_four")
def test_what_nobody_uses_is_freed() -> None:
    def alive() -> int:
        gc.unfreeze()  # what conftest.py has kept out of collections
        gc.collect()
        return sum(type(each) is CompiledFusion for each in gc.get_objects())

    register_fusion(definition(9.5))
    before = alive()
    for n in range(40):
        register_fusion(definition(40.5 + n))
    assert alive() <= before + 4
    assert len(interface._living) == len(interface._numbered) <= before + 4


@pytest.mark.usefixtures("room_for_four")
def test_graphs_outlive_the_registry() -> None:
    x = torch.randn(9)
    program = torch.compile(lambda x: torch.sin(x) * 10.5, backend="pyfuser", dynamic=True)
    want = program(x)
    for n in range(8):
        register_fusion(definition(60.5 + n))
    gc.collect()
    assert torch.equal(program(x), want)
    y = torch.randn(17)
    torch.testing.assert_close(program(y), torch.sin(y) * 10.5)


def test_reasons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "MOST_REASONS", 8)
    with pytest.warns(RuntimeWarning) as seen:
        for n in range(20):
            for _ in range(2):
                fallback.warn(UnsupportedError(f"reason {n}"), "a thing")
    assert len(seen) == 20 and len(fallback._warned) == 8


# -- failures


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM refuses every kernel."""

    def fail(*arguments: object) -> None:
        raise CompilationError("compile: expected valid text, got this test")

    monkeypatch.setattr(CpuRuntime, "compile", fail)


SHOW_AGAIN = """
import runpy, sys
from pyfuser import fallback, parts
def fail(*arguments):
    raise fallback.PyfuserError("the script got here")
parts.build_kernel = fail
runpy.run_path(sys.argv[1])
"""


def run_script(path: str) -> str:
    """The output of a script if kernels fail in its process as well."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW_AGAIN, path],
        cwd=ROOT,
        env={**os.environ, "PYFUSER_STRICT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.usefixtures("failing")
def test_what_failed_is_not_counted_and_leaves_a_script() -> None:
    before = compiled_kernel_count()
    x = torch.randn(4, 14)[:, ::2]
    with pytest.warns(RuntimeWarning, match="got this test.* reproduces it") as seen:
        (y,) = scaled(11.5).execute([x])
    assert torch.equal(y, x * 11.5 + 1) and compiled_kernel_count() == before
    (path,) = re.findall(r"(\S+\.py) reproduces it", str(seen[0].message))
    text = Path(path).read_text(encoding="utf-8")
    assert text.startswith("# CompilationError: compile: expected valid text, got this test\n")
    assert "fd.ops.mul" in text and ".as_strided((4, 7), (14, 2))" in text
    assert "the script got here" in run_script(path)


@pytest.mark.usefixtures("failing")
def test_a_strict_error_says_where_the_script_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with pytest.raises(CompilationError) as caught:
        scaled(12.5).execute([torch.randn(4, 6)])
    (note,) = caught.value.__notes__
    assert Path(note.removesuffix(" reproduces it")).exists()


@pytest.mark.usefixtures("failing")
def test_scripts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproducer, "MOST_SCRIPTS", 3)
    for n in range(6):
        monkeypatch.setattr(fallback, "_warned", OrderedDict())
        with pytest.warns(RuntimeWarning, match="got this test") as seen:
            scaled(13.5 + n).execute([torch.randn(4, 6)])
        assert ("reproduces it" in str(seen[0].message)) is (n < 3)
    assert len(list((tmp_path / "scripts").iterdir())) == 3


@pytest.mark.usefixtures("failing")
def test_a_script_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYFUSER_REPRODUCER_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="got this test") as seen:
        (y,) = scaled(19.5).execute([torch.ones(2, 2)])
    assert "reproduces" not in str(seen[0].message) and y[0, 0].item() == 20.5


def test_scripts_go_to_a_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYFUSER_REPRODUCER_DIR")
    monkeypatch.setattr(reproducer, "_temporary", None)
    monkeypatch.setattr(reproducer.tempfile, "tempdir", str(tmp_path))
    first, second = (reproducer.write(lambda: "pass\n", ValueError("two\nlines")) for _ in "ab")
    assert first is not None and second is not None
    assert first.parent == second.parent and first.parent.parent == tmp_path
    assert first.read_text().startswith("# ValueError: two\n# lines\nimport os\n")


def test_a_region_that_fails_leaves_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("no region today")

    monkeypatch.setattr(graphs, "fusion_node", fail)
    held = torch.randn(5)
    program = torch.compile(lambda x: torch.tanh(x) * held + 2, backend="pyfuser", dynamic=True)
    x = torch.randn(3, 5)
    with pytest.warns(RuntimeWarning, match="no region today.* reproduces it") as seen:
        torch.testing.assert_close(program(x), torch.tanh(x) * held + 2)
    (path,) = re.findall(r"(\S+\.py) reproduces it", str(seen[0].message))
    text = Path(path).read_text(encoding="utf-8")
    assert "torch.ops.aten.tanh.default" in text and "dynamic=True" in text
    assert "the script got here" in run_script(path)
