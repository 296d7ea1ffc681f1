"""The driver through NVIDIA's cuda.bindings: the package is the real one, libcuda is a stub."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.folders import ROOT

pytestmark = [
    pytest.mark.skipif(
        shutil.which("gcc") is None or not sys.platform.startswith("linux"),
        reason="the stub needs gcc on Linux",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda.bindings") is None, reason="cuda-bindings isn't installed"
    ),
]

BEGIN = """
import torch
from pyfuser.devices.cuda.codegen import Launch
from pyfuser.devices.cuda.driver import system_driver
from pyfuser.devices.cuda.launcher import LoadedFunction, launcher
from pyfuser.devices.cuda.modules import LoadedModule
from pyfuser.dtypes import DataType
from pyfuser.errors import DeviceError
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.kernel import ScalarParameter
from pyfuser.ir.scalars import ONE, ZERO
from pyfuser.target.target import PORTABLE_LIMITS

driver = system_driver()
context = driver.primary_context(0)
def attempt(function):
    try:
        function()
    except DeviceError as error:
        print(error)
"""

LAUNCH = """
with driver.current(context), driver.outside_of_graphs():
    module = driver.load(b"\\x7fELF", "kernel")
    function = driver.function(module, "kernel", "kernel")
    driver.allow_shared(function, 1 << 16, "kernel")
dtypes = (DataType.Int, DataType.Float, DataType.Bool)
fusion = Fusion()
parameters = tuple(ScalarParameter(f"s{d}", d, fusion.new_scalar(d)) for d in dtypes)
launch = Launch("kernel", (ONE,) * 3, (ONE,) * 3, ZERO, parameters)
gpu = torch.device("cuda", 0)
loaded = LoadedFunction(
    driver, gpu, context, LoadedModule(module, []), function, launch, PORTABLE_LIMITS
)
call = launcher(loaded, lambda: 0, lambda index: 0x77, lambda: False)
call(2, 3, 4, 5, 6, 7, 8, -11, 0.5, True)
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub."""
    folder = tmp_path_factory.mktemp("stub")
    source = ROOT / "tests" / "cuda" / "stub_driver.c"
    command = ["gcc", "-shared", "-fPIC", str(source), "-o", str(folder / "libcuda.so.1"), "-ldl"]
    subprocess.run(command, check=True)
    return folder


def printed(stub: Path, script: str) -> list[str]:
    """The lines that a script prints in a process with the stub."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stub)}
    command = [sys.executable, "-u", "-c", BEGIN + script]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_the_driver_is_asked(stub: Path) -> None:
    script = "print(driver.version(), driver.attribute(0, 'MULTIPROCESSOR_COUNT'))"
    assert printed(stub, script) == ["(13, 2) 132"]


def test_a_function_is_loaded_and_launched(stub: Path) -> None:
    """With the bytes of its parameters, in the context of its module."""
    opted_in = f"set 8 to {(1 << 16) - 100}"
    assert printed(stub, LAUNCH) == [
        "captures: 0, then 2",
        opted_in,
        "captures: 2, then 0",
        "launch 1: 2 3 4, 5 6 7, 8, 0x77: -11 0.5 1, (nil)",
    ]


def test_errors_have_the_name_and_the_text_of_their_status(stub: Path) -> None:
    script = """
attempt(lambda: driver.attribute(1, "MULTIPROCESSOR_COUNT"))
attempt(lambda: driver.load(b"\\x7fELF", "kernel on cuda:0"))
with driver.current(context):
    attempt(lambda: driver.load(b"text", "kernel on cuda:0"))
    module = driver.load(b"\\x7fELF", "kernel on cuda:0")
    attempt(lambda: driver.function(module, "other", "other on cuda:0"))
"""
    loading = "loading kernel on cuda:0: expected CUDA_SUCCESS"
    assert printed(stub, script) == [
        "device: expected CUDA_SUCCESS, got CUDA_ERROR_INVALID_DEVICE (error 101)",
        f"{loading}, got CUDA_ERROR_INVALID_CONTEXT (error 201)",
        f"{loading}, got CUDA_ERROR_INVALID_IMAGE (error 200)",
        "loading other on cuda:0: expected CUDA_SUCCESS, got CUDA_ERROR_NOT_FOUND (error 500)",
    ]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a driver here")
def test_without_a_driver_there_is_one_sentence() -> None:
    code = (
        "from pyfuser.devices.cuda.driver import system_driver\n"
        "try: system_driver()\n"
        "except NotImplementedError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("CUDA: expected NVIDIA's driver, got `")
