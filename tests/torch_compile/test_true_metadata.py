"""Results that torch traces with other strides or dtypes than eager gives."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

X, Y = torch.randn(3, 4, 5).permute(2, 0, 1), torch.randn(4, 3, 5).permute(2, 1, 0)
PLAIN = torch.randn(5, 3, 4)

BINARY = {
    "clamp": lambda x, y: torch.clamp(x, max=y),
    "clamp on both sides": lambda x, y: torch.clamp(x, y, x[:1] + 1),
    "copysign": torch.copysign,
    "floor_divide": torch.floor_divide,
    "rounded division": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "heaviside": torch.heaviside,
    "logaddexp": torch.logaddexp,
    "logical_xor": torch.logical_xor,
    "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 1),
}


OPERANDS = {
    "both": (X, Y),
    "the second": (PLAIN, X),
    "the first": (X, PLAIN),
    "one row": (X, Y[:1]),
    "one line": (Y[0, 0], X),
}


@pytest.mark.parametrize(
    "function",
    [
        *(functional.elu, functional.hardsigmoid, functional.hardswish, functional.hardtanh),
        *(functional.softplus, functional.gelu, functional.silu, functional.mish),
    ],
)
@pytest.mark.parametrize("keys", [PLAIN, X], ids=["plain", "permuted"])
def test_strides_of_gradients_that_come_transposed(
    function: Callable[..., Tensor], keys: Tensor
) -> None:
    """They have the order of the gradient of the product, not that of the keys."""
    queries = torch.randn(5, 3, 4)

    def gradient(call: Callable[..., Tensor]) -> Tensor:
        given = keys.detach().requires_grad_()
        return torch.autograd.grad(call(queries, given).sum(), given)[0]

    def product(queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ (function(keys) + 1).mT

    expected, got = gradient(product), gradient(torch.compile(product, backend=BACKEND))
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("other", [PLAIN, X, PLAIN[:, :1].expand(5, 3, 4)])
@pytest.mark.parametrize("x", [PLAIN, X, torch.randn(5, 4, 3).mT])
def test_strides_of_the_gradient_of_dropout(x: Tensor, other: Tensor) -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return functional.dropout(x, 0.4) * y

    found = []
    for call in (product, torch.compile(product, backend=BACKEND)):
        torch.manual_seed(0)
        given = x.detach().requires_grad_()
        result = call(given, other)
        found.append(torch.autograd.grad(result, given, torch.ones_like(result))[0])
    assert torch.equal(*found)
    assert found[0].stride() == found[1].stride()


@pytest.mark.parametrize(
    ("name", "operands"),
    pairwise(BINARY, [pytest.param(each, id=name) for name, each in OPERANDS.items()], count=13),
)
def test_strides_of_permuted_operands(name: str, operands: tuple[Tensor, Tensor]) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        made = BINARY[name](x, y)
        return made, made.to(torch.float32) + 1

    got = torch.compile(program, backend=BACKEND)(*operands)
    for ours, eagers in zip(got, program(*operands), strict=True):
        torch.testing.assert_close(ours, eagers, equal_nan=True)
        assert ours.stride() == eagers.stride()


@pytest.mark.parametrize("name", sorted(BINARY.keys() - {"clamp on both sides", "heaviside"}))
def test_a_wider_tensor_without_dimensions_promotes_nothing(name: str) -> None:
    x, number = torch.randn(3, 2, 5, 4).mT, torch.tensor(0.5, dtype=torch.float64)
    got, expected = torch.compile(BINARY[name], backend=BACKEND)(x, number), BINARY[name](x, number)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


def test_strides_of_a_clamp_by_tensors() -> None:
    given = torch.randn(1, 2), torch.randn(2, 1), torch.randn(2, 2).t() + 3
    got = torch.compile(torch.clamp, backend=BACKEND)(*given)
    expected = torch.clamp(*given)
    assert torch.equal(got, expected)
    assert got.stride() == expected.stride() == (1, 2)


@pytest.mark.parametrize("x", [X, Y, X[:, :1]])
@pytest.mark.parametrize(
    "op",
    [functional.logsigmoid, lambda x: torch.log_softmax(x, 1), lambda x: 2**x, lambda x: 1**x],
)
def test_strides_of_a_permuted_input(op: Callable[[Tensor], Tensor], x: Tensor) -> None:
    got = torch.compile(op, backend=BACKEND)(x)
    torch.testing.assert_close(got, op(x))
    assert got.stride() == op(x).stride()


NORMS: dict[str, Callable[[], nn.Module]] = {
    "group norm": lambda: nn.GroupNorm(2, 4),
    "batch norm": lambda: nn.BatchNorm2d(4),
    "batch norm, inference": lambda: nn.BatchNorm2d(4).eval(),
    "layer norm": lambda: nn.LayerNorm([6, 6]),
}


def _input(dtype: torch.dtype, layout: str) -> Tensor:
    x = torch.randn(2, 4, 6, 6).to(dtype)
    if layout == "channels last":
        return x.to(memory_format=torch.channels_last)
    return x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0) if layout == "permuted" else x


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "permuted"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_a_half_beside_float32(name: str, dtype: torch.dtype, layout: str) -> None:
    """Gradients too: the statistics that the backward gets are in float32, as eager's."""
    torch.manual_seed(0)
    module, x = NORMS[name](), _input(dtype, layout)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    weights = torch.arange(x.numel()).reshape(x.shape).sin()

    def step(backend: str | None, as_dtype: Callable[[Tensor], Tensor]) -> list[Tensor]:
        own = copy.deepcopy(module)
        if backend is None and as_dtype(x).dtype is torch.float64:
            own = own.double()
        given = as_dtype(x.clone()).requires_grad_()
        result = (torch.compile(own, backend=backend) if backend else own)(given)
        (result * weights.to(result.dtype)).sum().backward()
        assert given.grad is not None
        gradients = [p.grad for p in own.parameters() if p.grad is not None]
        return [result.detach(), given.grad, *gradients]

    columns = zip(step(BACKEND, Tensor.clone), step(None, Tensor.clone),
                  step(None, Tensor.double), strict=True)  # fmt: skip
    for ours, eagers, exact in columns:
        assert (ours.dtype, ours.stride()) == (eagers.dtype, eagers.stride())
        errors = [(each.double() - exact).abs().max().item() for each in (ours, eagers)]
        assert errors[0] <= 2 * errors[1] + 1e-6


