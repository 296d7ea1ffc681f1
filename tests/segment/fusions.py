"""Fusions for the tests of segmentation and earlier stages, and the check of a cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from pyfuser.dtypes import DataType
from pyfuser.ir.fusion import Fusion, plain_domain
from pyfuser.ir.scalars import IntExpr
from pyfuser.ir.segmented import SegmentedFusion, segment_fusion
from pyfuser.ir.vals import TensorView, Val
from pyfuser.ir.verify import verify_segmented
from pyfuser.ops import builders
from pyfuser.ops.binding import bind
from pyfuser.ops.evaluator import evaluate

Build = Callable[[Fusion], None]


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
        (0.06, lambda: full.append(_transposed(fusion, recent(full)))),
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


def _transposed(fusion: Fusion, x: TensorView) -> TensorView:
    transposed = builders.sin(fusion, builders.permute(fusion, x, [1, 0]))
    made: TensorView = builders.permute(fusion, transposed, [1, 0])
    return made


def _rounded(fusion: Fusion, x: TensorView) -> TensorView:
    half = builders.cast(fusion, builders.sin(fusion, x), DataType.Half)
    made: TensorView = builders.cast(fusion, half, DataType.Float)
    return made


RANDOM_SHAPES = [(5, 7)] * 4 + [(5,), (7,)]
