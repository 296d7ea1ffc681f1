"""A value of a row that is in memory anyway needn't be made again from what isn't."""

from __future__ import annotations

import torch

from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.target import CudaTarget
from tests.cuda.host_compiler import requires_host_compiler


@requires_host_compiler
def test_batch_norm_stores_nothing_as_large_as_its_images() -> None:
    """Too long for one kernel: moments in one pass, and `(x - mean) * scale` from x."""
    target = CudaTarget("sm_90", multiprocessors=64, l1_bytes=4 << 10)
    x, weight, bias = torch.randn(8, 4, 1024), torch.randn(4), torch.randn(4)

    def normal(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)

    torch._dynamo.reset()
    with emulated(target) as runtime:
        got = torch.compile(normal, backend="pyfuser", dynamic=False)(x, weight, bias)
    torch.testing.assert_close(got, normal(x, weight, bias), rtol=1e-4, atol=1e-4)
    assert len(runtime.kernels) == 2
    large = [
        parameter
        for kernel in runtime.kernels
        for parameter in kernel.code.kernel.tensors
        if parameter.is_output and len(parameter.sizes) == 3
    ]
    assert len(large) == 1
