"""Segmentation and acceptance: which scheduler takes what, where fusions are cut, and why."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch

from pyfuser.analysis.iteration_space import IterationSpace
from pyfuser.dtypes import DataType
from pyfuser.ir.domains import TensorDomain
from pyfuser.ir.fusion import Fusion, plain_domain
from pyfuser.ir.scalars import IntExpr
from pyfuser.ir.segmented import SegmentedFusion, segment_fusion
from pyfuser.ir.vals import TensorView, Val
from pyfuser.ir.verify import verify_segmented
from pyfuser.ops import builders
from pyfuser.ops.binding import bind
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run
from pyfuser.schedule.acceptance import SizeInfo, examine, reference_tensor
from pyfuser.schedule.registry import SCHEDULERS, Refusal, scheduler
from pyfuser.segment.groups import Groups
from pyfuser.segment.segmenter import accepted_drafts, merge_all
from pyfuser.segment.units import unit_graph
from tests.targets import SINGLE, segment, size_info

Build = Callable[[Fusion], None]
HALF_ROW = size_info({"i0": 1, "i1": 1 << 26, "i2": 1 << 26, "i3": 1 << 26}, workers=4)


def tensor(fusion: Fusion, rank: int, dtype: DataType = DataType.Float) -> TensorView:
    return tensor_of(fusion, [fusion.new_extent() for _ in range(rank)], dtype)


def tensor_of(
    fusion: Fusion, extents: Sequence[IntExpr], dtype: DataType = DataType.Float
) -> TensorView:
    made = fusion.new_tensor(plain_domain([fusion.ids.new(e) for e in extents]), dtype)
    fusion.add_input(made)
    return made


def softmax(fusion: Fusion, x: Val, dim: int = -1) -> Val:
    shifted = builders.sub(fusion, x, builders.max(fusion, x, [dim], True))
    powers = builders.exp(fusion, shifted)
    return builders.div(fusion, powers, builders.sum(fusion, powers, [dim], True))


def normalized(fusion: Fusion, x: Val, dims: list[int]) -> tuple[Val, Val]:
    variance, mean = builders.var_mean(fusion, x, dims, 0, True)
    rstd = builders.rsqrt(fusion, builders.add(fusion, variance, 1e-5))
    return builders.mul(fusion, builders.sub(fusion, x, mean), rstd), rstd


def layer_norm(fusion: Fusion, dtype: DataType) -> None:
    x, w, b = tensor(fusion, 2, dtype), tensor(fusion, 1, dtype), tensor(fusion, 1, dtype)
    xf, wf, bf = (builders.cast(fusion, t, DataType.Float) for t in (x, w, b))
    y, _ = normalized(fusion, xf, [-1])
    scaled = builders.add(fusion, builders.mul(fusion, y, wf), bf)
    fusion.add_output(builders.cast(fusion, scaled, dtype))


def rms_norm(fusion: Fusion) -> None:
    x, w = tensor(fusion, 2), tensor(fusion, 1)
    square = builders.sum(fusion, builders.mul(fusion, x, x), [-1], True)
    mean = builders.div(fusion, square, builders.size(fusion, x, 1))
    rstd = builders.rsqrt(fusion, builders.add(fusion, mean, 1e-6))
    fusion.add_output(builders.mul(fusion, builders.mul(fusion, x, rstd), w))


def made_by(build: Build) -> Fusion:
    fusion = Fusion()
    build(fusion)
    return fusion


def check(segmented: SegmentedFusion, inputs: Sequence[torch.Tensor | int]) -> None:
    """Valid, complete, and equal to the whole when evaluated one segment after the other."""
    fusion = segmented.fusion
    verify_segmented(segmented)
    covered = {expr for part in segmented.segments for expr in part.exprs}
    assert covered >= {expr for expr in fusion.live_exprs() if expr.tensor_outputs}
    binding = bind(fusion, inputs)
    values: dict[Val, torch.Tensor | int] = dict(zip(fusion.inputs, inputs, strict=True))
    for part in segmented.segments:
        alone, _ = segment_fusion(fusion, part)
        given = [values[v] if v in values else binding.scalar(v) for v in part.inputs]
        values.update(zip(part.outputs, evaluate(alone, given), strict=True))
    for output, whole in zip(fusion.outputs, evaluate(fusion, inputs), strict=True):
        torch.testing.assert_close(values[output], whole, equal_nan=True)


def schedulers(segmented: SegmentedFusion) -> list[str]:
    return [part.scheduler for part in segmented.segments]


def float_inputs(fusion: Fusion, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    dtypes = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16}
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    return [t.to(dtypes[v.dtype]) for t, v in zip(given, fusion.input_tensors, strict=True)]


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


WHOLE: list[tuple[Build, str, list[tuple[int, ...]]]] = [
    (_softmax_rows, "inner_persistent", [(4, 6)]),
    (_softmax_columns, "outer_persistent", [(4, 6)]),
    (lambda f: layer_norm(f, DataType.Float), "inner_persistent", [(4, 6), (6,), (6,)]),
    (lambda f: layer_norm(f, DataType.BFloat16), "inner_persistent", [(4, 6), (6,), (6,)]),
    (rms_norm, "inner_persistent", [(4, 6), (6,)]),
    (_batch_norm_statistics, "inner_persistent", [(2, 3, 4, 5)]),
    (_bias_silu, "pointwise", [(4, 6), (6,)]),
    (_transposed_add, "pointwise", [(4, 6), (6, 4)]),
    (_pairwise_difference, "pointwise", [(5,)]),
    (_symmetric_part, "pointwise", [(5, 5)]),
    (_reshaped_pointwise, "pointwise", [(4, 6)]),
    (_reshaped_softmax, "inner_persistent", [(4, 6)]),
    (_sum_rows_epilogue, "reduction", [(4, 6), (4,)]),
    (_two_reductions_one_axis, "reduction", [(4, 6)]),
    (_views, "no_op", [(2, 3, 4)]),
]


@pytest.mark.parametrize(("build", "name", "shapes"), WHOLE)
def test_whole_fusion_is_one_segment(
    build: Build, name: str, shapes: list[tuple[int, ...]]
) -> None:
    fusion = made_by(build)
    segmented = segment(fusion)
    assert schedulers(segmented) == [name]
    check(segmented, float_inputs(fusion, *shapes))


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


# -- where it is cut


def test_unrelated_chains_are_two_segments() -> None:
    fusion = Fusion()
    for op in (builders.exp, builders.sin):
        fusion.add_output(op(fusion, tensor(fusion, 1)))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["pointwise", "pointwise"]
    assert len(segmented.segments[0].exprs) == len(segmented.segments[1].exprs) == 1
    check(segmented, float_inputs(fusion, (4,), (5,)))


def test_sums_over_different_axes_are_two_segments() -> None:
    fusion = Fusion()
    x = tensor(fusion, 2)
    shared = builders.exp(fusion, x)
    fusion.add_output(builders.sum(fusion, shared, [0]))
    fusion.add_output(builders.sum(fusion, shared, [1]))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["reduction", "reduction"]
    assert "reductions over different axes" in segmented.segments[0].reason
    check(segmented, float_inputs(fusion, (4, 6)))


def test_few_huge_rows_are_not_persistent() -> None:
    fusion = made_by(lambda f: layer_norm(f, DataType.Float))
    segmented = segment(run(fusion), HALF_ROW)
    assert schedulers(segmented) == ["reduction", "reduction", "pointwise"]
    assert "fewer rows than the 4 workers" in segmented.segments[0].reason
    check(segmented, float_inputs(fusion, (1, 64), (64,), (64,)))


def test_small_dtype_crosses_the_boundary() -> None:
    fusion = made_by(lambda f: layer_norm(f, DataType.BFloat16))
    mean, deviation, _ = segment(run(fusion), HALF_ROW).segments
    # Both read the bfloat16 input; what passes between them is one number a row.
    for part in (mean, deviation):
        assert fusion.inputs[0].name in [v.name for v in part.inputs if v.is_tensor()]
    assert all(len(t.axes) == 1 or t.axes[1].is_broadcast for t in mean.outputs)


def test_rounded_value_crosses_rounded() -> None:
    fusion = Fusion()
    x = tensor(fusion, 2)
    half = builders.cast(fusion, builders.exp(fusion, x), DataType.BFloat16)
    cut = builders.segment_set(fusion, half)
    fusion.add_output(builders.sin(fusion, builders.cast(fusion, cut, DataType.Float)))
    first, second = segment(fusion).segments
    assert [t.dtype for t in first.outputs] == [DataType.BFloat16]
    assert first.reason == "segment_set"
    assert [e.name for e in second.exprs] == ["cast", "sin"]


def test_intermediate_read_along_two_orders_is_stored() -> None:
    fusion = Fusion()
    powers = builders.exp(fusion, tensor(fusion, 2))
    fusion.add_output(builders.add(fusion, powers, builders.permute(fusion, powers, [1, 0])))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["pointwise", "pointwise"]
    assert "different orders" in segmented.segments[0].reason
    check(segmented, float_inputs(fusion, (5, 5)))


def test_output_from_before_a_reshape_is_cut_off() -> None:
    fusion = Fusion()
    powers = builders.exp(fusion, tensor(fusion, 2))
    fusion.add_output(builders.sin(fusion, builders.reshape(fusion, powers, [-1])))
    fusion.add_output(builders.cos(fusion, powers))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["pointwise", "pointwise"]
    check(segmented, float_inputs(fusion, (4, 6)))


def test_reshape_behind_a_normalization_is_a_view() -> None:
    fusion = Fusion()
    x = tensor(fusion, 2)
    sizes = [builders.size(fusion, x, dim) for dim in range(2)]
    rows = softmax(fusion, builders.reshape(fusion, x, [sizes[0], 2, -1]))
    fusion.add_output(builders.reshape(fusion, rows, sizes))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["inner_persistent", "no_op"]
    check(segmented, float_inputs(fusion, (4, 6)))


def test_reshapes_of_two_orders_are_not_joined() -> None:
    """One flat index would have to be (row, column) and (column, row) of one tensor."""
    fusion = Fusion()
    powers = builders.exp(fusion, tensor(fusion, 2))
    turned = builders.permute(fusion, powers, [1, 0])
    flat = [builders.reshape(fusion, t, [-1]) for t in (powers, turned)]
    fusion.add_output(builders.add(fusion, *flat))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["pointwise", "pointwise"]
    check(segmented, float_inputs(fusion, (4, 6)))


def test_view_that_another_segment_reads_is_stored_dense() -> None:
    fusion = Fusion()
    turned = builders.segment_set(fusion, builders.permute(fusion, tensor(fusion, 2), [1, 0]))
    fusion.add_output(builders.sin(fusion, turned))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["pointwise", "pointwise"]
    check(segmented, float_inputs(fusion, (4, 6)))


def test_column_sums_of_a_backward_are_joined() -> None:
    """Layer norm's backward: the input's gradient in one kernel, both parameters' in another."""
    fusion = Fusion()
    x, dy = tensor(fusion, 2, DataType.BFloat16), tensor(fusion, 2, DataType.BFloat16)
    xf, dyf = (builders.cast(fusion, t, DataType.Float) for t in (x, dy))
    y, rstd = normalized(fusion, xf, [1])
    scaled = builders.mul(fusion, dyf, tensor(fusion, 1))
    a = builders.sum(fusion, scaled, [1], True)
    b = builders.sum(fusion, builders.mul(fusion, scaled, y), [1], True)
    inner = builders.sub(fusion, scaled, builders.add(fusion, a, builders.mul(fusion, y, b)))
    fusion.add_output(builders.mul(fusion, rstd, inner))
    fusion.add_output(builders.sum(fusion, builders.mul(fusion, dyf, y), [0]))
    fusion.add_output(builders.sum(fusion, dyf, [0]))
    segmented = segment(run(fusion))
    assert schedulers(segmented) == ["inner_persistent", "reduction"]
    check(segmented, float_inputs(fusion, (6, 8), (6, 8), (8,)))


