"""Segmentation and acceptance: which scheduler takes a fusion, and why others don't."""

from __future__ import annotations

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.analysis.iteration_space import IterationSpace
from pyfuser.dtypes import DataType
from pyfuser.ir.domains import TensorDomain
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.segmented import segment_fusion
from pyfuser.ir.vals import TensorView
from pyfuser.ops import builders
from pyfuser.schedule.facts import examine, reference_tensor
from pyfuser.schedule.registry import SCHEDULERS, Refusal, scheduler
from pyfuser.schedule.size_info import SizeInfo
from tests.segment.fusions import (
    Build,
    check,
    float_inputs,
    layer_norm,
    made_by,
    normalized,
    rms_norm,
    schedulers,
    softmax,
    tensor,
    tensor_of,
)
from tests.support.targets import segment, size_info

# -- which scheduler takes a whole fusion


def _softmax_rows(fusion: Fusion) -> None:
    fusion.add_output(softmax(fusion, tensor(fusion, 2)))


def _softmax_columns(fusion: Fusion) -> None:
    fusion.add_output(softmax(fusion, tensor(fusion, 2), 0))


def _bias_silu(fusion: Fusion) -> None:
    x, b = tensor(fusion, 2), tensor(fusion, 1)
    fusion.add_output(builders.silu(fusion, builders.add(fusion, x, b)))


def _sum_rows_epilogue(fusion: Fusion) -> None:
    x, y = tensor(fusion, 2), tensor(fusion, 1)
    fusion.add_output(builders.mul(fusion, builders.sum(fusion, x, [1]), y))


def _two_reductions_one_axis(fusion: Fusion) -> None:
    x = tensor(fusion, 2)
    fusion.add_output(builders.sum(fusion, x, [1]))
    fusion.add_output(builders.max(fusion, builders.exp(fusion, x), [1]))


def _views(fusion: Fusion) -> None:
    x = tensor(fusion, 3)
    fusion.add_output(builders.permute(fusion, x, [2, 0, 1]))
    fusion.add_output(builders.broadcast(fusion, x, [False, True, False, False]))


def _complex(fusion: Fusion) -> None:
    x = tensor(fusion, 2, DataType.ComplexFloat)
    fusion.add_output(builders.mul(fusion, x, x))


def _reshaped_pointwise(fusion: Fusion) -> None:
    x = tensor(fusion, 2)
    flat = builders.reshape(fusion, builders.exp(fusion, x), [-1])
    fusion.add_output(builders.sin(fusion, flat))


def _reshaped_softmax(fusion: Fusion) -> None:
    x = tensor(fusion, 2)
    shape = [builders.size(fusion, x, 0), 2, -1]
    fusion.add_output(softmax(fusion, builders.reshape(fusion, x, shape)))


def _transposed_add(fusion: Fusion) -> None:
    x, y = tensor(fusion, 2), tensor(fusion, 2)
    fusion.add_output(builders.add(fusion, x, builders.permute(fusion, y, [1, 0])))


def _pairwise_difference(fusion: Fusion) -> None:
    x = tensor(fusion, 1)
    rows = builders.broadcast(fusion, x, [False, True])
    fusion.add_output(builders.sub(fusion, rows, builders.broadcast(fusion, x, [True, False])))


def _symmetric_part(fusion: Fusion) -> None:
    x = tensor(fusion, 2)
    fusion.add_output(builders.add(fusion, x, builders.permute(fusion, x, [1, 0])))


def _batch_norm_statistics(fusion: Fusion) -> None:
    y, rstd = normalized(fusion, tensor(fusion, 4), [0, 2, 3])
    fusion.add_output(y)
    fusion.add_output(builders.squeeze(fusion, rstd, [0, 2, 3]))


def _copy_of_transpose(fusion: Fusion) -> None:
    turned = builders.permute(fusion, tensor(fusion, 2), [1, 0])
    fusion.add_output(builders.set(fusion, turned))


def _transpose_of_copy(fusion: Fusion) -> None:
    copied = builders.set(fusion, tensor(fusion, 2))
    fusion.add_output(builders.permute(fusion, copied, [1, 0]))


