"""Reads and writes with an index for each of several dimensions are equal to torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import DefinitionError
from tests.ops.library_definitions import check, defined, numbers
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.bool]
DIMS: list[tuple[int, ...]] = [
    (0, 1), (1, 2), (0, 2), (2, 0), (1, 0), (-2, -1), (0, 1, 2), (2, 0, 1), (1,),
]  # fmt: skip
LAYOUTS = {
    "contiguous": (9, 5, 7),
    "prime": (1, 13, 3),
    "one": (1, 1, 1),
    "no columns": (3, 5, 0),
}


def places(shape: tuple[int, ...], dims: tuple[int, ...]) -> list[Tensor]:
    """An index for each dimension, also from the end; they broadcast to [4, 3]."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(4, 1), (3,), (4, 3)]
    made = []
    for each, dim in zip(shapes, dims, strict=False):
        size = shape[dim]
        count = torch.randint(-size, size, each, generator=generator) if size else None
        made.append(torch.zeros(*each[:-1], 0).long() if count is None else count)
    return made


def indexed(x: Tensor, dims: tuple[int, ...], indices: list[Tensor]) -> tuple[Any, ...]:
    """What torch has in brackets; the points of dimensions that don't follow come first."""
    where: list[Any] = [slice(None)] * x.dim()
    for dim, index in zip(dims, indices, strict=True):
        where[dim] = index
    return tuple(where)


def in_torch(x: Tensor, dims: tuple[int, ...], indices: list[Tensor]) -> Tensor:
    at = [d % x.dim() for d in dims]
    if at == list(range(at[0], at[-1] + 1)):
        return x[indexed(x, dims, indices)]
    others = [d for d in range(x.dim()) if d not in at]
    return x.permute([*at, *others])[tuple(indices)]


@pytest.mark.parametrize(
    ("dims", "dtype", "layout"),
    [
        *pairwise(DIMS, DTYPES, [name for name, shape in LAYOUTS.items() if 0 not in shape]),
        *pairwise([(0, 1), (1, 0), (1,)], DTYPES, ["no columns"], strength=1),
    ],
)
def test_reads(dims: tuple[int, ...], dtype: torch.dtype, layout: str) -> None:
    shape = LAYOUTS[layout]
    x, indices = numbers(shape, dtype), places(shape, dims)
    check(
        lambda fd, x, *indices: fd.ops.index(x, list(indices), list(dims)),
        lambda x, *indices: in_torch(x, dims, list(indices)),
        x, *indices,
    )  # fmt: skip


@pytest.mark.parametrize(("how", "dims"), pairwise(["set", "sum", "max"], DIMS))
def test_writes(dims: tuple[int, ...], how: str) -> None:
    for shape in LAYOUTS.values():
        if 0 in [shape[d] for d in dims]:
            continue
        x, indices = numbers(shape, torch.float32), places(shape, dims)
        src = numbers(tuple(in_torch(x, dims, indices).shape), torch.float32, 1)
        if how == "set":  # one value, since the order of equal places isn't torch's to promise
            src = torch.full_like(src, 3)

        def put(x: Tensor, src: Tensor, *indices: Tensor) -> Tensor:
            made = x.clone()
            at = torch.arange(x.numel()).view(x.shape)
            flat = in_torch(at, dims, list(indices)).reshape(-1)
            if how == "set":
                made.view(-1)[flat] = src.reshape(-1)
            else:
                kind = {"sum": "sum", "max": "amax"}[how]
                made.view(-1).scatter_reduce_(0, flat, src.reshape(-1), kind)
            return made

        given = [x, src, *indices]
        for static in (False, True):
            fd = defined(
                lambda fd, x, src, *at: fd.ops.index_put(x, list(at), src, list(dims), how),
                given, static,
            )  # fmt: skip
            (made,) = fd.execute(given)
            torch.testing.assert_close(made, put(*given), rtol=0, atol=0, check_stride=False)


def test_a_number_and_a_row() -> None:
    x, i, j = numbers((9, 5, 7), torch.float32), torch.tensor([3, -1]), torch.tensor([0, 4])
    check(
        lambda fd, x, i, j: fd.ops.index_put(x, [i, j], 2.5, 0),
        lambda x, i, j: x.index_put((i, j), torch.tensor(2.5)), x, i, j,
    )  # fmt: skip
    check(
        lambda fd, x, i, j, row: fd.ops.index_put(x, [i, j], row, 0),
        lambda x, i, j, row: x.index_put((i, j), row), x, i, j, numbers((7,), torch.float32, 2),
    )  # fmt: skip


def test_points_of_a_contiguous_tensor_are_one_kernel() -> None:
    x, i, j = numbers((9, 5, 7), torch.float32), torch.tensor([3, -1]), torch.tensor([0, 4])
    source = check(
        lambda fd, x, i, j: fd.ops.neg(fd.ops.index(x, [i, j], 0)),
        lambda x, i, j: -x[i, j],
        x,
        i,
        j,
    )
    assert source.count("launch") == 1


@pytest.mark.parametrize("builder", ["index", "index_put"])
@pytest.mark.parametrize("wrong", [9, -10])
def test_an_index_out_of_range(wrong: int, builder: str) -> None:
    x, i, j = torch.randn(9, 5), torch.tensor([0, wrong]), torch.tensor([0, 4])

    def build(fd: FusionDefinition, x: Any, i: Any, j: Any) -> Any:
        if builder == "index":
            return fd.ops.neg(fd.ops.index(x, [i, j], 0))
        return fd.ops.index_put(x, [i, j], 1.0, 0)

    fd = defined(build, [x, i, j])
    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension 0"):
        fd.execute([x, i, j])


def test_wrong_calls() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        i = fd.define_tensor([-1], dtype=DataType.Int)
        for dims in ([0], [0, 0], [], 1):
            with pytest.raises((DefinitionError, IndexError)):
                fd.ops.index(x, [i, i], dims)
        with pytest.raises(DefinitionError, match="index: expected an index of Int or Int32"):
            fd.ops.index(x, [i, x], 0)
