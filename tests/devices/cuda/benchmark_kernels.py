"""The kernels of the benchmark set as CUDA C++, forward and backward, for one architecture.

torch.compile makes them from functions as a user writes them; nothing is compiled further, and a
launch does nothing, so sizes can be those of a benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from pyfuser.devices.cuda.emulator.runtime import EmulatedRuntime
from pyfuser.devices.cuda.launches import FusedKernelCUDA
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.devices.runtime import LaunchWriter
from pyfuser.devices.switches import register_runtime
from pyfuser.devices.tensor_memory import EmptyStrided
from pyfuser.ir.kernel import TensorParameter


class UnlaunchedKernel(FusedKernelCUDA):
    """A kernel whose launches do nothing."""

    def __init__(self, code: Any) -> None:
        super().__init__(code, [lambda *_: None for _ in code.launches], lambda count: 0)

    def tensor_argument(self, writer: LaunchWriter, tensor: TensorParameter) -> str:
        return "0"

    def scratch_argument(self, tensor: str, address: str) -> str:
        return "0"


class TextRuntime(EmulatedRuntime):
    """CPU tensors whose kernels are only written; their codes are noted in `codes`."""

    def __init__(self, target: CudaTarget) -> None:
        super().__init__(target)
        self.codes: list[Any] = []

    @property
    def empty_strided(self) -> EmptyStrided:
        return lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype)

    def compile(self, code: Any) -> Any:
        return None

    def load(self, code: Any, binary: Any) -> Any:
        self.codes.append(code)
        return UnlaunchedKernel(code)


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + rotated * sin


def _dropout_norm(
    x: torch.Tensor, keep: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return F.layer_norm(x * keep * 1.25, x.shape[-1:], weight, bias)


def _cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), target)


def _batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, True)


Make = Callable[..., torch.Tensor]
Function = Callable[..., torch.Tensor]

# (the function, its inputs for [rows, columns]): those of a floating dtype get gradients.
FUNCTIONS: dict[str, tuple[Function, Callable[[int, int, Make], list[torch.Tensor]]]] = {
    "gelu": (F.gelu, lambda m, n, make: [make(m, n)]),
    "bias + gelu (tanh)": (
        lambda x, bias: F.gelu(x + bias, approximate="tanh"),
        lambda m, n, make: [make(m, n), make(n)],
    ),
    "silu * mul": (lambda x, y: F.silu(x) * y, lambda m, n, make: [make(m, n), make(m, n)]),
    "softmax": (lambda x: torch.softmax(x, -1), lambda m, n, make: [make(m, n)]),
    "log-softmax": (lambda x: torch.log_softmax(x, -1), lambda m, n, make: [make(m, n)]),
    "layer norm": (
        lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias),
        lambda m, n, make: [make(m, n), make(n), make(n)],
    ),
    "rms norm": (
        lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, 1e-6),
        lambda m, n, make: [make(m, n), make(n)],
    ),
    "batch norm": (_batch_norm, lambda m, n, make: [make(m, n), make(n), make(n)]),
    "batch norm of images": (
        _batch_norm,
        lambda m, n, make: [make(32, 64, m // 32, n // 64), make(64), make(64)],
    ),
    "dropout + norm": (
        _dropout_norm,
        lambda m, n, make: [make(m, n), torch.empty(m, n, dtype=torch.bool), make(n), make(n)],
    ),
    "sum of rows": (lambda x: x.sum(1), lambda m, n, make: [make(m, n)]),
    "sum of columns": (lambda x: x.sum(0), lambda m, n, make: [make(m, n)]),
    "sum of all": (lambda x: x.sum(), lambda m, n, make: [make(m, n)]),
    "transposed": (lambda x: (x * 2).t().contiguous(), lambda m, n, make: [make(m, n)]),
    "transposed add": (lambda x, y: x + y.t(), lambda m, n, make: [make(m, n), make(n, m)]),
    "cross entropy": (
        _cross_entropy,
        lambda m, n, make: [make(m, n), torch.zeros(m, dtype=torch.int64)],
    ),
    "rope": (
        _rope,
        lambda m, n, make: [make(4, 8, m // 8, 128), make(m // 8, 128), make(m // 8, 128)],
    ),
}


@lru_cache
def kernels(
    architecture: str, dtype: torch.dtype, rows: int = 2048, columns: int = 4096
) -> dict[str, Any]:
    """The codes of all kernels, by `function (number)`."""
    found: dict[str, Any] = {}
    for name in FUNCTIONS:
        for number, code in enumerate(codes_of(name, architecture, dtype, rows, columns)):
            found[f"{name} ({number})"] = code
    return found


def codes_of(
    name: str, architecture: str, dtype: torch.dtype, rows: int, columns: int
) -> list[Any]:
    """The codes of a function's kernels, and of those of its gradients."""
    runtime = TextRuntime(CudaTarget.of(architecture))
    function, make_inputs = FUNCTIONS[name]

    def make(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype).requires_grad_()

    torch._dynamo.reset()
    register_runtime("cpu", lambda _: runtime)
    try:
        made = torch.compile(function, backend="pyfuser", fullgraph=True, dynamic=False)
        result = made(*make_inputs(rows, columns, make))
        result.backward(torch.empty_like(result))
    finally:
        register_runtime("cpu", None)
        torch._dynamo.reset()
    return runtime.codes
