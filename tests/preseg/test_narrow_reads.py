"""Reads of stored tensors that are cast down: the tensors are, and no bit of a result changes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.dtypes import DataType
from pyfuser.ir.exprs import GatherOp, WindowOp
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.vals import TensorView
from pyfuser.ir.verify import verify_fusion
from pyfuser.ops import builders
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg.narrow_reads import narrow_reads
from tests.segment.fusions import tensor
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

HALF, FLOAT = DataType.Half, DataType.Float


def _padded(fill: float) -> tuple[Fusion, TensorView]:
    """A normalised row that is padded, then cast; and the pad."""
    fusion = Fusion()
    x = builders.cast(fusion, tensor(fusion, 2, HALF), FLOAT)
    row = builders.div(fusion, x, builders.sum(fusion, x, [1], True))
    pad = builders.pad(fusion, row, [2, 1], fill)
    fusion.add_output(builders.cast(fusion, pad, HALF))
    return fusion, pad


@pytest.mark.parametrize(
    ("fill", "is_narrow"), [(0.0, True), (-inf, True), (1.5, True), (0.1, False)]
)
def test_a_fill_that_rounding_changes_keeps_the_dtype(fill: float, is_narrow: bool) -> None:
    fusion, _ = _padded(fill)
    inputs = [torch.rand(5, 7).half()]
    before = evaluate(fusion, inputs)
    changed = narrow_reads(fusion)
    verify_fusion(changed)
    (pad,) = (expr for expr in changed.exprs if isinstance(expr, WindowOp))
    assert (pad.output.dtype is HALF) == is_narrow
    torch.testing.assert_close(evaluate(changed, inputs), before, rtol=0, atol=0)


def test_another_reader_keeps_the_dtype() -> None:
    fusion, pad = _padded(0.0)
    fusion.add_output(builders.neg(fusion, pad))
    text = str(fusion)
    assert str(narrow_reads(fusion)) == text


def test_an_input_is_read_as_it_is() -> None:
    """It isn't stored in another dtype to be read."""
    fusion = Fusion()
    x, index = tensor(fusion, 1), tensor(fusion, 1, DataType.Int)
    reads = [builders.gather(fusion, each, index, 0) for each in (x, builders.exp(fusion, x))]
    chosen = builders.where(fusion, builders.gt(fusion, index, 2), *reads)
    fusion.add_output(builders.cast(fusion, chosen, HALF))
    changed = narrow_reads(fusion)
    verify_fusion(changed)
    sources = [expr.source for expr in changed.exprs if isinstance(expr, GatherOp)]
    assert [each.dtype for each in sources if each is not None] == [FLOAT, HALF]


def test_the_cast_that_is_an_output_is_read() -> None:
    """Also if it comes later: it isn't stored twice."""
    fusion, pad = _padded(0.0)
    (row,) = pad.expr.tensor_inputs if pad.expr is not None else ()
    fusion.add_output(builders.cast(fusion, row, HALF))
    changed = narrow_reads(fusion)
    verify_fusion(changed)
    (read,) = (expr for expr in changed.exprs if isinstance(expr, WindowOp))
    assert read.source is changed.outputs[1]


def _cat(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x * 2, torch.sigmoid(y), x - y), 1)


def _rows(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x, 1)[torch.tensor([3, 0, 3, 1])] + 0


def _chosen(x: Tensor, y: Tensor) -> Tensor:
    padded = functional.pad(torch.softmax(x, 1), (1, 2))
    return torch.where(padded > 0.1, padded, functional.pad(torch.tanh(y), (2, 1), value=0.3))


def _written(x: Tensor, y: Tensor) -> Tensor:
    z = torch.softmax(x, 0).clone()
    z[1:3] = torch.softmax(y, 1)[:2]
    return z.t()


def _kept(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    soft = torch.softmax(x, 1)
    return torch.cat((soft, y, soft.flip(0)), 0), soft


@pytest.mark.parametrize(
    ("program", "dtype"),
    pairwise(
        [_cat, _rows, _chosen, _written, _kept],
        [torch.bfloat16, torch.float16, torch.float32],
        count=8,
    ),
)
def test_programs_with_gradients(
    program: Callable[[Tensor, Tensor], object], dtype: torch.dtype, strict: None
) -> None:
    torch.manual_seed(0)
    inputs = [(3 * torch.randn(5, 33)).to(dtype) for _ in range(2)]
    inputs[0][0, 0], inputs[1][1, 2] = inf, torch.nan
    results = []
    for call in (program, torch.compile(program, backend=BACKEND)):
        leaves = [each.clone().requires_grad_() for each in inputs]
        made = call(*leaves)
        outputs = list(made) if isinstance(made, tuple) else [made]
        sum((each.float() ** 2).sum() for each in outputs if isinstance(each, Tensor)).backward()
        results.append([*outputs, *(leaf.grad for leaf in leaves)])
    for mine, theirs in zip(results[1], results[0], strict=True):
        rounding = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(mine, theirs, rtol=rounding, atol=rounding, equal_nan=True)
