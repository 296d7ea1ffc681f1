"""Cubins: compiled at once, kept on disk; and the targets of GPUs that a driver describes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from pyfuser import can_fuse_on_gpu
from pyfuser.caches.disk_cache import DiskCache
from pyfuser.command_line import doctor
from pyfuser.devices.cuda import cubins, nvrtc
from pyfuser.devices.cuda.cubins import CubinCompiler, cubin_compiler
from pyfuser.devices.cuda.driver import Driver
from pyfuser.devices.cuda.runtime import target_of_gpu
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.devices.registry import runtime_of
from pyfuser.errors import CompilationError, UnsupportedError
from tests.cuda.cubins import requires_nvrtc
from tests.cuda.fake_driver import ATTRIBUTES, FakeDriver, fake_gpus
from tests.support.folders import ROOT

NVRTC_13 = ((13, 0), ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100"))
NVRTC_12 = ((12, 9), ("sm_70", "sm_75", "sm_80", "sm_90"))


class Counting:
    """A compiler that counts, and whose machine code says what it was made from."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, architecture: str) -> bytes:
        self.texts.append(text)
        return f"{architecture} {text[-8:]}".encode()


def test_a_cubin_is_compiled_once_by_all_processes(tmp_path: Path) -> None:
    counting, cache = Counting(), DiskCache(tmp_path / "cache")
    for _ in range(2):  # two processes
        compiler = CubinCompiler("sm_90", counting, "1")
        compiler.cache = cache
        for _ in range(2):
            assert compiler.cubin("kernel A") == b"sm_90 kernel A"
    assert len(counting.texts) == 1


@pytest.mark.parametrize(
    ("architecture", "version", "text"),
    [("sm_80", "1", "kernel A"), ("sm_90", "2", "kernel A"), ("sm_90", "1", "kernel B")],
)
def test_what_a_cubin_depends_on_is_in_its_key(
    architecture: str, version: str, text: str, tmp_path: Path
) -> None:
    counting, cache = Counting(), DiskCache(tmp_path / "cache")
    for given in (("sm_90", "1", "kernel A"), (architecture, version, text)):
        compiler = CubinCompiler(given[0], counting, given[1])
        compiler.cache = cache
        assert compiler.cubin(given[2]) == f"{given[0]} {given[2]}".encode()
    assert len(counting.texts) == 2


def test_kernels_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if cubins._threads()._max_workers < 2:
        pytest.skip("one core compiles one kernel at a time")
    both = threading.Barrier(2, timeout=60)

    def wait_for_the_other(text: str, architecture: str) -> bytes:
        both.wait()
        return b"done"

    compiler = CubinCompiler("sm_90", wait_for_the_other, "1")
    compiler.start("A")
    compiler.start("B")
    assert compiler.cubin("A") == compiler.cubin("B") == b"done"


def test_a_failure_is_tried_again() -> None:
    failures = [CompilationError("bad day")]

    def compile_text(text: str, architecture: str) -> bytes:
        if failures:
            raise failures.pop()
        return b"good"

    compiler = CubinCompiler("sm_90", compile_text, "1")
    with pytest.raises(CompilationError, match="bad day"):
        compiler.cubin("A")
    assert compiler.cubin("A") == b"good"


@requires_nvrtc
def test_nvrtc_compiles_in_threads() -> None:
    compiler = cubin_compiler("sm_90")
    assert compiler is cubin_compiler("sm_90") and "--fmad=false" in compiler.version
    texts = [f'extern "C" __global__ void k{n}(float* x) {{ *x = {n}; }}' for n in range(3)]
    for text in texts:
        compiler.start(text)
    assert all(compiler.cubin(text).startswith(b"\x7fELF") for text in texts)
    with pytest.raises(CompilationError, match="kernel.cu"):
        compiler.cubin("nonsense")


# -- targets


def described(version: int = 13000, **attributes: int) -> Driver:
    return Driver(FakeDriver([{**ATTRIBUTES, **attributes}], cuda_version=version))


def of_capability(major: int, minor: int, version: int = 13000) -> Driver:
    return described(version, COMPUTE_CAPABILITY_MAJOR=major, COMPUTE_CAPABILITY_MINOR=minor)


def test_a_target_is_what_the_driver_says() -> None:
    found = target_of_gpu(described(MULTIPROCESSOR_COUNT=114, L2_CACHE_SIZE=1000), 0, *NVRTC_13)
    assert found == CudaTarget("sm_90", 114, 128, 256 << 10, 1000, 227 << 10)
    assert found.limits.shared_bytes == 227 << 10 and found.workers == 114


def test_an_unknown_gpu_runs_the_cubins_of_its_generation() -> None:
    assert target_of_gpu(of_capability(8, 9), 0, *NVRTC_13).architecture == "sm_86"
    assert target_of_gpu(of_capability(7, 0, 12090), 0, *NVRTC_12).architecture == "sm_70"
    unknown = target_of_gpu(described(COMPUTE_CAPABILITY_MINOR=7), 0, *NVRTC_13)
    assert unknown.l1_bytes == ATTRIBUTES["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"]


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (of_capability(6, 1), "CUDA: expected a GPU from sm_70 on, got one of sm_61"),
        (of_capability(7, 0), "sm_100\\), got one of sm_70; the extra `cuda12` may"),
        (of_capability(13, 0), "sm_100\\), got one of sm_130; a newer nvidia-cuda-nvrtc may"),
        (
            described(12040),
            "expected a driver for CUDA 13, the version of .*, got one for CUDA 12.4",
        ),
    ],
)
def test_a_gpu_without_a_target(driver: Driver, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        target_of_gpu(driver, 0, *NVRTC_13)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nothing_is_fused_there_and_the_doctor_says_why() -> None:
    assert not can_fuse_on_gpu()
    with pytest.raises(UnsupportedError, match="expected a GPU that torch can use, got none"):
        runtime_of(torch.device("cuda", 0))
    (finding,) = (each for each in doctor.findings() if each.what == "NVIDIA GPU")
    assert "a GPU that torch can use, got none" in finding.found and finding.remedy


def test_the_doctor_names_a_gpu_and_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    with fake_gpus(2):
        assert doctor._gpu() == doctor.Finding("NVIDIA GPU", "NVIDIA H100: sm_90")


def test_without_nvrtc_or_a_driver_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("pyfuser.devices.cuda.runtime.system_driver", described)

    def missing() -> tuple[int, int]:
        raise UnsupportedError("nvrtc: expected the packages, got none")

    monkeypatch.setattr(nvrtc, "version", missing)
    with pytest.raises(UnsupportedError, match="nvrtc: expected the packages"):
        runtime_of(torch.device("cuda", 0))


def test_the_runtime_of_a_gpu_needs_neither_llvm_nor_the_packages() -> None:
    code = (
        "import sys; sys.modules['cuda'] = sys.modules['cuda.bindings'] = None;"
        "import pyfuser.devices.cuda.runtime; assert 'llvmlite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
