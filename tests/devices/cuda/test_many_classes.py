"""Cross entropy of more classes than a block's shared memory holds: kernels, not torch.

What its backward pass needs in two passes over a row (zeros, and the numbers of the classes) is
computed in each of them.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.ir.scalars import ZERO
from tests.cuda.host_compiler import requires_host_compiler
from tests.devices.cuda.benchmark_kernels import codes_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("architecture", "classes"), [("sm_75", 12288), ("sm_75", 131072), ("sm_90", 50257)]
)
def test_a_row_of_any_length_needs_no_shared_memory(
    architecture: str, classes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    codes = codes_of("cross entropy", architecture, dtype, 64, classes)
    launches = [launch for code in codes for launch in code.launches]
    assert launches[-1].shared_bytes is ZERO
    assert "expf" in codes[-1].text


@requires_host_compiler
def test_gradients_of_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    logits = torch.randn(3, 12289, requires_grad=True)
    target = torch.tensor([5, 12288, -100])
    torch._dynamo.reset()
    with emulated(CudaTarget.of("sm_75")):
        compiled = torch.compile(F.cross_entropy, backend="pyfuser", dynamic=False)
        compiled(logits, target).backward()
    got, logits.grad = logits.grad, None
    F.cross_entropy(logits, target).backward()
    torch.testing.assert_close(got, logits.grad)
