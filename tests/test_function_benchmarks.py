"""`make bench`: its rows, its contestants where they are installed, and its tables."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as benchmarks
from benchmarks import compile_time, functions, limits, plots
from benchmarks.cases import DTYPES, definition
from benchmarks.function_report import FunctionResults, FunctionRow
from benchmarks.functions import ALL_CASES, SIZES, Selection
from benchmarks.harness import error_of
from benchmarks.kernels import inputs_of, outputs_of
from benchmarks.limits import Limits
from benchmarks.peers import available
from benchmarks.peers.peer import Peer, Work
from benchmarks.products import PRODUCTS
from pyfuser.plans import library_operations
from tests.support.long_cases import pairwise

LIMITS = Limits(copy=10e9, triad=8e9, multiply_adds=100e9)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only kernels are measured: nothing here may run through the fallback."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    monkeypatch.setattr(functions, "measure_limits", lambda: LIMITS)


CASES = [pytest.param(case, id=case.name) for case in ALL_CASES]


@pytest.mark.parametrize(("case", "training"), pairwise(CASES, [False, True], strength=1))
def test_pyfuser_computes_what_is_measured(case: functions.Case, training: bool) -> None:
    peers = [each for each in available() if each.name in ("eager", "pyfuser", "definition")]
    selection = Selection(case, 128, 192, "float32", training)
    (row,) = functions.measure("warm", [selection], peers, seconds=0.0).rows
    assert not row.failures
    assert {"eager", "pyfuser"} <= set(row.seconds)
    assert row.traffic_bytes and row.floor_seconds and row.ratio("pyfuser") == 1.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_each_product_is_one_call_of_the_library(
    case: functions.Case, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into memory of the runtime, where the processor has instructions for the dtype."""
    monkeypatch.setattr(library_operations, "is_faster_in_float32", lambda dtype: False)
    inputs = inputs_of(case, 128, 192, dtype, "cpu")
    fd = definition(case, inputs)
    (got,) = fd.execute(inputs)
    wanted = case.reference(*(each.double() for each in inputs))
    assert error_of([got], [wanted]) < (1e-5 if dtype == "float32" else 3e-2)
    source = fd.fec.engine.executor.plans[0].source
    products, kernels = {
        "linear + bias + GELU": (1, 1), "MLP": (2, 1),
        "attention block": (4, 1) if dtype == "float32" else (6, 2),
    }[case.name]  # fmt: skip
    assert len(re.findall(r"into_(?:add)?mm\(|matmul_out\(", source)) == products
    is_whole = case.name == "attention block" and dtype == "float32"  # the library's attention
    assert source.count("sdpfa_fwd(") == is_whole
    assert len(re.findall(r"\blaunch\d", source)) == kernels
    assert ".contiguous()" not in source and "copy_(" not in source


def test_every_installed_peer_is_right() -> None:
    """A function that all of them have."""
    (case,) = (each for each in ALL_CASES if each.name == "scale + bias + ReLU")
    peers = [each for each in available() if each.name not in ("inductor", "torchscript")]
    selection = Selection(case, 33, 65, "float32", False)
    (row,) = functions.measure("warm", [selection], peers, seconds=0.0).rows
    assert not row.failures and set(row.seconds) == {each.name for each in peers}


def test_a_peer_that_is_wrong_or_fails_is_left_out() -> None:
    (case,) = (each for each in ALL_CASES if each.name == "add")

    def fails(work: Work) -> None:
        raise ValueError

    peers = [
        *(each for each in available() if each.name in ("eager", "pyfuser")),
        Peer("wrong", lambda work: lambda: outputs_of(work.inputs[0])),
        Peer("failing", fails),
        Peer("other", lambda work: None),
    ]
    (row,) = functions.measure("warm", [Selection(case, 3, 5, "float32", False)], peers, 0.0).rows
    assert set(row.seconds) == {"eager", "pyfuser"}
    assert row.failures["failing"] == "ValueError" and row.failures["wrong"].startswith("wrong by")


def test_a_short_run_has_every_function_size_and_dtype() -> None:
    rows = list(functions.sample())
    assert {row.case.name for row in rows} == {case.name for case in ALL_CASES}
    assert {(row.rows, row.columns) for row in rows} == set(SIZES)
    assert {row.dtype for row in rows} == set(DTYPES)
    assert {row.dtype for row in rows if row.training} == set(DTYPES)


