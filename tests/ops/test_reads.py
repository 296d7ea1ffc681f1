"""Slices, pads, cat and gathers against torch: dtypes, shapes, layouts, and errors.

Memory is poisoned, nothing may fall back to torch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import from_torch
from pyfuser.errors import DefinitionError, InputError, UnsupportedError
from pyfuser.kernel_builds import compiled_kernel_count
from pyfuser.ops import builders
from tests.ops.read_definitions import Define, check, fused, kernels, laid_out, values

pytestmark = pytest.mark.usefixtures("poison")

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64)


# -- slice


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (13, 64), (0, 5)], ids=str)
def test_slice(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = values(shape, dtype)
    check(lambda o, x: o.slice(x, [1, 2], [100, 30]), [x], x[1:100, 2:30])
    check(lambda o, x: o.slice(x, [0, 1], [100, 30], [2, 3]), [x], x[0:100:2, 1:30:3])


@pytest.mark.parametrize("layout", ["dense", "transposed", "expanded", "strided", "channels last"])
def test_slice_and_pad_of_layouts(layout: str) -> None:
    x = laid_out((3, 5, 18, 23), layout)
    check(lambda o, x: o.slice(x, [0, 1, 2, 3], [3, 4, 17, 21]), [x], x[:, 1:4, 2:17, 3:21])
    want = functional.pad(x, [3, 1, 0, 2, 1, 1], value=2.0)
    check(lambda o, x: o.pad(x, [3, 1, 0, 2, 1, 1], 2.0), [x], want)
    check(lambda o, x: o.sum(o.pad(x, [3, 1]), [3]), [x], x.sum(3))


@pytest.mark.parametrize("bounds", [(2, 5), (5, 2), (-3, 100), (-100, -2), (3, 3), (0, 0)], ids=str)
def test_slice_clamps_as_torch_does(bounds: tuple[int, int]) -> None:
    start, stop = bounds
    for size in (0, 1, 4, 9):
        x = values((size,), torch.float32)
        check(lambda o, x: torch_slice(x, [start], [stop]), [x], x[start:stop])


def torch_slice(x: Any, starts: list[Any], stops: list[Any]) -> Any:
    """By torch's rules, which torch.compile's graphs need; fd.ops.slice has nvFuser's."""
    return builders.slice(x.fusion, x, starts, stops)


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        ([-1, 0], [3, 4], "Slice operation start_indices must be greater than or equal to 0."),
        ([0, 2], [3, 1], "Slice operation end_indices must be greater than or equal to start_"),
        ([0, 0], [3, -1], "Slice operation end_indices must be greater than or equal to start_"),
        ([0], [3], "Number of tensor dimensions does not match slice dimensions!"),
    ],
)
@pytest.mark.parametrize("are_scalars", [False, True])
def test_bounds_that_nvfuser_refuses(
    start: list[int], stop: list[int], message: str, are_scalars: bool
) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4], contiguity=True)
        bounds = [
            [fd.define_scalar(b) if are_scalars else b for b in each] for each in (start, stop)
        ]
        with pytest.raises(RuntimeError, match=message):
            fd.ops.slice(x, *bounds)


def test_slice_bounds_may_be_scalars_and_new_ones_need_no_new_kernel() -> None:
    x = values((9, 40), torch.float32)
    fd = fused(lambda o, x, a, b: o.neg(o.slice(x, [0, a], [o.size(x, 0), b])), [x, 3, 29])
    torch.testing.assert_close(fd.execute([x, 3, 29])[0], -x[:, 3:29])
    before = compiled_kernel_count()
    for rows, start, stop in ((9, 4, 37), (7, 1, 60), (5, 30, 20)):
        got = fd.execute([x[:rows].clone(), start, stop])[0]
        torch.testing.assert_close(got, -x[:rows, start:stop])
    # An empty result may run without one; threads move vectors of 4, 2 or 1 where rows allow it,
    # and loops take short rows in steps of up to three lengths.
    assert compiled_kernel_count() - before <= 3


