"""torch's random numbers drawn by native code: the same bits, the same state afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser.devices.cpu import torch_generator
from pyfuser.devices.cpu.torch_generator import bernoulli, rand, rand_like

aten = torch.ops.aten


def require_same_draws(ours: Callable[[], Any], theirs: Callable[[], Any], before: int = 0) -> None:
    """Both after a seed and some numbers of one word."""
    results = []
    for draw in (ours, theirs):
        torch.manual_seed(7)
        torch.randint(0, 9, (before,))
        results.append((draw(), torch.get_rng_state()))
    (made, state), (wanted, wanted_state) = results
    assert made.dtype == wanted.dtype
    assert made.stride() == wanted.stride()
    assert torch.equal(made, wanted)
    assert torch.equal(state, wanted_state)


@pytest.mark.parametrize("before", [0, 1, 2, 623, 624, 625])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1031, 6240, 100003])
def test_draws_are_those_of_torch(before: int, count: int) -> None:
    mask = torch.empty(count, dtype=torch.bool)
    require_same_draws(lambda: bernoulli(mask, 0.3), lambda: aten.bernoulli.p(mask, 0.3), before)
    for dtype in (torch.float32, torch.float64):
        x = torch.empty(count, dtype=dtype)
        cpu = x.device
        require_same_draws(
            lambda dtype=dtype, cpu=cpu: rand([count], dtype=dtype, device=cpu),
            lambda dtype=dtype: torch.rand(count, dtype=dtype),
            before,
        )
        require_same_draws(lambda x=x: rand_like(x), lambda x=x: torch.rand_like(x), before)


@pytest.mark.parametrize("p", [0.0, 5e-324, 2.0**-53, 0.1, 0.5, 1 - 2.0**-53, 1.0])
def test_probabilities(p: float) -> None:
    mask = torch.empty(40, 50, dtype=torch.bool)
    require_same_draws(lambda: bernoulli(mask, p), lambda: aten.bernoulli.p(mask, p))


def test_every_kind_is_recognised_as_torchs_if_one_is() -> None:
    """On processors on which torch's masks come from elsewhere, uniform numbers still don't."""
    assert torch_generator._is_equal_to_torch("uniform_float")
    assert torch_generator._is_equal_to_torch("uniform_double")


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f["bernoulli"](torch.empty(64, 64), 0.5),
        lambda f: f["bernoulli"](torch.empty(64, 64, dtype=torch.bool).t(), 0.5),
        lambda f: f["rand"]([64, 64], dtype=torch.float16, device=torch.device("cpu")),
        lambda f: f["rand"]([64, 64]),
        lambda f: f["rand_like"](torch.empty(64, 32).t()),
        lambda f: f["rand_like"](torch.empty(64, 32, dtype=torch.bfloat16)),
        lambda f: f["rand_like"](torch.empty(2, 8, 16, 16), memory_format=torch.channels_last),
        lambda f: f["rand_like"](torch.empty(64, 32, dtype=torch.int64), dtype=torch.float32),
    ],
)
def test_other_layouts_and_dtypes(call: Callable[[dict[str, Any]], torch.Tensor]) -> None:
    ours = {"bernoulli": bernoulli, "rand": rand, "rand_like": rand_like}
    theirs = {
        "bernoulli": aten.bernoulli.p,
        "rand": aten.rand.default,
        "rand_like": aten.rand_like.default,
    }
    require_same_draws(lambda: call(ours), lambda: call(theirs))


def test_a_generator_of_the_callers() -> None:
    mask = torch.empty(2000, dtype=torch.bool)
    made = bernoulli(mask, 0.5, generator=torch.Generator().manual_seed(3))
    wanted = aten.bernoulli.p(mask, 0.5, generator=torch.Generator().manual_seed(3))
    assert torch.equal(made, wanted)


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_impossible_probabilities(p: float) -> None:
    with pytest.raises(RuntimeError, match="p"):
        bernoulli(torch.empty(2000, dtype=torch.bool), p)


def test_other_numbers_than_torchs_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch made masks in another way."""
    monkeypatch.setattr(torch_generator, "_DOUBLE_BITS", 52)
    check = torch_generator._is_equal_to_torch.__wrapped__
    assert not check("bernoulli")
    assert check("uniform_float")


def test_compiled_dropout_draws_eagers_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    draw = torch_generator._draw

    def recorded(kind: str, *rest: Any) -> torch.Tensor:
        drawn.append(kind)
        return draw(kind, *rest)

    if not torch_generator._is_equal_to_torch("bernoulli"):
        pytest.skip("torch makes masks in another way on this processor")
    torch_generator._is_equal_to_torch("uniform_float")
    torch_generator._is_equal_to_torch("uniform_double")
    monkeypatch.setattr(torch_generator, "_draw", recorded)

    def program(x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x) + torch.rand(40, 50, dtype=torch.float64)
        return torch.nn.functional.dropout(x, 0.25) * noise

    x = torch.randn(40, 50)
    compiled = torch.compile(program, backend="pyfuser")
    require_same_draws(lambda: compiled(x), lambda: program(x))
    assert sorted(drawn) == ["bernoulli", "uniform_double", "uniform_float"]


def test_numbers_that_another_thread_drew_meanwhile_are_not_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the other thread ran while the native code draws."""
    if not torch_generator._is_equal_to_torch("uniform_float"):
        pytest.skip("torch makes numbers in another way on this processor")
    drawer, others = torch_generator._drawer(), []

    class Interrupted:
        converters = drawer.converters

        @staticmethod
        def draw(*arguments: Any) -> None:
            others.append(torch.rand(2000))
            drawer.draw(*arguments)

    monkeypatch.setattr(torch_generator, "_drawer", Interrupted)
    torch.manual_seed(7)
    made = torch_generator.rand([2000], device=torch.device("cpu"))
    torch.manual_seed(7)
    wanted = torch.rand(4000)
    assert torch.equal(torch.cat([*others, made]), wanted)