def test_rows_are_selected() -> None:
    rows = list(functions.selected(["softmax"], [(3, 4)], ["float16"]))
    assert [(row.case.name, row.rows, row.dtype) for row in rows] == 2 * [("softmax", 3, "float16")]
    assert len({row.case.name for row in functions.selected(["norm"], [], [])}) > 5


def test_operations_are_weighted_and_include_the_backward() -> None:
    x = torch.ones(3, 5, requires_grad=True)
    assert limits.counted(lambda: x.detach() + 1)[0] == 15
    assert limits.counted(lambda: x.detach().t().exp())[0] == 150
    forward, _ = limits.counted(lambda: x.tanh())
    assert limits.counted(lambda: x.tanh().sum().backward())[0] > forward + 15


def test_the_floor_is_what_takes_longer() -> None:
    assert LIMITS.floor_seconds(10_000_000_000, 1) == 1.0
    assert LIMITS.floor_seconds(1, 200_000_000_000) == 2.0


def results() -> FunctionResults:
    rows = [
        FunctionRow(
            *("add", False, 4096, 4096, "float32"),
            traffic_bytes=64 << 20,
            operations=1 << 24,
            floor_seconds=1e-3,
            seconds={"eager": 4e-3, "pyfuser": 2e-3, "inductor": 1e-3},
            ratios={"eager": (1.8, 2.0, 2.2), "pyfuser": (1, 1, 1), "inductor": (0.4, 0.5, 0.6)},
            first_call_seconds={"pyfuser": 0.1, "inductor": 2.0},
        ),
        FunctionRow(
            *("add", True, 4, 8, "bfloat16"),
            traffic_bytes=100,
            operations=1 << 10,
            floor_seconds=1e-6,
            seconds={"eager": 2e-3, "pyfuser": 2e-3},
            ratios={"eager": (0.9, 0.99, 1.1), "pyfuser": (1, 1, 1)},
            failures={"inductor": "wrong by 1.0e-01"},
        ),
    ]
    facts = {"cpu": "one", "threads": 2, "torch": "2", "python": "3"}
    return FunctionResults("warm", facts, LIMITS, rows)


def test_results_survive_json() -> None:
    assert FunctionResults.from_json(results().to_json()) == results()


def test_the_table_says_who_is_faster_and_what_falls_short() -> None:
    slow, tie = results().table().splitlines()[2:]
    assert slow.endswith("| 0.50x | 0.50x (Inductor) | 50% | falls short |")
    assert tie.endswith("| 0.99x (eager) | 0% | inductor: wrong by 1.0e-01; tie |")
    assert "| add, gradients | 4x8 | bfloat16 | 2,000 us |  | 2,000 us |  |" in tie


def test_the_summary_counts() -> None:
    head, _, forward, training, whole = results().summary().splitlines()
    assert head.count("|") == forward.count("|") == whole.count("|")
    assert "| forward, float32 | 1 | 2.00x | 0.50x | 0.50x | 0 | 1 |" in forward
    assert "| 20.00x |" in forward and "| 0.99x | 1 | 0 |" in training


def test_the_opening_table_has_two_lines() -> None:
    head, _, forward, training = results().short_summary(results()).splitlines()
    assert (
        head == "| times as fast as | rows | eager | Inductor | first call, no caches: Inductor |"
    )
    assert forward == "| forward | 1 | 2.00x | 0.50x | 20.00x |"
    assert training == "| forward and gradients | 1 | 0.99x |  |  |"


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots.write(results(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"speedups.svg", "roofline.svg"}


def test_a_part_of_the_benchmark_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """From the arguments to the table, in the child that measures."""
    path = tmp_path / "warm.json"
    arguments = ["--cases", "add", "--sizes", "3x5", "--dtypes", "float32", "--peers", "eager"]
    arguments += ["--seconds", "0.001", "--child", "warm", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    assert benchmarks.main() == 0
    assert len(json.loads(path.read_text(encoding="utf-8"))["rows"]) == 2
    benchmarks._show(["warm"], tmp_path)
    assert "| add, gradients | 3x5 | float32 |" in capsys.readouterr().out


def test_a_stage_s_own_time_leaves_out_the_stages_it_calls() -> None:
    found = compile_time.first_call("bias + GELU (tanh)")
    assert {"define", "simplify (preseg)", "segment", "schedule", "lower"} <= set(found)
    assert all(milliseconds > -0.01 for milliseconds in found.values())
    lines = compile_time.table({"one": {"lower": 1.0, compile_time._LLVM: 3.0}}).splitlines()
    assert lines[-2:] == ["| **all but LLVM** | 1.0 |", "| **the first call** | 4.0 |"]
