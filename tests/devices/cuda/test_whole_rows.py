"""Rows that their threads' vectors hold: without conditions on elements, or one for each vector."""

from __future__ import annotations

import re

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.devices.cuda.codegen import generate
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ops import builders
from pyfuser.ops.binding import bind
from pyfuser.ops.evaluator import evaluate
from pyfuser.schedule.registry import scheduler
from pyfuser.target.parameters import InnerOuterParameters
from pyfuser.target.thread_parameters import ThreadedReduction
from tests.cuda.emulate import cuda_kernel, run_emulated
from tests.cuda.examples import input_tensor
from tests.cuda.host_compiler import requires_host_compiler

ROWS = ThreadedReduction(True, 32, 2, 0, 1, lines=2, vector=4, is_whole=True)
FULL = ThreadedReduction(True, 32, 2, 0, 1, lines=2, vector=4, is_whole=True, is_full=True)


def softmax(fusion: Fusion, parameters: ThreadedReduction) -> ScheduledFusion:
    x = input_tensor(fusion, 2)
    power = builders.exp(fusion, builders.sub(fusion, x, builders.max(fusion, x, [1], True)))
    total = builders.sum(fusion, power, [1], True)
    fusion.add_output(builders.div(fusion, power, total))
    return scheduler("inner_persistent").schedule(fusion, parameters)


def rows_and_columns(fusion: Fusion, parameters: ThreadedReduction) -> ScheduledFusion:
    """x minus the mean of its row, weighted; and the sums of the columns."""
    x, weight = input_tensor(fusion, 2), input_tensor(fusion, 1)
    total = builders.sum(fusion, x, [1], True)
    scaled = builders.mul(fusion, x, builders.broadcast(fusion, weight, [True, False]))
    fusion.add_output(builders.sub(fusion, scaled, total))
    fusion.add_output(builders.sum(fusion, builders.mul(fusion, x, total), [0]))
    chosen = InnerOuterParameters(parameters, ())
    return scheduler("inner_outer_persistent").schedule(fusion, chosen)


def inputs_of(fusion: Fusion, rows: int, columns: int, start: int) -> list[torch.Tensor]:
    """Contiguous tensors that begin `start` elements after an aligned address."""
    made = []
    for tensor in fusion.input_tensors:
        shape = (rows, columns)[-len(tensor.axes) :]
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        made.append(torch.randn(size + start)[start:].view(shape))
    return made


@requires_host_compiler
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    ("parameters", "columns"), [(FULL, 256), (ROWS, 256), (ROWS, 252), (ROWS, 132), (ROWS, 4)]
)
@pytest.mark.parametrize("define", [softmax, rows_and_columns], ids=lambda each: each.__name__)
def test_whole_rows_are_right(define, parameters, columns, start):
    fusion = Fusion()
    scheduled = define(fusion, parameters)
    inputs = inputs_of(fusion, 5, columns, start)
    sizes = bind(fusion, inputs).sizes
    assert cuda_kernel(scheduled).is_for(sizes)
    for got, want in zip(run_emulated(scheduled, inputs), evaluate(fusion, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@requires_host_compiler
@pytest.mark.parametrize("columns", [3, 4, 8, 128, 129])
@pytest.mark.parametrize("dims", [[0], [1], [0, 1]])
def test_no_rows(dims, columns):
    """Nothing is read where a whole row has no elements."""
    with emulated(), FusionDefinition() as fd:
        x = fd.define_tensor([-1, columns])
        fd.add_output(fd.ops.sum(x, dims))
    for rows in (0, 5, 0):
        x = torch.randn(rows, columns)
        with emulated():
            torch.testing.assert_close(fd.execute([x])[0], x.sum(dims), rtol=1e-4, atol=1e-4)


def test_a_kernel_for_full_rows_is_not_for_empty_ones():
    fusion = Fusion()
    full = cuda_kernel(softmax(fusion, FULL))
    assert not full.is_for(bind(fusion, inputs_of(fusion, 3, 0, 0)).sizes)


@pytest.mark.parametrize("define", [softmax, rows_and_columns], ids=lambda each: each.__name__)
def test_rows_of_another_length_are_refused(define):
    fusion = Fusion()
    full = cuda_kernel(define(fusion, FULL))
    shorter = cuda_kernel(define(Fusion(), ROWS))
    for columns, is_full, is_whole in ((256, 1, 1), (252, 0, 1), (255, 0, 0), (260, 0, 0)):
        sizes = bind(fusion, inputs_of(fusion, 3, columns, 0)).sizes
        assert full.is_for(sizes) == is_full
        assert shorter.is_for(sizes) == is_whole


def test_a_vector_is_in_bounds_or_is_not():
    text = generate(cuda_kernel(softmax(Fusion(), ROWS))).text
    conditions = {c for c in re.findall(r"if \((.*)\) \{", text) if "threadIdx_x" in c}
    assert len({re.sub(r"j\d+", "j", c) for c in conditions}) == 1
    assert "j4*128 + threadIdx_x*4 < i1" in conditions


def test_rows_that_are_not_full_have_their_code_once():
    """No block of them is whole: the vectors of a row have conditions in each."""
    text = generate(cuda_kernel(softmax(Fusion(), ROWS))).text
    assert text.count("block_reduce<") == 2
    assert "else" not in text


def test_full_rows_have_no_condition_on_their_elements():
    text = generate(cuda_kernel(softmax(Fusion(), FULL))).text
    assert not [c for c in re.findall(r"if \((.*)\) \{", text) if "threadIdx_x" in c]
