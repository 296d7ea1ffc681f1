"""The interface's profiler, and the options that act on an execution."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pyfuser as nvfuser_direct
from pyfuser import FusionDefinition, PythonProfiler, executor, get_fusion_profile, reset_profiler
from pyfuser.compiler import Program
from pyfuser.errors import DefinitionError, InputError, PyfuserError
from pyfuser.profiling import bytes_of
from tests.frontend.definitions import doubled


@pytest.fixture(autouse=True)
def engine() -> None:
    """These tests run kernels."""


def two_kernels() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True) for _ in "xy")
        fd.add_output(fd.ops.sum(fd.ops.exp(y), dims=[0]))
        total = fd.ops.broadcast(fd.ops.sum(x, dims=[1]), [False, True])
        fd.add_output(fd.ops.mul(x, total))
    return fd


def test_each_kernel_has_its_bytes_and_its_time() -> None:
    fd, x, y = two_kernels(), torch.randn(64, 48), torch.randn(64, 48)
    expected = fd.execute([x, y])
    with PythonProfiler() as profiler:
        outputs = fd.execute([x, y])
    for ours, theirs in zip(outputs, expected, strict=True):
        assert torch.equal(ours, theirs)
    found = profiler.profile
    assert get_fusion_profile() is found
    assert found.segments == 2 and found.fusion_id >= 0
    kinds = {kernel.scheduler: kernel for kernel in found.kernel_profiles}
    assert set(kinds) == {"reduction", "inner_persistent"}
    assert kinds["reduction"].input_bytes == x.nbytes
    assert kinds["reduction"].output_bytes == 48 * 4
    assert kinds["inner_persistent"].output_bytes == x.nbytes
    assert kinds["inner_persistent"].grid_str == "[64]"
    times = [kernel.time_ms for kernel in found.kernel_profiles]
    assert min(times) > 0 and found.kernel_time_ms == pytest.approx(sum(times))
    assert found.host_time_ms >= found.kernel_time_ms
    kernel = kinds["inner_persistent"]
    moved = (kernel.input_bytes + kernel.output_bytes) / (kernel.time_ms / 1e3) / 1e9
    assert kernel.effective_bandwidth_gbs == pytest.approx(moved)
    assert kernel.percentage_peak_bandwidth > 0


def test_the_profile_prints_as_a_table() -> None:
    fd = two_kernels()
    fd.execute([torch.randn(8, 8), torch.randn(8, 8)], profile=True)
    text = str(fd.profile())
    assert re.search(r"fusion \d+: 2 segments", text)
    assert "inner_persistent" in text and "GB/s" in text


def test_a_first_execution_counts_its_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = executor.compile_program

    def slow(*arguments: Any) -> Program:
        time.sleep(0.1)
        return compiled(*arguments)

    monkeypatch.setattr(executor, "compile_program", slow)
    fd = two_kernels()
    fd.execute([torch.randn(8, 8), torch.randn(8, 8)], profile=True)
    assert fd.profile().compile_time_ms >= 100


def test_plans_have_no_clock_once_the_profiler_is_gone() -> None:
    fd, x = doubled(), torch.randn(4, 4)
    with PythonProfiler():
        fd.execute([x])
        assert "clock" in fd.fec.engine.executor.plans[0].source
    fd.execute([x])
    assert [plan for plan in fd.fec.engine.executor.plans if "clock" in plan.source] == []


def test_manual_execution_has_one_kernel_of_the_user() -> None:
    fd = doubled()
    with PythonProfiler(auto_scheduled=False) as profiler:
        fd.manual_execute([torch.randn(4, 4)])
    assert [kernel.scheduler for kernel in profiler.profile.kernel_profiles] == ["user"]


def test_library_calls_and_views_are_parts_too() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=nvfuser_direct.DataType.ComplexFloat)
        fd.add_output(fd.ops.exp(x))
    fd.execute([torch.randn(4, 4, dtype=torch.complex64)], profile=True)
    assert [kernel.scheduler for kernel in fd.profile().kernel_profiles] == ["library"]


def test_without_a_profiled_execution_there_is_no_profile() -> None:
    reset_profiler()
    with pytest.raises(InputError, match="get_fusion_profile: expected a profiled execution"):
        get_fusion_profile()
    with pytest.raises(InputError, match="profile: expected a profiled execution"):
        doubled().profile()


def test_an_expanded_dimension_has_the_bytes_of_one_element() -> None:
    assert bytes_of(torch.randn(3, 1).expand(3, 100)) == 12
    assert bytes_of(torch.empty(0, 4)) == 0


# -- options


def test_kernel_profile_is_an_option() -> None:
    doubled().execute([torch.randn(4, 4)], _enable_options=["kernel_profile"])
    assert get_fusion_profile().segments == 1


def test_without_the_fallback_a_failure_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyfuser import parts

    def failing(*_: object) -> None:
        raise RuntimeError("no kernel today")

    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    monkeypatch.setattr(parts, "build_kernel", failing)
    with pytest.raises((PyfuserError, RuntimeError), match="no kernel today"):
        doubled().execute([torch.randn(4, 4)], _disable_options=["fallback"])
    with pytest.warns(RuntimeWarning, match="no kernel today"):
        doubled().execute([torch.randn(4, 4)])


def test_without_the_disk_cache_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.delenv("PYFUSER_DISABLE_CACHE", raising=False)

    def scaled(factor: float) -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1], contiguity=True)
            fd.add_output(fd.ops.sin(fd.ops.mul(x, factor)))
        return fd

    scaled(0.123456).execute([torch.randn(40)], _disable_options=["nvrtc_caching"])
    assert list(tmp_path.rglob("*.kernel")) == []
    scaled(0.654321).execute([torch.randn(40)])
    assert len(list(tmp_path.rglob("*.kernel"))) == 2  # the text, and the machine code


@pytest.mark.parametrize("kind", ["enable", "disable"])
def test_an_unknown_option_is_an_error(kind: str) -> None:
    with pytest.raises(DefinitionError, match=f"Unrecognized {kind}_option: fallbak"):
        doubled().execute([torch.randn(4, 4)], **{f"_{kind}_options": ["fallbak"]})


def test_every_option_of_the_interface_is_accepted() -> None:
    from pyfuser.frontend.options import DISABLE, ENABLE

    assert len(ENABLE) + len(DISABLE) == 47
    x = torch.randn(4, 4)
    (out,) = doubled().execute([x], _enable_options=list(ENABLE), _disable_options=list(DISABLE))
    assert torch.equal(out, x * 2)
