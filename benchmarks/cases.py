"""The kernels that are measured: the inputs, fusion definition and torch function of each.

A case is data: `inputs(rows, columns, factory)` makes its input tensors, `define` computes it with
`fd.ops` in float32, and `reference` is what a torch user would write for it, run eagerly, through
torch.compile, and in float64 to check the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from pyfuser import DataType, FusionDefinition

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_DTYPES = ("float32", "bfloat16")

_DATA_TYPES = {
    torch.float32: DataType.Float,
    torch.bfloat16: DataType.BFloat16,
    torch.float16: DataType.Half,
}

Factory = Callable[..., torch.Tensor]
Outputs = torch.Tensor | tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One kernel; `inputs(rows, columns, factory)` with a factory like `torch.randn`.

    Without `define`, torch.compile makes the fusion from `reference`.
    """

    name: str
    inputs: Callable[[int, int, Factory], list[torch.Tensor]]
    define: Callable[..., Any] | None
    reference: Callable[..., Outputs]
    # A sum's error is measured against the sum of the absolute values.
    is_sum: bool = False
    # `define` gets the tensors in their own dtype and converts them itself.
    is_native: bool = False
    # Results of two calls differ, so only their shapes are compared.
    is_random: bool = False


def definition(case: Case, inputs: Sequence[torch.Tensor]) -> FusionDefinition:
    """The case as a fusion for inputs like these; half precision is computed in float32."""
    assert case.define is not None, case.name
    storage = _DATA_TYPES[inputs[0].dtype]
    narrow = storage is not DataType.Float and not case.is_native
    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(each) for each in inputs]
        if narrow:
            tensors = [fd.ops.cast(each, DataType.Float) for each in tensors]
        outputs = case.define(fd, *tensors)
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            fd.add_output(fd.ops.cast(output, storage) if narrow else output)
    return fd


# -- inputs


def _matrix(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns)]


def _matrices(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(rows, columns)]


def _matrix_and_row(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(columns)]


def _matrix_and_two_rows(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(columns), make(columns)]


def _matrix_and_transposed(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(columns, rows)]


# -- definitions


def _row(fd: FusionDefinition, vector: Any) -> Any:
    """A vector of [columns] as a broadcast [1, columns]."""
    return fd.ops.broadcast(vector, [True, False])


def _mul_chain(fd: FusionDefinition, x: Any, y: Any) -> Any:
    result = fd.ops.mul(x, y)
    for factor in (x, y, x, y):
        result = fd.ops.mul(result, factor)
    return result


def _bias_gelu_tanh(fd: FusionDefinition, x: Any, bias: Any) -> Any:
    ops = fd.ops
    x = ops.add(x, _row(fd, bias))
    cube = ops.mul(ops.mul(x, x), x)
    inner = ops.mul(ops.add(x, ops.mul(cube, 0.044715)), 0.7978845608028654)
    return ops.mul(ops.mul(x, 0.5), ops.add(ops.tanh(inner), 1.0))


def _bias_gelu_erf(fd: FusionDefinition, x: Any, bias: Any) -> Any:
    ops = fd.ops
    x = ops.add(x, _row(fd, bias))
    return ops.mul(ops.mul(x, 0.5), ops.add(ops.erf(ops.mul(x, 0.7071067811865476)), 1.0))


def _silu_mul(fd: FusionDefinition, x: Any, y: Any) -> Any:
    return fd.ops.mul(fd.ops.silu(x), y)


def _scale_bias_relu(fd: FusionDefinition, x: Any, scale: Any, bias: Any) -> Any:
    ops = fd.ops
    return ops.relu(ops.add(ops.mul(x, _row(fd, scale)), _row(fd, bias)))


def _softmax(fd: FusionDefinition, x: Any) -> Any:
    ops = fd.ops
    exponentials = ops.exp(ops.sub(x, ops.max(x, 1, keepdim=True)))
    return ops.div(exponentials, ops.sum(exponentials, 1, keepdim=True))


def _log_softmax(fd: FusionDefinition, x: Any) -> Any:
    ops = fd.ops
    shifted = ops.sub(x, ops.max(x, 1, keepdim=True))
    return ops.sub(shifted, ops.log(ops.sum(ops.exp(shifted), 1, keepdim=True)))


def _layer_norm(fd: FusionDefinition, x: Any, weight: Any, bias: Any) -> Any:
    ops = fd.ops
    variance, mean = ops.var_mean(x, [1], correction=0, keepdim=True)
    normal = ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, 1e-5)))
    return ops.add(ops.mul(normal, _row(fd, weight)), _row(fd, bias))


def _rms_norm(fd: FusionDefinition, x: Any, weight: Any) -> Any:
    ops = fd.ops
    squares = ops.sum(ops.mul(x, x), 1, keepdim=True)
    mean = ops.div(squares, ops.size(x, 1))
    return ops.mul(ops.mul(x, ops.rsqrt(ops.add(mean, 1e-6))), _row(fd, weight))


def _transposed_add(fd: FusionDefinition, x: Any, y: Any) -> Any:
    return fd.ops.add(x, fd.ops.permute(y, [1, 0]))


CASES = (
    Case("add", _matrices, lambda fd, x, y: fd.ops.add(x, y), torch.add),
    Case("mul chain", _matrices, _mul_chain, lambda x, y: x * y * x * y * x * y),
    Case(
        "bias + GELU (tanh)",
        _matrix_and_row,
        _bias_gelu_tanh,
        lambda x, bias: F.gelu(x + bias, approximate="tanh"),
    ),
    Case(
        "bias + GELU (erf)",
        _matrix_and_row,
        _bias_gelu_erf,
        lambda x, bias: F.gelu(x + bias),
    ),
    Case("SiLU * mul", _matrices, _silu_mul, lambda x, y: F.silu(x) * y),
    Case(
        "scale + bias + ReLU",
        _matrix_and_two_rows,
        _scale_bias_relu,
        lambda x, scale, bias: F.relu(x * scale + bias),
    ),
    Case("softmax", _matrix, _softmax, lambda x: torch.softmax(x, 1)),
    Case("log-softmax", _matrix, _log_softmax, lambda x: torch.log_softmax(x, 1)),
    Case(
        "layer norm",
        _matrix_and_two_rows,
        _layer_norm,
        lambda x, weight, bias: F.layer_norm(x, x.shape[1:], weight, bias, 1e-5),
    ),
    Case(
        "RMS norm",
        _matrix_and_row,
        _rms_norm,
        lambda x, weight: F.rms_norm(x, x.shape[1:], weight, 1e-6),
    ),
    Case("sum over columns", _matrix, lambda fd, x: fd.ops.sum(x, 1), lambda x: x.sum(1), True),
    Case("sum over rows", _matrix, lambda fd, x: fd.ops.sum(x, 0), lambda x: x.sum(0), True),
    Case("sum over all", _matrix, lambda fd, x: fd.ops.sum(x), lambda x: x.sum(), True),
    Case(
        "var_mean",
        _matrix,
        lambda fd, x: fd.ops.var_mean(x, [1], correction=1),
        lambda x: torch.var_mean(x, 1, correction=1),
    ),
    Case("transposed add", _matrix_and_transposed, _transposed_add, lambda x, y: x + y.t()),
)
