"""Multi-head attention layers, written out: results, gradients and strides are those of eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.support.compiled import assert_as_close_as_eager, in_float64
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

_BATCH, _HEADS, _LENGTH, _SOURCES, _WIDTH = 3, 2, 7, 5, 12
_MASKS = ("none", "causal", "booleans", "of heads", "padding", "both")
_OPERANDS = {"itself": (0, 0, 0), "a memory": (0, 1, 1), "three": (0, 1, 2)}


class _Layer(nn.Module):
    """A layer, and what a model does around it."""

    def __init__(self, operands: str, mask: str, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, **options)
        self.operands, self.mask = _OPERANDS[operands], mask

    def forward(self, *sources: Tensor) -> Tensor:
        rows = [sources[number] for number in self.operands]
        batch_first = self.attention.batch_first
        batch, length = rows[1].shape[:2] if batch_first else rows[1].shape[1::-1]
        shape = (rows[0].shape[1 if batch_first else 0], length)
        masks: dict[str, Any] = {"attn_mask": None}
        if self.mask == "causal":
            above = torch.full(shape, float("-inf"), dtype=rows[0].dtype).triu(1)
            masks = {"attn_mask": above, "is_causal": True}
        if self.mask in ("booleans", "both"):
            masks["attn_mask"] = torch.arange(length) > torch.arange(shape[0])[:, None] + 1
        if self.mask == "of heads":
            masks["attn_mask"] = torch.linspace(
                -1, 1, batch * _HEADS * shape[0] * length, dtype=rows[0].dtype
            ).view(batch * _HEADS, *shape)
        if self.mask in ("padding", "both"):
            counts = torch.arange(batch)[:, None] + 1
            masks["key_padding_mask"] = torch.arange(length) > counts
        result: Tensor = self.attention(*rows, need_weights=False, **masks)[0]
        return result + rows[0]


def _sources(batch_first: bool, batch: int = _BATCH) -> tuple[Tensor, ...]:
    shapes = [(batch, length, _WIDTH) for length in (_LENGTH, _SOURCES, _SOURCES)]
    if not batch_first:
        shapes = [(length, batch, width) for batch, length, width in shapes]
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


def _results(module: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The output, and with gradients those of the inputs and of the parameters."""
    output = module(*inputs)
    if not torch.is_grad_enabled():
        return {"output": output}
    read = {str(n): each for n, each in enumerate(inputs)} | dict(module.named_parameters())
    grads = torch.autograd.grad(output.square().sum(), read.values(), allow_unused=True)
    found = zip(read, grads, strict=True)
    return {"output": output.detach()} | {name: g for name, g in found if g is not None}


@pytest.mark.parametrize(
    ("operands", "mask", "batch_first", "bias", "gradients", "dynamic"),
    pairwise(_OPERANDS, _MASKS, *[(True, False)] * 3, (False, True), count=9),
)
def test_results_are_those_of_eager(
    operands: str, mask: str, batch_first: bool, bias: bool, gradients: bool, dynamic: bool
) -> None:
    layer = _Layer(operands, mask, batch_first=batch_first, bias=bias).train(gradients)
    compiled = torch.compile(copy.deepcopy(layer), backend="pyfuser", dynamic=dynamic)
    for batch in (_BATCH, 5):
        inputs = _sources(batch_first, batch)
        with torch.set_grad_enabled(gradients):
            ours, eagers = _results(compiled, inputs), _results(layer, inputs)
            exact = _results(*in_float64(layer, inputs))
        ours = {name.removeprefix("_orig_mod."): each for name, each in ours.items()}
        assert_as_close_as_eager(ours, eagers, exact)
        if gradients or bias:  # otherwise what Dynamo traces is a copy of what eager makes
            assert ours["output"].stride() == eagers["output"].stride()


def _rounded(x: Tensor, layer: nn.MultiheadAttention) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x, x, x)[0]  # type: ignore[no-any-return]


def _of_transposed(x: Tensor, layer: nn.MultiheadAttention) -> Tensor:
    return layer(x.mT, x.mT, x.mT)[0]  # type: ignore[no-any-return]


def _read_twice(x: Tensor, layer: nn.MultiheadAttention) -> tuple[Tensor, Tensor]:
    found, weights = layer(x, x, x, average_attn_weights=False)
    return found + 1, weights


def _without_batch(x: Tensor, layer: nn.MultiheadAttention) -> Tensor:
    return layer(x[0], x[0], x[0])[0]  # type: ignore[no-any-return]


def _checkpointed(x: Tensor, layer: nn.MultiheadAttention) -> Tensor:
    """Attention, which may draw random numbers, has its results beside the generator's state."""

    def attended(x: Tensor) -> Tensor:
        return layer(x, x, x, need_weights=False)[0] * 2  # type: ignore[no-any-return]

    return checkpoint(attended, x, use_reentrant=False)  # type: ignore[no-any-return]


def _empty(x: Tensor, layer: nn.MultiheadAttention) -> Tensor:
    return layer(x, x[:, :0], x[:, :0])[0]  # type: ignore[no-any-return]


