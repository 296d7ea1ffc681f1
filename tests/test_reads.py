"""Slices, pads, cat and gathers against torch: dtypes, shapes, layouts, and fused with the rest.

Memory is poisoned, nothing may fall back to torch.  Into how many kernels a fusion is cut is asked
too: a read whose source was computed from inputs has to be moved to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from pyfuser import DataType, FusionDefinition
from pyfuser.compiler import compiled_kernel_count
from pyfuser.dtypes import from_torch
from pyfuser.errors import DefinitionError, UnsupportedError
from pyfuser.ir.exprs import GatherOp, WindowOp
from pyfuser.ir.keys import definition_key
from pyfuser.ir.vals import TensorView
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run as simplified
from pyfuser.schedule.common import Layouts
from tests.targets import segment

pytestmark = pytest.mark.usefixtures("poison")

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64)
Define = Callable[..., Any]


def fused(define: Define, inputs: Sequence[Any]) -> FusionDefinition:
    """A definition over these inputs, tensors or scalars; lists of outputs are outputs each."""
    with FusionDefinition() as fd:
        values = [
            fd.from_pytorch(x)
            if isinstance(x, torch.Tensor)
            else fd.define_scalar(None, dtype=DataType.Int)
            for x in inputs
        ]
        made = define(fd.ops, *values)
        for output in made if isinstance(made, list) else [made]:
            fd.add_output(output)
    return fd


def check(define: Define, inputs: Sequence[Any], want: Any, **tolerance: float) -> FusionDefinition:
    """Kernels, evaluator and simplified evaluation agree with torch, and the text rebuilds it."""
    fd = fused(define, inputs)
    wanted = want if isinstance(want, list) else [want]
    graph = fd.fusion.definition
    close = {"rtol": 1e-5, "atol": 1e-5} | tolerance
    for got in (
        fd.execute(list(inputs)),
        evaluate(graph, inputs),
        evaluate(simplified(graph), inputs),
    ):
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, **close)
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    for a, b in zip(evaluate(again.fusion.definition, inputs), wanted, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, **close)
    return fd


def kernels(fd: FusionDefinition) -> list[str]:
    """The schedulers of the segments that a fusion is cut into."""
    return [s.scheduler for s in segment(simplified(fd.fusion.definition)).segments]


def values(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    made = torch.randn(tuple(shape)) * 4
    return made > 0 if dtype is torch.bool else made.to(dtype)


def laid_out(shape: Sequence[int], layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of a shape whose memory is in another order, has gaps, or is one row."""
    if layout == "transposed":
        return values((*shape[:-2], shape[-1], shape[-2]), dtype).transpose(-1, -2)
    if layout == "expanded":
        return values((1, *shape[1:]), dtype).expand(shape)
    if layout == "strided":
        return values((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    if layout == "channels last":
        return values(shape, dtype).to(memory_format=torch.channels_last)
    return values(shape, dtype)


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
        check(lambda o, x: o.slice(x, [start], [stop]), [x], x[start:stop])


def test_slice_bounds_may_be_scalars_and_new_ones_need_no_new_kernel() -> None:
    x = values((9, 40), torch.float32)
    fd = fused(lambda o, x, a, b: o.neg(o.slice(x, [0, a], [o.size(x, 0), b])), [x, 3, 29])
    torch.testing.assert_close(fd.execute([x, 3, 29])[0], -x[:, 3:29])
    before = compiled_kernel_count()
    for rows, start, stop in ((9, 4, 37), (7, 1, 60), (5, 30, 20)):
        got = fd.execute([x[:rows].clone(), start, stop])[0]
        torch.testing.assert_close(got, -x[:rows, start:stop])
    assert compiled_kernel_count() - before <= 1  # an empty result may run without one


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
        assert kernels(fd) == ["pointwise"]


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
    assert kernels(fd) == ["pointwise"]


def test_slice_scatter() -> None:
    x, y = values((7, 33), torch.float32), values((7, 12), torch.float32)
    want = torch.slice_scatter(x.exp(), y, 1, 5, 17)
    fd = check(lambda o, x, y: o.slice_scatter(o.exp(x), y, 1, 5, 17), [x, y], want)
    assert kernels(fd) == ["pointwise"]


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
    assert kernels(fd) == ["pointwise"]


def test_a_tensor_spread_around_another() -> None:
    """The elements of two tensors in turn, as the levels of a scan are put together."""

    def define(o: Any, x: Any, y: Any) -> Any:
        zeros = o.full([6, 10], 0.0, dtype=DataType.Float)
        return o.slice_scatter(o.slice_scatter(zeros, x, 1, 0, 10, 2), o.exp(y), 1, 1, 10, 2)

    x, y = values((6, 5), torch.float32), values((6, 5), torch.float32)
    fd = check(define, [x, y], torch.stack([x, y.exp()], 2).flatten(1))
    assert kernels(fd) == ["pointwise"]


def test_windows_of_what_is_spread() -> None:
    x, y = values((5, 40), torch.float32), values((5, 20), torch.float32)
    spread = torch.slice_scatter(x, y, 1, 1, 40, 2)

    def define(o: Any, x: Any, y: Any) -> Any:
        return o.slice_scatter(x, y, 1, 1, 40, 2)

    def sliced(o: Any, x: Any, y: Any) -> Any:
        return o.neg(o.slice(define(o, x, y), [0, 3], [5, 38], [1, 3]))

    check(sliced, [x, y], -spread[:, 3:38:3])
    check(lambda o, x, y: o.pad(define(o, x, y), [2, -1]), [x, y], functional.pad(spread, [2, -1]))
    # A slice that is spread is a window on what was sliced: every second element is read.
    fd = check(
        lambda o, x, y: o.slice_scatter(x, o.slice(y, [0, 1], [5, 20], [1, 2]), 1, 2, 40, 4),
        [x, y],
        torch.slice_scatter(x, y[:, 1:20:2], 1, 2, 40, 4),
    )
    assert kernels(fd) == ["pointwise"]
    # What is padded before has to be in memory.
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


# -- fused with the rest


def rotated(o: Any, x: Any, sin: Any, cos: Any) -> Any:
    sizes = o.shape(x)
    half = o.div(sizes[3], 2)
    first = o.slice(x, [0, 0, 0, 0], [*sizes[:3], half])
    rest = o.slice(x, [0, 0, 0, half], sizes)
    turned = o.cat([o.neg(rest), first], 3)
    return o.add(o.mul(turned, sin), o.mul(x, cos))


@pytest.mark.parametrize("width", [2, 8, 64, 66])
def test_rotary_embedding_is_one_kernel(width: int) -> None:
    x = values((2, 3, 5, width), torch.float32)
    sin, cos = values((5, width), torch.float32).sin(), values((5, width), torch.float32).cos()
    half = width // 2
    want = torch.cat([-x[..., half:], x[..., :half]], -1) * sin + x * cos
    fd = check(rotated, [x, sin, cos], want)
    assert kernels(fd) == ["pointwise"]


def log_softmax(o: Any, x: Any) -> Any:
    shifted = o.sub(x, o.max(x, 1, True))
    return o.sub(shifted, o.log(o.sum(o.exp(shifted), 1, True)))


@pytest.mark.parametrize("shape", [(1, 2), (7, 33), (5, 300)], ids=str)
def test_cross_entropy_gathers_the_input(shape: tuple[int, int]) -> None:
    x = values(shape, torch.float32)
    label = torch.randint(0, shape[1], (shape[0], 1))
    want = functional.cross_entropy(x, label[:, 0], reduction="none")[:, None]
    fd = check(lambda o, x, i: o.neg(o.take_along_axis(log_softmax(o, x), i, 1)), [x, label], want)
    (gather,) = [e for e in simplified(fd.fusion.definition).exprs if isinstance(e, GatherOp)]
    assert gather.source is not None and gather.source.expr is None


def test_embedding_and_layer_norm_are_one_kernel() -> None:
    weight, index = values((50, 48), torch.float32), torch.randint(0, 50, (3, 9))
    position, scale = values((9, 48), torch.float32), values((48,), torch.float32)

    def define(o: Any, i: Any, weight: Any, position: Any, scale: Any) -> Any:
        x = o.add(o.embedding_fwd(i, weight), position)
        variance, mean = o.var_mean(x, [2], 0, True)
        return o.mul(o.mul(o.sub(x, mean), o.rsqrt(o.add(variance, 1e-5))), scale)

    want = functional.layer_norm(weight[index] + position, (48,), scale)
    fd = check(define, [index, weight, position, scale], want)
    assert kernels(fd) == ["inner_persistent"]


@pytest.mark.parametrize("dim", [0, 1])
def test_normalisations_of_padded_and_sliced_inputs(dim: int) -> None:
    x = values((37, 43), torch.float32)
    padded = functional.pad(x, [2, 3, 1, 0], value=0.5)

    def softmax(o: Any, x: Any) -> Any:
        shifted = o.exp(o.sub(x, o.max(x, dim, True)))
        return o.div(shifted, o.sum(shifted, dim, True))

    fd = check(lambda o, x: softmax(o, o.pad(x, [2, 3, 1, 0], 0.5)), [x], padded.softmax(dim))
    assert kernels(fd) == ["inner_persistent" if dim else "outer_persistent"]
    want = (x[1:30, 5:] * 2).softmax(dim)
    check(lambda o, x: softmax(o, o.slice(o.mul(x, 2.0), [1, 5], [30, 43])), [x], want)


@pytest.mark.parametrize("dims", [[0], [1], [0, 1]], ids=str)
def test_sums_of_reads(dims: list[int]) -> None:
    x, y = values((70, 43), torch.float32), values((70, 90), torch.float32)
    index = torch.randint(0, 70, (200,))
    want = torch.cat([x.abs(), y], 1).sum(dims)
    fd = check(lambda o, x, y: o.sum(o.cat([o.abs(x), y], 1), dims), [x, y], want, atol=1e-3)
    assert kernels(fd) == ["reduction"]
    want = x[index].sum(dims)
    fd = check(lambda o, x, i: o.sum(o.index_select(x, i, 0), dims), [x, index], want, atol=1e-3)
    assert kernels(fd) == ["reduction"]


def test_windows_move_through_all_that_moves_no_data() -> None:
    x, bias = values((7, 33), torch.float32), values((7, 1), torch.float32)

    def define(o: Any, x: Any, bias: Any) -> Any:
        turned = o.permute(o.cast(o.add(o.exp(x), bias), DataType.Double), [1, 0])
        wide = o.broadcast(turned, [False, True, False])
        return o.pad(o.slice(wide, [3, 0, 1], [30, 1, 7]), [2, 0, 1, 1, 0, 4], 9.0)

    want = (x.exp() + bias).double().t()[3:30, None, 1:7]
    want = functional.pad(want, [2, 0, 1, 1, 0, 4], value=9.0)
    fd = check(define, [x, bias], want)
    assert kernels(fd) == ["pointwise"]


def test_windows_of_windows() -> None:
    x = values((40,), torch.float32)
    padded = functional.pad(x, [5, 5], value=2.0)
    cases: list[tuple[Define, torch.Tensor]] = [
        (lambda o, x: o.slice(o.slice(x, [3], [33], [2]), [1], [9], [3]), x[3:33:2][1:9:3]),
        (lambda o, x: o.slice(o.pad(x, [5, 5], 2.0), [3], [44]), padded[3:44]),
        (lambda o, x: o.slice(o.pad(x, [5, 5], 2.0), [3], [44], [2]), padded[3:44:2]),
        (
            lambda o, x: o.pad(o.pad(x, [5, 5], 2.0), [-2, 3], 3.0),
            functional.pad(padded, [-2, 3], value=3.0),
        ),
        (
            lambda o, x: o.cat([o.cat([x, o.neg(x)], 0), o.slice(x, [0], [3])], 0),
            torch.cat([x, -x, x[:3]]),
        ),
    ]  # fmt: skip
    for define, want in cases:
        check(define, [x], want)


def test_what_is_reduced_or_expensive_is_stored_and_then_read() -> None:
    x = values((20, 33), torch.float32)
    fd = check(lambda o, x: o.pad(o.sum(x, 1), [1, 5]), [x], functional.pad(x.sum(1), [1, 5]))
    assert kernels(fd) == ["reduction", "pointwise"]
    want = [x.exp(), functional.pad(x.exp(), [1, 1])]

    def both(o: Any, x: Any) -> Any:
        power = o.exp(x)
        return [power, o.pad(power, [1, 1])]

    assert kernels(check(both, [x], want)) == ["pointwise", "pointwise"]
    flat = check(lambda o, x: o.slice(o.reshape(x, [-1]), [5], [600]), [x], x.reshape(-1)[5:600])
    assert kernels(flat) == ["no_op", "pointwise"]


def test_a_window_behind_a_permute_reads_what_is_permuted() -> None:
    """The view isn't stored beside the tensor: each tensor that a kernel stores is an output."""

    def define(o: Any, x: Any) -> Any:
        y = o.exp(x)
        turned = o.permute(y, [1, 0, 2])
        return [y, o.mul(o.slice(turned, [0, 0, 0], [9, 4, 5], [2, 1, 1]), turned_rows(o, turned))]

    def turned_rows(o: Any, turned: Any) -> Any:
        return o.slice(turned, [1, 0, 0], [10, 4, 5], [2, 1, 1])

    x = values((4, 10, 5), torch.float32)
    turned = x.exp().permute(1, 0, 2)
    fd = check(define, [x], [x.exp(), turned[0:9:2] * turned[1:10:2]])
    graph = simplified(fd.fusion.definition)
    stored = [t for part in segment(graph).segments for t in part.outputs]
    assert set(stored) <= set(graph.outputs)
    # A pad of it is filled around as before.
    padded = functional.pad(turned, [0, 0, 0, 0, 2, 1], value=1.5)
    fd = check(
        lambda o, x: [y := o.exp(x), o.pad(o.permute(y, [1, 0, 2]), [0, 0, 0, 0, 2, 1], 1.5)],
        [x],
        [x.exp(), padded],
    )


@pytest.mark.parametrize("step", [1, 2])
def test_an_axis_read_in_steps_is_no_range_with_the_next(step: int) -> None:
    x = values((16, 8), torch.float32)
    define = lambda o, x: o.slice(x, [2, 0], [14, o.size(x, 1)], [step, 1])  # noqa: E731
    fd = check(define, [x], x[2:14:step])
    graph = simplified(fd.fusion.definition)
    (output,) = graph.outputs
    assert isinstance(output, TensorView)
    assert Layouts(graph).merges(*output.axes) is (step == 1)


def test_several_reads_of_one_input() -> None:
    x = values((9, 64), torch.float32)

    def define(o: Any, x: Any) -> Any:
        parts = [o.slice(x, [0, a], [9, a + 16]) for a in (0, 16, 32, 48)]
        return o.add(o.mul(parts[0], o.sigmoid(parts[1])), o.sub(parts[2], parts[3]))

    a, b, c, d = x.split(16, 1)
    fd = check(define, [x], a * b.sigmoid() + (c - d))
    assert kernels(fd) == ["pointwise"]
    windows = [e for e in simplified(fd.fusion.definition).exprs if isinstance(e, WindowOp)]
    assert len(windows) == 4


def test_reads_of_an_input_that_is_updated() -> None:
    x = values((9, 10), torch.float32)
    kept = x.clone()
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        rolled = fd.ops.cat([fd.ops.slice(t, [1, 0], [9, 10]), fd.ops.slice(t, [0, 0], [1, 10])], 0)
        fd.add_output(rolled, t)
    fd.execute([x])
    torch.testing.assert_close(x, kept.roll(-1, 0))


def test_new_sizes_need_no_new_kernel() -> None:
    def inputs(rows: int, columns: int) -> list[torch.Tensor]:
        index = torch.randint(0, rows, (rows, columns))
        return [torch.randn(rows, columns), torch.randn(rows, columns + 3), index]

    def define(o: Any, x: Any, y: Any, i: Any) -> Any:
        return o.mul(o.pad(o.cat([x, y], 1), [1, 2]), 2.0), o.gather(x, i, 0)

    fd = fused(lambda *a: list(define(*a)), inputs(70, 90))
    fd.execute(inputs(70, 90))
    before = compiled_kernel_count()
    for rows, columns in ((80, 100), (65, 127)):
        x, y, i = inputs(rows, columns)
        wide, picked = fd.execute([x, y, i])
        torch.testing.assert_close(wide, functional.pad(torch.cat([x, y], 1), [1, 2]) * 2)
        torch.testing.assert_close(picked, x.gather(0, i))
    assert compiled_kernel_count() == before


def test_the_definition_prints_as_what_rebuilds_it() -> None:
    x, index = values((9, 10), torch.float32), torch.randint(0, 9, (4,))
    fd = fused(
        lambda o, x, i: o.pad(o.index_select(o.slice(x, [0, 2], [9, 7]), i, 0), [1, 2], 0.5),
        [x, index],
    )
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert definition_key(again.fusion.definition) == definition_key(fd.fusion.definition)


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
