"""half_precision.cuh on every value of both dtypes, against double; and where kernels use it."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cuda.device_helpers import device_helpers, with_device_helpers
from pyfuser.devices.cuda.emulator import harness
from pyfuser.devices.cuda.emulator.runtime import emulated
from tests.cuda.host_compiler import requires_host_compiler
from tests.devices.cpu.test_half_precision import EXACT, every_value, steps_between

pytestmark = requires_host_compiler

FUNCTIONS = ["exp", "sigmoid", "silu", "tanh", "one_plus_tanh", "one_plus_erf"]
DTYPES = [torch.bfloat16, torch.float16]
# Where exact results are less than this, the functions may give 0 or less digits: where e^-x
# overflows, where 1 + tanh(x) is subnormal, 1 + erf(x) below x = -4.8.
LEAST = {
    "one_plus_erf": 1.2e-11,
    "one_plus_tanh": 2.0**-125,
    "sigmoid": 2.0**-127.99,
    "silu": 2.0**-121.5,
}
TEXT = """
extern "C" __global__ void kernel(const float* a, const float* b, float* c) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  c[i] = half_NAME(ARGUMENTS);
}
"""


def computed(name: str, *operands: Tensor) -> Tensor:
    arguments = "a[i], b[i]" if len(operands) > 1 else "a[i]"
    text = TEXT.replace("NAME", name).replace("ARGUMENTS", arguments)
    result = torch.full_like(operands[0], torch.nan)
    assert result.numel() % 256 == 0
    module = harness.compile_and_load(with_device_helpers(text))
    given = [operands[0], operands[-1], result]
    module.launch("kernel", (result.numel() // 256, 1, 1), (256, 1, 1), 0, given)
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value_is_within_one_step(name: str, dtype: torch.dtype) -> None:
    x = every_value(dtype)
    exact = EXACT[name](x.double())
    value = computed(name, x.float())
    got, wanted = value.to(dtype), exact.to(dtype)
    assert torch.equal(got.isnan(), wanted.isnan())
    least = LEAST.get(name, 0.0)
    known = ~wanted.isnan() & (exact.abs() >= least)
    assert steps_between(got[known], wanted[known]).max() <= 1
    assert torch.equal(got[known].signbit(), wanted[known].signbit())
    assert (value[exact.abs() < least].double().abs() <= 1.001 * least).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_relative_error_before_rounding(name: str) -> None:
    rng = np.random.default_rng(0)
    spread = [rng.normal(0, s, 1 << 14) for s in (1e-3, 1e-1, 1, 10, 60)]
    x = torch.from_numpy(np.concatenate(spread).astype(np.float32))
    got, exact = computed(name, x).double(), EXACT[name](x.double())
    normal = (exact.abs() >= max(2.0**-125, LEAST.get(name, 0.0))) & (exact.abs() < 2.0**127.99)
    assert ((got - exact) / exact).abs()[normal].max() < 2.0**-16


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quotients_of_all_kinds_of_numbers(dtype: torch.dtype) -> None:
    values = every_value(dtype)
    generator = torch.Generator().manual_seed(0)
    a, b = (values[torch.randperm(len(values), generator=generator)] for _ in "ab")
    special = values[(values.abs() < 1e-37) | ~values.isfinite() | (values.abs() > 1e4)]
    b[: len(special) // 2] = special[: len(special) // 2]
    exact = a.double() / b.double()
    got, wanted = computed("divide", a.float(), b.float()).to(dtype), exact.to(dtype)
    assert torch.equal(got.isnan(), wanted.isnan())
    known = ~wanted.isnan()
    assert steps_between(got[known], wanted[known]).max() <= 1
    assert torch.equal(got[known].signbit(), wanted[known].signbit())


def test_coefficients_are_the_cpus() -> None:
    from pyfuser.devices.cpu.vector_math.half_precision.error_function import LOG2_ERFC

    text = device_helpers().partition("half_one_plus_erf(float x) {")[2].partition("}")[0]
    found = [float(each) for each in re.findall(r"(-?[\d.]+(?:e-\d+)?)f[;)]", text)]
    own = [each for each in found if each not in (0.0, 2.0)]
    assert [np.float32(each) for each in own] == [np.float32(each) for each in LOG2_ERFC[::-1]]


Build = Callable[..., object]
USES: dict[str, tuple[Build, Callable[[Tensor], Tensor]]] = {
    "softmax": (
        lambda o, x: o.div(o.exp(x), o.sum(o.exp(x), [1], keepdim=True)),
        lambda x: x.softmax(1),
    ),
    "silu": (lambda o, x: o.silu(x), torch.nn.functional.silu),
    "gelu": (
        lambda o, x: o.mul(x, o.add(1.0, o.erf(x))),
        lambda x: x * torch.special.erfc(-x),
    ),
    "gelu of tanh": (
        lambda o, x: o.mul(o.add(o.tanh(o.mul(x, 0.5)), 1.0), x),
        lambda x: 2 * x * torch.sigmoid(x),
    ),
    "tanh": (lambda o, x: o.tanh(x), torch.tanh),
    "reciprocal": (lambda o, x: o.reciprocal(x), torch.reciprocal),
}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
@pytest.mark.parametrize("name", USES)
def test_kernels_use_them_for_rounded_results_only(name: str, dtype: torch.dtype) -> None:
    build, reference = USES[name]
    kinds = {torch.bfloat16: DataType.BFloat16, torch.float16: DataType.Half}
    kind = kinds.get(dtype, DataType.Float)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=kind)
        fd.add_output(fd.ops.cast(build(fd.ops, fd.ops.cast(x, DataType.Float)), kind))
    given = torch.randn(33, 129).to(dtype)
    with emulated() as runtime:
        (found,) = fd.execute([given])
    text = runtime.kernels[-1].code.text
    assert (" half_" in text) is (dtype is not torch.float32)
    if "gelu" in name:  # what only the complement reads is gone
        assert ("erff(" in text or "tanhf(" in text) is (dtype is torch.float32)
    wanted = reference(given.double()).to(dtype)
    if dtype is not torch.float32:
        assert steps_between(found, wanted).max() <= 1
    else:
        torch.testing.assert_close(found, wanted)


def test_a_tanh_that_others_read_too_stays() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.BFloat16)
        tanh = fd.ops.tanh(fd.ops.cast(x, DataType.Float))
        fd.add_output(fd.ops.cast(fd.ops.add(tanh, 1.0), DataType.BFloat16))
        fd.add_output(tanh)
    given = torch.randn(1000).bfloat16()
    with emulated() as runtime:
        found, whole = fd.execute([given])
    assert "tanhf(" in runtime.kernels[-1].code.text
    torch.testing.assert_close(whole, given.float().tanh())
    assert steps_between(found, (2 * torch.sigmoid(2 * given.double())).bfloat16()).max() <= 1


def test_sigmoid_is_0_only_where_its_exponential_overflows() -> None:
    """Subnormal values count: what they are multiplied by may be huge."""
    x = torch.tensor([[-87.0, -87.5, -88.0, -88.5]]).bfloat16()
    y = torch.full_like(x, 1e38)
    for function in (torch.sigmoid, torch.nn.functional.silu):
        torch._dynamo.reset()
        with emulated():
            found = torch.compile(lambda x, y: function(x) * y, backend="pyfuser")(x, y)  # noqa: B023
        wanted = (function(x.double()) * y.double()).bfloat16()
        assert steps_between(found, wanted).max() <= 1
