"""Data that kernels of one fusion pass to each other in memory: cheap tensors are recomputed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pyfuser.dtypes import DataType
from pyfuser.interface import CompiledFusion
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.scalar_queries import evaluate as evaluate_size
from pyfuser.ir.segmented import SegmentedFusion
from pyfuser.ir.vals import TensorView, Val
from pyfuser.ops import builders
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run
from pyfuser.schedule.size_info import SizeInfo
from tests.segment.fusions import check, float_inputs, schedulers, softmax, tensor
from tests.support.targets import segment, size_info

FLOAT, HALF = DataType.Float, DataType.BFloat16


def whole(tensors: list[Val]) -> list[TensorView]:
    """The tensors that have rows and columns."""
    found = [t for t in tensors if isinstance(t, TensorView) and len(t.axes) == 2]
    return [t for t in found if not any(axis.is_broadcast for axis in t.axes)]


def between(segmented: SegmentedFusion) -> list[TensorView]:
    """The whole tensors that one kernel writes for another only."""
    written = [t for part in segmented.segments for t in part.outputs]
    return [t for t in whole(list(written)) if t not in segmented.fusion.outputs]


def reads(segmented: SegmentedFusion) -> list[int]:
    """How many whole tensors each kernel reads."""
    return [len(whole(part.inputs)) for part in segmented.segments]


class Backward:
    """Layer norm's backward over saved statistics, with the ops before and after it."""

    def __init__(self, fusion: Fusion, dtype: DataType = FLOAT) -> None:
        self.fusion = fusion
        x, dy = (
            builders.cast(fusion, tensor(fusion, 2, dtype), FLOAT)
            if dtype is not FLOAT
            else tensor(fusion, 2)
            for _ in range(2)
        )
        mean, rstd, weight = (tensor(fusion, 1) for _ in range(3))
        self.x, self.dy, self.weight = x, dy, weight
        self.mean = builders.broadcast(fusion, mean, [False, True])
        self.rstd = builders.broadcast(fusion, rstd, [False, True])

    def gradients(self, dy: Val) -> tuple[Val, Val, Val]:
        """Those of the input, the weight and the bias."""
        f = self.fusion
        xhat = builders.mul(f, builders.sub(f, self.x, self.mean), self.rstd)
        slope = builders.mul(f, dy, self.weight)
        along, across = (
            builders.div(f, builders.sum(f, t, [1], True), builders.size(f, self.x, 1))
            for t in (builders.mul(f, slope, xhat), slope)
        )
        inner = builders.sub(f, builders.sub(f, slope, across), builders.mul(f, xhat, along))
        of_weight = builders.sum(f, builders.mul(f, dy, xhat), [0])
        return builders.mul(f, inner, self.rstd), of_weight, builders.sum(f, dy, [0])


