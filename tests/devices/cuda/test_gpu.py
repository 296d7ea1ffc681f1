"""Fusions of CUDA tensors, which run through torch for now: it is said once, and they are right."""

from __future__ import annotations

import warnings

import pytest
import torch

from pyfuser import FusionDefinition, can_fuse_on_gpu, fallback
from pyfuser.errors import UnsupportedError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
]
REASON = "expected a device that launches kernels, got cuda:0, for which they are only compiled"


def softmax() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        exponentials = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, 1, keepdim=True)))
        fd.add_output(fd.ops.div(exponentials, fd.ops.sum(exponentials, 1, keepdim=True)))
    return fd


def test_nobody_is_told_that_there_are_kernels() -> None:
    assert not can_fuse_on_gpu()


def test_torch_runs_them_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    fallback._warned.clear()
    values, fd = torch.randn(37, 1000, device="cuda"), softmax()
    with pytest.warns(RuntimeWarning, match=REASON):
        (found,) = fd.execute([values])
    assert found.device == values.device
    torch.testing.assert_close(found, torch.softmax(values, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (again,) = fd.execute([values * 2])
    torch.testing.assert_close(again, torch.softmax(values * 2, 1))


def test_strictly_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with pytest.raises(UnsupportedError, match=REASON):
        softmax().execute([torch.randn(3, 5, device="cuda")])