def test_reductions_of_unrelated_axes_are_not_joined() -> None:
    """Both sums run over their second axis, but nothing in one kernel would make it one loop."""
    fusion = Fusion()
    x, y = tensor(fusion, 2), tensor(fusion, 2)
    sums = [builders.sum(fusion, t, [1]) for t in (x, y)]
    fusion.add_output(builders.add(fusion, *sums))
    segmented = segment(run(fusion))
    assert schedulers(segmented) == ["reduction", "reduction"]
    check(segmented, float_inputs(fusion, (4, 6), (4, 3)))


def test_output_without_the_rows_is_cut_off() -> None:
    fusion = Fusion()
    x, w = tensor(fusion, 2), tensor(fusion, 1)
    weight = builders.add(fusion, w, 1.0)
    fusion.add_output(softmax(fusion, builders.mul(fusion, x, weight)))
    assert schedulers(segment(fusion)) == ["inner_persistent"]
    fusion.add_output(weight)
    segmented = segment(run(fusion))
    assert schedulers(segmented) == ["pointwise", "inner_persistent"]
    assert "all axes that the reduction keeps" in segmented.segments[0].reason
    check(segmented, float_inputs(fusion, (4, 6), (6,)))


def test_size_known_only_elsewhere_is_a_scalar_input() -> None:
    fusion = Fusion()
    x, y = tensor(fusion, 1), tensor(fusion, 1)
    wide = builders.broadcast(fusion, x, [False, True])
    wide = builders.expand(fusion, wide, [-1, builders.size(fusion, y, 0)])
    fusion.add_output(builders.exp(fusion, wide))
    fusion.add_output(builders.sin(fusion, y))
    segmented = segment(fusion)
    assert [str(v) for v in segmented.segments[0].inputs[1:]] == ["i1"]
    check(segmented, float_inputs(fusion, (4,), (5,)))


