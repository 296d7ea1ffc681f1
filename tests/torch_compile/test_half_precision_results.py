"""bfloat16 and float16 results against float64: at most one unit in the last place beyond eager.

The kernels compute exp, tanh and erf to the bits that are kept (analysis/precision.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

Function = Callable[[Tensor, Tensor], Tensor]

FUNCTIONS: dict[str, Function] = {
    "gelu": lambda x, b: F.gelu(x + b),
    "gelu_tanh": lambda x, b: F.gelu(x + b, approximate="tanh"),
    "silu_mul": lambda x, b: F.silu(x) * b,
    "sigmoid_mul": lambda x, b: torch.sigmoid(x) * b,
    "tanh_mul": lambda x, b: torch.tanh(x) * b,
    "exp": lambda x, b: torch.exp(x - b),
    "elu": lambda x, b: F.elu(x * b),
    "mish": lambda x, b: F.mish(x + b),
    "softmax": lambda x, b: F.softmax(x * b, -1),
    "softmax_columns": lambda x, b: F.softmax(x * b, 0),
    "log_softmax": lambda x, b: F.log_softmax(x, -1),
    "layer_norm": lambda x, b: F.layer_norm(x, (x.shape[1],), b),
    "gated_norm": lambda x, b: F.layer_norm(x, (x.shape[1],)) * torch.sigmoid(b) + F.gelu(b),
}
# In double too, 1 + erf(x) and 1 + tanh(x) cancel for negative x.
PRECISE: dict[str, Function] = {
    **FUNCTIONS,
    "gelu": lambda x, b: (x + b) * torch.special.erfc((x + b) * -(0.5**0.5)) / 2,
    "gelu_tanh": lambda x, b: _precise_gelu_tanh(x + b),
}


def _precise_gelu_tanh(x: Tensor) -> Tensor:
    return x * torch.sigmoid((8 / math.pi) ** 0.5 * (x + 0.044715 * x**3))


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbours of each (double) number in a dtype."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().clamp(min=info.tiny)).exponent
    return info.eps * torch.ldexp(torch.ones_like(x), exponent - 1)


@pytest.mark.parametrize("spread", [0.5, 4.0], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_at_most_one_ulp_beyond_eager(name, dtype, spread):
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    x, b = (spread * torch.randn(97, 131)).to(dtype), torch.randn(131).to(dtype)
    exact = PRECISE[name](x.double(), b.double())
    eager = (function(x, b).double() - exact).abs()
    got = torch.compile(function, backend=BACKEND)(x, b)
    assert got.dtype is dtype
    assert ((got.double() - exact).abs() <= eager + ulp(exact, dtype)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu_mul", "sigmoid_mul", "tanh_mul"])
def test_activations_of_every_value(name, dtype):
    function = FUNCTIONS[name]
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).reshape(256, 256)
    b = torch.zeros(256, dtype=dtype) if name.startswith("gelu") else torch.ones(256, dtype=dtype)
    exact = PRECISE[name](x.double(), b.double())
    expected = function(x, b)
    got = torch.compile(function, backend=BACKEND)(x, b)
    # Eager's gelu of infinities depends on the loop (docs/design.md), and overflows before them.
    known = x.abs() < (1e38 if name == "gelu" else torch.inf)
    assert torch.equal(got.isnan() & known, expected.isnan() & known)
    finite = known & expected.isfinite()
    assert got[finite].isfinite().all()
    error = (got.double() - exact).abs()[finite]
    eager = (expected.double() - exact).abs()[finite]
    assert (error <= eager + ulp(exact[finite], dtype)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_are_on_the_same_side_of_zero_as_in_eager(dtype: torch.dtype) -> None:
    """For every normal value, though bfloat16 results aren't rounded before they are compared."""

    def signs(x: Tensor, y: Tensor) -> Tensor:
        z = x * y - y
        flags = (z > 0, z >= 0, z < 0, z <= 0, z == 0, z != 0, z.clamp(min=0) > 0)
        return torch.stack(flags)

    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    x = x[~(x.abs() < torch.finfo(dtype).tiny)].repeat(2)
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    product = x.float() * y.float() - y.float()
    is_normal = ~(product.abs() < torch.finfo(dtype).tiny) | (x == 1)
    x, y = x[is_normal], y[is_normal]
    expected = signs(x, y)
    # Eager rounds the product, so the difference may be on another side of zero.
    same = (x * y - y).sign() == (x.float() * y.float() - y.float()).sign()
    got = torch.compile(signs, backend="pyfuser")(x, y)
    assert torch.equal(got[:, same], expected[:, same])


DEVIATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "of differences": lambda x: (x - x.mean(0, keepdim=True)).std(1, correction=0),
    "of sums": lambda x: (x * 1.1 + x.mean(0, keepdim=True)).std(1, correction=0),
    "of a view": lambda x: (x - x.mean(0, keepdim=True)).mT.reshape(-1, x.shape[1]).std(1),
    "and a product": lambda x: (y := x - x.mean(0)).std(1, correction=0).sum() + (y.mT @ y).sum(),
    "of centred rows": lambda x: (y := x - x.mean(0)).sub(y.mean(1, keepdim=True)).norm(dim=1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", DEVIATIONS)
def test_the_backward_computes_with_the_numbers_of_the_forward(
    name: str, dtype: torch.dtype
) -> None:
    """The gradient of a tiny deviation divides by it; it is bounded by that of two numbers."""
    torch.manual_seed(0)
    x = ((torch.randn(31, 2, 300) * 4).round() / 4).to(dtype)
    compiled = torch.compile(DEVIATIONS[name], backend=BACKEND)
    largest = []
    for function, wide in ((compiled, dtype), (DEVIATIONS[name], torch.float64)):
        given = x.to(wide).requires_grad_()
        (gradient,) = torch.autograd.grad(function(given).sum(), given)
        largest.append(float(gradient.abs().max()))
    assert largest[0] < 2 * largest[1]
