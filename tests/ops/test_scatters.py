"""Scatters are equal to torch's in every dtype, layout and shape, and kernels compute them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType
from tests.ops.library_definitions import FLOATS, INTEGERS, LAYOUTS, check, defined, numbers
from tests.support.random_tensors import laid_out

pytestmark = pytest.mark.usefixtures("poison")

# (base, index, source, dim); a source that is longer than the index needs sizes that are known.
SCATTERS = [
    ((5, 4), (5, 4), (5, 4), 0), ((5, 4), (2, 3), (2, 3), 1), ((5, 4), (7, 4), (7, 4), 0),
    ((6,), (3,), (3,), -1), ((2, 3, 4), (2, 3, 4), (2, 3, 4), 1), ((1, 1), (1, 1), (1, 1), 0),
    ((5, 4), (0, 4), (0, 4), 0), ((0,), (0,), (0,), 0), ((5, 4), (2, 3), (4, 4), 1),
    ((), (), (), 0), ((9, 40), (50, 40), (50, 40), 0), ((40, 9), (40, 50), (40, 50), 1),
    ((30, 5, 33), (7, 5, 33), (7, 5, 33), 0),
]  # fmt: skip
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
# how -> torch's name of the reduction
COMBINED = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def places(shape: tuple[int, ...], size: int, dim: int) -> torch.Tensor:
    """An index that has no duplicates along `dim`, where it isn't longer than the base."""
    order = torch.rand(shape, generator=torch.Generator().manual_seed(7)).argsort(dim)
    return order % max(size, 1)


def negated(fd: Any, src: Any) -> Any:
    """Values that a kernel computes, in the dtype of what they are made from."""
    return fd.ops.cast(fd.ops.neg(src), src.dtype)


def kernels(source: str) -> int:
    """How many kernels a plan launches, none of it by torch."""
    assert "run(" not in source
    return source.count("launch")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "index", "source", "dim"), SCATTERS)
def test_scatter(dtype: torch.dtype, shape: Any, index: Any, source: Any, dim: int) -> None:
    x, at = numbers(shape, dtype), places(index, shape[dim] if shape else 1, dim)
    is_unique = not shape or index[dim] <= shape[dim]
    src = numbers(source, dtype, 1) if is_unique else torch.ones(source, dtype=dtype)
    check(
        lambda fd, x, at, src: fd.ops.scatter(x, at, src, dim),
        lambda x, at, src: x.scatter(dim, at, src),
        x, at, src, statics=(False, True) if index == source else (True,),
    )  # fmt: skip


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str
)
@pytest.mark.parametrize(("shape", "index", "source", "dim"), SCATTERS[1::2])
@pytest.mark.parametrize("how", COMBINED)
def test_scatter_combines(
    dtype: torch.dtype, shape: Any, index: Any, source: Any, dim: int, how: str
) -> None:
    x, at = numbers(shape, dtype), places(index, shape[dim] if shape else 1, dim)
    src = numbers(source, dtype, 1)
    check(
        lambda fd, x, at, src: fd.ops.scatter(x, at, negated(fd, src), dim, how),
        lambda x, at, src: x.scatter_reduce(dim, at, -src, COMBINED[how]),
        x, at, src, exact=how != "prod", statics=(False, True) if index == source else (True,),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=str)