def test_in_place_output_is_computed_once_an_element() -> None:
    fusion = Fusion()
    x, b = tensor(fusion, 2), tensor(fusion, 1)
    updated = builders.add(fusion, b, 1.0)
    fusion.add_output(updated, b)
    fusion.add_output(builders.mul(fusion, x, updated))
    assert "in place" in str(scheduler("pointwise").can_schedule(fusion, size_info()))
    assert schedulers(segment(fusion)) == ["pointwise", "pointwise"]


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


def test_schedulers_are_asked_in_order() -> None:
    assert [s.name for s in SCHEDULERS] == [
        "expr_eval",
        "no_op",
        "reduction",
        "pointwise",
        "inner_persistent",
        "outer_persistent",
    ]


def test_memory_order_decides_between_inner_and_outer() -> None:
    """A column-major input makes the first axis the innermost one."""
    fusion = Fusion()
    axes = [fusion.ids.new(fusion.new_extent()) for _ in range(2)]
    domain = TensorDomain(axes, [True, True], allocation=axes[::-1])
    x = fusion.new_tensor(domain, DataType.Float)
    fusion.add_input(x)
    fusion.add_output(softmax(fusion, x, 0))
    assert schedulers(segment(fusion)) == ["inner_persistent"]


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


def test_reference_is_behind_the_reshape() -> None:
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


