"""Orders and scatters are equal to torch's in every dtype, layout and shape."""

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
    defined,
    distinct,
    numbers,
)
from tests.support.random_fusions import laid_out

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


# -- writes at computed positions

SCATTERS = [
    ((5, 4), (5, 4), (5, 4), 0), ((5, 4), (2, 3), (4, 4), 1), ((5, 4), (7, 4), (7, 4), 0),
    ((6,), (3,), (3,), -1), ((2, 3, 4), (2, 3, 4), (2, 3, 4), 1), ((1, 1), (1, 1), (1, 1), 0),
    ((5, 4), (0, 4), (0, 4), 0), ((0,), (0,), (0,), 0),
]  # fmt: skip


def places(shape: tuple[int, ...], size: int, dim: int) -> torch.Tensor:
    """An index without duplicates along `dim`."""
    order = torch.rand(shape, generator=torch.Generator().manual_seed(7)).argsort(dim)
    return order % max(size, 1)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize(("shape", "index", "source", "dim"), SCATTERS)
def test_scatter(dtype: torch.dtype, shape: Any, index: Any, source: Any, dim: int) -> None:
    x, at = numbers(shape, dtype), places(index, shape[dim], dim)
    at = at.clamp(max=max(shape[dim] - 1, 0))
    if index[dim] > shape[dim]:
        at, source = at[: shape[dim]], tuple(source)
    check(
        lambda fd, x, at, src: fd.ops.scatter(x, at, src, dim),
        lambda x, at, src: x.scatter(dim, at, src),
        x, at, numbers(source, dtype, 1),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=str)
def test_scatter_of_a_number(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    number = dtype is torch.bool or 3
    check(
        lambda fd, x, at: fd.ops.scatter(x, at, number, 1),
        lambda x, at: x.scatter(1, at.long(), number),
        numbers((5, 4), dtype), places((5, 2), 4, 1).to(index_dtype),
    )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scatter_between_kernels(layout: str) -> None:
    """One-hot rows of the best, scaled: the scatter writes into a tensor that nothing fills."""

    def define(fd: Any, x: Any) -> Any:
        values, indices = fd.ops.topk(fd.ops.sigmoid(x), 2, 1, True, True)
        empty = fd.ops.full(fd.ops.shape(x), 0.0, DataType.Float)
        return fd.ops.mul(fd.ops.scatter(empty, indices, fd.ops.neg(values), 1), x)

    def eager(x: torch.Tensor) -> torch.Tensor:
        values, indices = x.sigmoid().topk(2, 1)
        return torch.zeros_like(x).scatter(1, indices, -values) * x

    source = check(define, eager, laid_out(distinct((6, 8)) / 16, layout), exact=False)
    assert source.count("launch") == 3 and "run(" not in source


def test_an_index_out_of_range_raises_torchs_error() -> None:
    x, at = numbers((3, 4)), torch.tensor([[0, 9]])
    fd = defined(lambda fd, x, at: fd.ops.scatter(x, at, 1.0, 1), [x, at])
    with pytest.raises(RuntimeError, match="out of bounds"):
        fd.execute([x, at])
