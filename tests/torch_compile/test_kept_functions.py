"""Functions of compiled graphs on disk: another process computes the same, and compiles nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser import options
from pyfuser.caches.disk_cache import DiskCache
from pyfuser.devices.switches import override_can_fuse_on
from pyfuser.profiling import Recorder, recording
from pyfuser.torch_compile import cached_graphs, kept_functions
from tests.support.compiled import sources as sources

from .later_processes import PROGRAMS, again, own_directory, step  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not cached_graphs.IS_KNOWN, reason="this torch has no such cache"),
    pytest.mark.cpu,
]


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been kept.  Under PYFUSER_STRICT, nothing would be."""
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path / "pyfuser"))
    monkeypatch.delenv("PYFUSER_STRICT", raising=False)


def _looked_up(table: Tensor, places: Tensor) -> Tensor:
    """A kernel of it refuses places that aren't in the table."""
    return functional.embedding(places, table).exp() * 2


def _constants(x: Tensor) -> tuple[Tensor, ...]:
    """Numbers and tensors that the text of a function can't have."""
    filled = x.masked_fill(x > 0, -math.inf).maximum(torch.tensor([-0.5]))
    return filled, x.clamp(max=math.nan), x * torch.tensor(2.5), x[torch.tensor([2, 0])].sin()


def _products(x: Tensor, y: Tensor) -> Tensor:
    scores = functional.scaled_dot_product_attention(x, y, y)
    return torch.cat([scores @ y.transpose(1, 2), x.contiguous()], -1).to(torch.float64).softmax(-1)


def _drawn(x: Tensor) -> Tensor:
    torch.manual_seed(4)
    return functional.dropout(x.exp(), 0.5) + torch.rand(5)


MORE: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "kernel that may refuse": (_looked_up, [torch.randn(7, 4), torch.tensor([3, 0, 6])]),
    "constants": (_constants, [torch.randn(3)]),
    "library calls": (_products, [torch.randn(2, 3, 4), torch.randn(2, 3, 4)]),
    "random numbers": (_drawn, [torch.randn(5)]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*PROGRAMS, *MORE])
def test_another_process_compiles_nothing(name: str, dynamic: bool, sources: list[str]) -> None:
    function, given = (PROGRAMS | MORE)[name]
    first = step(again(function, dynamic=dynamic), given)
    assert sources
    sources.clear()
    second = step(again(function, dynamic=dynamic), given)
    assert not sources
    for got, before, eager in zip(second, first, step(function, given), strict=True):
        torch.testing.assert_close(got, before, rtol=0, atol=0, equal_nan=True)
        assert got.stride() == before.stride()
        torch.testing.assert_close(got, eager, equal_nan=True)


def test_sizes_that_a_function_is_not_for(
    sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns None, and the graph is compiled, once."""
    again(torch.cos)(torch.randn(6))
    sources.clear()
    refusing = kept_functions.Kept(lambda args: None, for_all=False)
    monkeypatch.setattr(kept_functions, "load", lambda text, later: refusing)
    function = again(torch.cos)
    for _ in range(3):
        x = torch.randn(6)
        torch.testing.assert_close(function(x), x.cos())
    assert len(sources) == 1


def test_a_refusal_raises_the_error_of_torch(sources: list[str]) -> None:
    table = torch.randn(7, 4)
    messages = []
    for number in (1, 0):
        function = again(_looked_up)
        sources.clear()
        function(table, torch.tensor([1, 2]))
        assert len(sources) == number
        with pytest.raises(IndexError) as refused:
            function(table, torch.tensor([1, 7]))
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    assert "index out of range in self" in messages[0]


def test_a_function_that_was_found_can_be_switched_off() -> None:
    x = torch.randn(6)
    again(torch.cos)(x)
    function = again(torch.cos)
    function(x)
    override_can_fuse_on("cpu", False)
    try:
        assert torch.equal(function(x), x.cos())
    finally:
        override_can_fuse_on("cpu", None)
    torch.testing.assert_close(function(x), x.cos())


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "recorded": lambda: recording(Recorder()),
    "a scheduler less": lambda: options.overridden({"PYFUSER_DISABLE_SCHEDULERS": "greedy"}),
    "strict": lambda: options.overridden({"PYFUSER_STRICT": "1"}),
    "shown": lambda: options.overridden({"PYFUSER_DUMP": "call"}),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_else_decides_about_a_function(name: str, sources: list[str]) -> None:
    x = torch.randn(6, 3)
    again(torch.cumsum)(x, 0)
    sources.clear()
    with SURROUNDINGS[name]():
        torch.testing.assert_close(again(torch.cumsum)(x, 0), x.cumsum(0))
    assert sources


def test_a_number_of_threads_has_its_own_function(sources: list[str]) -> None:
    x, threads = torch.randn(6), torch.get_num_threads()
    again(torch.cos)(x)
    sources.clear()
    torch.set_num_threads(threads + 1)
    try:
        torch.testing.assert_close(again(torch.cos)(x), x.cos())
    finally:
        torch.set_num_threads(threads)
    assert sources


def test_a_loop_is_compiled_again(sources: list[str]) -> None:
    """Its bodies are functions of their own."""

    def halved(x: Tensor) -> Tensor:
        return torch.while_loop(lambda y: y.sum() > 1, lambda y: (y / 2,), (x,))[0]  # type: ignore[no-any-return]

    x = torch.rand(5)
    for _ in range(2):
        sources.clear()
        torch.testing.assert_close(again(halved)(x), halved(x))
        assert sources


def test_a_damaged_entry_counts_as_none(
    sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(6)
    again(torch.cos)(x)
    load = DiskCache.load

    def shortened(self: DiskCache, key: str) -> bytes | None:
        found = load(self, key)
        return found[:-1] if found and key.startswith("function of a graph") else found

    monkeypatch.setattr(DiskCache, "load", shortened)
    sources.clear()
    torch.testing.assert_close(again(torch.cos)(x), x.cos())
    assert sources
