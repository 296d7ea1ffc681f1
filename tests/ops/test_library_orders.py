"""Orders are equal to torch's in every dtype, layout and shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import DefinitionError, InputError
from tests.ops.library_definitions import (
    FLOATS,
    INTEGERS,
    LAYOUTS,
    check,
    defined,
    distinct,
    numbers,
)
from tests.support.random_tensors import laid_out

pytestmark = pytest.mark.usefixtures("poison")


# -- orders

SHAPES = [((7,), 0), ((5, 3), 0), ((5, 3), -1), ((2, 5, 3), 1), ((1,), 0), ((0, 3), 0), ((5, 0), 0)]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("descending", [False, True])
def test_argsort(dtype: torch.dtype, shape: Any, dim: int, descending: bool) -> None:
    def define(fd: Any, x: Any) -> Any:
        return fd.ops.argsort(x, dim, descending, True)

    def eager(x: torch.Tensor) -> torch.Tensor:
        return torch.argsort(x, dim=dim, descending=descending, stable=True)

    check(define, eager, numbers(shape, dtype))


def test_argsort_of_booleans_and_of_a_number() -> None:
    mask = numbers((9,)) > 0
    check(
        lambda fd, x: fd.ops.argsort(x, 0, stable=True),
        lambda x: torch.argsort(x, stable=True),
        mask,
    )
    check(lambda fd, x: fd.ops.argsort(x, 0), torch.argsort, torch.tensor(2.0))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim", "k"), [((7,), 0, 3), ((5, 3), -1, 3), ((2, 5, 3), 1, 1), ((4, 3), 0, 0)]
)
@pytest.mark.parametrize("largest", [False, True])
def test_topk(dtype: torch.dtype, shape: Any, dim: int, k: int, largest: bool) -> None:
    def define(fd: Any, x: Any) -> Any:
        return fd.ops.topk(x, k, dim, largest, True)

    def eager(x: torch.Tensor) -> Any:
        values, indices = torch.topk(x, k, dim, largest, True)
        return values, indices

    check(define, eager, distinct(shape, dtype))


@pytest.mark.parametrize("layout", LAYOUTS[:3])
def test_topk_with_a_symbolic_k_in_the_middle_of_kernels(layout: str) -> None:
    """The probabilities of the k best experts, normalised."""

    def define(fd: Any, x: Any, k: Any) -> Any:
        values, indices = fd.ops.topk(fd.ops.exp(x), k, 1, True, True)
        shares = fd.ops.div(values, fd.ops.sum(values, [1], True))
        return shares, fd.ops.add(indices, 1)

    def eager(x: torch.Tensor, k: int) -> Any:
        values, indices = torch.topk(x.exp(), k, 1, True, True)
        return values / values.sum(1, keepdim=True), indices + 1

    x = laid_out(distinct((6, 8)) / 16, layout)
    for k in (3, 1, 8):
        check(define, eager, x, k, exact=False)
    fd = defined(define, [x, 3])
    for k in (3, 5):
        assert fd.execute([x, k])[0].shape == (6, k)


def test_results_that_nothing_reads_are_dropped() -> None:
    source = check(
        lambda fd, x: fd.ops.neg(fd.ops.topk(x, 2, 0, True, True)[1]),
        lambda x: -torch.topk(x, 2, 0)[1],
        distinct((9,)),
    )
    assert source.count("call_aten__topk_values(") == 1


def test_wrong_orders_are_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3])
        z = fd.define_tensor([-1, 3], dtype=DataType.ComplexFloat)
        mask = fd.define_tensor([-1, 3], dtype=DataType.Bool)
        for message, call in {
            "argsort: expected real numbers": lambda: fd.ops.argsort(z, 0),
            "topk: expected real numbers": lambda: fd.ops.topk(z, 1),
            "topk: expected numbers": lambda: fd.ops.topk(mask, 1),
            "topk: expected an integer k": lambda: fd.ops.topk(x, 1.5),
            "topk: expected a size of at least 0": lambda: fd.ops.topk(x, -1),
        }.items():
            with pytest.raises(DefinitionError, match=message):
                call()


def test_a_k_beyond_the_dimension_is_refused() -> None:
    fd = defined(lambda fd, x, k: fd.ops.topk(x, k, 0), [numbers((4,)), 2])
    with pytest.raises(InputError, match="to be at most i0, got 5 > 4; i0 is dimension 0"):
        fd.execute([numbers((4,)), 5])
