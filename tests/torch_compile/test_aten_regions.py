"""Regions of several nodes: gradients, losses, dropout, half precision, outputs, kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pyfuser.interface import CompiledFusion
from pyfuser.ops.evaluator import evaluate
from pyfuser.torch_compile.aten import decompositions, refusal
from tests.support.compiled import assert_as_close_as_eager
from tests.support.long_cases import first, long
from tests.torch_compile.aten_graphs import (
    OneNode,
    called_with,
    flat,
    gradients,
    require_close,
    tensor_maker,
    traced,
    translated,
)

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "softplus": F.softplus,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "glu": F.glu,
    "std": lambda x: x.std(-1),
    "norm": lambda x: x.norm(dim=-1),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    function = gradients(ACTIVATIONS[name])
    x = tensor_maker(dtype)(4, 6)
    region = translated(function, x)
    got = evaluate(region.fusion, called_with(region, [x]))
    require_close(got, flat(function(x)), dtype)


@pytest.mark.parametrize("bounds", [(0, None, 2), (1, None, 3), (2, -1, 2), (0, 1, 2)], ids=str)
def test_gradients_of_slices_with_steps(bounds: tuple[int, int | None, int]) -> None:
    """The gradient of a slice puts it back between zeros: two of them are one region."""

    def neighbours(x: torch.Tensor) -> torch.Tensor:
        return x[:, slice(*bounds)].exp() + x[:, : x[:, slice(*bounds)].shape[1]]

    function = gradients(neighbours)
    x = tensor_maker(torch.float32)(4, 9)
    region = translated(function, x)
    got = evaluate(region.fusion, called_with(region, [x]))
    require_close(got, flat(function(x)), torch.float32)


NORMS: dict[str, tuple[Callable[..., torch.Tensor], Any]] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), ((4, 6), (6,), (6,))),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        ((4, 6, 3), (6,), (6,)),
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w, 1e-5), ((4, 6), (6,))),
}


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_norms(name: str) -> None:
    function, shapes = NORMS[name]
    tensors = [tensor_maker(torch.float32, seed)(*shape) for seed, shape in enumerate(shapes)]
    region = translated(gradients(function), *tensors)
    got = evaluate(region.fusion, called_with(region, tensors))
    require_close(got, flat(gradients(function)(*tensors)), torch.float32)


@pytest.mark.parametrize("of_parameters", (None, torch.float32), ids=("alike", "mixed"))
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_group_norm_is_one_region_between_views(
    dtype: torch.dtype, of_parameters: torch.dtype | None
) -> None:
    make, parameter = tensor_maker(dtype), tensor_maker(of_parameters or dtype)
    x, weight, bias, slope = make(4, 6, 3, 5), parameter(6), parameter(6), make(4, 6, 3, 5)
    table, sizes = decompositions(), (4, 6, 15, 2)
    wanted = aten.native_group_norm.default(x, weight, bias, *sizes, 1e-5)
    got = table[aten.native_group_norm.default](x, weight, bias, *sizes, 1e-5)
    require_close(got, wanted, dtype)
    given = (slope, x, *wanted[1:], weight, *sizes, [True, True, True])
    wanted = aten.native_group_norm_backward.default(*given)
    require_close(table[aten.native_group_norm_backward.default](*given), wanted, dtype)
    nodes, _, _ = traced(lambda x, w, b: F.group_norm(x, 2, w, b), [x, weight, bias])
    assert {refusal(node) for node in nodes} == {None, "a reshape of real axes"}


@pytest.mark.parametrize("dynamic", [long(False), True])
@pytest.mark.parametrize("dtype", first(2, FLOATS[:3]), ids=str)
@pytest.mark.parametrize(
    "shape, order",
    [
        ((2, 6, 7, 5), torch.channels_last),
        ((1, 12, 1, 3), torch.channels_last),
        ((2, 6, 3, 5, 4), torch.channels_last_3d),
        ((3, 12, 9), None),
    ],
    ids=str,
)
def test_group_norm_keeps_the_order_of_channels(
    shape: tuple[int, ...], order: torch.memory_format | None, dtype: torch.dtype, dynamic: bool
) -> None:
    torch._dynamo.reset()
    make = tensor_maker(dtype)
    x = make(*shape) if order is None else make(*shape).to(memory_format=order)
    x = x.movedim(1, -1).contiguous().movedim(-1, 1) if order is None else x
    inputs = [x, make(shape[1]), make(shape[1]), make(*shape)]

    def run(inputs: list[torch.Tensor], compiled: bool = False) -> dict[str, torch.Tensor]:
        x, weight, bias = (t.detach().requires_grad_() for t in inputs[:3])
        norm = torch.compile(F.group_norm, backend="pyfuser", dynamic=dynamic)
        result = (norm if compiled else F.group_norm)(x, 3, weight, bias)
        of = torch.autograd.grad(result, (x, weight, bias), inputs[3].to(result))
        return {"y": result, "of x": of[0], "of weight": of[1], "of bias": of[2]}

    eager, got = run(inputs), run(inputs, True)
    assert_as_close_as_eager(got, eager, run([t.double() for t in inputs]))
    assert [t.stride() for t in got.values()] == [t.stride() for t in eager.values()]


def test_group_norm_that_would_be_copied_stays_whole() -> None:
    x = torch.randn(2, 3, 4, 5).transpose(2, 3)
    decomposed = decompositions()[aten.native_group_norm.default]
    assert decomposed(x, None, None, 2, 3, 20, 3, 1e-5) is NotImplemented


def test_gradient_of_a_fused_rms_norm() -> None:
    make = tensor_maker(torch.float32)
    x, weight, slope = make(4, 6), make(6), make(4, 6)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    leaves = [t.detach().requires_grad_() for t in (x, weight)]
    wanted = torch.autograd.grad(F.rms_norm(leaves[0], (6,), leaves[1], 1e-5), leaves, slope)
    given = (slope, x, [6], rstd, weight, [True, True])
    graph = OneNode(aten._fused_rms_norm_backward.default, given, {})
    region = graph.region()
    require_close(evaluate(region.fusion, graph.values(region)), wanted, torch.float32)


LOSSES = {
    "cross_entropy": lambda x, y, k: F.cross_entropy(x, k, ignore_index=1),
    "cross_entropy smoothed": lambda x, y, k: F.cross_entropy(x, k, label_smoothing=0.1),
    "nll_loss": lambda x, y, k: F.nll_loss(x.log_softmax(-1), k, reduction="sum"),
    "mse_loss": lambda x, y, k: F.mse_loss(x, y),
    "l1_loss": lambda x, y, k: F.l1_loss(x, y),
    "smooth_l1_loss": lambda x, y, k: F.smooth_l1_loss(x, y, beta=0.7),
    "huber_loss": lambda x, y, k: F.huber_loss(x, y, reduction="sum", delta=0.6),
    "bce": lambda x, y, k: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bce with logits": lambda x, y, k: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "kl_div": lambda x, y, k: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    "soft_margin_loss": lambda x, y, k: F.soft_margin_loss(x, y.sign()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    function = LOSSES[name]
    make = tensor_maker(torch.float32)
    x, y, target = make(8, 5), make(8, 5), torch.tensor([0, 1, 4, 2, 1, 0, 3, 4])

    def both(x: torch.Tensor, y: torch.Tensor, target: torch.Tensor) -> Any:
        leaf = x.detach().requires_grad_()
        loss = function(leaf, y, target)
        return loss.detach(), *torch.autograd.grad(loss, [leaf])

    region = translated(both, x, y, target)
    got = evaluate(region.fusion, called_with(region, [x, y, target]))
    require_close(got, flat(both(x, y, target)), torch.float32)


# -- dropout


@pytest.mark.parametrize("p", (0.0, 0.1, 0.5, 0.9, 1.0))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_has_the_bits_and_the_stream_of_eager(dtype: torch.dtype, p: float) -> None:
    make = tensor_maker(dtype)
    decomposed = decompositions()[aten.native_dropout.default]
    for x in (
        make(1000),
        make(7, 13).t(),
        make(4, 3, 5, 5).permute(0, 2, 3, 1),
        make(6, 8)[:, ::2],
    ):
        torch.manual_seed(3)
        leaf = x.detach().requires_grad_()
        wanted = F.dropout(leaf, p, True)
        (slope,) = torch.autograd.grad(wanted, leaf, torch.ones_like(wanted))
        state = torch.get_rng_state()
        torch.manual_seed(3)
        got, mask = decomposed(x, p, True)
        assert torch.equal(got, wanted) and mask.dtype is torch.bool
        assert torch.equal(torch.get_rng_state(), state)
        scale = 0.0 if p == 1 else 1 / (1 - p)
        if p > 0:
            graph = OneNode(
                aten.native_dropout_backward.default, (torch.ones_like(x), mask, scale), {}
            )
            region = graph.region()
            assert torch.equal(evaluate(region.fusion, graph.values(region))[0], slope)


def test_dropout_in_inference_is_a_copy() -> None:
    x = torch.randn(5)
    got, mask = decompositions()[aten.native_dropout.default](x, 0.5, False)
    assert torch.equal(got, x) and mask.all()


# -- half precision


def test_a_comparison_in_half_precision_sees_rounded_values() -> None:
    """The greatest product equals the maximum, which eager rounded."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = x * y
        return product == product.amax(-1, keepdim=True).clone()

    x, y = (tensor_maker(torch.bfloat16, seed)(64, 32) for seed in (1, 2))
    region = translated(function, x, y)
    got = evaluate(region.fusion, [x, y], keep_rounding=True)[0]
    assert torch.equal(got, function(x, y))


