"""What each pass before segmentation must do, and what it must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyfuser.dtypes import DataType, holds_every_value, to_torch
from pyfuser.interface import CompiledFusion
from pyfuser.ir.domains import TensorDomain
from pyfuser.ir.fusion import Fusion, plain_domain
from pyfuser.ir.scalars import Integer
from pyfuser.ir.vals import TensorView
from pyfuser.ops import builders
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run
from pyfuser.schedule.registry import scheduler
from tests.segment.fusions import tensor
from tests.support.targets import size_info

from .fusions import names, outputs_of, with_empty_axis

FLOAT, DOUBLE, HALF, INT = DataType.Float, DataType.Double, DataType.Half, DataType.Int


def simplified_names(build: Callable[[Fusion], TensorView]) -> list[str]:
    fusion = Fusion()
    fusion.add_output(build(fusion))
    return names(run(fusion))


def _halved(fusion: Fusion) -> TensorView:
    x = builders.cast(fusion, tensor(fusion, 1), HALF)
    return builders.exp(fusion, builders.cast(fusion, x, FLOAT))


def _doubled(fusion: Fusion) -> TensorView:
    x = builders.cast(fusion, tensor(fusion, 1), DOUBLE)
    return builders.exp(fusion, builders.cast(fusion, x, FLOAT))


def _copied(fusion: Fusion) -> TensorView:
    x = builders.set(fusion, builders.set(fusion, tensor(fusion, 1)))
    return builders.exp(fusion, x)


def _cut(fusion: Fusion) -> TensorView:
    return builders.exp(fusion, builders.segment_set(fusion, tensor(fusion, 1)))


def _float_plus_zero(fusion: Fusion) -> TensorView:
    return builders.exp(fusion, builders.add(fusion, tensor(fusion, 1), 0.0))


def _int_plus_zero(fusion: Fusion) -> TensorView:
    return builders.neg(fusion, builders.add(fusion, tensor(fusion, 1, INT), 0))


def _int_times_float_one(fusion: Fusion) -> TensorView:
    return builders.neg(fusion, builders.mul(fusion, tensor(fusion, 1, INT), 1.0))


def _negated_twice(fusion: Fusion) -> TensorView:
    x = builders.neg(fusion, builders.neg(fusion, tensor(fusion, 1)))
    return builders.exp(fusion, x)


def _kept_and_squeezed(fusion: Fusion) -> TensorView:
    total = builders.sum(fusion, tensor(fusion, 2), [1], True)
    return builders.exp(fusion, builders.squeeze(fusion, total, [1]))


def _broadcast_twice(fusion: Fusion) -> TensorView:
    wide = builders.broadcast(fusion, tensor(fusion, 1), [False, True])
    return builders.exp(fusion, builders.broadcast(fusion, wide, [True, False, False]))


def _expanded_and_squeezed(fusion: Fusion) -> TensorView:
    """The axis dropped is not the one added: the two stay."""
    wide = builders.broadcast(fusion, tensor(fusion, 2), [False, True, False])
    return builders.exp(fusion, builders.permute(fusion, wide, [2, 0, 1]))


def _permuted_twice(fusion: Fusion) -> TensorView:
    transposed = builders.permute(fusion, tensor(fusion, 3), [1, 2, 0])
    return builders.exp(fusion, builders.permute(fusion, transposed, [1, 2, 0]))


def _same_with_other_constants(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 1)
    positive, negative = builders.mul(fusion, x, 0.0), builders.mul(fusion, x, -0.0)
    return builders.add(fusion, positive, negative)


def _same_reshapes(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 2)
    first, second = (builders.reshape(fusion, x, [-1]) for _ in range(2))
    return builders.add(fusion, first, second)


def _same_sums(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 2)
    first, second = (builders.sum(fusion, x, [0]) for _ in range(2))
    return builders.add(fusion, first, second)


def _other_sums(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 2)
    first, second = (builders.sum(fusion, x, [dim]) for dim in (0, 1))
    return builders.add(fusion, builders.sum(fusion, first, [0]), builders.sum(fusion, second, [0]))


SIMPLIFIED: list[tuple[Callable[[Fusion], TensorView], list[str]]] = [
    (_halved, ["cast", "cast", "exp"]),
    (_doubled, ["exp"]),
    (_copied, ["exp"]),
    (_cut, ["segment_set", "exp"]),
    (_float_plus_zero, ["add", "exp"]),
    (_int_plus_zero, ["neg"]),
    (_int_times_float_one, ["cast", "neg"]),
    (_negated_twice, ["exp"]),
    (_kept_and_squeezed, ["sum", "exp"]),
    (_broadcast_twice, ["broadcast", "exp"]),
    (_expanded_and_squeezed, ["broadcast", "permute", "exp"]),
    (_permuted_twice, ["permute", "exp"]),
    (_same_with_other_constants, ["mul", "mul", "add"]),
    (_same_reshapes, ["reshape", "add"]),
    (_same_sums, ["sum", "add"]),
    (_other_sums, ["sum", "sum", "sum", "sum", "add"]),
]


@pytest.mark.parametrize(("build", "expected"), SIMPLIFIED)
def test_simplified(build: Callable[[Fusion], TensorView], expected: list[str]) -> None:
    assert simplified_names(build) == expected


def test_outputs_stay_the_values_they_are() -> None:
    """An output that equals an input, or another output, becomes a copy."""
    fusion = Fusion()
    x = tensor(fusion, 2)
    same = [builders.sum(fusion, x, [0]) for _ in range(2)]
    outputs_of(fusion, builders.mul(fusion, x, 1.0), *same)
    simplified = run(fusion)
    assert names(simplified) == ["sum", "set", "set"]
    assert [v.name for v in simplified.outputs] == [v.name for v in fusion.outputs]
    given_x = torch.randn(3, 4)
    for old, new in zip(evaluate(fusion, [given_x]), evaluate(simplified, [given_x]), strict=True):
        assert torch.equal(old, new)


def test_hidden_outputs_and_aliases_are_kept() -> None:
    fusion = Fusion()
    x = tensor(fusion, 1)
    fusion.add_output(builders.mul(fusion, x, 1.0), x)
    fusion.add_output(builders.exp(fusion, x))
    simplified = run(fusion)
    assert simplified.hidden_outputs == {simplified.outputs[0]}
    assert simplified.aliases == {simplified.outputs[0]: simplified.inputs[0]}


def test_copy_that_changes_the_layout_stays() -> None:
    fusion = Fusion()
    x = tensor(fusion, 2)
    fusion.add_output(builders.stride_order(fusion, builders.mul(fusion, x, 1.0), [0, 1]))
    simplified = run(fusion)
    assert names(simplified) == ["set"]
    output = simplified.outputs[0]
    assert isinstance(output, TensorView)
    assert output.domain.allocation == output.axes[::-1]


def test_constant_sizes_win() -> None:
    fusion = Fusion()
    x, y = tensor(fusion, 1), tensor(fusion, 1)
    fixed = fusion.new_tensor(plain_domain([fusion.ids.new(Integer.of(4))]), FLOAT)
    fusion.add_input(fixed)
    fusion.add_output(builders.add(fusion, builders.add(fusion, x, y), fixed))
    simplified = run(fusion)
    assert {str(t.axes[0].extent) for t in simplified.tensors} == {"4"}
    assert simplified.equal_extents == []


def test_size_that_a_scalar_gives_is_compared_at_run_time() -> None:
    fusion = Fusion()
    length = fusion.new_scalar(INT, extent=fusion.new_extent())
    fusion.add_input(length)
    ones = builders.full(fusion, [length], 1.0, FLOAT)
    fusion.add_output(builders.add(fusion, tensor(fusion, 1), ones))
    simplified = run(fusion)
    assert len(simplified.equal_extents) == 1
    assert evaluate(simplified, [3, torch.zeros(3)])[0].tolist() == [1.0, 1.0, 1.0]


def test_reductions_over_nothing_are_their_identities() -> None:
    fusion = Fusion()
    x = with_empty_axis(fusion)
    variance, mean = builders.var_mean(fusion, x, [1], 1, True)
    outputs_of(fusion, builders.sum(fusion, x, [1]), builders.prod(fusion, x, [1]), variance, mean)
    outputs_of(fusion, builders.neg(fusion, x), builders.max(fusion, x, [0]))
    simplified = run(fusion)
    assert not {"sum", "prod", "max", "welford", "neg"} & set(names(simplified))
    inputs = [torch.empty(3, 0)]
    for old, new in zip(evaluate(fusion, inputs), evaluate(simplified, inputs), strict=True):
        torch.testing.assert_close(new, old, equal_nan=True)


def test_empty_output_keeps_its_layout() -> None:
    fusion = Fusion()
    axes = [fusion.ids.new(fusion.new_extent()), fusion.ids.new(Integer.of(0))]
    x = fusion.new_tensor(TensorDomain(axes, [True, True]), FLOAT)
    fusion.add_input(x)
    fusion.add_output(builders.stride_order(fusion, x, [0, 1]))
    output = run(fusion).outputs[0]
    assert isinstance(output, TensorView)
    assert output.domain.allocation == output.axes[::-1]


EXACT = [(s, t) for s in DataType for t in DataType if s is not t and holds_every_value(t, s)]


@pytest.mark.parametrize(("source", "target"), EXACT)
def test_conversions_that_lose_nothing(source: DataType, target: DataType) -> None:
    """Values that must survive a conversion do: extremes, neighbours of 1, subnormals."""
    dtype = to_torch(source)
    if dtype is torch.bool:
        values = torch.tensor([False, True])
    elif dtype.is_floating_point:
        info = torch.finfo(dtype)
        values = torch.tensor(
            [info.max, info.min, info.tiny, info.smallest_normal * info.eps, 1 + info.eps, -0.0],
            dtype=dtype,
        )
    else:
        limits = torch.iinfo(dtype)
        values = torch.tensor([limits.max, limits.min, limits.max - 1, 1, 0], dtype=dtype)
    assert torch.equal(values.to(to_torch(target)).to(dtype), values)


def test_rounding_is_never_dropped() -> None:
    assert not holds_every_value(HALF, FLOAT)
    assert not holds_every_value(HALF, DataType.BFloat16)
    assert not holds_every_value(DataType.BFloat16, HALF)
    assert not holds_every_value(FLOAT, DataType.Int32)
    assert not holds_every_value(INT, FLOAT)


def _distances(fusion: Fusion) -> TensorView:
    """The parts of relative positions: a scaled position, as a row and as a column."""
    x = tensor(fusion, 2)
    line = builders.iota(fusion, builders.size(fusion, x, 1), dtype=INT)
    scaled = builders.cast(fusion, builders.mul(fusion, line, 2), FLOAT)
    row = builders.broadcast(fusion, scaled, [True, False])
    column = builders.broadcast(fusion, scaled, [False, True])
    distance = builders.abs(fusion, builders.sub(fusion, row, column))
    return builders.exp(fusion, builders.mul(fusion, builders.add(fusion, x, distance), -0.5))


def test_position_as_row_and_column_is_one_kernel() -> None:
    fusion = Fusion()
    fusion.add_output(_distances(fusion))
    assert "orders differently" in str(scheduler("pointwise").can_schedule(fusion, size_info()))
    simplified = run(fusion)
    assert scheduler("pointwise").can_schedule(simplified, size_info()) is None
    # An additional iota, product and cast; the input and expensive ops occur once.
    assert len(simplified.exprs) == len(fusion.exprs) + 3 and names(simplified).count("exp") == 1
    x = torch.randn(5, 5)
    (result,) = CompiledFusion(fusion).execute([x])
    torch.testing.assert_close(result, evaluate(fusion, [x])[0])


def test_constants_stay_shared_where_orders_agree() -> None:
    fusion = Fusion()
    x = tensor(fusion, 1)
    line = builders.iota(fusion, builders.size(fusion, x, 0), dtype=INT)
    pair = [op(fusion, builders.add(fusion, x, line)) for op in (builders.sin, builders.cos)]
    fusion.add_output(builders.mul(fusion, builders.add(fusion, *pair), line))
    assert names(run(fusion)).count("iota") == 1


def test_expensive_constants_are_not_computed_again() -> None:
    fusion = Fusion()
    x = tensor(fusion, 1)
    line = builders.iota(fusion, builders.size(fusion, x, 0), dtype=INT)
    power = builders.exp(fusion, builders.cast(fusion, line, FLOAT))
    row = builders.broadcast(fusion, power, [True, False])
    fusion.add_output(builders.sub(fusion, row, builders.broadcast(fusion, power, [False, True])))
    assert names(run(fusion)).count("exp") == 1


# -- slices that a cat joins again


def test_slices_that_a_cat_joins_again_disappear() -> None:
    def static(fusion: Fusion, cuts: list[int]) -> tuple[TensorView, list[TensorView]]:
        axes = [fusion.ids.new(Integer.of(size)) for size in (6, 8)]
        x = fusion.new_tensor(plain_domain(axes), FLOAT)
        fusion.add_input(x)
        pairs = zip(cuts, [*cuts[1:], 8], strict=True)
        return x, [builders.slice(fusion, x, [0, a], [6, b]) for a, b in pairs]

    def left(build: Callable[..., TensorView], cuts: list[int]) -> list[str]:
        fusion = Fusion()
        x, parts = static(fusion, cuts)
        fusion.add_output(build(fusion, x, parts))
        simplified = run(fusion)
        inputs = [torch.randn(6, 8, generator=torch.Generator().manual_seed(1))]
        for old, new in zip(evaluate(fusion, inputs), evaluate(simplified, inputs), strict=True):
            torch.testing.assert_close(new, old, rtol=0, atol=0)
        return names(simplified)

    def scaled(fusion: Fusion, x: TensorView, parts: list[TensorView]) -> TensorView:
        return builders.cat(fusion, [builders.mul(fusion, p, 2.0) for p in parts], 1)

    def squared(fusion: Fusion, x: TensorView, parts: list[TensorView]) -> TensorView:
        return builders.cat(
            fusion, [builders.mul(fusion, p, builders.exp(fusion, p)) for p in parts], 1
        )

    def transposed(fusion: Fusion, x: TensorView, parts: list[TensorView]) -> TensorView:
        turned = [builders.permute(fusion, builders.neg(fusion, p), [1, 0]) for p in parts]
        return builders.cat(fusion, turned, 0)

    def unlike(fusion: Fusion, x: TensorView, parts: list[TensorView]) -> TensorView:
        first, *others = parts
        made = [builders.mul(fusion, first, 3.0)]
        return builders.cat(fusion, [*made, *(builders.mul(fusion, p, 2.0) for p in others)], 1)

    def swapped(fusion: Fusion, x: TensorView, parts: list[TensorView]) -> TensorView:
        return builders.cat(fusion, [builders.neg(fusion, p) for p in reversed(parts)], 1)

    def read(fusion: Fusion, x: TensorView, parts: list[TensorView]) -> TensorView:
        made = [builders.exp(fusion, p) for p in parts]
        fusion.add_output(made[0])
        return builders.cat(fusion, made, 1)

    assert left(scaled, [0, 3]) == ["mul", "set"]
    assert left(scaled, [0, 3, 4]) == ["mul", "set"]
    assert left(squared, [0, 3]) == ["exp", "mul", "set"]
    assert left(transposed, [0, 2, 5]) == ["neg", "permute", "set"]
    assert left(scaled, [2, 5]) == ["slice", "mul", "set"]
    for build in (unlike, swapped, read):
        assert "pad" in left(build, [0, 3])
