"""Which kernels the functions of real models become, forward and backward; and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

from pyfuser.torch_compile.explain import Explanation, explain
from tests.support.compiled import BACKEND, strict  # noqa: F401

pytestmark = pytest.mark.cpu

POINTWISE, TRANSPOSE, RESIZE, REDUCTION = "pointwise", "transpose", "resize", "reduction"
INNER, OUTER, BOTH = "inner_persistent", "outer_persistent", "inner_outer_persistent"
GREEDY = "greedy"
# Sums of channels; two sums of groups; the gradient of the input; those of the parameters.
GROUP_GRADIENTS = [REDUCTION, REDUCTION, REDUCTION, POINTWISE, REDUCTION, REDUCTION]


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def attention(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return functional.dropout((x * 0.125 + mask).softmax(-1), 0.1)


def dropout_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return functional.layer_norm(functional.dropout(x, 0.1) + residual, bias.shape, weight, bias)


@dataclass(frozen=True)
class Row:
    """A function, the shapes of its inputs, and the schedulers of its kernels.

    Inputs of the dtype int64 are indices below `indices`; `fixed` inputs need no gradient.
    """

    function: Callable[..., torch.Tensor]
    shapes: Sequence[tuple[int, ...]]
    forward: list[str]
    backward: list[str]
    indices: int = 0
    fixed: int = 0

    def leaves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """The inputs; those of floating point need gradients, except the last `fixed`."""
        torch.manual_seed(0)
        made = [torch.randn(shape).to(dtype) for shape in self.shapes]
        if self.indices:
            made[0] = torch.randint(0, self.indices, self.shapes[0])
        for leaf in made[: len(made) - self.fixed]:
            leaf.requires_grad_(leaf.is_floating_point())
        return made

    def gradients(self, run: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[Any]:
        """The result and the gradients of the inputs that need some."""
        leaves = self.leaves(dtype)
        torch.manual_seed(1)
        result = run(*leaves)
        result.backward(torch.linspace(-1, 1, result.numel(), dtype=dtype).view_as(result))
        return [result, *(leaf.grad for leaf in leaves if leaf.requires_grad)]


MATRIX, ROW, IMAGE = (256, 512), (512,), (4, 64, 14, 14)
IMAGES = (16, *IMAGE[1:])

TABLE = {
    "softmax": Row(lambda x: x.softmax(-1), [MATRIX], [INNER], [INNER]),
    "softmax of columns": Row(lambda x: x.softmax(0), [MATRIX], [OUTER], [OUTER]),
    "log softmax": Row(lambda x: x.log_softmax(-1), [MATRIX], [INNER], [INNER]),
    "layer norm": Row(
        lambda x, w, b: functional.layer_norm(x, ROW, w, b), [MATRIX, ROW, ROW], [INNER], [BOTH]
    ),
    "RMS norm": Row(lambda x, w: functional.rms_norm(x, ROW, w), [MATRIX, ROW], [INNER], [BOTH]),
    "dropout and layer norm": Row(dropout_norm, [MATRIX, MATRIX, ROW, ROW], [INNER], [BOTH]),
    "layer norm and GELU": Row(
        lambda x, w, b: functional.gelu(functional.layer_norm(x, ROW, w, b)),
        [MATRIX, ROW, ROW],
        [INNER],
        [BOTH],
    ),
    "embedding and layer norm": Row(
        lambda i, t, w, b: functional.layer_norm(functional.embedding(i, t), ROW, w, b),
        [(256,), (1000, 512), ROW, ROW],
        [INNER],
        [BOTH, POINTWISE, GREEDY],
        indices=1000,
    ),
    "batch norm": Row(
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, True),
        [IMAGE, (64,), (64,)],
        [INNER],
        [INNER],
    ),
    "batch norm, channels last": Row(
        lambda x, w, b: functional.batch_norm(x.permute(0, 3, 1, 2), None, None, w, b, True),
        [(4, 14, 14, 64), (64,), (64,)],
        [OUTER],
        [OUTER],
    ),
    "instance norm": Row(lambda x: functional.instance_norm(x), [IMAGE], [INNER], [INNER]),
    "instance norm with weights": Row(
        lambda x, w, b: functional.instance_norm(x, None, None, w, b),
        [IMAGES, (64,), (64,)],
        [INNER],
        [INNER, REDUCTION, REDUCTION],
    ),
    "group norm": Row(
        lambda x, w, b: functional.group_norm(x, 8, w, b),
        [IMAGES, (64,), (64,)],
        [INNER],
        [INNER, REDUCTION, REDUCTION],
    ),
    "group norm, channels last": Row(
        lambda x, w, b: functional.group_norm(x.permute(0, 3, 1, 2), 8, w, b),
        [(4, 14, 14, 64), (64,), (64,)],
        [INNER],
        GROUP_GRADIENTS,
    ),
    "group norm of videos, channels last": Row(
        lambda x, w, b: functional.group_norm(x.permute(0, 4, 1, 2, 3), 4, w, b),
        [(2, 3, 5, 7, 32), (32,), (32,)],
        [INNER],
        GROUP_GRADIENTS,
    ),
    "instance norm, channels last": Row(
        lambda x, w, b: functional.instance_norm(x.permute(0, 3, 1, 2), None, None, w, b),
        [(4, 14, 14, 64), (64,), (64,)],
        [TRANSPOSE, INNER],  # the result is contiguous
        [TRANSPOSE, INNER, REDUCTION, REDUCTION],
    ),
    "group norm and SiLU": Row(
        lambda x, w, b: functional.silu(functional.group_norm(x, 8, w, b)),
        [IMAGES, (64,), (64,)],
        [INNER],
        [INNER, REDUCTION, REDUCTION],
    ),
    "bias and GELU": Row(
        lambda x, b: functional.gelu(x + b), [MATRIX, ROW], [POINTWISE], [REDUCTION]
    ),
    "SiLU and product": Row(
        lambda x, y: functional.silu(x) * y, [MATRIX, MATRIX], [POINTWISE], [POINTWISE]
    ),
    "rotary embedding": Row(
        rope, [(4, 8, 64, 64), (64, 64), (64, 64)], [RESIZE], [RESIZE], fixed=2
    ),
    "cross entropy": Row(
        lambda t, x: functional.cross_entropy(x, t),
        [(256,), (256, 1000)],
        [INNER, REDUCTION],
        [POINTWISE],
        indices=1000,
    ),
    "attention weights": Row(attention, [(2, 8, 64, 64), (64, 64)], [INNER], [INNER], fixed=1),
    "sums of rows and of columns": Row(
        lambda x: x.sin().sum(1)[:, None] + x.sin().sum(0),
        [MATRIX],
        [BOTH, POINTWISE],
        [BOTH, POINTWISE],
    ),
    "MLP of one row": Row(  # the GELU isn't computed again for each output
        lambda x, up, down: functional.linear(functional.gelu(functional.linear(x, up)), down),
        [(1, 128), (512, 128), (128, 512)],
        [REDUCTION, REDUCTION],
        [REDUCTION, REDUCTION],
        fixed=2,
    ),
    "transposed sum": Row(lambda x, y: x + y.t(), [MATRIX, (512, 256)], [TRANSPOSE], []),
    "concatenation": Row(
        lambda x, y: torch.cat([x, y], 1) * 2, [MATRIX, MATRIX], [RESIZE], [POINTWISE]
    ),
}


def kernels(found: Explanation) -> list[list[str]]:
    """For each graph its kernels' schedulers."""
    return [
        [kernel.scheduler for region in graph.regions for kernel in region.kernels]
        for graph in found.graphs
    ]


@pytest.mark.parametrize("name", TABLE)
def test_kernels_of(name: str) -> None:
    row = TABLE[name]
    found = explain(row.function, *row.leaves(torch.float32))
    assert kernels(found) == [row.forward, row.backward]


@pytest.mark.parametrize("name", TABLE)
def test_results_of(name: str, strict: None) -> None:  # noqa: F811
    row = TABLE[name]
    compiled = torch.compile(row.function, backend=BACKEND)
    exact = row.gradients(row.function, torch.float64)
    if "dropout" in name or name == "attention weights":
        exact = row.gradients(row.function, torch.float32)  # float64 draws other numbers
    for ours, want in zip(row.gradients(compiled, torch.float32), exact, strict=True):
        torch.testing.assert_close(ours.double(), want.double(), rtol=1e-4, atol=2e-4)
