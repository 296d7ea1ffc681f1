"""Helpers of the tests of what is kept on disk: a process that has seen nothing, and what
AOTAutograd's cache has done.

`own_directory` is a fixture for every test of a module that imports it; `step` calls a function
and its gradients; PROGRAMS are functions, with arguments, of which graphs are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def events() -> dict[str, int]:
    """What the cache has done since the last call: hits, misses and the like."""
    found = {name: n for name, n in counters["aot_autograd"].items() if name.startswith("auto")}
    counters.clear()
    return {name.removeprefix("autograd_cache_"): n for name, n in found.items()}


MISS, HIT = {"miss": 1, "saved": 1}, {"hit": 1}


def again(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """The compiled function, as a process would compile it that hasn't seen it."""
    torch._dynamo.reset()
    counters.clear()
    compiled: Callable[..., Any] = torch.compile(function, backend="pyfuser", **settings)
    return compiled


def step(function: Callable[..., Any], given: Sequence[Tensor]) -> list[Tensor]:
    """Results and gradients."""
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in given]
    made = function(*inputs)
    results = list(made) if isinstance(made, tuple) else [made]
    leaves = [x for x in inputs if x.requires_grad]
    wanted = [out for out in results if out.requires_grad]
    slopes = [torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype) for out in wanted]
    gradients = torch.autograd.grad(wanted, leaves, slopes, allow_unused=True)
    return [t.detach() for t in (*results, *gradients) if t is not None]


def _mlp(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(functional.gelu(x @ weight + bias), (weight.shape[1],))


def _views(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    y = x.transpose(-1, -2).exp()
    return y, y[1:], x.view(-1), y.flatten()[index], y.detach()


def _attention(x: Tensor, y: Tensor) -> Tensor:
    scores = (x @ y.transpose(-1, -2)).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    return scores.softmax(-1).bfloat16() @ y.bfloat16()


def _rows(matrices: Tensor, rows: Tensor) -> Tensor:
    """Products of which a pass makes views."""
    return torch.einsum("bhij,bhj->bhi", matrices, rows).softmax(-1)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "layer norm of a product": (_mlp, [torch.randn(6, 8), torch.randn(8, 5), torch.randn(5)]),
    "views of inputs and results": (_views, [torch.randn(4, 3), torch.tensor([7, 0, -1])]),
    "rows times matrices": (_rows, [torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5)]),
    "masked attention": (_attention, [torch.randn(2, 8, 4), torch.randn(2, 8, 4)]),
}
