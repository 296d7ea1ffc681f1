"""The passes before segmentation: each does what its docstring says, and no output changes."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyfuser.dtypes import DataType
from pyfuser.ir.fusion import Fusion, plain_domain
from pyfuser.ir.scalars import Integer
from pyfuser.ir.vals import TensorView
from pyfuser.ir.verify import verify_fusion
from pyfuser.ops import builders
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import PIPELINE, run
from pyfuser.preseg.dead_code import dead_code
from pyfuser.preseg.move_permutes import move_permutes
from tests.segment.fusions import RANDOM_SHAPES, float_inputs, random_fusion, tensor

from .fusions import names, with_empty_axis

FLOAT, DOUBLE, HALF, INT = DataType.Float, DataType.Double, DataType.Half, DataType.Int


# -- the examples in the passes' own text


def _dead_code(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 1)
    builders.exp(fusion, x)
    return builders.neg(fusion, x)


def _unify_extents(fusion: Fusion) -> TensorView:
    return builders.add(fusion, tensor(fusion, 1), tensor(fusion, 1))


def _empty_tensors(fusion: Fusion) -> TensorView:
    return builders.sum(fusion, builders.exp(fusion, with_empty_axis(fusion)), [1])


def _cast_chains(fusion: Fusion) -> TensorView:
    x = builders.cast(fusion, tensor(fusion, 1, HALF), FLOAT)
    return builders.neg(fusion, builders.cast(fusion, x, DOUBLE))


def _identities(fusion: Fusion) -> TensorView:
    return builders.exp(fusion, builders.mul(fusion, tensor(fusion, 1), 1.0))


def _constant_predicates(fusion: Fusion) -> TensorView:
    return builders.logical_not(fusion, builders.isnan(fusion, tensor(fusion, 1, INT)))


def _rounded_comparisons(fusion: Fusion) -> TensorView:
    x = builders.neg(fusion, tensor(fusion, 1))
    rounded = builders.cast(fusion, x, DataType.BFloat16)
    return builders.lt(fusion, rounded, 1.0)


def _rounded_selections(fusion: Fusion) -> TensorView:
    x = builders.neg(fusion, tensor(fusion, 1))
    rounded = builders.cast(fusion, x, DataType.BFloat16)
    return builders.relu(fusion, rounded)


def _one_hot_sums(fusion: Fusion) -> TensorView:
    target = fusion.new_tensor(plain_domain([fusion.ids.broadcast()]), INT)
    fusion.add_input(target)
    positions = builders.iota(fusion, builders.size(fusion, tensor(fusion, 1), 0))
    hot = builders.eq(fusion, positions, target)
    return builders.sum(fusion, builders.where(fusion, hot, -1.0, 0.0), [0])


def _broadcast_squeeze(fusion: Fusion) -> TensorView:
    wide = builders.broadcast(fusion, tensor(fusion, 1), [False, True])
    return builders.exp(fusion, builders.squeeze(fusion, wide, [1]))


def _move_permutes(fusion: Fusion) -> TensorView:
    size = fusion.new_extent()
    x = fusion.new_tensor(plain_domain([fusion.ids.new(size) for _ in range(2)]), DataType.BFloat16)
    fusion.add_input(x)
    wide = builders.cast(fusion, x, FLOAT)
    return builders.add(fusion, wide, builders.permute(fusion, wide, [1, 0]))


def _expand_permute(fusion: Fusion) -> TensorView:
    transposed = builders.permute(fusion, tensor(fusion, 2), [1, 0])
    return builders.exp(fusion, builders.permute(fusion, transposed, [1, 0]))


def _common_subexpressions(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 1)
    return builders.add(fusion, builders.exp(fusion, x), builders.exp(fusion, x))


def _two_pass_moments(fusion: Fusion) -> TensorView:
    _, squares, _ = builders.welford(fusion, tensor(fusion, 1), [0])
    return squares


def _move_windows(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 1)
    half = builders.div(fusion, builders.size(fusion, x, 0), 2)
    return builders.slice(fusion, builders.neg(fusion, x), [0], [half])


def _move_split_cat(fusion: Fusion) -> TensorView:
    x = fusion.new_tensor(plain_domain([fusion.ids.new(Integer.of(8))]), FLOAT)
    fusion.add_input(x)
    parts = [builders.slice(fusion, x, [start], [stop]) for start, stop in ((0, 3), (3, 8))]
    return builders.cat(fusion, [builders.exp(fusion, part) for part in parts], 0)


def _shared_sigmoids(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 1)
    return builders.add(fusion, builders.silu(fusion, x), builders.sigmoid(fusion, x))


def _cats_as_stacks(fusion: Fusion) -> TensorView:
    x = fusion.new_tensor(plain_domain([fusion.ids.new(Integer.of(64))]), FLOAT)
    fusion.add_input(x)
    shared = builders.exp(fusion, x)
    return builders.cat(fusion, [shared, builders.neg(fusion, shared)], 0)


def _scatter_accumulate(fusion: Fusion) -> TensorView:
    classes = tensor(fusion, 1, INT)
    column = builders.broadcast(fusion, classes, [False, True])
    zeros = builders.full(fusion, [builders.size(fusion, classes, 0), 10], 0, INT)
    return builders.sum(fusion, builders.scatter(fusion, zeros, column, 1, 1), [0])


def _move_gathers(fusion: Fusion) -> TensorView:
    x, index = tensor(fusion, 1), tensor(fusion, 1, INT)
    return builders.gather(fusion, builders.neg(fusion, x), index, 0)


def _narrow_reads(fusion: Fusion) -> TensorView:
    x, index = builders.exp(fusion, tensor(fusion, 1)), tensor(fusion, 1, INT)
    return builders.cast(fusion, builders.gather(fusion, x, index, 0), HALF)


def _nan_skipping_extrema(fusion: Fusion) -> TensorView:
    x = tensor(fusion, 1)
    centred = builders.sub(fusion, x, builders.max(fusion, x, [0], True))
    return builders.sum(fusion, builders.exp(fusion, centred), [0])


def _separate_constants(fusion: Fusion) -> TensorView:
    size = builders.size(fusion, tensor(fusion, 1), 0)
    line = builders.iota(fusion, size, dtype=DataType.Int32)
    row = builders.broadcast(fusion, line, [True, False])
    return builders.sub(fusion, row, builders.broadcast(fusion, line, [False, True]))


def _separate_expanded_outputs(fusion: Fusion) -> TensorView:
    x, size = tensor(fusion, 1), builders.size(fusion, tensor(fusion, 1), 0)
    column = builders.broadcast(fusion, x, [False, True])
    wide = builders.expand(fusion, column, [builders.size(fusion, x, 0), size])
    fusion.add_output(wide)
    return builders.exp(fusion, wide)


EXAMPLES: dict[str, Callable[[Fusion], TensorView]] = {
    "dead_code": _dead_code,
    "two_pass_moments": _two_pass_moments,
    "unify_extents": _unify_extents,
    "empty_tensors": _empty_tensors,
    "cast_chains": _cast_chains,
    "identities": _identities,
    "constant_predicates": _constant_predicates,
    "rounded_comparisons": _rounded_comparisons,
    "rounded_selections": _rounded_selections,
    "one_hot_sums": _one_hot_sums,
    "broadcast_squeeze": _broadcast_squeeze,
    "move_permutes": _move_permutes,
    "expand_permute": _expand_permute,
    "move_split_cat": _move_split_cat,
    "shared_sigmoids": _shared_sigmoids,
    "cats_as_stacks": _cats_as_stacks,
    "scatter_accumulate": _scatter_accumulate,
    "move_windows": _move_windows,
    "move_gathers": _move_gathers,
    "narrow_reads": _narrow_reads,
    "common_subexpressions": _common_subexpressions,
    "nan_skipping_extrema": _nan_skipping_extrema,
    "separate_constants": _separate_constants,
    "separate_expanded_outputs": _separate_expanded_outputs,
}


def test_every_pass_has_an_example() -> None:
    assert {simplify.__name__ for simplify in PIPELINE} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_pass_does_what_its_text_says(name: str) -> None:
    module = importlib.import_module(f"pyfuser.preseg.{name}")
    text = inspect.getdoc(module)
    assert text is not None
    blocks = re.search(r"Before:\n(.*)After:\n(.*)", text, re.DOTALL)
    assert blocks is not None
    before, after = ([line.strip() for line in b.strip().split("\n")] for b in blocks.groups())
    fusion = Fusion()
    fusion.add_output(EXAMPLES[name](fusion))
    assert [str(expr) for expr in fusion.exprs] == before
    changed = getattr(module, name)(fusion)
    verify_fusion(changed)
    assert [str(expr) for expr in changed.exprs] == after


def test_a_long_chain_beside_its_own_transpose() -> None:
    """What it costs is found without recursion; it is too much to be computed twice."""
    fusion = Fusion()
    chain = tensor(fusion, 2)
    for _ in range(2000):
        chain = builders.add(fusion, chain, 1.0)
    permuted = builders.permute(fusion, chain, [1, 0])
    fusion.add_output(builders.add(fusion, chain, permuted))
    assert move_permutes(fusion) is fusion


# -- the pipeline


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 80))
def test_outputs_stay_bit_by_bit(seed: int, count: int) -> None:
    fusion = random_fusion(count, seed)
    text = str(fusion)
    simplified = run(fusion)
    assert str(fusion) == text, "run changed the caller's fusion"
    assert [v.name for v in simplified.inputs] == [v.name for v in fusion.inputs]
    assert len(simplified.exprs) <= len(fusion.live_exprs())
    inputs = float_inputs(fusion, *RANDOM_SHAPES)
    for old, new in zip(evaluate(fusion, inputs), evaluate(simplified, inputs), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)


def test_stops_after_a_pass_and_tells_about_each() -> None:
    fusion = Fusion()
    fusion.add_output(_identities(fusion))
    seen: list[str] = []
    run(fusion, after=lambda name, _, seconds: seen.append(name))
    assert seen == [simplify.__name__ for simplify in PIPELINE]
    assert names(run(fusion, stop_after=0)) == ["mul", "exp"]
    assert names(run(fusion)) == ["exp"]


def test_links_are_right_after_a_pass() -> None:
    fusion = Fusion()
    x = tensor(fusion, 1)
    builders.exp(fusion, x)
    fusion.add_output(builders.neg(fusion, x))
    dead_code(fusion)
    assert [expr.name for expr in x.uses_list] == ["neg"]
