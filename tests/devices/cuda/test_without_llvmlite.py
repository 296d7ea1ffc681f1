"""A machine with a GPU need not have llvmlite: nothing of CUDA imports it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cuda.host_compiler import requires_host_compiler
from tests.support.folders import ROOT

BLOCKED = """
import os, sys
for name in ("llvmlite", "llvmlite.binding", "llvmlite.ir"):
    sys.modules[name] = None
os.environ["PYFUSER_STRICT"] = "1"
"""

DEFINITION = """
import torch
from pyfuser import FusionDefinition
from pyfuser.devices.cuda.emulator.runtime import emulated
with emulated():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
    y = torch.randn(4, 100)
    torch.testing.assert_close(fd.execute([y])[0], y.exp().sum(1))
"""

GRAPH = """
import torch
from pyfuser.devices.cuda.emulator.runtime import emulated
with emulated():
    x = torch.randn(4, 100, requires_grad=True)
    compiled = torch.compile(lambda x: torch.softmax(x * 2, 1).square().sum(), backend="pyfuser")
    compiled(x).backward()
    assert x.grad.abs().sum() > 0
"""

# The tests of `make gpu` are collected, with all that tests/conftest.py loads.
TESTS = """
import pytest
sys.exit(pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "gpu",
                      "tests/devices/cuda/test_gpu.py"]))
"""

BENCHMARKS = "import benchmarks.__main__, benchmarks.gpu_kernels"

COMMANDS = """
from pyfuser.__main__ import main
assert main(["doctor"]) == 0
assert main(["show", "docs/examples/softmax.py", "--device", "sm_90", "--stage", "cuda"]) == 0
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(DEFINITION, marks=requires_host_compiler, id="definition"),
        pytest.param(GRAPH, marks=requires_host_compiler, id="graph"),
        pytest.param(TESTS, id="tests"),
        pytest.param(BENCHMARKS, id="benchmarks"),
        pytest.param(COMMANDS, id="commands"),
    ],
)
def test_it_runs_without_llvmlite(script: str) -> None:
    command = [sys.executable, "-c", BLOCKED + script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