# -- random graphs


def random_fusion(count: int, seed: int) -> Fusion:
    """About `count` expressions over [i0, i1], [i0] and [i1], with reductions over either axis."""
    choice, fusion = random.Random(seed), Fusion()
    rows, columns = fusion.new_extent(), fusion.new_extent()
    full = [tensor_of(fusion, [rows, columns]) for _ in range(4)]
    row, column = [tensor_of(fusion, [rows])], [tensor_of(fusion, [columns])]
    makers: list[tuple[float, Callable[[], None]]] = [
        (0.4, lambda: full.append(_mixed(fusion, choice, full))),
        (0.15, lambda: full.append(_with_row(fusion, choice, full, row))),
        (0.1, lambda: full.append(builders.add(fusion, recent(full), recent(column)))),
        (0.06, lambda: row.append(builders.max(fusion, recent(full), [1]))),
        (0.06, lambda: column.append(builders.max(fusion, recent(full), [0]))),
        (0.06, lambda: row.append(builders.tanh(fusion, recent(row)))),
        (0.06, lambda: full.append(_turned(fusion, recent(full)))),
        (0.06, lambda: full.append(_rounded(fusion, recent(full)))),
        (0.05, lambda: full.append(builders.mul(fusion, recent(full), 1.0))),
    ]

    def recent(tensors: list[TensorView]) -> TensorView:
        return choice.choice(tensors[-8:])

    while len(fusion.exprs) < count:
        weights = [weight for weight, _ in makers]
        choice.choices([make for _, make in makers], weights)[0]()
    for made in full[4:] + row[1:] + column[1:]:
        if not made.uses_list or choice.random() < 0.02:
            fusion.add_output(made)
    return fusion


def _mixed(fusion: Fusion, choice: random.Random, full: list[TensorView]) -> TensorView:
    a, b = choice.choice(full[-8:]), choice.choice(full)
    made: TensorView = builders.mul(fusion, builders.sin(fusion, a), b)
    return made