WHOLE: list[tuple[Build, str, list[tuple[int, ...]]]] = [
    (_softmax_rows, "inner_persistent", [(4, 6)]),
    (_softmax_columns, "outer_persistent", [(4, 6)]),
    (lambda f: layer_norm(f, DataType.Float), "inner_persistent", [(4, 6), (6,), (6,)]),
    (lambda f: layer_norm(f, DataType.BFloat16), "inner_persistent", [(4, 6), (6,), (6,)]),
    (rms_norm, "inner_persistent", [(4, 6), (6,)]),
    (_batch_norm_statistics, "inner_persistent", [(2, 3, 4, 5)]),
    (_bias_silu, "pointwise", [(4, 6), (6,)]),
    (_transposed_add, "transpose", [(4, 6), (6, 4)]),
    (_pairwise_difference, "pointwise", [(5,)]),
    (_symmetric_part, "transpose", [(5, 5)]),
    (_reshaped_pointwise, "pointwise", [(4, 6)]),
    (_reshaped_softmax, "inner_persistent", [(4, 6)]),
    (_sum_rows_epilogue, "reduction", [(4, 6), (4,)]),
    (_two_reductions_one_axis, "reduction", [(4, 6)]),
    (_views, "no_op", [(2, 3, 4)]),
    (_copy_of_transpose, "transpose", [(4, 6)]),
    (_transpose_of_copy, "transpose", [(4, 6)]),
]


@pytest.mark.parametrize(("build", "name", "shapes"), WHOLE)
def test_whole_fusion_is_one_segment(
    build: Build, name: str, shapes: list[tuple[int, ...]]
) -> None:
    fusion = made_by(build)
    segmented = segment(fusion)
    assert schedulers(segmented) == [name]
    check(segmented, float_inputs(fusion, *shapes))


def test_an_input_read_in_two_ways_is_two_inputs_of_a_segment() -> None:
    fusion = made_by(_symmetric_part)
    (part,) = segment(fusion).segments
    (x,) = fusion.inputs
    assert part.inputs == [x, x]
    (own,) = part.apart
    assert [expr.name for expr in own[1]] == ["add"]
    alone, _ = segment_fusion(fusion, part)
    first, second = alone.inputs
    assert alone.repeats == {second: first}
    assert not IterationSpace(alone.exprs).private


def test_an_input_that_is_overwritten_stays_one() -> None:
    fusion = made_by(_symmetric_part)
    fusion.aliases[fusion.outputs[0]] = fusion.inputs[0]
    assert all(not part.apart for part in segment(fusion).segments)


def test_what_kernels_cannot_compute_is_evaluated() -> None:
    fusion = made_by(_complex)
    segmented = segment(fusion)
    assert schedulers(segmented) == ["expr_eval"]
    check(segmented, [torch.randn(3, 4, dtype=torch.complex64)])


def test_complex_part_is_cut_off() -> None:
    fusion = Fusion()
    x = tensor(fusion, 1, DataType.ComplexFloat)
    magnitude = builders.abs(fusion, builders.mul(fusion, x, x))
    fusion.add_output(builders.exp(fusion, builders.neg(fusion, magnitude)))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["expr_eval", "pointwise"]
    check(segmented, [torch.randn(5, dtype=torch.complex64)])


def test_output_that_is_an_input_needs_no_segment() -> None:
    fusion = Fusion()
    x = tensor(fusion, 1)
    fusion.add_output(x)
    assert segment(fusion).segments == []


def test_empty_outputs_need_no_kernel() -> None:
    fusion = made_by(_bias_silu)
    assert schedulers(segment(fusion, size_info({"i0": 0, "i1": 5, "i2": 5}))) == ["no_op"]


# -- refusals


def _refusal(name: str, build: Build, sizes: SizeInfo | None = None) -> Refusal | None:
    return scheduler(name).can_schedule(made_by(build), sizes or size_info())


def _sum_rows(fusion: Fusion) -> None:
    fusion.add_output(builders.sum(fusion, tensor(fusion, 2), [1]))


REFUSALS: list[tuple[str, Build, str]] = [
    ("expr_eval", _sum_rows, "kernels compute sum"),
    ("no_op", _sum_rows, "T1 is computed"),
    ("pointwise", _sum_rows, "cannot find reference tensor"),
    ("reduction", _bias_silu, "no reduction"),
    (
        "reduction",
        _softmax_rows,
        "a reduction result is broadcast back along the reduced axes (a normalization)",
    ),
    (
        "inner_persistent",
        _sum_rows,
        "no reduction result is broadcast back along the reduced axes",
    ),
    ("inner_persistent", _softmax_columns, "the innermost axis in memory is not reduced"),
    ("outer_persistent", _softmax_rows, "the innermost axis in memory is reduced"),
    ("pointwise", _complex, "T0 has DataType.ComplexFloat, which kernels don't compute"),
]


@pytest.mark.parametrize(("name", "build", "reason"), REFUSALS)
def test_refusal_has_a_reason(name: str, build: Build, reason: str) -> None:
    refusal = _refusal(name, build)
    assert refusal == Refusal(name, reason)
    assert str(refusal) == f"Scheduler _{name}_ ***rejected*** because : {reason}"