def _places(*shape: int) -> Tensor:
    return torch.randint(0, 15, shape)


INDICES = {
    "rows": (torch.randn(15, 2), (_places(4, 5).t(),)),
    "inner": (torch.randn(3, 15, 2), (None, _places(4, 5).t())),
    "points": (torch.randn(15, 15, 2), (_places(4, 5).t(), _places(4, 5).t())),
    "apart": (torch.randn(15, 2, 15), (_places(4, 5).t(), None, _places(4, 5).t())),
    "three": (torch.randn(15, 2), (_places(2, 3, 4).permute(2, 0, 1),)),
    "one permuted": (torch.randn(15, 15), (_places(5, 4), _places(4, 5).t())),
    "both permuted": (torch.randn(15, 3, 2).permute(2, 1, 0), (None, None, _places(4, 5).t())),
    "of one element": (torch.randn(15, 1, 2).permute(2, 1, 0), (None, None, _places(2, 1, 2).mT)),
    "source alone": (torch.randn(4, 15, 3).permute(2, 1, 0), (None, _places(4, 5))),
}


@pytest.mark.parametrize("name", INDICES)
def test_strides_of_what_permuted_indices_read(name: str) -> None:
    x, indices = INDICES[name]

    def program(x: Tensor, indices: tuple[Tensor | None, ...]) -> Tensor:
        return x[tuple(slice(None) if index is None else index for index in indices)]

    got, eagers = (f(x, indices) for f in (torch.compile(program, backend=BACKEND), program))
    assert torch.equal(got, eagers)
    assert got.stride() == eagers.stride()


