"""`options={"fused_random": True}`: kernels make the random numbers of dropout and its kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.support.compiled import strict  # noqa: F401

pytestmark = pytest.mark.usefixtures("strict", "poison")


def compiled(function: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
    """The function with kernels that make their random numbers."""
    options = {"fused_random": True}
    made: Any = torch.compile(function, backend="pyfuser", options=options, **keywords)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1000, 37), (0, 3), (1,), (7, 5, 3, 2)], ids=str)
def test_the_backward_makes_the_mask_of_the_forward_again(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    keep, x = 0.75, torch.ones(shape, dtype=dtype, requires_grad=True)
    step = compiled(lambda x: F.dropout(x, 1 - keep) * 2)
    y = step(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y)
    assert set(y.unique().tolist()) <= {0.0, float(torch.ones((), dtype=dtype).div(keep) * 2)}
    if y.numel() > 10_000:
        assert abs(y.count_nonzero() / y.numel() - keep) < 0.02


def test_nothing_of_the_size_of_the_mask_is_kept() -> None:
    kept = []
    x = torch.randn(64, 1024, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = compiled(lambda x: F.dropout(x, 0.5).sin())(x)
    assert [t.dtype for t in kept if t.numel() == x.numel()] in ([], [torch.float32])
    assert any(t.dtype is torch.int64 and t.dim() == 0 for t in kept)  # the seed
    y.sum().backward()
    mask = y != 0
    torch.testing.assert_close(x.grad, torch.where(mask, (2 * x).cos() * 2, 0.0))


def test_a_seed_replays_and_calls_differ() -> None:
    step = compiled(lambda x: (F.dropout(x, 0.5), torch.rand_like(x), torch.rand_like(x)))
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = step(x), step(x)
    torch.manual_seed(3)
    again = step(x)
    for a, b, c in zip(first, again, second, strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)
    assert not torch.equal(first[1], first[2])


DRAWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "rand": (lambda x: torch.rand(x.shape, dtype=x.dtype), 0.5, 12**-0.5),
    "rand_like": (torch.rand_like, 0.5, 12**-0.5),
    "randn": (lambda x: torch.randn(x.shape, dtype=x.dtype), 0.0, 1.0),
    "randn_like": (torch.randn_like, 0.0, 1.0),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.3), 0.3, 0.21**0.5),
    "compared": (lambda x: (torch.rand_like(x) < 0.3).to(x.dtype), 0.3, 0.21**0.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_have_the_distribution_and_layout_of_eager_s(name: str, dtype: torch.dtype) -> None:
    draw, mean, deviation = DRAWS[name]
    x = torch.zeros(2, 3, 61, 67, dtype=dtype).to(memory_format=torch.channels_last)
    got, wanted = compiled(lambda x: draw(x) + 0)(x), draw(x)
    assert got.dtype is wanted.dtype and got.shape == wanted.shape
    assert got.stride() == wanted.stride()
    assert abs(got.double().mean() - mean) < 0.02
    assert abs(got.double().std() - deviation) < 0.02
    if name.startswith("rand") and not name.startswith("randn"):
        assert bool((got >= 0).all()) and bool((got < 1).all())


def test_only_the_seeds_are_drawn_by_torch() -> None:
    step = compiled(lambda x: torch.rand_like(x) * F.dropout(x, 0.5))
    x = torch.ones(8, 8)
    step(x)
    with torch.profiler.profile() as profile:
        step(x)
    random = ("rand", "bernoulli", "uniform", "normal", "mul", "lt")
    ran = [event.key for event in profile.key_averages() if event.key.startswith("aten::")]
    assert [name for name in ran if any(part in name for part in random)] == [
        "aten::randint",
        "aten::random_",
    ]


def test_activation_checkpointing_draws_the_same_seed_again() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5).exp()

    x = torch.rand(64, 64, requires_grad=True)
    y = compiled(lambda x: checkpoint(block, x, use_reentrant=False))(x)
    y.sum().backward()
    dropped = y == 1
    wanted = torch.where(dropped, 0.0, y * 2 * x.cos())
    torch.testing.assert_close(x.grad, wanted)


def test_sizes_may_change() -> None:
    step = compiled(lambda x: F.dropout(x, 0.5), dynamic=True)
    for length in (100, 7, 1, 1001):
        y = step(torch.ones(length, 3))
        assert set(y.unique().tolist()) <= {0.0, 2.0}


def test_what_kernels_cannot_draw_is_torch_s() -> None:
    def draws(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.randint_like(x, 5), torch.bernoulli(x), torch.randn(3, dtype=torch.complex64)

    x = torch.full((100,), 0.5)
    torch.manual_seed(1)
    got = compiled(draws)(x)
    torch.manual_seed(1)
    for a, b in zip(got, draws(x), strict=True):
        assert torch.equal(a, b)


def test_dropout_of_everything_nothing_and_in_inference() -> None:
    x = torch.randn(40)
    for p, training, wanted in ((1.0, True, x * 0), (0.0, True, x), (0.5, False, x)):
        step = compiled(lambda x, p=p, training=training: F.dropout(x, p, training))
        assert torch.equal(step(x), wanted)