def test_numbers_are_rounded_before_a_comparison_in_half_precision() -> None:
    x = torch.tensor([0.1, 0.2], dtype=torch.bfloat16)
    region = translated(lambda x: x == 0.1, x)
    assert evaluate(region.fusion, [x])[0].tolist() == [True, False]


def test_half_precision_is_not_rounded_between_ops() -> None:
    x = torch.full((4,), 1.0, dtype=torch.bfloat16)
    region = translated(lambda x: (x + 0.001) - 1, x)
    assert CompiledFusion(region.fusion).execute([x])[0].float().max() > 0


def test_an_explicit_conversion_rounds() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 1.001).to(torch.bfloat16).to(torch.float32) * 2

    x = torch.linspace(0, 3, 100)
    region = translated(function, x)
    assert torch.equal(CompiledFusion(region.fusion).execute([x])[0], function(x))


# -- outputs of a region


def test_outputs_are_tensors_of_their_own() -> None:
    x = torch.randn(4, 3)
    region = translated(lambda x: (x.clone(), (y := x + 1), y.clone()), x)
    outputs = CompiledFusion(region.fusion).execute([x])
    assert len({t.untyped_storage().data_ptr() for t in (x, *outputs)}) == 4
    assert torch.equal(outputs[0], x) and torch.equal(outputs[1], outputs[2])


