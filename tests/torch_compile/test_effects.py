"""Calls with effects: they run once, in order, and errors stay errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import effects

from tests.support.compiled import BACKEND
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict

_NAME = "pyfuser_effects"


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What two operations, which have effects, note: `record` with one result, `both` with two."""
    found: list[str] = []
    with torch.library._scoped_library(_NAME, "DEF") as library:
        library.define("record(Tensor x, str what) -> Tensor")
        library.define("both(Tensor x) -> (Tensor, Tensor)")

        def record(x: Tensor, what: str) -> Tensor:
            found.append(what)
            return x * 2

        def both(x: Tensor) -> tuple[Tensor, Tensor]:
            found.append("both")
            return x + 1, x - 1

        library.impl("record", record, "CompositeExplicitAutograd")
        library.impl("both", both, "CompositeExplicitAutograd")
        torch.library.register_fake(
            f"{_NAME}::record", lambda x, what: torch.empty_like(x), lib=library
        )
        torch.library.register_fake(
            f"{_NAME}::both", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=library
        )
        kept = [
            effects._register_effectful_op(f"{_NAME}::{op}", effects._EffectType.ORDERED)
            for op in ("record", "both")
        ]
        yield found
        for each in kept:
            each.destroy()


@pytest.mark.parametrize("dynamic", (False, True))
def test_calls_stay_in_order(log: list[str], sources: list[str], dynamic: bool) -> None:
    ops = torch.ops.pyfuser_effects

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        first = ops.record(x.sin(), "first")
        a, b = ops.both(first)
        ops.record(x, "unread")
        return ops.record(a.cos() * b, "last").sum(1), a

    x = torch.randn(8, 8)
    compiled = torch.compile(function, backend=BACKEND, fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        expected = function(x)
        noted = [*log]
        log.clear()
        got = compiled(x)
        assert log == noted == ["first", "both", "unread", "last"]
        log.clear()
        torch.testing.assert_close(got, expected)
    assert all("with_effects" not in source for source in sources)


@pytest.mark.parametrize("gradients", (False, True))
def test_failed_factorisations_raise(sources: list[str], gradients: bool) -> None:
    def function(a: Tensor) -> Tensor:
        return torch.linalg.cholesky(a + torch.eye(4)) * 2 + torch.linalg.inv(a)

    compiled = torch.compile(function, backend=BACKEND, fullgraph=True)
    good = torch.eye(4).mul(3).requires_grad_(gradients)
    torch.testing.assert_close(compiled(good), function(good))
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.cholesky"):
        compiled(torch.eye(4).mul(-3).requires_grad_(gradients))
    assert all("with_effects" not in source for source in sources)
