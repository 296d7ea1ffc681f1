"""Fusions of CUDA tensors, which run through torch for now: results and devices are torch's."""

from __future__ import annotations

import pytest
import torch

from pyfuser import FusionDefinition

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def not_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running through torch is what is tested here, so it must be allowed."""
    monkeypatch.delenv("PYFUSER_STRICT", raising=False)


def test_a_pointwise_fusion_of_cuda_tensors_equals_torch() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(fd.ops.mul(x, y), 2.0))
    inputs = [torch.randn(65, 129, device="cuda") for _ in range(2)]
    (found,) = fd.execute(inputs)
    assert found.device == inputs[0].device
    torch.testing.assert_close(found, inputs[0] * inputs[1] + 2.0)


def test_a_softmax_of_cuda_tensors_equals_torch() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        exponentials = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, 1, keepdim=True)))
        fd.add_output(fd.ops.div(exponentials, fd.ops.sum(exponentials, 1, keepdim=True)))
    values = torch.randn(37, 1000, device="cuda")
    (found,) = fd.execute([values])
    assert found.device == values.device
    torch.testing.assert_close(found, torch.softmax(values, 1))
