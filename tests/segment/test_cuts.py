"""Segmentation: where fusions are cut, which values cross, and random graphs."""

from __future__ import annotations

import random

import pytest

from pyfuser.dtypes import DataType
from pyfuser.ir.fusion import Fusion
from pyfuser.ops import builders
from pyfuser.preseg import run
from pyfuser.schedule.registry import scheduler
from pyfuser.segment.groups import Groups
from pyfuser.segment.segmenter import accepted_drafts, merge_all
from pyfuser.segment.units import unit_graph
from tests.segment.fusions import (
    RANDOM_SHAPES,
    check,
    float_inputs,
    layer_norm,
    made_by,
    normalized,
    random_fusion,
    schedulers,
    softmax,
    tensor,
    tensor_of,
)
from tests.support.targets import SINGLE, segment, size_info

HALF_ROW = size_info({"i0": 1, "i1": 1 << 26, "i2": 1 << 26, "i3": 1 << 26}, workers=4)


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
    segmented = segment(fusion, size_info({"i0": 4, "i1": 6}, workers=4))
    assert schedulers(segmented) == ["reduction", "reduction"]
    assert "reductions over different axes" in segmented.segments[0].reason
    check(segmented, float_inputs(fusion, (4, 6)))


def test_sums_of_many_rows_and_of_their_columns_are_one_segment() -> None:
    for order in ([0, 1], [1, 0]):
        fusion = Fusion()
        shared = builders.exp(fusion, tensor(fusion, 2))
        for dim in order:
            fusion.add_output(builders.sum(fusion, shared, [dim]))
        segmented = segment(fusion, size_info({"i0": 40, "i1": 6}, workers=4))
        assert schedulers(segmented) == ["inner_outer_persistent"]
        check(segmented, float_inputs(fusion, (40, 6)))


def test_what_follows_from_a_sum_of_columns_in_its_rows_is_a_segment_of_its_own() -> None:
    fusion = Fusion()
    x = tensor(fusion, 2)
    fusion.add_output(softmax(fusion, x, 1))
    fusion.add_output(builders.sub(fusion, x, builders.sum(fusion, x, [0], True)))
    segmented = segment(run(fusion), size_info({"i0": 40, "i1": 6}, workers=4))
    assert sorted(schedulers(segmented)) == ["inner_persistent", "outer_persistent"]
    check(segmented, float_inputs(fusion, (40, 6)))


def test_few_huge_rows_are_not_persistent() -> None:
    fusion = made_by(lambda f: layer_norm(f, DataType.Float))
    segmented = segment(run(fusion), HALF_ROW)
    assert schedulers(segmented) == ["reduction", "reduction", "pointwise"]
    assert "fewer rows than the 4 workers" in segmented.segments[0].reason
    check(segmented, float_inputs(fusion, (1, 64), (64,), (64,)))


def test_small_dtype_crosses_the_boundary() -> None:
    fusion = made_by(lambda f: layer_norm(f, DataType.BFloat16))
    mean, deviation, _ = segment(run(fusion), HALF_ROW).segments
    # Both read the bfloat16 input; one number per row passes between them.
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
    assert schedulers(segmented) == ["pointwise", "transpose"]
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


def test_reshape_after_a_normalization_is_a_view() -> None:
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
    transposed = builders.permute(fusion, powers, [1, 0])
    flat = [builders.reshape(fusion, t, [-1]) for t in (powers, transposed)]
    fusion.add_output(builders.add(fusion, *flat))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["pointwise", "pointwise"]
    check(segmented, float_inputs(fusion, (4, 6)))


def test_view_that_another_segment_reads_is_stored_dense() -> None:
    fusion = Fusion()
    transposed = builders.segment_set(fusion, builders.permute(fusion, tensor(fusion, 2), [1, 0]))
    fusion.add_output(builders.sin(fusion, transposed))
    segmented = segment(fusion)
    assert schedulers(segmented) == ["transpose", "pointwise"]
    check(segmented, float_inputs(fusion, (4, 6)))


def test_column_sums_of_a_backward_are_joined() -> None:
    """Layer norm's backward: for few rows, both parameters' gradients in a kernel of their own."""
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
    for rows, names in (
        (6, ["inner_persistent", "reduction"]),
        (96, ["inner_outer_persistent"]),
    ):
        segmented = segment(run(fusion), size_info({"i0": rows, "i1": 8}, workers=4))
        assert schedulers(segmented) == names
        check(segmented, float_inputs(fusion, (rows, 8), (rows, 8), (8,)))


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


def test_a_cut_does_not_depend_on_the_addresses_of_objects() -> None:
    """The gradient of a normalised vector: of two tensors that the sum reads, one is across the
    memory of the other, and which is merged with it first decides about the second.
    """
    fusion = Fusion()
    batch, rows, columns = (fusion.new_extent() for _ in range(3))
    length = tensor_of(fusion, [batch, rows])
    slope, other = (tensor_of(fusion, [batch, rows, columns]) for _ in range(2))
    across = builders.permute(fusion, tensor_of(fusion, [batch, columns, rows]), [0, 2, 1])
    least = builders.broadcast(
        fusion, builders.maximum(fusion, length, 1e-12), [False, False, True]
    )
    unit = builders.div(fusion, builders.div(fusion, across, least), least)
    product = builders.mul(fusion, builders.neg(fusion, slope), unit)
    total = builders.mul(fusion, builders.sum(fusion, product, [2], True), other)
    fusion.add_output(builders.add(fusion, builders.div(fusion, slope, least), total))
    sizes = size_info(
        dict(zip([str(s) for s in (batch, rows, columns)], (16, 32, 64), strict=True))
    )
    found, choice = [], random.Random(0)
    for _ in range(40):
        kept = [bytes(choice.randrange(16, 480)) for _ in range(choice.randrange(100, 3000))]
        choice.shuffle(kept)
        del kept[::2]  # the next objects fill the gaps
        copy, _ = fusion.clone()
        found.append(schedulers(segment(copy, sizes)))
    assert found == [["transpose", "inner_persistent"]] * 40


# -- random graphs


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
        # The schedulers accept what the summaries accept: no group was cut in halves.
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
