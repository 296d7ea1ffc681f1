"""Tuning from the user's call to the kernels that later compilations run.

No test depends on time: `cost` says which candidate is fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pyfuser
from pyfuser import DataType, FusionDefinition, tuning_store
from pyfuser.devices.cuda.emulator.counters import Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.errors import InputError, UnsupportedError
from pyfuser.parts import KernelPart
from pyfuser.target import varied
from pyfuser.tuning import kernels
from pyfuser.tuning.measuring import Contestant
from pyfuser.tuning.programs import tune
from pyfuser.tuning.session import Session, during
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.folders import ROOT


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and nothing falls back; few candidates, to save time."""
    monkeypatch.setattr(varied, "MOST_CANDIDATES", 4)
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    torch._dynamo.reset()
    yield tmp_path / "cache" / "tuning"
    torch._dynamo.reset()


def softmax() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, 1, keepdim=True)))
        fd.add_output(fd.ops.div(power, fd.ops.sum(power, 1, keepdim=True)))
    return fd


def doubled() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(x, 2.0))
    return fd


def likes_unroll_of_four(contestant: Contestant, calls: int) -> float:
    rows = getattr(contestant.parameters, "rows", None)
    parameters = contestant.parameters if isinstance(rows, (bool, type(None))) else rows
    return 0.5 if parameters.unroll == 4 else 1.0


def indifferent(contestant: Contestant, calls: int) -> float:
    return 1.0


def refuses_to_measure(contestant: Contestant, calls: int) -> float:
    raise AssertionError("measured again")


def unrolls(fd: FusionDefinition, x: torch.Tensor) -> list[int]:
    """The unrolling of the kernels that a call runs, after it ran as eager does."""
    resolved = fd.engine.executor.resolve([x])
    return [variant.parameters.unroll for variant in used(resolved)]


def used(resolved: Any) -> list[Any]:
    found = []
    for part, kernel in zip(resolved.program.parts, resolved.kernels, strict=True):
        found += [variant for variant, made in part.kernels.items() if made is kernel]
    return found


def reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what this process knows of the folder, as a new process does."""
    tuning_store._store_of.cache_clear()


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


# -- candidates


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


# -- what is stored


def tuned_file(directory: Path, x: torch.Tensor) -> Path:
    pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    (path,) = directory.iterdir()
    return path


def test_another_number_of_threads_is_another_machine() -> None:
    fd, x, threads = softmax(), torch.randn(512, 1000), torch.get_num_threads()
    pyfuser.autotune(fd, [x], cost=likes_unroll_of_four)
    try:
        torch.set_num_threads(threads + 1)
        assert unrolls(softmax(), x) != [4]
    finally:
        torch.set_num_threads(threads)
    assert unrolls(softmax(), x) == [4]


def test_another_version_asks_for_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(512, 1000)
    pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    monkeypatch.setattr(tuning_store, "__version__", "0.0.1")
    assert unrolls(softmax(), x) != [4]


@pytest.mark.parametrize("what", ["version", "machine", "structure", "scheduler"])
def test_a_file_under_the_name_of_another_is_ignored(
    what: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(512, 1000)
    path = tuned_file(directory, x)
    edited = json.loads(path.read_text("utf-8"))
    edited[what] = {"version": "9", "machine": {}, "structure": ["no"], "scheduler": "no"}[what]
    path.write_text(json.dumps(edited), "utf-8")
    reset(monkeypatch)
    with pytest.warns(RuntimeWarning, match="an entry of another name; the file is ignored"):
        assert unrolls(softmax(), x) != [4]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"results": {"a": 1}}', b"\xff"])
def test_a_corrupted_file_is_ignored_with_one_warning(
    content: bytes, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(512, 1000)
    path = tuned_file(directory, x)
    path.write_bytes(content)
    reset(monkeypatch)
    with pytest.warns(
        RuntimeWarning, match="tuning: expected results of tuning in .*json"
    ) as found:
        assert unrolls(softmax(), x) != [4]
        assert unrolls(softmax(), x) != [4]
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    assert unrolls(softmax(), x) == [4]


def test_a_file_that_others_can_write_is_not_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(512, 1000)
    tuned_file(directory, x).chmod(0o666)
    reset(monkeypatch)
    with pytest.warns(RuntimeWarning, match="the file is ignored"):
        assert unrolls(softmax(), x) != [4]


def test_the_results_of_two_processes_are_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one listed the folder before the first one wrote."""
    second = tuning_store.TuningStore(directory)
    assert not second.names
    path = tuned_file(directory, torch.randn(512, 1000))
    first = tuning_store.tuning_store().entry(path.name)
    assert first is not None
    (result,) = first.results.values()
    resolved = softmax().engine.executor.resolve([torch.randn(512, 1000)])
    part: Any = resolved.program.parts[0]
    other = replace(result, sizes={"i0": 9, "i1": 9})
    second.add(resolved.program.runtime.target, part.scheduler, part.fusion, other)
    assert len(json.loads(path.read_text("utf-8"))["results"]) == 2


def test_without_a_disk_cache_results_are_kept_in_memory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_DISABLE_CACHE", "1")
    reset(monkeypatch)
    x = torch.randn(512, 1000)
    pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    assert unrolls(softmax(), x) == [4]
    assert not directory.exists()
    reset(monkeypatch)
    assert unrolls(softmax(), x) != [4]


def test_no_key_is_made_if_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_store, "structure_key", lambda fusion: pytest.fail("a key"))
    fd, x = softmax(), torch.randn(512, 1000)
    torch.testing.assert_close(fd.execute([x])[0], x.softmax(1))


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


@requires_host_compiler
def test_a_gpus_kernel_that_moves_fewer_sectors_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heuristics are replaced by ones that read each element by itself."""
    from pyfuser.devices.cuda import heuristics
    from pyfuser.target.thread_parameters import ThreadedPointwise

    slow = ThreadedPointwise(1, 1, 0, lines=32)
    fast = ThreadedPointwise(32, 1, 0, lines=1)
    monkeypatch.setattr(heuristics, "pointwise", lambda *_: slow)
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
