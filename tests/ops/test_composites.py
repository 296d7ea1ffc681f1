"""Operations that are written with others: equal to torch's, and part of kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import DefinitionError
from tests.ops.library_definitions import (
    FLOATS,
    INTEGERS,
    LAYOUTS,
    check,
    numbers,
)
from tests.support.long_cases import pairwise
from tests.support.random_tensors import laid_out

pytestmark = pytest.mark.usefixtures("poison")


# -- what is made of other operations


@pytest.mark.parametrize(
    ("shape", "diagonal", "dtype"),
    pairwise(
        [(5, 7), (7, 5), (2, 3, 4), (1, 1), (4, 1), (1, 4), (0, 3), (3, 0)],
        [0, 1, -2, 9, -9],
        [*FLOATS, *INTEGERS, torch.bool],
    ),
)
def test_triu(shape: tuple[int, ...], diagonal: int, dtype: torch.dtype) -> None:
    source = check(
        lambda fd, x: fd.ops.triu(x, diagonal),
        lambda x: torch.triu(x, diagonal),
        numbers(shape, dtype),
    )
    assert "run(" not in source


def test_triu_of_complex_numbers() -> None:
    check(lambda fd, x: fd.ops.triu(x, 1), lambda x: x.triu(1), numbers((4, 5), torch.complex64))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_triu_is_part_of_a_kernel(layout: str) -> None:
    """A causal mask between two products: one kernel."""

    def define(fd: Any, x: Any, k: Any) -> Any:
        scores = fd.ops.exp(fd.ops.mul(x, 0.5))
        kept = fd.ops.triu(scores, k)
        return fd.ops.div(kept, fd.ops.add(fd.ops.sum(kept, [1], True), 1.0))

    def eager(x: torch.Tensor, k: int) -> torch.Tensor:
        kept = (x * 0.5).exp().triu(k)
        return kept / (kept.sum(1, keepdim=True) + 1)

    for k in (0, 1):
        x = laid_out(numbers((40, 40)), layout)
        assert check(define, eager, x, k, exact=False).count("launch") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", [None, 2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("index_shape", [(5,), (2, 3), (), (0,)])
def test_embedding_scales_rows_to_the_largest_norm(
    dtype: torch.dtype, order: float | None, index_shape: tuple[int, ...]
) -> None:
    def define(fd: Any, index: Any, weight: Any) -> Any:
        return fd.ops.embedding_fwd(index, weight, None, 1.5, order, True, False)

    def eager(index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        norm = 2.0 if order is None else order
        return torch.nn.functional.embedding(index, weight.clone(), None, 1.5, norm)

    index = torch.randint(0, 9, index_shape, generator=torch.Generator().manual_seed(3))
    weight = numbers((9, 4), dtype)
    weight[2] = 0
    before = weight.clone()
    check(define, eager, index, weight, exact=False)
    assert torch.equal(weight, before)


def test_wrong_composites_are_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        table = fd.define_tensor([-1, -1], dtype=DataType.Int)
        index = fd.define_tensor([-1], dtype=DataType.Int)
        with pytest.raises(DefinitionError, match="triu: expected a tensor of rank 2 or more"):
            fd.ops.triu(x)
        with pytest.raises(DefinitionError, match="triu: expected an integer diagonal"):
            fd.ops.triu(fd.define_tensor([2, 2]), 0.5)
        with pytest.raises(DefinitionError, match="embedding_fwd: expected a floating weight"):
            fd.ops.embedding_fwd(index, table, max_norm=1.0)
