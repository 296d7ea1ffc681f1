"""Kernels under AddressSanitizer and UndefinedBehaviorSanitizer, as `make emulate` runs them.

AddressSanitizer's runtime must be in a process from its start, so each test is a process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.cuda.host_compiler import requires_host_compiler
from tests.support.folders import ROOT
from tests.support.long_cases import first

pytestmark = requires_host_compiler

SCRIPT = """
import torch
from pyfuser.devices.cuda.emulator import harness
assert harness.has_address_sanitizer()
text = '''
extern "C" __global__ void wrong(float* out, int zero, long long large, const bool* flags) {
  float own[4] = {1, 2, 3, 4};
  float* element = own + zero;
  BODY
  out[threadIdx.x] = element[0];
}
'''
flags = torch.full((1,), 2, dtype=torch.uint8)
out = torch.zeros(32)
module = harness.compile_and_load(text.replace("BODY", BODY))
try:
    module.launch("wrong", 1, 32, 0, [out, 0, 2**62, flags])
except harness.SimtError as error:
    print(error)
else:
    print("nothing found", out.sum().item())
"""


def _library(name: str) -> str:
    """The path of one of g++'s libraries; the name if it isn't installed."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def sanitized(script: str) -> str:
    """What a script prints in a process with AddressSanitizer's runtime."""
    libraries = [_library(name) for name in ("libasan.so", "libstdc++.so")]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip("AddressSanitizer's runtime isn't installed")
    options = "detect_leaks=0:alloc_dealloc_mismatch=0"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": options},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("body", "message"),
    first(
        6,
        [
            ("", "nothing found 32.0"),
            # A large variable that comes into scope several times.
            (
                "for (int i = 0; i < 2 + zero; ++i) {"
                " float large[200]; float* of_large = large;"
                " for (int j = 0; j < 200 + zero; ++j) of_large[j] = i;"
                " element[zero] = of_large[199 + zero]; }",
                "nothing found 32.0",
            ),
            (
                "element[4 + zero] = 1;",
                "kernel.cu:5: .* (outside of a local array|larger than its object)",
            ),
            (
                "own[0] = element[zero - 1];",
                "kernel.cu:5: .* reads 4 bytes outside of a local array",
            ),
            ("own[0] = large * 4;", "kernel.cu:5: .* a signed integer overflows"),
            ("own[0] = 1 << (zero + 32);", "kernel.cu:5: .* a shift by more bits than there are"),
            (
                "own[0] = flags[0] ? 1 : 2;",
                "kernel.cu:5: .* a bool or an enumeration has an invalid",
            ),
            ("own[0] = own[zero + 4];", "kernel.cu:5: .* an index is outside of its array"),
            ("if (threadIdx.x) __syncthreads();", "barrier divergence"),
            ("out[0] = threadIdx.x;", "race in global memory"),
        ],
    ),
)
def test_what_the_sanitizers_find(body: str, message: str) -> None:
    found = sanitized(SCRIPT.replace("BODY)", f"{body!r})", 1))
    assert re.search(message, found), found


def test_torch_may_raise_errors():
    """AddressSanitizer's runtime passes on C++ exceptions of libraries that are loaded later."""
    script = """
import torch
try:
    torch.zeros(2).index_select(0, torch.tensor([5]))
except IndexError as error:
    print(error)
"""
    assert "out of range" in sanitized(script)