def test_strides_of_a_batch_norm_of_a_transposed_matrix() -> None:
    def program(x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, training=True)

    x = torch.randn(2, 6).t()
    assert torch.compile(program, backend=BACKEND)(x).stride() == program(x).stride()


@pytest.mark.parametrize("shape", [(2, 5, 1, 2), (2, 5, 1, 1), (1, 5, 3, 2), (2, 1, 3, 1)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 0, 1), (1, 0, 3, 2)])
def test_strides_of_axes_of_size_1(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    """They are the metadata's: torch bases the layout of later results on them, as in `cat`."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x.sum(1, keepdim=True).expand_as(x) + x, -x

    x = torch.randn([shape[dim] for dim in order]).permute([order.index(d) for d in range(4)])
    with FakeTensorMode() as mode:
        traced = program(mode.from_tensor(x))
    results = torch.compile(program, backend=BACKEND)(x)
    for got, expected, promised in zip(results, program(x), traced, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == promised.stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_norms_of_normalised_weights(dtype: torch.dtype, dim: int | None) -> None:
    """They are float32 for both half precisions, which the library's backward relies on."""
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8), dim=dim).to(dtype)
    x, found = torch.randn(4, 6, dtype=dtype), []
    for function in (layer, torch.compile(layer, backend=BACKEND)):
        result = function(x)
        found.append((result, *torch.autograd.grad(result.sum(), list(layer.parameters()))))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_strides_of_random_counts() -> None:
    x = torch.rand(2, 3, 4).permute(2, 0, 1) * 5
    found = []
    for function in (torch.poisson, torch.compile(lambda x: torch.poisson(x), backend=BACKEND)):
        torch.manual_seed(1)
        found.append(function(x))
    assert torch.equal(*found) and found[0].stride() == found[1].stride()


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x[:, :, 1:],
    "columns": lambda x: x[..., :-1],
    "channels": lambda x: x[:, 1:],
    "every other channel": lambda x: x[:, ::2],
    "one image": lambda x: x[:1, :, 1:],
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("sizes", [(2, 5, 6, 4), (2, 3, 5, 6, 4)])
def test_strides_of_parts_of_channels_last_images(part: str, sizes: tuple[int, ...]) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        made = functional.batch_norm(x, None, None, training=True)
        last = x.movedim(1, -1).shape
        return made, torch.roll(x, 1, 2), made.movedim(1, -1).view(-1, last[-1]) * 2

    x = PARTS[part](torch.randn(sizes).movedim(-1, 1))
    for got, expected in zip(torch.compile(program, backend=BACKEND)(x), program(x), strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


@pytest.mark.parametrize("dim", [(), None, 1, (0, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sums_without_nan(dim: tuple[int, ...] | int | None, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return torch.nansum(x * 2, dim), torch.nanmean(x, dim), torch.nansum(x, dim, dtype=x.dtype)

    x = torch.tensor([[1.0, torch.nan, -3.0], [torch.nan, 0.5, torch.inf]], dtype=dtype)
    torch.testing.assert_close(torch.compile(program, backend=BACKEND)(x), program(x))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("value", [2.0, torch.tensor(2.0)], ids=["number", "tensor"])
def test_filled_inputs_with_gaps(value: float | Tensor, dynamic: bool) -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return x.index_fill(1, index, value)

    compiled = torch.compile(function, backend=BACKEND, dynamic=dynamic, fullgraph=True)
    x, index = torch.randn(6, 4, 5), torch.tensor([0, -1])
    steps = x.transpose(0, 2)[::2], x[..., ::2].transpose(0, 1)
    for given in (x, x.mT, *steps, x[:, :1].mT, x.transpose(0, 1)[..., :0], x[:1].expand(3, 4, 5)):
        got, expected = compiled(given, index), function(given, index)
        assert torch.equal(got, expected) and got.stride() == expected.stride()