def test_a_clone_of_a_view_is_a_copy() -> None:
    x = torch.randn(4, 3)
    region = translated(lambda x: (x.t().clone(), x.expand(2, 4, 3).clone()), x)
    outputs = CompiledFusion(region.fusion).execute(called_with(region, [x]))
    assert len({t.untyped_storage().data_ptr() for t in (x, *outputs)}) == 3
    assert torch.equal(outputs[0], x.t()) and torch.equal(outputs[1], x.expand(2, 4, 3))


def test_a_size_of_an_argument_becomes_a_scalar() -> None:
    x = torch.randn(4, 1)
    region = translated(lambda x: x.expand(4, 9) * torch.arange(9), x)
    assert region.scalars == [9]
    got = CompiledFusion(region.fusion).execute([x, 9])[0]
    assert torch.equal(got, x * torch.arange(9))


# -- kernels


def _rope(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angle.cos() + rotated * angle.sin()


def _attention(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return x.masked_fill(~mask, -torch.inf).softmax(-1)


KERNELS: dict[str, tuple[Callable[..., Any], Any]] = {
    "softmax of a masked square": (_attention, [(2, 3, 16, 16)]),
    "layer norm and gelu": (
        lambda x, w, b: F.gelu(F.layer_norm(x, (24,), w, b)),
        [(5, 24), (24,), (24,)],
    ),
    "rotary embedding": (_rope, [(2, 5, 16), (5, 16)]),
    "moments": (lambda x: torch.var_mean(x, 1, correction=0), [(7, 33)]),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True).relu(),
        [(4, 6, 5, 5), (6,), (6,)],
    ),
    "gradient of a layer norm": (
        gradients(lambda x, w, b: F.layer_norm(x, (24,), w, b)),
        [(5, 24), (24,), (24,)],
    ),
    "gradient of a gelu": (gradients(F.gelu), [(9, 17)]),
    "padded sum": (lambda x: F.pad(x, (1, 2)).sum(-1), [(6, 9)]),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    function, shapes = KERNELS[name]
    tensors = [tensor_maker(dtype, seed)(*shape) for seed, shape in enumerate(shapes)]
    region = translated(function, *tensors)
    got = CompiledFusion(region.fusion).execute(called_with(region, tensors))
    require_close(got, flat(function(*tensors)), dtype)
