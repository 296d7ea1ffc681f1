"""NVRTC without a GPU: the text that the harness runs compiles for every architecture."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.device_helpers import device_helpers, sections, with_device_helpers
from pyfuser.errors import CompilationError, UnsupportedError
from tests.devices.cuda.test_harness import BLOCK_SUM, TRANSPOSE, VECTOR_ADD

requires_nvrtc = pytest.mark.skipif(
    not nvrtc.is_available(),
    reason="the packages of the extra `cuda` are not installed",
)

EVERY_HELPER = with_device_helpers("""
extern "C" __global__ void helpers(const float* in, half* h, bfloat16* b, int64_t* i, int8_t* c,
                                   unsigned* arrived) {
  extern __shared__ __align__(16) char shared[];
  vector<float, 4> v = load_vector<float, 4>(in + 4 * threadIdx.x);
  float sum = block_reduce<true, false, false>(v.value[3], sum_of<float>(), (float*)shared);
  welford<double> w = {sum, 0.0, 1.0};
  w = block_reduce<true, true, false>(w, welford_of<double>(), (welford<double>*)shared);
  bool any = block_reduce<false, true, true>(w.m2 > 0, maximum_of<bool>(), (bool*)shared);
  h[0] = to_half(minimum(sum, limits<float>::nan));
  b[0] = convert<bfloat16>(w.mean + any);
  i[0] = floor_modulo(i[1], i[2]) + integer_power(i[3], i[4]) + shift_left(i[5], i[6]);
  i[7] = greatest_common_divisor(i[8], i[9]) + floor_divide(i[10], i[11]) + limits<int>::lowest;
  c[0] = convert<int8_t>(h[1]) + shift_right_logical(c[1], c[2]) + convert<bool>(b[2]);
  vector<half, 8> words = load_vector<half, 8>(h + 8);
  store_vector<half, 8>(h + 16, words);
  if (is_last_block(arrived, gridDim.x)) b[1] = to_bfloat16(floor_modulo(sum, 2.0f));
}
""")
TEXTS = {
    "vector_add": VECTOR_ADD,
    "block_sum": BLOCK_SUM,
    "transpose": TRANSPOSE,
    "helpers": EVERY_HELPER,
}


@requires_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("name", TEXTS)
def test_the_harness_kernels_compile_to_cubin_and_ptx(name, architecture):
    cubin = nvrtc.compile_to_cubin(TEXTS[name], architecture)
    assert cubin[:4] == b"\x7fELF"
    assert name.encode() in cubin
    ptx = nvrtc.compile_to_ptx(TEXTS[name], architecture)
    assert f".target {architecture}" in ptx
    assert f".entry {name}" in ptx


@requires_nvrtc
@pytest.mark.parametrize("section", sections()[1:], ids=lambda each: f"{each.file}:{each.line}")
def test_a_section_of_the_helpers_compiles_with_those_that_it_uses(section):
    text = with_device_helpers("".join(f"// {name}\n" for name in sorted(section.defined)))
    assert section.text in text
    assert nvrtc.compile_to_cubin(text, "sm_90")


def test_a_kernel_comes_with_the_helpers_that_it_uses():
    text = with_device_helpers(VECTOR_ADD + "// sum_of<float>\n")
    assert "struct sum_of" in text
    assert "wrapping_add(T a, T b)" in text  # which sum_of uses
    assert "philox" not in text
    assert "float8" not in text.replace("FLOAT8", "")
    assert len(text) < len(device_helpers()) / 4


@requires_nvrtc
def test_vectors_load_and_store_in_one_instruction():
    ptx = nvrtc.compile_to_ptx(EVERY_HELPER, "sm_90")
    assert "ld.global.v4" in ptx or "ld.global.nc.v4" in ptx
    assert "st.global.v4" in ptx


@requires_nvrtc
def test_products_and_sums_are_not_contracted():
    text = 'extern "C" __global__ void f(float* a) { a[0] = a[1] * a[2] + a[3]; }'
    ptx = nvrtc.compile_to_ptx(text, "sm_90")
    assert "fma" not in ptx
    assert "mul" in ptx


@requires_nvrtc
@pytest.mark.parametrize("compile_text", [nvrtc.compile_to_cubin, nvrtc.compile_to_ptx])
def test_a_compile_error_shows_the_log_and_the_numbered_kernel(compile_text):
    text = with_device_helpers('extern "C" __global__ void f(int* a) {\n  a[0] = nonsense;\n}\n')
    with pytest.raises(CompilationError) as caught:
        compile_text(text, "sm_80")
    message = str(caught.value)
    assert message.startswith("nvrtc: expected text that compiles for sm_80, got errors:")
    assert 'kernel.cu(2): error: identifier "nonsense" is undefined' in message
    assert "\n    2   a[0] = nonsense;" in message
    assert "block_reduce" not in message


@requires_nvrtc
def test_an_unknown_architecture_is_unsupported():
    with pytest.raises(UnsupportedError, match=r"expected one of sm_\d+, .* got cpu"):
        nvrtc.compile_to_cubin(VECTOR_ADD, "cpu")


def test_lines_are_numbered_from_one_after_each_line_directive():
    text = 'first\n#line 1 "kernel.cu"\nsecond\nthird'
    expected = '    1 first\n      #line 1 "kernel.cu"\n    1 second\n    2 third'
    assert nvrtc.numbered(text) == expected


def test_without_the_packages_the_import_works_and_a_compilation_says_what_to_install():
    script = """
import sys
sys.modules["cuda"] = None
from pyfuser.devices.cuda import nvrtc
from pyfuser.errors import UnsupportedError
assert "llvmlite" not in sys.modules
assert not nvrtc.is_available()
for compile_text in (nvrtc.compile_to_cubin, nvrtc.compile_to_ptx):
    try:
        compile_text("", "sm_90")
    except UnsupportedError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.count("pip install 'pyfuser[cuda]'") == 2