def test_scatter_of_a_number(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    number = dtype is torch.bool or 3
    check(
        lambda fd, x, at: fd.ops.scatter(x, at, number, 1),
        lambda x, at: x.scatter(1, at.long(), number),
        numbers((5, 4), dtype), places((5, 2), 4, 1).to(index_dtype),
    )  # fmt: skip


PUTS: list[tuple[Any, Any, Any, int]] = [
    ((9, 40), (50,), (50, 40), 0), ((40, 9), (50,), (40, 50), 1), ((3, 9, 40), (6,), (3, 6, 40), 1),
    ((9, 40), (5, 3), (5, 3, 40), 0), ((9,), (50,), (50,), 0), ((9, 40), (), (40,), 0),
    ((9, 40), (7,), (40,), 0), ((9, 40), (7,), (7, 1), 0), ((9, 1), (7,), (7, 1), 0),
    ((1, 40), (7,), (7, 40), 0), ((9, 0), (7,), (7, 0), 0), ((9, 40), (0,), (0, 40), 0),
    ((9, 5, 7), (4, 2), (9, 4, 2, 7), 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [(torch.float32, torch.int64), (torch.float16, torch.int32), (torch.int32, torch.int64)],
    ids=str,
)
@pytest.mark.parametrize(("shape", "index", "source", "dim"), PUTS)
def test_index_put(
    dtype: torch.dtype, index_dtype: torch.dtype, shape: Any, index: Any, source: Any, dim: int
) -> None:
    """A negative index counts from the end."""
    generator = torch.Generator().manual_seed(7)
    at = torch.randint(-shape[dim], shape[dim], index, generator=generator).to(index_dtype)

    def eager(x: torch.Tensor, at: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        indices = [slice(None)] * dim + [at.long()]
        made = x.clone()
        if dim == 0:
            return made.index_put([at.long()], -src, accumulate=True)
        picked = made[tuple(indices)]
        flat = at.long().flatten() % max(x.shape[dim], 1)
        values = (-src).expand(picked.shape).flatten(dim, dim + at.dim() - 1)
        return made.index_add(dim, flat, values)

    check(
        lambda fd, x, at, src: fd.ops.index_put(x, at, negated(fd, src), dim, "sum"),
        eager, numbers(shape, dtype), at, numbers(source, dtype, 1),
    )  # fmt: skip


def test_of_several_values_for_one_element_the_last_one_stays() -> None:
    """As in torch's loop; with hardware threads any of them may."""
    at = torch.tensor([2, 0, 2, 1, 0, 2])
    src = torch.arange(60.0).reshape(6, 10)
    torch.use_deterministic_algorithms(True)
    try:
        fd = defined(lambda fd, x, at, src: fd.ops.index_put(x, at, src, 0), [src[:4], at, src])
        want = src[:4].clone()
        for place, row in zip(at.tolist(), src, strict=True):
            want[place] = row
        assert torch.equal(fd.execute([src[:4], at, src])[0], want)
    finally:
        torch.use_deterministic_algorithms(False)


def test_sums_dont_depend_on_the_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(3)
    x, src = torch.zeros(50, 300), torch.randn(900, 300, generator=generator)
    at = torch.randint(0, 50, (900,), generator=generator)
    torch.use_deterministic_algorithms(True)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            fd = defined(
                lambda fd, x, at, s: fd.ops.index_put(x, at, fd.ops.exp(s), 0, "sum"), [x, at, src]
            )
            results.append(fd.execute([x, at, src])[0])
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(results[0], other) for other in results[1:])
    torch.testing.assert_close(results[0], x.index_add(0, at, src.exp()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [0, 1])
def test_layouts(layout: str, dim: int) -> None:
    at = places((6, 8), (6, 8)[dim], dim)
    x, src = (laid_out(numbers((6, 8), seed=seed), layout) for seed in (0, 1))
    check(
        lambda fd, x, at, src: fd.ops.scatter(fd.ops.neg(x), at, fd.ops.mul(src, 2.0), dim, "sum"),
        lambda x, at, src: (-x).scatter_add(dim, at, src * 2),
        x, laid_out(at, layout if layout != "expanded" else "sliced"), src,
    )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scatter_between_kernels(layout: str) -> None:
    """A kernel fills the base, the next one computes the values and writes them over it."""

    def define(fd: Any, x: Any, at: Any) -> Any:
        values = fd.ops.sigmoid(x)
        empty = fd.ops.full(fd.ops.shape(x), 0.0, DataType.Float)
        return fd.ops.mul(fd.ops.scatter(empty, at, fd.ops.neg(values), 1), x)

    def eager(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).scatter(1, at, -x.sigmoid()) * x

    x = laid_out(numbers((6, 8)), layout)
    source = check(define, eager, x, places((6, 8), 8, 1), exact=False)
    assert kernels(source) == 3
    assert "copy_" not in source


def test_the_base_that_others_read_is_copied() -> None:
    def define(fd: Any, x: Any, at: Any, src: Any) -> Any:
        base = fd.ops.exp(x)
        put = fd.ops.index_put(base, at, src, 0)
        again = fd.ops.index_put(put, at, fd.ops.neg(src), 0, "sum")
        return put, again, fd.ops.add(base, 1.0), fd.ops.add(put, again)

    def eager(x: torch.Tensor, at: torch.Tensor, src: torch.Tensor) -> Any:
        put = x.exp().index_put([at], src)
        again = put.index_put([at], -src, True)
        return put, again, x.exp() + 1, put + again

    inputs = numbers((9, 5)), torch.tensor([3, 1, -1]), numbers((3, 5), seed=1)
    check(define, eager, *inputs, exact=False)


def test_values_that_are_read_from_the_base() -> None:
    """The values are computed from the base's old elements, so it isn't written over."""

    def define(fd: Any, x: Any, at: Any) -> Any:
        base = fd.ops.mul(x, 2.0)
        return fd.ops.index_put(base, at, fd.ops.index_select(base, fd.ops.neg(at), 0), 0)

    def eager(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return (x * 2).index_put([at], (x * 2)[-at])

    check(define, eager, numbers((9, 5)), torch.tensor([-3, -1, -2]))


def test_a_definition_that_updates_its_input() -> None:
    x, at, src = torch.zeros(9, 5), torch.tensor([3, 1, 3]), numbers((3, 5))

    def define(fd: Any, x: Any, at: Any, src: Any) -> Any:
        put = fd.ops.index_put(x, at, src, 0, "sum")
        fd.add_output(put, x)
        return fd.ops.neg(put)

    fd = defined(define, [x, at, src])
    want = x.index_add(0, at, src)
    (got,) = fd.execute([x, at, src])
    assert torch.equal(x, want) and torch.equal(got, -want)


@pytest.mark.parametrize(("index", "kind"), [([0, 9], IndexError), ([0, -10], IndexError)], ids=str)
def test_an_index_out_of_range_raises_torchs_error(index: list[int], kind: type) -> None:
    x, src, at = numbers((9, 5)), numbers((2, 5)), torch.tensor(index)
    fd = defined(lambda fd, x, at, src: fd.ops.index_put(x, at, src, 0, "sum"), [x, at, src])
    with pytest.raises(
        kind, match=f"index {index[1]} is out of bounds for dimension 0 with size 9"
    ):
        fd.execute([x, at, src])
    fd = defined(lambda fd, x, at: fd.ops.scatter(x, at, 1.0, 1), [x, at[None]])
    with pytest.raises(RuntimeError, match="out of bounds"):
        fd.execute([x, at[None]])


def test_an_index_that_is_longer_than_the_base_is_refused() -> None:
    x, at, src = numbers((3, 4)), torch.zeros(5, 2, dtype=torch.int64), numbers((5, 2))
    fd = defined(lambda fd, x, at, src: fd.ops.scatter(x, at, src, 1), [x, at, src])
    with pytest.raises(RuntimeError, match="an index of at most 3 in dimension 0"):
        fd.execute([x, at, src])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_counting_needs_no_matrix_of_rows_and_classes(dtype: torch.dtype) -> None:
    classes = torch.randint(0, 10, (500,), generator=torch.Generator().manual_seed(2))
    element = DataType.Int if dtype is torch.int64 else DataType.Int32

    def define(fd: Any, at: Any) -> Any:
        zeros = fd.ops.full([at.size(0), 10], 0, element)
        column = fd.ops.broadcast(at, [False, True])
        return fd.ops.sum(fd.ops.scatter(zeros, column, 1, 1), [0])

    source = check(define, lambda at: torch.bincount(at, minlength=10), classes)
    assert kernels(source) == 2  # one fills ten zeros


def test_sums_that_count_equal_indices_once() -> None:
    """Rows of several indices, which may be equal: each of them has one 1."""
    at = torch.tensor([[0, 1, 1], [2, 2, 2]])

    def define(fd: Any, at: Any) -> Any:
        zeros = fd.ops.full([2, 4], 0, DataType.Int)
        return fd.ops.sum(fd.ops.scatter(zeros, at, 1, 1), [0])

    check(define, lambda at: torch.tensor([1, 1, 1, 0]), at)


def test_a_view_of_the_base_keeps_the_base() -> None:
    def define(fd: Any, x: Any, i: Any) -> Any:
        doubled = fd.ops.mul(x, 2.0)
        total = fd.ops.sum(doubled, [0], True)
        scaled = fd.ops.div(doubled, total)
        return fd.ops.reshape(scaled, [-1]), fd.ops.index_put(scaled, i, x, 0)

    x, i = numbers((6, 5)) + 10, torch.tensor([5, 4, 3, 2, 1, 0])
    fd = defined(define, [x, i])
    scaled = x * 2 / (x * 2).sum(0, True)
    for got, want in zip(fd.execute([x, i]), (scaled.flatten(), x.flip(0)), strict=True):
        torch.testing.assert_close(got, want)


def test_values_of_equal_parts() -> None:
    """A cat of a tensor with itself isn't expanded where each element is written."""
    x, i = torch.randn(1), torch.tensor([1, 0])

    def define(fd: Any, x: Any, i: Any) -> Any:
        parts = fd.ops.pad(x, [1, 0], fd.ops.pad(x, [0, 1], 0.0))
        return fd.ops.index_put(parts, i, parts, 0)

    defined(define, [x, i]).validate([x, i])


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_rows_that_are_put_into_zeros(dim: int) -> None:
    """Each index has a row: what is summed may be an axis that only the base has."""
    at, rows = torch.tensor([0, 1, 1]), torch.randint(0, 9, (3, 17))

    def define(fd: Any, at: Any, rows: Any) -> Any:
        zeros = fd.ops.full([4, 17], 0, DataType.Int)
        return fd.ops.sum(fd.ops.index_put(zeros, at, rows, 0, "sum"), [dim])

    check(
        define,
        lambda at, rows: torch.zeros(4, 17, dtype=torch.int64).index_add(0, at, rows).sum(dim),
        at,
        rows,
    )
