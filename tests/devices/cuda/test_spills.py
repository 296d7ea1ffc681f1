"""No kernel of the benchmark set has local memory, by ptxas' report for four architectures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.devices.cuda.ptxas_report import kernel_resources
from tests.cuda.cubins import requires_nvrtc
from tests.devices.cuda.benchmark_kernels import FUNCTIONS, codes_of
from tests.support.long_cases import first

pytestmark = requires_nvrtc

DTYPES = (torch.float32, torch.bfloat16)
SHAPE = (2048, 4096)
# Rows of these need most registers of a thread: two tensors, weights, sums of columns, and the mask
# of a dropout.
NORMS = ("softmax", "layer norm", "rms norm", "dropout + norm")


def spilled(names: list[str], architecture: str, dtype: torch.dtype, shape: tuple[int, int]):
    """The functions of kernels that have local memory, with their resources."""
    texts = [
        (name, with_device_helpers(code.text))
        for name in names
        for code in codes_of(name, architecture, dtype, *shape)
    ]
    with ThreadPoolExecutor() as threads:
        found = threads.map(lambda each: kernel_resources(each[1], architecture), texts)
    reports = [(name, each) for (name, _), each in zip(texts, found, strict=True)]
    assert all(each for _, each in reports)
    return [
        (name, report)
        for name, report in reports
        if any(
            each.stack_bytes or each.spill_stores or each.spill_loads for each in report.values()
        )
    ]


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    first(1, [(name, dtype) for dtype in reversed(DTYPES) for name in nvrtc.ARCHITECTURES]),
)
def test_the_benchmark_set_spills_nothing(architecture, dtype):
    assert not spilled(list(FUNCTIONS), architecture, dtype, SHAPE)


@pytest.mark.parametrize(
    ("columns", "dtype"),
    first(2, [(columns, dtype) for columns in (8192, 1024, 16384) for dtype in DTYPES]),
)
def test_normalisations_of_short_and_long_rows_spill_nothing(columns, dtype):
    for architecture in ("sm_75", "sm_100"):
        assert not spilled(list(NORMS), architecture, dtype, (2048, columns))


@pytest.mark.parametrize("columns", first(2, [1021, 8191, 6144, 7000, 8000, 12289]))
def test_rows_that_end_within_the_threads_vectors_spill_nothing(columns):
    """Their conditions take registers too."""
    names = ["layer norm", "dropout + norm"]
    assert not spilled(names, "sm_75", torch.float32, (2048, columns))
    assert not spilled(names, "sm_90", torch.bfloat16, (2048, columns))


def test_the_resources_of_a_kernel_that_spills():
    """More values are alive at once than the registers that 1024 threads leave."""
    text = with_device_helpers("""
extern "C" __global__ void __launch_bounds__(1024) kernel(volatile float* a) {
  float t[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) t[i] = a[i * 1024 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 96; ++i) a[i * 1024 + threadIdx.x] = t[95 - i];
}
""")
    found = kernel_resources(text, "sm_90")["kernel"]
    assert found.registers == 64
    assert found.spill_stores > 0
    assert found.stack_bytes > 0
