"""How the emulator compiles kernels: quickly, with the functions of CUDA C++ and no others."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from pyfuser.devices.cuda.emulator import harness
from pyfuser.devices.cuda.emulator.harness import SimtError, compile_and_load
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = requires_host_compiler

# Of the compiler itself.  Those of the standard library take longer than a kernel.
CHEAP_HEADERS = {"float.h", "stddef.h", "stdint.h"}


def test_a_kernel_includes_no_header_that_takes_long() -> None:
    folder = Path(harness.__file__).parent
    found, names = set(), ["simt.h"]
    while names:
        text = (folder / names.pop()).read_text()
        names += re.findall(r'#include "(.*)"', text)
        found |= set(re.findall("#include <(.*)>", text))
    assert found == CHEAP_HEADERS


def test_a_function_that_does_not_exist_is_named() -> None:
    text = """
    __device__ float nowhere(float x);
    extern "C" __global__ void calls(float* out) { out[threadIdx.x] = nowhere(1.0f); }
    """
    with pytest.raises(SimtError, match="undefined symbol: .*nowhere"):
        compile_and_load(text)


@pytest.mark.parametrize("name", ["exp", "sqrt", "erfc", "tanh"])
def test_a_function_of_the_operand_s_type(name: str) -> None:
    """exp(x) of a float is in single precision, as on a GPU; expf is the same function."""
    text = f"""
    extern "C" __global__ void calls(const float* x, float* plain, float* suffixed, double* wide) {{
      plain[threadIdx.x] = {name}(x[threadIdx.x]);
      suffixed[threadIdx.x] = {name}f(x[threadIdx.x]);
      static_assert(sizeof({name}(x[0])) == 4 && sizeof({name}(double(x[0]))) == 8, "");
      wide[threadIdx.x] = {name}(double(x[threadIdx.x]));
    }}
    """
    x, plain, suffixed, wide = torch.rand(64), torch.ones(64), torch.zeros(64), torch.zeros(64)
    wide = wide.double()
    compile_and_load(text).launch("calls", 1, 64, 0, [x, plain, suffixed, wide])
    assert torch.equal(plain, suffixed)
    expected = torch.tensor([getattr(math, name)(value) for value in x.tolist()]).double()
    torch.testing.assert_close(wide, expected)


def test_classes_of_numbers() -> None:
    text = """
    extern "C" __global__ void classes(const float* x, int* out) {
      const float value = x[threadIdx.x];
      out[threadIdx.x] = isnan(value) + 2 * isinf(value) + 4 * isfinite(value) + 8 * signbit(value);
    }
    """
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 2.5])
    out = torch.zeros(6, dtype=torch.int32)
    compile_and_load(text).launch("classes", 1, 6, 0, [x, out])
    assert out.tolist() == [1, 2, 10, 4, 12, 4]
