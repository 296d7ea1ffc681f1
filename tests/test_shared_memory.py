"""Small tensors between kernels: one allocation, in which none overlaps another that is needed."""

from __future__ import annotations

from unittest.mock import Mock

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyfuser.plans.shared_memory import MOST_BYTES, Lifetime, places
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict

LIFETIMES = st.tuples(st.integers(0, 300), st.integers(0, 9), st.integers(0, 9)).map(
    lambda values: Lifetime(values[0], min(values[1:]), max(values[1:]))
)


@given(st.lists(LIFETIMES, max_size=12))
def test_tensors_that_are_needed_at_one_time_are_apart(lifetimes: list[Lifetime]) -> None:
    tensors = [Mock() for _ in lifetimes]
    known = dict(zip(tensors, lifetimes, strict=True))
    found, total = places(known)
    assert found.keys() == known.keys()
    for tensor, own in known.items():
        begin, end = found[tensor], found[tensor] + own.bytes
        assert begin % 64 == 0 and end <= total
        for other, its in known.items():
            if other is not tensor and own.written <= its.read and its.written <= own.read:
                assert found[other] >= end or found[other] + its.bytes <= begin


def test_memory_is_used_again() -> None:
    tensors = [Mock() for _ in range(10)]
    found, total = places({t: Lifetime(100, n, n + 1) for n, t in enumerate(tensors)})
    assert total == 256 and set(found.values()) == {0, 128}


def _norms(x: Tensor) -> Tensor:
    """Several kernels: sums of rows, then of columns, and so on."""
    for dim in (0, 1, 0, 1):
        x = (x - x.logsumexp(dim, keepdim=True)).tanh()
    return x


def test_results_and_the_plan_s_text(sources: list[str]) -> None:
    x = torch.randn(40, 30)
    got = torch.compile(_norms, backend="pyfuser")(x)
    assert (got.double() - _norms(x.double())).abs().max() < 1e-5
    (source,) = sources
    assert source.count("memory = empty(") == 1 and "memory_begin + " in source
    assert "f0_t" not in source


def test_large_tensors_go_back_to_the_pool(sources: list[str]) -> None:
    rows = MOST_BYTES // 4 // 30 + 1
    torch.compile(_norms, backend="pyfuser")(torch.randn(rows, 30))
    assert "f0_t" in sources[0]  # beside its sums of rows, which are small


def test_changing_sizes() -> None:
    compiled = torch.compile(_norms, backend="pyfuser", dynamic=True)
    for shape in ((40, 30), (7, 90), (300, 2)):
        x = torch.randn(shape)
        assert (compiled(x).double() - _norms(x.double())).abs().max() < 1e-5