def test_halves_of_any_length_make_the_whole() -> None:
    def define(o: Any, x: Any, y: Any) -> Any:
        half = o.div(o.size(x, 1), 2)
        first = o.slice(x, [0, 0], [o.size(x, 0), half])
        rest = o.slice(x, [0, half], [o.size(x, 0), o.size(x, 1)])
        return o.add(o.cat([rest, first], 1), y)

    for columns in (1, 2, 33, 64):
        x, y = values((5, columns), torch.float32), values((5, columns), torch.float32)
        want = torch.cat([x[:, columns // 2 :], x[:, : columns // 2]], 1) + y
        fd = check(define, [x, y], want)
        assert kernels(fd) == ["resize"]


# Slices of symbolic axes to one element, joined with axes of other sizes.
SINGLES: dict[str, tuple[Define, Any]] = {
    "first": (lambda o, x: o.add(o.slice(x, [0, 0], [1, o.size(x, 1)]), x), lambda x: x[:1] + x),
    "last": (
        lambda o, x: o.mul(x, torch_slice(x, [0, -1], [o.size(x, 0), o.size(x, 1)])),
        lambda x: x * x[:, -1:],
    ),
    "from the end": (
        lambda o, x: o.sub(x, torch_slice(o.exp(x), [-2, 0], [-1, o.size(x, 1)])),
        lambda x: x - x.exp()[-2:-1],
    ),
    "corner": (lambda o, x: o.sub(x, o.slice(x, [0, 1], [1, 2])), lambda x: x - x[:1, 1:2]),
    "in steps": (
        lambda o, x: o.sub(x, o.slice(x, [1, 0], [4, o.size(x, 1)], [5, 1])),
        lambda x: x - x[1:4:5],
    ),
    "expanded": (
        lambda o, x: o.expand(o.slice(x, [1, 0], [2, o.size(x, 1)]), [4, -1]),
        lambda x: x[1:2].expand(4, -1),
    ),
    "squeezed": (
        lambda o, x: o.squeeze(o.slice(x, [1, 0], [2, o.size(x, 1)]), [0]),
        lambda x: x[1],
    ),
    "of rows": (
        lambda o, x: o.mul(o.sub(x, o.max(x, [1], True)), o.slice(x, [0, 1], [o.size(x, 0), 2])),
        lambda x: (x - x.amax(1, True)) * x[:, 1:2],
    ),
}


@pytest.mark.parametrize("shape", [(3, 5), (2, 129), (7, 2)], ids=str)
@pytest.mark.parametrize("name", SINGLES)
def test_a_slice_to_one_element_broadcasts(name: str, shape: tuple[int, int]) -> None:
    define, call = SINGLES[name]
    x = values(shape, torch.float32)
    assert len(kernels(check(define, [x], call(x)))) == 1


def test_a_slice_to_one_element_at_a_scalar_broadcasts() -> None:
    def define(o: Any, x: Any, k: Any) -> Any:
        return o.sub(x, o.slice(x, [k, 0], [o.add(k, 1), o.size(x, 1)]))

    x = values((5, 4), torch.float32)
    fd = fused(define, [x, 2])
    for rows, place in ((5, 0), (5, 4), (2, 1)):
        part = x[:rows].clone()
        got = fd.execute([part, place])[0]
        torch.testing.assert_close(got, part - part[place : place + 1])
    with pytest.raises(InputError, match="to be at most"):
        fd.execute([x, 5])


def test_a_slice_to_one_element_is_empty_where_there_is_none() -> None:
    fd = fused(lambda o, x: o.exp(o.slice(x, [2, 0], [3, 4])), [values((5, 4), torch.float32)])
    for rows in (0, 1, 2, 3, 9):
        x = values((rows, 4), torch.float32)
        torch.testing.assert_close(fd.execute([x])[0], x[2:3].exp())


def test_select_refuses_a_number_outside_the_axis() -> None:
    x = values((5, 4), torch.float32)
    for number, rows in ((2, 2), (0, 0), (-3, 2)):
        fd = fused(lambda o, x, n=number: o.exp(o.select(x, n, 0)), [x])
        torch.testing.assert_close(fd.execute([x])[0], x[number].exp())
        with pytest.raises(InputError, match="to be at most"):
            fd.execute([x[:rows].clone()])


# -- pad, cat, slice_scatter


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (13, 64), (0, 5)], ids=str)
def test_pad(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = values(shape, dtype)
    check(lambda o, x: o.pad(x, [2, 3]), [x], functional.pad(x, [2, 3]))
    value = True if dtype is torch.bool else 7
    want = functional.pad(x, [0, 1, 17, 2], value=value)
    check(lambda o, x: o.pad(x, [0, 1, 17, 2], value), [x], want)


def test_negative_widths_cut_off() -> None:
    x = values((7, 33), torch.float32)
    for widths in ([2, -3], [-2, 5, -1, -1], [-3, -4, 3, 0]):
        want = functional.pad(x, widths, value=1.5)
        check(lambda o, x, w=tuple(widths): o.pad(x, w, 1.5), [x], want)


@pytest.mark.parametrize("value", [-0.0, float("inf"), float("nan"), 1e-3])
def test_pad_values_keep_their_bits(value: float) -> None:
    x = values((3, 20), torch.float32)
    (got,) = fused(lambda o, x: o.pad(x, [1, 30], value), [x]).execute([x])
    want = functional.pad(x, [1, 30], value=value)
    assert torch.equal(got.view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("sizes", [(3,), (4, 19), (1, 40, 2, 16), (0, 5), (5, 0, 0)], ids=str)
def test_cat(sizes: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    shapes = [(n, 6) if dim == 0 else (6, n) for n in sizes]
    parts = [values(shape, dtype) for shape in shapes]
    check(lambda o, *parts: o.cat(list(parts), dim), parts, torch.cat(parts, dim))


def test_cat_promotes_and_mixes_layouts() -> None:
    parts = [
        laid_out((17, 20), "transposed"),
        laid_out((17, 5), "dense", torch.bfloat16),
        laid_out((17, 9), "expanded"),
    ]
    fd = check(lambda o, *parts: o.neg(o.cat(list(parts), 1)), parts, -torch.cat(parts, 1))
    assert kernels(fd) == ["resize"]


def test_cat_of_dtypes_that_torch_does_not_promote() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        parts = [fd.ops.cast(x, dtype) for dtype in (DataType.Float8_e5m2, DataType.Half)]
        with pytest.raises(UnsupportedError, match="cat: expected dtypes that torch promotes"):
            fd.ops.cat(parts)


def test_slice_scatter() -> None:
    x, y = values((7, 33), torch.float32), values((7, 12), torch.float32)
    want = torch.slice_scatter(x.exp(), y, 1, 5, 17)
    fd = check(lambda o, x, y: o.slice_scatter(o.exp(x), y, 1, 5, 17), [x, y], want)
    assert kernels(fd) == ["resize"]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "bounds", [(0, 33, 2), (1, 33, 2), (1, 33, 3), (2, 32, 5), (4, 5, 4), (0, 1, 2)], ids=str
)
def test_slice_scatter_in_steps(bounds: tuple[int, int, int], dim: int) -> None:
    shape = [33, 33]
    shape[dim] = len(range(*bounds))
    x, y = values((33, 33), torch.float32), values(shape, torch.float32)
    want = torch.slice_scatter(x.exp(), -y, dim, *bounds)
    fd = check(lambda o, x, y: o.slice_scatter(o.exp(x), o.neg(y), dim, *bounds), [x, y], want)
    assert len(kernels(fd)) == 1


def test_a_tensor_spread_around_another() -> None:
    """The elements of two tensors in turn, as the levels of a scan are put together."""

    def define(o: Any, x: Any, y: Any) -> Any:
        zeros = o.full([6, 10], 0.0, dtype=DataType.Float)
        return o.slice_scatter(o.slice_scatter(zeros, x, 1, 0, 10, 2), o.exp(y), 1, 1, 10, 2)

    x, y = values((6, 5), torch.float32), values((6, 5), torch.float32)
    fd = check(define, [x, y], torch.stack([x, y.exp()], 2).flatten(1))
    assert kernels(fd) == ["resize"]


def test_windows_of_what_is_spread() -> None:
    x, y = values((5, 40), torch.float32), values((5, 20), torch.float32)
    spread = torch.slice_scatter(x, y, 1, 1, 40, 2)

    def define(o: Any, x: Any, y: Any) -> Any:
        return o.slice_scatter(x, y, 1, 1, 40, 2)

    def sliced(o: Any, x: Any, y: Any) -> Any:
        return o.neg(o.slice(define(o, x, y), [0, 3], [5, 38], [1, 3]))

    check(sliced, [x, y], -spread[:, 3:38:3])
    check(lambda o, x, y: o.pad(define(o, x, y), [2, -1]), [x, y], functional.pad(spread, [2, -1]))
    # A spread slice is a window on the slice's source: every second element is read.
    fd = check(
        lambda o, x, y: o.slice_scatter(x, o.slice(y, [0, 1], [5, 20], [1, 2]), 1, 2, 40, 4),
        [x, y],
        torch.slice_scatter(x, y[:, 1:20:2], 1, 2, 40, 4),
    )
    assert kernels(fd) == ["resize"]
    # The result of an earlier pad has to be in memory.
    padded = torch.slice_scatter(x, functional.pad(y[:, :18], [1, 1]), 1, 1, 40, 2)

    def around(o: Any, x: Any, y: Any) -> Any:
        inner = o.pad(o.slice(y, [0, 0], [5, 18]), [1, 1])
        return o.slice_scatter(x, inner, 1, 1, 40, 2)

    check(around, [x, y], padded)


# -- gathers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
def test_gathers(kind: torch.dtype, dtype: torch.dtype) -> None:
    x = values((7, 33), dtype)
    torch.manual_seed(1)
    rows = torch.randint(0, 7, (4, 5)).to(kind)
    along = torch.randint(0, 33, (7, 19)).to(kind)
    check(lambda o, x, i: o.embedding_fwd(i, x), [x, rows], x[rows.long()])
    check(lambda o, x, i: o.index_select(x, i, 0), [x, rows[0]], x[rows[0].long()])
    check(lambda o, x, i: o.index_select(x, i, -1), [x, rows[0]], x[:, rows[0].long()])
    check(lambda o, x, i: o.gather(x, i, 1), [x, along], x.gather(1, along.long()))
    check(lambda o, x, i: o.take_along_axis(x, i, 1), [x, along], x.gather(1, along.long()))


@pytest.mark.parametrize("layout", ["transposed", "expanded", "strided"])
def test_gathers_of_layouts(layout: str) -> None:
    x = laid_out((18, 23), layout)
    index = torch.randint(0, 18, (3, 23)).t().contiguous().t()
    check(lambda o, x, i: o.gather(x, i, 0), [x, index], x.gather(0, index))
    check(lambda o, x, i: o.index_select(x, i, 0), [x, index[0]], x[index[0]])


def test_a_shorter_index_and_broadcast_operands() -> None:
    x, index = values((7, 33), torch.float32), torch.randint(0, 33, (4, 1))
    check(lambda o, x, i: o.gather(x, i, 1), [x, index], x[:4].gather(1, index))
    row = values((1, 33), torch.float32)
    want = torch.take_along_dim(row, index, 1)
    check(lambda o, x, i: o.take_along_axis(x, i, 1), [row, index], want)


def test_select_by_number_scalar_and_tensor() -> None:
    x, position = values((7, 33), torch.float32), torch.tensor(5)
    check(lambda o, x: o.select(x, 3, 0), [x], x[3])
    check(lambda o, x: o.select(x, -2, 1), [x], x[:, -2])
    check(lambda o, x, i: o.select(x, i, 1), [x, 4], x[:, 4])
    check(lambda o, x, i: o.select(x, i, 0), [x, position], x[5])
    check(lambda o, x, i: o.index_select(x, i, 0), [x, position], x[5:6])


@pytest.mark.parametrize("shape", [(0,), (1,), (40,)], ids=str)
def test_empty_sources_and_indices(shape: tuple[int, ...]) -> None:
    index = torch.zeros(shape, dtype=torch.int64)
    x = values((3, 0), torch.float32)
    check(lambda o, x, i: o.embedding_fwd(i, x), [x, index], x[index])
    if not shape[0]:
        y = values((0, 4), torch.float32)
        check(lambda o, x, i: o.embedding_fwd(i, x), [y, index], y[index])


@pytest.mark.parametrize("shape", [(6, 8), (5, 0), (0, 5), (0, 0)], ids=str)
def test_windows_of_an_expanded_source(shape: tuple[int, int]) -> None:
    """Its axis has one element in memory, whatever its size."""
    given = torch.randn(6, 1).expand(6, 8)
    x = torch.randn(shape[0], 1).expand(shape)
    padded = fused(lambda o, x: o.sum(o.pad(x, [0, 0, 1, 0]), [1]), [given])
    torch.testing.assert_close(
        padded.execute([x])[0], torch.nn.functional.pad(x, [0, 0, 1, 0]).sum(1)
    )
    below = fused(lambda o, x: o.cat([x, o.broadcast(o.sum(x, [0]), [True, False])], 0), [given])
    torch.testing.assert_close(below.execute([x])[0], torch.cat([x, x.sum(0, keepdim=True)]))


def test_a_source_without_elements_raises_as_torch_does() -> None:
    x, index = torch.empty(0, 4), torch.zeros(3, dtype=torch.int64)
    fd = fused(lambda o, x, i: o.embedding_fwd(i, x), [x, index])
    with pytest.raises(RuntimeError, match="self indexing axis dim should be positive"):
        fd.execute([x, index])


def test_an_index_may_be_computed_and_be_the_source() -> None:
    x, index = values((50, 40), torch.float32), torch.randint(0, 25, (6,))
    fd = check(
        lambda o, x, i: o.exp(o.index_select(x, o.add(o.mul(i, 2), 1), 0)),
        [x, index],
        x[index * 2 + 1].exp(),
        rtol=1e-4,
    )
    assert kernels(fd) == ["pointwise"]
    own = torch.randperm(40)
    check(lambda o, i: o.gather(i, i, 0), [own], own[own])


# -- wrong calls


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda o, x, i: o.slice(x, [0], [1]), "slice: expected 2 start entries"),
        (
            lambda o, x, i: o.slice(x, [0, 0], [1, 1], [1, -1]),
            "slice: expected strides of at least 1",
        ),
        (lambda o, x, i: o.pad(x, [1]), "pad: expected a pair of widths"),
        (lambda o, x, i: o.pad(i, [1, 1], 0.5), "pad: expected a value that DataType.Int can hold"),
        (lambda o, x, i: o.cat([], 0), "cat: expected at least one tensor"),
        (lambda o, x, i: o.cat([x, i], 0), "cat: expected tensors of rank 2"),
        (lambda o, x, i: o.index_select(x, x, 0), "index_select: expected an index of Int"),
        (lambda o, x, i: o.gather(x, i, 0), "gather: expected an index of rank 2"),
        (lambda o, x, i: o.select(x, 0, 5), "select: expected a dimension"),
        (
            lambda o, x, i: o.select(x, 1.5, 0),
            "select: expected an integer or a scalar as the index",
        ),
    ],
)
def test_wrong_calls_say_what_was_expected(define: Define, message: str) -> None:
    x, index = values((9, 10), torch.float32), torch.randint(0, 9, (4,))
    with pytest.raises((DefinitionError, UnsupportedError), match=message.split("(")[0]):
        fused(define, [x, index])


def test_complex_tensors_run_through_torch() -> None:
    x = torch.randn(5, 6, dtype=torch.complex64)
    assert from_torch(x.dtype) is DataType.ComplexFloat
    got = fused(lambda o, x: o.pad(x, [1, 1]), [x]).execute([x])[0]
    torch.testing.assert_close(got, functional.pad(x, [1, 1]))
