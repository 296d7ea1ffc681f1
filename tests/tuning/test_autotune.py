"""Tuning from the user's call to the kernels that later compilations run.

No test depends on time: `cost` says which candidate is fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pyfuser
from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cuda.emulator.counters import Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.errors import InputError, UnsupportedError
from pyfuser.parts import KernelPart
from pyfuser.tuning.measuring import Contestant
from pyfuser.tuning.programs import tune
from pyfuser.tuning.session import Session, during
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.folders import ROOT

from .tuned import (
    doubled,
    indifferent,
    likes_unroll_of_four,
    refuses_to_measure,
    reset,
    softmax,
    unrolls,
)

pytestmark = pytest.mark.usefixtures("directory")


# -- what is found is used


def test_what_is_better_is_stored_and_used(directory: Path) -> None:
    fd, x = softmax(), torch.randn(512, 1000)
    (usual,) = unrolls(fd, x)
    assert usual != 4
    report = pyfuser.autotune(fd, [x], cost=likes_unroll_of_four)
    (row,) = report.rows
    assert row.result is not None
    assert row.result.is_chosen
    assert (row.result.heuristic.unroll, row.result.best.unroll) == (usual, 4)
    assert row.result.ratio == 0.5
    assert (row.result.measured, row.result.dropped) == (4, 0)
    assert report.far == [row]
    assert f"unroll {usual} -> 4" in str(report)
    torch.testing.assert_close(fd.execute([x])[0], x.softmax(1))
    assert unrolls(fd, x) == unrolls(softmax(), x) == [4]
    assert len(list(directory.iterdir())) == 1


def test_the_heuristics_choice_stays_if_nothing_is_better(directory: Path) -> None:
    fd, x = softmax(), torch.randn(512, 1000)
    (row,) = pyfuser.autotune(fd, [x], cost=indifferent).rows
    assert row.result is not None
    assert not row.result.is_chosen
    assert row.distance == 1.0
    assert unrolls(fd, x) != [4]
    assert len(list(directory.iterdir())) == 1


@pytest.mark.parametrize("cost", [indifferent, likes_unroll_of_four])
def test_nothing_is_measured_twice(cost: Callable[[Contestant, int], float]) -> None:
    x = torch.randn(512, 1000)
    pyfuser.autotune(softmax(), [x], cost=cost)
    (row,) = pyfuser.autotune(softmax(), [x], cost=refuses_to_measure).rows
    assert row.note == "known from an earlier measurement"


def test_time_is_measured_if_nothing_else_is_given() -> None:
    (row,) = pyfuser.autotune(doubled(), [torch.randn(30, 40)]).rows
    assert row.result is not None
    assert row.result.measured > 0


def test_the_time_is_up(directory: Path) -> None:
    now = iter(range(1000))
    session = Session(0.5, likes_unroll_of_four, lambda: next(now))
    tune(softmax().engine.executor, [torch.randn(512, 1000)], session)
    (row,) = session.rows
    assert (row.result, row.note) == (None, "not measured: the time is up")
    assert not directory.exists()


def test_a_second_process_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = ROOT / "docs" / "examples" / "softmax.py"
    run = [sys.executable, "-m", "pyfuser", "show", str(script), "--stage", "parameters"]
    before = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert "// by the heuristics" in before
    pyfuser.autotune(softmax(), [torch.randn(256, 1024)], cost=likes_unroll_of_four)
    after = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert "unroll=4" in after
    assert "// tuned: 0.50 of the time of the heuristics' choice at i0 = 256, i1 = 1024" in after
    other = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(run, capture_output=True, text=True, check=True, env=other).stdout
    assert torch.get_num_threads() == 1 or alone == before


def test_show_says_where_parameters_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(512, 1000)
    pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    monkeypatch.setenv("PYFUSER_DUMP", "parameters")
    fd = softmax()
    fd.execute([x])
    fd.execute([torch.randn(2000, 1000)])
    err = capsys.readouterr().err
    assert err.count("---- parameters ----") == 2
    assert err.count("// tuned: 0.50 of the time") == err.count("// by the heuristics") == 1


# -- dynamic shapes


def test_a_choice_is_for_its_shape_class() -> None:
    fd = softmax()
    pyfuser.autotune(fd, [torch.randn(512, 1000)], cost=likes_unroll_of_four)
    for rows, columns, is_tuned in (
        *((512, 1000, True), (700, 600, True), (1023, 1023, True), (512, 512, True)),
        *((1024, 1000, False), (700, 1100, False), (511, 1000, False), (3, 1000, False)),
        *((0, 1000, False), (1, 1, False), (600, 700, True)),
    ):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(fd.execute([x])[0], x.softmax(1))
        if columns > 1 and rows:
            assert (unrolls(fd, x) == [4]) == is_tuned, (rows, columns)
    assert len(fd.engine.executor.plans) < 8


def test_a_plan_of_a_tuned_kernel_is_for_its_class_only() -> None:
    fd, x = softmax(), torch.randn(512, 1000)
    pyfuser.autotune(fd, [x], cost=likes_unroll_of_four)
    fd.execute([x])
    assert "512 <= x0_0 <= 1023 and 512 <= x0_1 <= 1023" in fd.engine.executor.plans[0].source
    assert [fd.engine.executor.plans[0].fits([torch.randn(n, 600)]) for n in (600, 1024)] == [
        True,
        False,
    ]


def test_without_results_a_plan_has_no_shape_class() -> None:
    pyfuser.autotune(doubled(), [torch.randn(512, 1000)], cost=likes_unroll_of_four)
    fd, x = softmax(), torch.randn(512, 1000)
    fd.execute([x])
    assert "x0_0 <= 1023" not in fd.engine.executor.plans[0].source


def test_a_choice_that_is_no_candidate_any_more_is_not_used(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, x = softmax(), torch.randn(512, 1000)
    pyfuser.autotune(fd, [x], cost=likes_unroll_of_four)
    (path,) = directory.iterdir()
    edited = json.loads(path.read_text("utf-8"))
    (result,) = edited["results"].values()
    result["best"]["unroll"] = 1 << 20
    path.write_text(json.dumps(edited), "utf-8")
    reset(monkeypatch)
    assert unrolls(softmax(), x) != [4]


def test_a_choice_that_cannot_be_compiled_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(512, 1000)
    pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    compile_ = KernelPart._compile

    def fails(self: Any, variant: Any, *rest: Any) -> Any:
        if variant.parameters.unroll == 4:
            rest[1](UnsupportedError("no"), self.fusion)
        return compile_(self, variant, *rest)

    monkeypatch.setattr(KernelPart, "_compile", fails)
    fd = softmax()
    assert unrolls(fd, x) != [4]
    torch.testing.assert_close(fd.execute([x])[0], x.softmax(1))


# -- programs


def test_kernels_in_the_middle_of_a_program() -> None:
    """Sums of columns of a normalisation's results: two kernels, the second on what is between."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.BFloat16)
        wide = fd.ops.cast(x, DataType.Float)
        total = fd.ops.sum(wide, [0, 1])
        scaled = fd.ops.div(wide, fd.ops.broadcast(total, [True, True]))
        fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.exp(scaled), [0]), DataType.BFloat16))
    x = torch.rand(300, 130).bfloat16()
    report = pyfuser.autotune(fd, [x], cost=likes_unroll_of_four)
    assert len(report.rows) > 1
    assert all(row.result is not None for row in report.rows)
    fd.validate([x])


