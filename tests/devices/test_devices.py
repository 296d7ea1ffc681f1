"""The interface to devices: its required methods, and three runtimes that implement it."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pyfuser import DataType, FusionDefinition, devices
from pyfuser.devices.cpu.target import CpuTarget
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.devices.registry import has_runtime, runtime_of, target_for, target_of
from pyfuser.errors import InputError, UnsupportedError
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.folders import ROOT
from tests.support.targets import PRETENDED, SM_90, WIDE

FOLDER = Path(str(devices.__file__)).parent

# One method of each class: without it, the class can't be instantiated.
METHODS = {
    "cpu/target.py": ("CpuTarget", "inner_persistent"),
    "cpu/runtime.py": ("CpuRuntime", "compile_ahead"),
    "cuda/target.py": ("CudaTarget", "refusal"),
    "cuda/runtime.py": ("CudaRuntime", "compile_ahead"),
    "cuda/launches.py": ("FusedKernelCUDA", "write_launch"),
}


def without(text: str, class_name: str, method: str) -> str:
    """The source without one method."""
    lines = text.splitlines()
    (found,) = (
        each
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == class_name
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name == method
    )
    first = min([found.lineno, *(d.lineno for d in found.decorator_list)])
    return "\n".join([*lines[: first - 1], *lines[found.end_lineno :]]) + "\n"


@pytest.mark.long
def test_mypy_finds_a_method_that_a_device_misses(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pyfuser", tmp_path / "pyfuser")
    for name, (class_name, method) in METHODS.items():
        path = tmp_path / "pyfuser" / "devices" / name
        path.write_text(without(path.read_text(), class_name, method))
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), f"pyfuser/{FOLDER.name}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    for class_name, method in METHODS.values():
        message = f'Cannot instantiate abstract class "{class_name}" with abstract attribute'
        assert f'{message} "{method}"' in done.stdout, done.stdout
    assert done.returncode == 1


def test_targets_are_values() -> None:
    assert CudaTarget("sm_90") == SM_90 and hash(CudaTarget("sm_90")) == hash(SM_90)
    assert len({PRETENDED, WIDE, SM_90, CudaTarget("sm_80"), CpuTarget(WIDE.processor)}) == 4
    with pytest.raises(AttributeError):
        SM_90.architecture = "sm_80"  # type: ignore[misc]


def test_targets_are_found_by_name() -> None:
    assert target_of("cpu") == runtime_of(torch.device("cpu")).target
    assert target_of("sm_90") == SM_90
    assert SM_90.limits.shared_bytes > CudaTarget("sm_75").limits.shared_bytes
    with pytest.raises(InputError, match="expected cpu or an NVIDIA architecture"):
        target_of("tpu")
    with pytest.raises(UnsupportedError, match="an architecture from sm_75 on, got sm_1"):
        target_of("sm_1")


def test_a_kind_of_device_has_a_target_without_a_runtime() -> None:
    gpu = torch.device("cuda", 1)
    assert target_for(gpu).threads_are_hardware
    with pytest.raises(UnsupportedError, match="expected one with kernels, got meta"):
        target_for(torch.device("meta"))
    assert has_runtime("cpu") and not has_runtime("meta")


def test_a_target_for_a_gpu_loads_no_llvm() -> None:
    code = (
        "import sys; from pyfuser.devices.registry import target_of; target_of('sm_90');"
        "import pyfuser.devices.cuda.launches; assert 'llvmlite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def doubled() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.mul(fd.ops.sum(x, [1]), 2.0))
    return fd


@requires_host_compiler
def test_a_runtime_that_is_registered_runs_what_was_defined_before() -> None:
    fd, x = doubled(), torch.randn(5, 33)
    torch.testing.assert_close(fd.execute([x])[0], x.sum(1) * 2)
    with emulated() as runtime:
        torch.testing.assert_close(fd.execute([x])[0], x.sum(1) * 2)
        (kernel,) = runtime.kernels
        assert "__global__" in kernel.code.text
        fd.execute([torch.randn(6, 35)])  # as odd as 33: vectors of the same width
        assert len(runtime.kernels) == 1
    torch.testing.assert_close(fd.execute([x])[0], x.sum(1) * 2)
    assert len(runtime.kernels) == 1


def test_tensors_on_two_devices() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(x, y))
    with pytest.raises(InputError, match="expected all tensors on cpu, got one on meta"):
        fd.execute([torch.zeros(3, 3), torch.zeros(3, 3, device="meta")])
