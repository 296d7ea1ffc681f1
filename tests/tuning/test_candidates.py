"""Candidates for measuring: which there are, and which are dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import pyfuser
from pyfuser import FusionDefinition
from pyfuser.devices.cuda.emulator.counters import Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.errors import UnsupportedError
from pyfuser.parts import KernelPart
from pyfuser.target import varied
from pyfuser.tuning import kernels
from tests.cuda.host_compiler import requires_host_compiler

from .tuned import (
    indifferent,
    likes_unroll_of_four,
    softmax,
)

pytestmark = pytest.mark.usefixtures("directory")


def test_candidates_that_fail_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    measurable = KernelPart.measurable

    def fails(self: Any, parameters: Any, *rest: Any) -> Any:
        if parameters.unroll == 4:
            raise UnsupportedError("no")
        return measurable(self, parameters, *rest)

    monkeypatch.setattr(KernelPart, "measurable", fails)
    (row,) = pyfuser.autotune(softmax(), [torch.randn(512, 1000)], cost=likes_unroll_of_four).rows
    assert row.result is not None
    assert row.result.dropped > 0
    assert not row.result.is_chosen


def test_candidates_with_other_results_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_agree", lambda outputs, references: False)
    (row,) = pyfuser.autotune(softmax(), [torch.randn(512, 1000)], cost=likes_unroll_of_four).rows
    assert row.result is not None
    assert (row.result.measured, row.result.is_chosen) == (0, False)
    assert row.result.dropped == 4


@pytest.mark.parametrize("change", [1e-2, float("nan"), float("inf")])
def test_results_have_to_agree(change: float) -> None:
    a = torch.randn(1000)
    b = a.clone()
    b[3] += change
    assert kernels._agree([a], [a * (1 + 1e-6)])
    assert not kernels._agree([a], [b])
    assert not kernels._agree([torch.tensor([1, 2])], [torch.tensor([1, 3])])


def columns(fd: FusionDefinition, *shape: int) -> Any:
    return fd.define_tensor(shape=list(shape), contiguity=True)


def define_transposed(fd: FusionDefinition) -> None:
    x, y = columns(fd, -1, -1), columns(fd, -1, -1)
    fd.add_output(fd.ops.add(x, fd.ops.permute(y, [1, 0])))


def define_short_rows(fd: FusionDefinition) -> None:
    x, bias = columns(fd, -1, -1, -1), columns(fd, -1)
    fd.add_output(fd.ops.add(x, fd.ops.broadcast(bias, [True, True, False])))


def define_slice(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.slice(columns(fd, -1, 70), [0, 3], [40, 63], [1, 1]))


def define_sums(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.sum(columns(fd, -1, -1), [1]))


def define_sums_of_columns(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.sum(columns(fd, -1, -1), [0]))


def define_normalised_columns(fd: FusionDefinition) -> None:
    x = columns(fd, -1, -1)
    power = fd.ops.exp(x)
    fd.add_output(fd.ops.div(power, fd.ops.sum(power, [0], keepdim=True)))


def define_rows_and_columns(fd: FusionDefinition) -> None:
    x, y = columns(fd, -1, -1), columns(fd, -1, -1)
    product = fd.ops.mul(x, y)
    fd.add_output(fd.ops.sub(product, fd.ops.sum(product, [1], keepdim=True)))
    fd.add_output(fd.ops.sum(product, [0]))


def define_scan(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.cumsum(columns(fd, -1, -1), 1))


def define_scan_of_columns(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.cumsum(columns(fd, -1, -1), 0))


_DEFINITIONS: list[tuple[Callable[[FusionDefinition], None], list[tuple[int, ...]], str]] = [
    (define_transposed, [(130, 70), (70, 130)], "transpose"),
    (define_short_rows, [(50, 40, 6), (6,)], "pointwise"),
    (define_slice, [(40, 70)], "resize"),
    (define_sums, [(3, 70000)], "reduction"),
    (define_sums_of_columns, [(700, 130)], "reduction"),
    (define_normalised_columns, [(130, 70)], "outer_persistent"),
    (define_rows_and_columns, [(700, 130), (700, 130)], "inner_outer_persistent"),
    (define_scan, [(20, 130)], "greedy"),
    (define_scan_of_columns, [(130, 70)], "greedy"),
]


@pytest.mark.parametrize(
    ("define", "shapes", "scheduler"), _DEFINITIONS, ids=lambda each: getattr(each, "__name__", "")
)
def test_each_scheduler_offers_few_candidates_which_are_right(
    define: Callable[[FusionDefinition], None],
    shapes: list[tuple[int, ...]],
    scheduler: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FusionDefinition() as fd:
        define(fd)
    monkeypatch.setattr(varied, "MOST_CANDIDATES", 20)
    inputs = [torch.randn(shape) for shape in shapes]
    rows = [
        row
        for row in pyfuser.autotune(fd, inputs, cost=indifferent).rows
        if row.scheduler == scheduler
    ]
    assert rows
    for row in rows:
        assert row.result is not None, row.note
        assert 1 <= row.result.measured <= varied.MOST_CANDIDATES
        assert row.result.dropped == 0
    fd.validate(inputs)


@pytest.mark.parametrize(
    ("define", "shapes", "scheduler"), _DEFINITIONS, ids=lambda each: getattr(each, "__name__", "")
)
def test_only_pointwise_fusions_have_several_schedulers(
    define: Callable[[FusionDefinition], None], shapes: list[tuple[int, ...]], scheduler: str
) -> None:
    """So parameters are varied, and schedulers aren't: one's loops are parameters of the other."""
    with FusionDefinition() as fd:
        define(fd)
        inputs = [torch.randn(shape) for shape in shapes]
        found = pyfuser.schedule.find_compatible_schedulers(fd.fusion, inputs)
    first, *others = [each.name for each in found]
    assert first == scheduler
    assert set(others) <= {"resize", "pointwise"}


def test_varied_parameters_differ_in_one_field_or_in_a_pair() -> None:
    from pyfuser.target.parameters import PointwiseParameters

    chosen = PointwiseParameters(16, 4, 0)
    values = {"lanes": [8, 16], "unroll": [2]}
    made = varied.varied(chosen, values, [("lanes", "unroll")])
    assert made == [
        replace(chosen, lanes=8),
        replace(chosen, unroll=2),
        replace(chosen, lanes=8, unroll=2),
    ]
    assert varied.around(4, 1, 8, (1, 2)) == [2, 1, 8]


@requires_host_compiler
def test_a_gpus_kernel_that_moves_fewer_sectors_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heuristics are replaced by ones that read each element by itself."""
    from pyfuser.devices.cuda import pointwise_heuristics
    from pyfuser.target.thread_parameters import ThreadedPointwise

    slow = ThreadedPointwise(1, 1, 0, lines=32)
    fast = ThreadedPointwise(32, 1, 0, lines=1)
    monkeypatch.setattr(pointwise_heuristics, "pointwise", lambda *_: slow)
    monkeypatch.setattr("pyfuser.devices.cuda.target.candidates", lambda *_: [fast])
    with FusionDefinition() as fd:
        define_transposed(fd)
    inputs = [torch.randn(64, 64), torch.randn(64, 64)]
    with emulated(profile=Profile()):
        (row,) = pyfuser.autotune(fd, inputs).rows
        assert row.result is not None
        assert row.result.best == fast
        assert row.result.is_chosen
        fd.validate(inputs)