def _by_hand(x: Tensor, layer: nn.MultiheadAttention) -> Tensor:
    """Its results are transposed, and not copied."""
    rows = x.transpose(0, 1)
    found, _ = functional.multi_head_attention_forward(
        rows,
        rows,
        rows,
        _WIDTH,
        _HEADS,
        layer.in_proj_weight,
        layer.in_proj_bias,
        None,
        None,
        False,
        0.0,
        layer.out_proj.weight,
        layer.out_proj.bias,
    )
    return found.transpose(0, 1)


_PROGRAMS = (
    *(_rounded, _of_transposed, _read_twice, _without_batch),
    *(_checkpointed, _empty, _by_hand),
)
_ADDED_KEYS = [pytest.param({name: True}, id=name) for name in ("add_bias_kv", "add_zero_attn")]


@pytest.mark.parametrize(
    ("function", "options"),
    pairwise(_PROGRAMS, [pytest.param({}, id="plain"), *_ADDED_KEYS], strength=1),
)
def test_programs_around_a_layer(function: Any, options: dict[str, bool]) -> None:
    layer = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True, **options)
    shape = (_BATCH, _WIDTH, _LENGTH) if function is _of_transposed else (_BATCH, _LENGTH, _WIDTH)
    x = torch.randn(shape, requires_grad=True)
    ours, eagers = torch.compile(function, backend="pyfuser")(x, layer), function(x, layer)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if function is _rounded else {}
    torch.testing.assert_close(ours, eagers, **tolerance)
    first, other = (each[0] if isinstance(each, tuple) else each for each in (ours, eagers))
    assert first.stride() == other.stride()
    (grad,), (eagers_grad,) = (torch.autograd.grad(each.sum(), x) for each in (first, other))
    torch.testing.assert_close(grad, eagers_grad, **tolerance)


def test_keys_and_values_of_other_widths() -> None:
    layer = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True, kdim=9, vdim=5)
    inputs = [torch.randn(_BATCH, _LENGTH, width, requires_grad=True) for width in (_WIDTH, 9, 5)]
    compiled = torch.compile(layer, backend="pyfuser")
    ours, eagers = (each(*inputs, need_weights=False)[0] for each in (compiled, layer))
    torch.testing.assert_close(ours, eagers)
    grads = zip(*(torch.autograd.grad(each.sum(), inputs) for each in (ours, eagers)), strict=True)
    for mine, eagers_own in grads:
        torch.testing.assert_close(mine, eagers_own)


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_has_the_random_numbers_of_eager(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True, dropout=0.5)
    x = torch.randn(_BATCH, _LENGTH, _WIDTH)
    results = []
    for each in (torch.compile(layer, backend="pyfuser"), layer):
        torch.manual_seed(0)
        results.append(each(x, x, x, need_weights=need_weights)[0])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("norm_first", "activation", "mask", "batch_first", "training", "dynamic"),
    pairwise(
        (False, True),
        ("relu", "gelu"),
        ("none", "causal", "padding"),
        *[(True, False)] * 3,
        count=6,
    ),
)
def test_layers_of_encoders(
    norm_first: bool, activation: str, mask: str, batch_first: bool, training: bool, dynamic: bool
) -> None:
    kinds = {"norm_first": norm_first, "activation": activation, "batch_first": batch_first}
    layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 17, dropout=0.0, **kinds)  # type: ignore[arg-type]
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    compiled = torch.compile(copy.deepcopy(encoder), backend="pyfuser", dynamic=dynamic)
    for batch in (_BATCH, 5):
        x = _sources(batch_first, batch)[0]
        masks: dict[str, Tensor] = {}
        if mask == "causal":
            masks["mask"] = nn.Transformer.generate_square_subsequent_mask(_LENGTH)
        if mask == "padding":
            counts = torch.arange(batch)[:, None] + 1
            masks["src_key_padding_mask"] = torch.arange(_LENGTH) > counts
        with torch.set_grad_enabled(training):
            ours, eagers = (each(x, **masks) for each in (compiled, encoder))
            exact = copy.deepcopy(encoder).double()(x.double(), **masks)
        named = ({"output": each.detach()} for each in (ours, eagers, exact))
        assert_as_close_as_eager(*named)
        if training:
            grads = (torch.autograd.grad(each.square().sum(), x)[0] for each in (ours, eagers))
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_every_layer_of_an_encoder_is_written_out(sources: list[str]) -> None:
    layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 17, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    with torch.no_grad():
        torch.compile(encoder, backend="pyfuser")(torch.randn(_BATCH, _LENGTH, _WIDTH))
    (source,) = sources
    assert "encoder_layer" not in source and source.count("_launch0(") == 3 * 3


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_products_and_attention_are_all_that_runs(
    batch_first: bool, need_weights: bool, sources: list[str]
) -> None:
    layer = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=batch_first).eval()
    x = torch.randn(_BATCH, _LENGTH, _WIDTH)

    @torch.compile(backend="pyfuser")
    def attended(x: Tensor) -> Tensor:
        return layer(x, x, x, need_weights=need_weights)[0]  # type: ignore[no-any-return]

    with torch.no_grad():
        attended(x)
    (source,) = sources
    calls = [line for line in source.splitlines() if "into_" in line or "call_aten" in line]
    assert len(calls) == 3 and "launch" not in source