def test_inputs_that_a_kernel_updates_stay_as_they_are() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(x, 1.0), x)
    x = torch.zeros(64, 128)
    (row,) = pyfuser.autotune(fd, [x], cost=lambda made, calls: made.parameters.unroll).rows
    assert row.result is not None
    assert row.result.is_chosen
    assert not x.any()
    fd.execute([x])
    assert bool((x == 1).all())


def test_random_numbers_of_the_program_stay_as_they_are() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.uniform(0.0, 1.0, [64, 128])))
    x, before = torch.zeros(64, 128), torch.random.get_rng_state()
    pyfuser.autotune(fd, [x], cost=likes_unroll_of_four)
    assert torch.equal(torch.random.get_rng_state(), before)


class Block(nn.Module):
    """A normalisation and an activation around a product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(96), nn.Linear(96, 96)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """[rows, 96]"""
        return {"y": torch.nn.functional.gelu(self.linear(self.norm(x)))}


def test_a_model_and_its_backward() -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(200, 96)
    report = pyfuser.autotune(model, [x], cost=likes_unroll_of_four)
    schedulers = {row.scheduler for row in report.rows}
    assert {"inner_persistent", "pointwise"} <= schedulers
    assert len(report.rows) > 2  # the backward too
    assert all(each.grad is None for each in model.parameters())
    eager = model(x)["y"]
    compiled = torch.compile(model, backend="pyfuser")
    torch.testing.assert_close(compiled(x)["y"], eager, rtol=1e-4, atol=1e-5)


def test_the_option_of_torch_compile(directory: Path) -> None:
    model, x = Block(), torch.randn(200, 96)
    session = Session(cost=likes_unroll_of_four)
    with during(session):
        compiled = torch.compile(model, backend="pyfuser", options={"autotune": True})
        found = compiled(x)["y"]
        found.sum().backward()
    assert len(session.rows) == len(list(directory.iterdir())) > 2
    torch.testing.assert_close(found, model(x)["y"], rtol=1e-4, atol=1e-5)
    gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    model.zero_grad()
    model(x)["y"].sum().backward()
    for mine, each in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(mine, each.grad, rtol=1e-3, atol=1e-4)


def test_a_graph_with_indices_and_changing_sizes() -> None:
    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 32)

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            """[n] -> [n, 32]"""
            return torch.softmax(self.table(index), -1) * 2

    model = Embed()
    session = Session(cost=likes_unroll_of_four)
    with during(session), torch.no_grad():
        options: Any = {"autotune": True}
        compiled = torch.compile(model, backend="pyfuser", dynamic=True, options=options)
        for n in (40, 64, 7, 300):
            index = torch.randint(0, 50, (n,))
            torch.testing.assert_close(compiled(index), model(index))
    assert session.rows
    assert all(row.result is not None for row in session.rows), session.report()


def test_a_part_that_only_depends_on_sizes() -> None:
    """The zeros that the rows are added to are a kernel of their own."""

    def gradients(gradient: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        of_table = torch.ops.aten.embedding_dense_backward
        return of_table(gradient, index, len(gradient), -1, False), gradient * 2

    given = torch.randn(20, 30), torch.randint(0, 20, (20,))
    session = Session(cost=likes_unroll_of_four)
    with during(session):
        compiled = torch.compile(gradients, backend="pyfuser", options={"autotune": True})
        torch.testing.assert_close(compiled(*given), gradients(*given))
    assert {row.scheduler for row in session.rows} >= {"pointwise"}
    assert all(row.result is not None for row in session.rows), session.report()


# -- GPUs


@requires_host_compiler
def test_a_gpu_by_the_emulators_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    fd, x = softmax(), torch.randn(8, 64)
    profile = Profile()
    with emulated(profile=profile):
        (row,) = pyfuser.autotune(fd, [x]).rows
        assert row.result is not None
        assert (row.result.measured > 0, row.result.dropped) == (True, 0)
        torch.testing.assert_close(fd.execute([x])[0], x.softmax(1))
    known = len(profile.launches)
    assert known > 0
    with emulated():
        (row,) = pyfuser.autotune(softmax(), [x]).rows
        assert row.note == "known from an earlier measurement"
        other = pyfuser.autotune(doubled(), [x]).rows[0]
    assert "emulated(target, Profile())" in other.note
    assert unrolls(softmax(), x) != [4]  # the processor is another machine


# -- wrong arguments


def by_hand() -> FusionDefinition:
    fd = doubled()
    fd.manual_execute([torch.randn(3, 4)])
    return fd


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: pyfuser.autotune(3, [x]), "expected a FusionDefinition, a module or a function"),
        (lambda x: pyfuser.autotune(nn.Linear, [x]), "got an object of type type"),
        (lambda x: pyfuser.autotune(doubled(), x), "expected a list of inputs, got a tensor"),
        (
            lambda x: pyfuser.autotune(doubled(), [x], seconds=0),
            "autotune: expected a positive number of seconds, got 0",
        ),
        (
            lambda x: pyfuser.autotune(doubled(), [x], seconds="1"),
            "expected a positive number of seconds, got '1'",
        ),
        (lambda x: pyfuser.autotune(doubled(), []), "expected 1 inputs, got 0"),
        (lambda x: pyfuser.autotune(by_hand(), [x]), "expected automatic schedules, got a manual"),
        (
            lambda x: torch.compile(torch.neg, backend="pyfuser", options={"autotune": 1})(x),
            r"options\['autotune'\]: expected True or False, got 1",
        ),
    ],
)
def test_what_is_wrong_with_the_arguments(call: Callable[..., Any], message: str) -> None:
    with pytest.raises((InputError, torch._dynamo.exc.BackendCompilerFailed), match=message):
        call(torch.randn(3, 4))