def _with_row(
    fusion: Fusion, choice: random.Random, full: list[TensorView], row: list[TensorView]
) -> TensorView:
    wide = builders.broadcast(fusion, choice.choice(row[-4:]), [False, True])
    made: TensorView = builders.add(fusion, choice.choice(full[-8:]), wide)
    return made


def _turned(fusion: Fusion, x: TensorView) -> TensorView:
    turned = builders.sin(fusion, builders.permute(fusion, x, [1, 0]))
    made: TensorView = builders.permute(fusion, turned, [1, 0])
    return made


def _rounded(fusion: Fusion, x: TensorView) -> TensorView:
    half = builders.cast(fusion, builders.sin(fusion, x), DataType.Half)
    made: TensorView = builders.cast(fusion, half, DataType.Float)
    return made


RANDOM_SHAPES = [(5, 7)] * 4 + [(5,), (7,)]


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    fusion = random_fusion(60, seed)
    check(segment(fusion), float_inputs(fusion, *RANDOM_SHAPES))


@pytest.mark.parametrize("seed", range(2))
def test_random_graph_of_a_thousand(seed: int) -> None:
    fusion = random_fusion(1000, seed)
    segmented = segment(fusion)
    check(segmented, float_inputs(fusion, *RANDOM_SHAPES))
    graph = unit_graph(fusion, SINGLE)
    for epilogues_first in (False, True):
        groups = Groups(graph, size_info())
        merge_all(groups, epilogues_first)
        # What the summaries accept, the schedulers accept too: no group was cut in halves.
        found = len(groups.in_order())
        assert len(accepted_drafts(groups)) == found < len(graph.units) / 10


def test_segments_print_their_scheduler_and_reason() -> None:
    fusion = Fusion()
    x = tensor(fusion, 1)
    cut = builders.segment_set(fusion, builders.exp(fusion, x))
    fusion.add_output(builders.sin(fusion, cut))
    text = str(segment(fusion))
    assert text.startswith("segment pointwise (T0) -> (T2) {\n  // segment_set\n")
    assert "segment pointwise (T2) -> (T3) {" in text


# -- expensive operations on fewer axes


def _sizes(fusion: Fusion, rows: int, columns: int) -> SizeInfo:
    """Sizes of the axes of an input [rows, columns], which comes last."""
    *_, (row, column) = (t.axes for t in fusion.input_tensors)
    return size_info({str(row.size): rows, str(column.size): columns}, workers=2)


def _dear_rows(fusion: Fusion) -> None:
    x = tensor(fusion, 1)
    y = tensor_of(fusion, [x.axes[0].size, fusion.new_extent()])
    scales = builders.broadcast(fusion, builders.exp(fusion, x), [False, True])
    fusion.add_output(builders.exp(fusion, builders.mul(fusion, y, scales)))


def _dear_columns(fusion: Fusion) -> None:
    x = tensor(fusion, 1)
    y = tensor_of(fusion, [fusion.new_extent(), x.axes[0].size])
    scales = builders.broadcast(fusion, builders.exp(fusion, x), [True, False])
    fusion.add_output(builders.mul(fusion, y, scales))


def _log_softmax(fusion: Fusion) -> None:
    x = tensor(fusion, 2)
    shifted = builders.sub(fusion, x, builders.max(fusion, x, [1], True))
    total = builders.sum(fusion, builders.exp(fusion, shifted), [1], True)
    fusion.add_output(builders.sub(fusion, shifted, builders.log(fusion, total)))


def _dear_epilogue(fusion: Fusion) -> None:
    x = tensor(fusion, 2)
    fusion.add_output(builders.exp(fusion, builders.sum(fusion, x, [1])))


@pytest.mark.parametrize(
    ("build", "rows", "columns", "kernels"),
    [
        (_dear_rows, 1 << 15, 16, 2),  # a row takes as long as its scale
        (_dear_rows, 1 << 15, 1 << 10, 1),  # a row is long
        (_dear_rows, 64, 16, 1),  # there is little to do
        (_dear_columns, 1 << 10, 1 << 10, 2),  # every row would compute the scales again
        (_dear_columns, 8, 16, 1),
        (_dear_epilogue, 1 << 15, 16, 2),
        (_dear_epilogue, 1 << 15, 1 << 10, 1),
        (_log_softmax, 1 << 15, 16, 1),  # apart, everything would be read twice
    ],
)
def test_dear_operations_on_fewer_axes(build: Build, rows: int, columns: int, kernels: int) -> None:
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