def test_a_reshaped_view_of_an_expanded_input_is_not_dense() -> None:
    """Once wrong: the second kernel read a view of stride 0 as if it had all its rows."""
    x = torch.randn(1, 2, 3).expand(4, 2, 3)
    with FusionDefinition() as fd:
        flat = fd.ops.reshape(fd.from_pytorch(x), [4, -1])
        rows = fd.ops.expand(fd.ops.broadcast(flat, [True, False, False]), [5, -1, -1])
        fd.add_output(rows)
        fd.add_output(fd.ops.neg(flat))
    first, second = fd.execute([x])
    assert torch.equal(first, x.reshape(4, 6).expand(5, 4, 6))
    assert torch.equal(second, -x.reshape(4, 6))


def test_schedulers_are_asked_in_order() -> None:
    assert [s.name for s in SCHEDULERS] == [
        "expr_eval",
        "no_op",
        "reduction",
        "transpose",
        "resize",
        "pointwise",
        "inner_persistent",
        "outer_persistent",
        "inner_outer_persistent",
        "greedy",
    ]


def test_memory_order_decides_between_inner_and_outer() -> None:
    """A column-major input makes the first axis the innermost one."""
    fusion = Fusion()
    axes = [fusion.ids.new(fusion.new_extent()) for _ in range(2)]
    domain = TensorDomain(axes, [True, True], allocation=axes[::-1])
    x = fusion.new_tensor(domain, DataType.Float)
    fusion.add_input(x)
    fusion.add_output(softmax(fusion, x, 0))
    # The output is in the order of its own axes, so a kernel transposes it.
    assert schedulers(segment(fusion)) == ["inner_persistent", "transpose"]


def test_sizes_of_one_magnitude_are_equal() -> None:
    assert size_info({"i0": 1025}) == size_info({"i0": 2047})
    assert hash(size_info({"i0": 1025})) == hash(size_info({"i0": 2047}))
    assert size_info({"i0": 0}) != size_info({"i0": 1}) != size_info({"i0": 2})


def test_a_difference_of_sizes_of_one_magnitude_may_have_elements() -> None:
    fusion = Fusion()
    rows, end, start = (fusion.new_extent() for _ in range(3))
    between = tensor_of(fusion, [rows, end - start])
    assert not size_info({"i0": 4, "i1": 48, "i2": 40}).is_empty(between)
    assert size_info({"i0": 0, "i1": 48, "i2": 40}).is_empty(between)
    assert size_info({"i0": 4, "i1": 1, "i2": 1}).is_empty(between)


def test_reference_comes_after_the_reshape() -> None:
    fusion = Fusion()
    x = tensor(fusion, 2)
    powers = builders.exp(fusion, x)
    fusion.add_output(powers)
    fusion.add_output(builders.reshape(fusion, powers, [-1]))
    assert reference_tensor(examine(fusion)) is fusion.outputs[1]


def test_axes_of_one_loop_have_one_number() -> None:
    fusion = Fusion()
    x, b = tensor(fusion, 2), tensor(fusion, 1)
    total = builders.sum(fusion, builders.add(fusion, x, b), [0])
    space = IterationSpace(fusion.exprs)
    assert space.axes(b) == space.axes(total) == {space.number(x.axes[1])}
    signature = space.signature(total)
    assert signature is not None
    assert signature.reduced == {space.number(x.axes[0])}


def test_an_input_beside_one_that_is_read_along_two_axes_is_not_private() -> None:
    """A scheduler's copy of `x + b + b.T` has the axes of the original, through x."""
    fusion = Fusion()
    size = fusion.new_extent()
    x, b = tensor_of(fusion, [size, size]), tensor_of(fusion, [size])
    column = builders.broadcast(fusion, b, [False, True])
    made = []
    for _ in range(2):
        beside = builders.add(fusion, x, builders.broadcast(fusion, b, [True, False]))
        made.append(builders.add(fusion, beside, column))
    space = IterationSpace(fusion.exprs)
    assert space.private == {b} and not space.conflicts
    assert space.axes(made[0]) == space.axes(made[1]) == space.axes(x)


def test_copies_of_reads_of_a_private_input_have_the_same_axes() -> None:
    """The copies of `x + x.T` that a norm's scheduler makes are connected by nothing but x."""
    fusion = Fusion()
    x = tensor(fusion, 1)
    made = []
    for _ in range(2):
        row = builders.broadcast(fusion, x, [True, False])
        made.append(builders.add(fusion, builders.broadcast(fusion, x, [False, True]), row))
    space = IterationSpace(fusion.exprs)
    assert space.private == {x} and not space.conflicts
    assert space.axes(made[0]) == space.axes(made[1]) and len(space.axes(made[0])) == 2


def test_variance_of_a_column_plus_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 1], contiguity=[False, None], dtype=DataType.Double)
        row = fd.ops.broadcast(fd.ops.squeeze(x, dims=[1]), is_broadcast_dim=[True, False])
        average, squares, _ = fd.ops.welford(fd.ops.add(x, row), dims=[0, 1])
        fd.add_output(average)
        fd.add_output(squares)
    column = torch.randn(37, 2, dtype=torch.float64)[:, :1]
    grid = column + column.T
    expected = [grid.mean(), grid.var(correction=0) * grid.numel()]
    torch.testing.assert_close(fd.execute([column]), expected)