def cut_of(
    fusion: Fusion, *shapes: tuple[int, ...], sizes: SizeInfo | None = None
) -> SegmentedFusion:
    """The segments, after comparing their results with the whole fusion, and with kernels."""
    simplified = run(fusion)
    segmented = segment(simplified, sizes)
    inputs = float_inputs(fusion, *shapes)
    check(segmented, inputs)
    results = CompiledFusion(fusion).execute(inputs)
    for got, wanted in zip(results, evaluate(fusion, inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)
    return segmented


SHAPES: list[tuple[int, ...]] = [(24, 40), (24, 40), (24,), (24,), (40,)]
# Too few rows for the workers to add up columns while they process rows.
FEW_ROWS = size_info({f"i{n}": 40 for n in range(10)} | {"i0": 24}, workers=16)


def test_layer_norm_backward_reads_its_operands_once() -> None:
    fusion = Fusion()
    made = Backward(fusion)
    for output in made.gradients(made.dy):
        fusion.add_output(output)
    segmented = cut_of(fusion, *SHAPES)
    assert schedulers(segmented) == ["inner_outer_persistent"]
    assert between(segmented) == [] and reads(segmented) == [2]
    segmented = cut_of(fusion, *SHAPES, sizes=FEW_ROWS)
    assert schedulers(segmented) == ["inner_persistent", "reduction"]
    assert between(segmented) == [] and reads(segmented) == [2, 2]


def test_half_precision_is_read_as_stored() -> None:
    fusion = Fusion()
    made = Backward(fusion, HALF)
    for output in made.gradients(made.dy):
        fusion.add_output(output)
    segmented = cut_of(fusion, *SHAPES)
    assert between(segmented) == []
    assert all(t.dtype is HALF for part in segmented.segments for t in whole(part.inputs))


def test_sum_of_gradients_before_a_layer_norm_is_computed_again() -> None:
    fusion = Fusion()
    made = Backward(fusion)
    total = builders.add(fusion, made.dy, tensor(fusion, 2))
    for output in made.gradients(total):
        fusion.add_output(output)
    segmented = cut_of(fusion, *SHAPES, (24, 40), sizes=FEW_ROWS)
    assert between(segmented) == [] and reads(segmented) == [3, 3]


def test_a_reshape_is_computed_again() -> None:
    """A group norm's gradients: the channels' sums read the operands, not what the rows made."""
    fusion = Fusion()
    dy, x = tensor(fusion, 3), tensor(fusion, 3)
    sizes = [builders.size(fusion, dy, d) for d in range(3)]
    groups, shape = builders.div(fusion, sizes[1], 4), [sizes[0], 0, 4, sizes[2]]
    shape[1] = groups
    grad, value = (builders.reshape(fusion, t, shape) for t in (dy, x))
    slope = builders.mul(fusion, grad, value)
    inner = builders.sub(fusion, slope, builders.sum(fusion, slope, [2, 3], True))
    fusion.add_output(builders.mul(fusion, inner, value))
    fusion.add_output(builders.sum(fusion, slope, [0, 3]))
    segmented = cut_of(fusion, (6, 8, 40), (6, 8, 40))
    assert schedulers(segmented) == ["inner_persistent", "reduction"]
    assert between(segmented) == []


def test_what_is_stored_anyhow_is_read() -> None:
    """The sum is an output: to read it is cheaper than to read both its operands again."""
    fusion = Fusion()
    made = Backward(fusion)
    total = builders.add(fusion, made.dy, tensor(fusion, 2))
    for output in (total, *made.gradients(total)):
        fusion.add_output(output)
    segmented = cut_of(fusion, *SHAPES, (24, 40), sizes=FEW_ROWS)
    assert between(segmented) == [] and reads(segmented) == [3, 2]


def test_residual_and_bias_sum_after_a_layer_norm() -> None:
    """Six passes over memory: the rows' sums, then gradient, residual and the columns' sums."""
    fusion = Fusion()
    made = Backward(fusion)
    gradient, *others = made.gradients(made.dy)
    total = builders.add(fusion, gradient, tensor(fusion, 2))
    for output in (total, builders.sum(fusion, total, [0]), *others):
        fusion.add_output(output)
    segmented = cut_of(fusion, *SHAPES, (24, 40), sizes=FEW_ROWS)
    assert between(segmented) == [] and reads(segmented) == [2, 3]


def test_gradient_stays_with_the_sums_of_its_rows() -> None:
    """Softmax's backward and a bias: the column sum reads the gradient, not both operands."""
    fusion = Fusion()
    dy, y = tensor(fusion, 2), tensor(fusion, 2)
    dot = builders.sum(fusion, builders.mul(fusion, dy, y), [1], True)
    gradient = builders.mul(fusion, builders.sub(fusion, dy, dot), y)
    fusion.add_output(gradient)
    fusion.add_output(builders.sum(fusion, gradient, [0]))
    segmented = cut_of(fusion, (24, 40), (24, 40), sizes=FEW_ROWS)
    assert schedulers(segmented) == ["inner_persistent", "reduction"]
    assert reads(segmented) == [2, 1]


def _across(fusion: Fusion, make: Callable[[TensorView], Val]) -> SegmentedFusion:
    """A tensor that a sum over rows and a sum over columns read."""
    shared = make(tensor(fusion, 2))
    for dim in (0, 1):
        fusion.add_output(builders.sum(fusion, shared, [dim]))
    return cut_of(fusion, (24, 40), sizes=FEW_ROWS)


def test_expensive_tensors_are_stored_and_cheap_ones_are_not() -> None:
    fusion = Fusion()
    assert len(between(_across(fusion, lambda x: builders.tanh(fusion, x)))) == 1
    fusion = Fusion()
    assert between(_across(fusion, lambda x: builders.mul(fusion, x, 3.0))) == []


def test_long_chains_are_stored() -> None:
    def chain(fusion: Fusion, length: int) -> Callable[[TensorView], Val]:
        def make(x: TensorView) -> Val:
            current: Val = x
            for _ in range(length):
                current = builders.mul(fusion, builders.add(fusion, current, 1.5), x)
            return current

        return make

    for length, stored in ((3, 0), (5, 1)):
        fusion = Fusion()
        assert len(between(_across(fusion, chain(fusion, length)))) == stored


def test_more_sources_than_saved_are_not_read() -> None:
    """Four operands in place of one: seven passes instead of six."""
    fusion = Fusion()
    total: Val = tensor(fusion, 2)
    for _ in range(3):
        total = builders.add(fusion, total, tensor(fusion, 2))
    for dim in (0, 1):
        fusion.add_output(builders.sum(fusion, total, [dim]))
    segmented = cut_of(fusion, *[(24, 40)] * 4, sizes=FEW_ROWS)
    assert len(between(segmented)) == 1 and reads(segmented) == [4, 1]


def test_segment_set_is_a_cut_in_spite_of_cheapness() -> None:
    fusion = Fusion()
    kept = builders.segment_set(fusion, builders.mul(fusion, tensor(fusion, 2), 2.0))
    fusion.add_output(builders.add(fusion, kept, 1.0))
    segmented = cut_of(fusion, (24, 40))
    assert schedulers(segmented) == ["pointwise", "pointwise"] and len(between(segmented)) == 1


def test_a_part_that_only_made_what_others_compute_again_is_gone() -> None:
    """Both normalisations scale their operand themselves: no kernel is left that only scales."""
    fusion = Fusion()
    x, w = tensor(fusion, 2), tensor(fusion, 1)
    scaled = builders.mul(fusion, x, builders.add(fusion, w, 1.0))
    fusion.add_output(softmax(fusion, scaled, 0))
    fusion.add_output(softmax(fusion, scaled, 1))
    segmented = cut_of(fusion, (24, 40), (40,))
    assert sorted(schedulers(segmented)) == ["inner_persistent", "outer_persistent"]
    assert between(segmented) == []


def test_sizes_that_nobody_said_are_told_apart_by_rank() -> None:
    """Three vectors are less to read than their outer product, whatever the sizes."""
    fusion = Fusion()
    rows = [builders.broadcast(fusion, tensor(fusion, 1), [False, True]) for _ in range(2)]
    column = builders.broadcast(fusion, tensor(fusion, 1), [True, False])
    outer = builders.mul(fusion, builders.add(fusion, *rows), column)
    for dim in (0, 1):
        fusion.add_output(builders.sum(fusion, outer, [dim]))
    simplified = run(fusion)
    for sizes in ({}, {"i0": 64, "i1": 64, "i2": 64}):
        segmented = segment(simplified, size_info(sizes))
        assert between(segmented) == []
        check(segmented, float_inputs(fusion, (64,), (64,), (64,)))


def test_output_and_its_column_sum_are_one_pass_without_a_buffer() -> None:
    """Between the output's loops and the sum's nothing is kept but registers and the sums."""
    for dims in ([0], [0, 1], [1]):
        fusion = Fusion()
        doubled = builders.mul(fusion, tensor(fusion, 2), 2.0)
        fusion.add_output(doubled)
        fusion.add_output(builders.sum(fusion, doubled, dims))
        compiled = CompiledFusion(fusion)
        x = torch.randn(2048, 1024)
        for got, wanted in zip(compiled.execute([x]), evaluate(fusion, [x]), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-2)
        (kernel,) = compiled.executor.resolve([x]).kernels
        assert kernel is not None
        sizes = {"i0": 2048, "i1": 1024}
        assert sum(evaluate_size(b.bytes, sizes) for b in kernel.kernel.scratch) < 1 << 18
