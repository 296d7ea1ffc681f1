"""Calls of the library in half precision are computed in float32 where it has no instructions.

The tests pretend so on every processor.  The oracle is eager in float64; the error may be a few
times eager's own in the tested dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph

from pyfuser.devices import library_dtypes
from pyfuser.torch_compile import graph as graph_module
from pyfuser.torch_compile.graph_passes import half_products
from tests.support.compiled import assert_as_close_as_eager
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

from .later_processes import again

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.cpu]

DTYPES = (torch.bfloat16, torch.float16)
Function = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_products, "is_faster_in_float32", lambda dtype: dtype in DTYPES)


def _linear(x: Tensor, w: Tensor) -> Tensor:
    return F.gelu(F.linear(x.sin(), w, w[:, 0]))


def _twice(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.mT @ w


def _of_one_operand(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("abc,adc->abd", x, x).mT + w[0, 0]


def _of_parts(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x[:, 1:] @ w[::2].mT, x[:, :-1] @ w[1::2].mT], -1)


def _expanded(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x, w.mT.expand(len(x), -1, -1)).softmax(-1)


def _added(x: Tensor, w: Tensor) -> Tensor:
    weights = w.mT.expand(len(x), -1, -1)
    return torch.baddbmm(weights[:, :1], x, weights, beta=0.5, alpha=2)


def _scores(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = (x @ w.mT[:, first : first + 16] for first in (0, 8, 16))
    return torch.softmax(q @ k.mT / 4 - w[0, 0], -1) @ v


def _attention(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = (x @ w.mT[:, first : first + 16] for first in (0, 8, 16))
    q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def _masked_attention(x: Tensor, w: Tensor) -> Tensor:
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    bias = w[0, 0] * mask
    heads = x[:, None]
    return F.scaled_dot_product_attention(heads, heads.cos(), heads.sin(), bias)


def _convolution(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x.mT.sin(), w[:, :, None].expand(-1, -1, 3), w[:, 0], padding=1).relu()


def _convolution_of_images(x: Tensor, w: Tensor) -> Tensor:
    images = x[:, None].exp()
    return F.conv2d(images, w[:8, :9].reshape(8, 1, 3, 3), stride=2).sigmoid()


def _transposed_convolution(x: Tensor, w: Tensor) -> Tensor:
    return F.conv_transpose2d(x[:, None], w[:1, :32].reshape(1, 8, 2, 2), stride=2) * 2


FUNCTIONS: dict[str, Function] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        *(_linear, _twice, _of_one_operand, _of_parts, _expanded, _added, _scores, _attention),
        *(_masked_attention, _convolution, _convolution_of_images, _transposed_convolution),
    )
}


def _inputs(dtype: torch.dtype, length: int = 24) -> list[Tensor]:
    made = [torch.randn(3, length, 40) / 4, torch.randn(32, 40) / 4]
    return [each.to(dtype).requires_grad_() for each in made]


def _gradients(function: Function, inputs: list[Tensor]) -> dict[str, Tensor]:
    found = function(*inputs)
    grads = torch.autograd.grad(found, inputs, found.detach())
    return {"result": found.detach(), **{f"{i}": grad for i, grad in enumerate(grads)}}


@pytest.mark.parametrize(
    ("name", "dtype", "dynamic"), pairwise(FUNCTIONS, DTYPES, (False, True), strength=2)
)
def test_results_and_gradients(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for length in (24, 17):
        inputs = _inputs(dtype, length)
        doubles = [each.detach().double().requires_grad_() for each in inputs]
        got, eager = _gradients(compiled, inputs), _gradients(function, inputs)
        assert_as_close_as_eager(got, eager, _gradients(function, doubles))
        assert [each.stride() for each in got.values()] == [
            each.stride() for each in eager.values()
        ]


@pytest.fixture
def dtypes(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype | None]:
    """The dtypes of the calls of the library that a test compiles."""
    found: list[torch.dtype | None] = []

    def note(graph: Graph) -> None:
        calls = (node for node in graph.nodes if node.target in half_products.WIDENED)
        found.extend(half_products.dtype_of(node) for node in calls)

    monkeypatch.setattr(graph_module, "GRAPH_PASSES", (*graph_module.GRAPH_PASSES, note))
    return found


@pytest.mark.parametrize("name", ["linear", "twice", "scores", "attention", "convolution"])
def test_the_library_gets_float32(name: str, dtypes: list[torch.dtype | None]) -> None:
    _gradients(torch.compile(FUNCTIONS[name], backend="pyfuser"), _inputs(torch.bfloat16))
    assert set(dtypes) == {torch.float32}


def test_autocast_converts_no_weight(sources: list[str]) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(F.linear(x, w).relu(), w.mT)

    x, w = torch.randn(64, 48), torch.randn(32, 48)
    with torch.no_grad():
        made = torch.compile(function, backend="pyfuser")(x, w)
        eager, exact = function(x, w), function(x.double(), w.double())
    assert_as_close_as_eager({"": made}, {"": eager}, {"": exact}, factor=1)
    (source,) = sources
    assert source.count("launch") == 2  # relu, and the result's rounding
    assert source.count("torch_bfloat16") == 1


def test_autocast_around_the_call() -> None:
    """A graph from torch's cache is compiled in it; nothing that a pass asks torch is cast."""

    def results(call: Callable[..., Tensor], *inputs: Tensor) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            found = call(*inputs)
        grads = torch.autograd.grad(found, inputs[1:], found.detach())
        return {"result": found.detach(), "weight": grads[0], "bias": grads[1]}

    def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.linear(x, w, b).relu()

    x, w, b = torch.randn(64, 48), torch.randn(32, 48), torch.randn(32)
    inputs = (x, w.requires_grad_(), b.requires_grad_())
    exact = results(linear, *(each.detach().double().requires_grad_() for each in inputs))
    for _ in range(2):
        got = results(again(linear), *inputs)
        assert_as_close_as_eager(got, results(linear, *inputs), exact)


@pytest.mark.parametrize(
    ("rows", "is_transposed", "dtype"),
    [
        (8, True, torch.bfloat16),
        (9, True, torch.float32),
        (8, False, torch.float32),
        (2, False, torch.float32),
    ],
)
def test_few_rows_of_a_transposed_matrix_stay(
    dtypes: list[torch.dtype | None], rows: int, is_transposed: bool, dtype: torch.dtype
) -> None:
    x, w = torch.randn(rows, 256).bfloat16(), torch.randn(256, 256).bfloat16()
    with torch.no_grad():
        torch.compile(lambda x, w: x @ (w.mT if is_transposed else w), backend="pyfuser")(x, w)
    assert dtypes == [dtype]


def test_an_operand_that_is_updated_is_read_before() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        before = x @ w.mT
        w.mul_(2)
        return before + x @ w.mT

    x, w = torch.randn(32, 40).bfloat16(), torch.randn(32, 40).bfloat16()
    ours, theirs = w.clone(), w.clone()
    made, expected = torch.compile(function, backend="pyfuser")(x, ours), function(x, theirs)
    torch.testing.assert_close(made, expected)
    assert torch.equal(ours, theirs)


def test_which_dtypes_are_faster_in_float32() -> None:
    found = {dtype: library_dtypes.is_faster_in_float32(dtype) for dtype in DTYPES}
    if library_dtypes.has_onednn():
        assert found == {
            torch.bfloat16: not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
            torch.float16: not torch.ops.mkldnn._is_mkldnn_fp16_supported(),
        }
    else:
        assert not any(found.values())
    assert not library_dtypes.is_faster_in_float32(torch.float32)