# -- expensive operations on fewer axes


def _sizes(fusion: Fusion, rows: int, columns: int) -> SizeInfo:
    """Sizes of the axes of an input [rows, columns], which comes last."""
    *_, (row, column) = (t.axes for t in fusion.input_tensors)
    return size_info({str(row.size): rows, str(column.size): columns}, workers=2)


def _expensive_rows(fusion: Fusion) -> None:
    x = tensor(fusion, 1)
    y = tensor_of(fusion, [x.axes[0].size, fusion.new_extent()])
    scales = builders.broadcast(fusion, builders.exp(fusion, x), [False, True])
    fusion.add_output(builders.exp(fusion, builders.mul(fusion, y, scales)))


def _expensive_columns(fusion: Fusion) -> None:
    x = tensor(fusion, 1)
    y = tensor_of(fusion, [fusion.new_extent(), x.axes[0].size])
    scales = builders.broadcast(fusion, builders.exp(fusion, x), [True, False])
    fusion.add_output(builders.mul(fusion, y, scales))


def _roots_of_rows(fusion: Fusion) -> None:
    x = tensor(fusion, 1)
    y = tensor_of(fusion, [x.axes[0].size, fusion.new_extent()])
    scales = builders.broadcast(fusion, builders.rsqrt(fusion, x), [False, True])
    fusion.add_output(builders.mul(fusion, y, scales))


def _roots_of_columns(fusion: Fusion) -> None:
    """As in a batch norm whose channels come last."""
    x = tensor(fusion, 1)
    y = tensor_of(fusion, [fusion.new_extent(), x.axes[0].size])
    scales = builders.rsqrt(fusion, builders.add(fusion, x, 1e-5))
    fusion.add_output(builders.mul(fusion, y, builders.broadcast(fusion, scales, [True, False])))


def _log_softmax(fusion: Fusion) -> None:
    x = tensor(fusion, 2)
    shifted = builders.sub(fusion, x, builders.max(fusion, x, [1], True))
    total = builders.sum(fusion, builders.exp(fusion, shifted), [1], True)
    fusion.add_output(builders.sub(fusion, shifted, builders.log(fusion, total)))


def _expensive_epilogue(fusion: Fusion) -> None:
    x = tensor(fusion, 2)
    fusion.add_output(builders.exp(fusion, builders.sum(fusion, x, [1])))


@pytest.mark.parametrize(
    ("build", "rows", "columns", "kernels"),
    [
        (_expensive_rows, 1 << 15, 16, 2),  # a row takes as long as its scale
        (_expensive_rows, 1 << 15, 1 << 10, 1),  # a row is long
        (_expensive_rows, 64, 16, 1),  # there is little to do
        (_expensive_columns, 1 << 10, 1 << 10, 2),  # every row would compute the scales again
        (_expensive_columns, 8, 16, 1),
        (_roots_of_columns, 1 << 10, 1 << 10, 2),
        (_roots_of_columns, 64, 1 << 10, 1),  # as long as a launch
        (_roots_of_rows, 1 << 15, 16, 1),
        (_expensive_epilogue, 1 << 15, 16, 2),
        (_expensive_epilogue, 1 << 15, 1 << 10, 1),
        (_log_softmax, 1 << 15, 16, 1),  # apart, everything would be read twice
    ],
)
def test_expensive_operations_on_fewer_axes(
    build: Build, rows: int, columns: int, kernels: int
) -> None:
    fusion = made_by(build)
    segmented = segment(fusion, _sizes(fusion, rows, columns))
    assert len(segmented.segments) == kernels
    shapes = {1: (7,), 2: (7, 7)}
    check(segmented, float_inputs(fusion, *(shapes[t.ndim] for t in fusion.input_tensors)))
    assert len(segment(fusion).segments) == 1  # without sizes only structure decides


def test_what_segments_store_lies_as_what_is_beside_it() -> None:
    """Sums over both outer axes read an exponential, which lies as the input it was made from."""

    def build(fusion: Fusion) -> None:
        y = builders.exp(fusion, builders.permute(fusion, tensor(fusion, 3), [1, 0, 2]))
        for dim in (0, 1):
            fusion.add_output(builders.sum(fusion, y, [dim]))

    fusion = made_by(build)
    segmented = segment(fusion)
    (stored,) = {t for part in segmented.segments for t in part.outputs} - set(fusion.outputs)
    assert isinstance(stored, TensorView)
    a, b, c = stored.axes
    assert stored.domain.allocation == [b, a, c]
    check(segmented, float_inputs(fusion, (5, 4, 6)))
