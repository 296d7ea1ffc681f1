"""The benchmarks' cases and the demo's parts are correct, and the report shows the measurements."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks import __main__ as benchmarks
from benchmarks import child, gpu, gpu_kernels, peak_memory, predictions
from benchmarks.cases import CASES, DTYPES, Case, definition
from benchmarks.gradients import GRADIENTS
from benchmarks.harness import error_of, geometric_mean, interleaved, traffic_bytes
from benchmarks.kernels import first_calls, selected
from benchmarks.report import Results, Row, write_readme
from benchmarks.torch_cases import TORCH_CASES
from demo import gpt, kernels, training
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.folders import ROOT
from tests.support.long_cases import long


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only kernels are measured: nothing here may run through the fallback."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")


def outputs(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("size", [(37, 65), (3, 1000)])
def test_a_case_computes_what_its_reference_does(
    case: Case, dtype: str, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    inputs = [each.to(DTYPES[dtype]) for each in case.inputs(*size, torch.rand)]
    found = definition(case, inputs).execute(inputs)
    references = outputs(case.reference(*(each.double() for each in inputs)))
    assert all(each.dtype == DTYPES[dtype] for each in found)
    assert error_of(found, references) < 16 * torch.finfo(DTYPES[dtype]).eps


@pytest.mark.parametrize("number", range(7))
def test_a_part_of_the_demo_computes_what_its_reference_does(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("BATCH", 1), ("TOKENS", 64), ("WIDTH", 32), ("HIDDEN", 48)):
        monkeypatch.setattr(kernels, name, size)
    part, inputs = kernels.cases(gpt.text(ROOT))[number]
    doubles = [each.double() if each.is_floating_point() else each for each in inputs]
    found = part.fused(inputs).execute(inputs)
    assert error_of(found, outputs(part.reference(*doubles))) < 3e-6


def test_the_demo_reads_the_project_s_documents() -> None:
    text = gpt.text(ROOT)
    assert len(text) > 500_000
    assert bytes(text[:14].tolist()) == b"# Contributing"
    tokens, targets = gpt.batch(text, 3, size=4, length=50)
    assert tokens.shape == targets.shape == (4, 50)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_the_demo_trains_both_copies_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in (
        (training, "BATCH", 2),
        (training, "LENGTH", 16),
        (gpt, "LAYERS", 1),
    ):
        monkeypatch.setattr(module, name, size)
    torch._dynamo.reset()
    eager, ours = training.trained(Console(quiet=True), steps=20)
    assert ours.losses == pytest.approx(eager.losses, rel=1e-5)
    assert ours.losses[-1] < ours.losses[0]
    written = gpt.write(ours.model.eval(), b"def ", 5)
    assert len(written) == 9 and written.startswith(b"def ")


def test_cases_are_selected_by_name_or_part_of_it() -> None:
    def names(*wanted: str) -> set[str]:
        return {case.name for case, _, _ in selected(wanted, [(1, 1)], ["float32"])}

    assert names("softmax") == {"softmax"}
    assert names("GELU") == {"bias + GELU (tanh)", "bias + GELU (erf)"}
    assert len(names()) == len(CASES)


def test_contestants_take_turns() -> None:
    calls: list[str] = []
    times = interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0, fewest_rounds=3
    )
    assert set(times) == {"a", "b"}
    assert {"ab", "ba"} <= {"".join(pair) for pair in zip(calls, calls[1:], strict=False)}


class FakeClock:
    """A GPU that needs as many seconds for a call as calls have been made, and notes the order."""

    def __init__(self, device: str = "") -> None:
        self.done: list[str] = []

    def flush(self) -> None:
        self.done.append("flush")

    def mark(self) -> int:
        return len([each for each in self.done if each != "flush"])

    def seconds(self, start: int, end: int) -> float:
        return float(end - start)

    def wait(self) -> None:
        """Nothing is running."""


def test_a_gpu_is_measured_with_cold_caches() -> None:
    clock = FakeClock()
    functions = {
        "once": lambda: clock.done.append("once"),
        "twice": lambda: clock.done.extend(["first", "second"]),
    }
    found = gpu.cold_seconds(functions, clock, seconds=0, fewest_rounds=2)
    assert found == {"once": 1.0, "twice": 2.0}
    first, second = ["flush", "once"], ["flush", "first", "second"]
    assert clock.done == [*first, *second, *second, *first]


def test_rows_of_a_gpu_have_the_time_of_the_host_and_a_prediction() -> None:
    found = gpu_kernels.measure(
        *(["softmax", "backward"], [(4, 192)], ["float32"], "cpu", 0.0, False),
        predicted={("softmax", 4, 192, "float32"): 0.5},
        clock=gpu.HostClock(),
        copied_bytes=1 << 10,
    )
    names = [row.case for row in found.rows]
    assert names == ["softmax", *(case.name for case in GRADIENTS)]
    for row in found.rows:
        assert not row.failure and set(row.seconds) == {"eager", "pyfuser"}
        assert set(row.host_seconds) == {"eager", "pyfuser"}
    assert found.rows[0].predicted == 0.5
    heading, _, line, *_ = found.table().splitlines()
    assert heading.endswith("| of copy | predicted | host | first call | Inductor's |")
    assert heading.count("|") == line.count("|") and " 50% " in line
    assert Results.from_json(found.to_json()) == found


@pytest.mark.parametrize("case", [*TORCH_CASES, *GRADIENTS], ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [long("float32"), "bfloat16"])
def test_a_case_of_gpus_computes_what_its_reference_does(case: Case, dtype: str) -> None:
    """Two sizes: one image and several, a head and several."""
    for size in ((128, 192), (5, 64)):
        row, contestants = first_calls(case, *size, dtype, "cpu", inductor=False)
        assert not row.failure and set(contestants) == {"eager", "pyfuser"}
        assert row.traffic_bytes > size[0] * size[1]


def test_the_rows_of_a_gpu_are_measured_by_importance_while_there_is_time() -> None:
    rows = list(gpu_kernels.ordered(["softmax"], gpu_kernels.SIZES, ["float32", "bfloat16"]))
    assert [(case.name, *size, dtype) for case, size, dtype in rows[:3]] == [
        ("softmax", 16384, 4096, "float32"),
        ("softmax", 16384, 4096, "bfloat16"),
        ("softmax", 1024, 1024, "float32"),
    ]
    found = gpu_kernels.measure(
        *(["softmax"], [(4, 33)], ["float32"], "cpu", 0.0, False),
        minutes=0,
        clock=gpu.HostClock(),
        copied_bytes=1 << 10,
    )
    assert found.rows == [] and found.machine["left out"] == ["softmax 4x33 float32: no time"]


def test_rows_that_are_measured_again_replace_earlier_ones() -> None:
    def results(rows: list[Row], *left_out: str) -> Results:
        return Results("gpu", {"gpu": "any", "left out": list(left_out)}, 1e12, rows)

    first, again = (Row("add", 4, 33, "float32", 0, seconds={"pyfuser": t}) for t in (2.0, 1.0))
    other, more = Row("add", 9, 33, "float32", 0), Row("cat", 4, 33, "float32", 0)
    earlier = results([first, other], "cat 4x33 float32: no time", "cat 9x33 float32: no time")
    found = results([again, more], "softmax 4x33 float32: no time").merged(earlier)
    assert found.rows == [again, other, more]
    left_out = ["cat 9x33 float32: no time", "softmax 4x33 float32: no time"]
    assert found.machine["left out"] == left_out


def test_what_a_gpu_cannot_do_is_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu_kernels, "first_calls", fails)
    found = gpu_kernels.measure(
        *(["softmax"], [(4, 33)], ["float32"], "cpu"), clock=gpu.HostClock(), copied_bytes=1 << 10
    )
    assert [row.failure for row in found.rows] == ["OutOfMemoryError"]
    assert "OutOfMemoryError" in found.table()


def test_a_row_needs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("memory_reserved", 3 << 30), ("memory_allocated", 1 << 30)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 << 30, 80 << 30))
    assert gpu_kernels.fits(1 << 12, 1 << 12, "cuda")
    assert not gpu_kernels.fits(1 << 17, 1 << 12, "cuda")


def test_the_clock_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's events, in the order in which they are recorded."""

    class Event:
        times = iter((1.0, 3.5))

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.time = next(self.times)

        def elapsed_time(self, end: Event) -> float:
            return end.time - self.time

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(gpu, "_FLUSHED_BYTES", 64)
    clock = gpu.CudaClock("cpu")
    clock.flush()
    start, end = clock.mark(), clock.mark()
    clock.wait()
    assert clock.seconds(start, end) == 2.5e-3


def test_counts_are_compared_with_what_was_measured() -> None:
    rows = [
        Row("add", 4, 8, "float32", 50, {"pyfuser": 1.0}, predicted=1.0),
        Row("sum", 4, 8, "float32", 100, {"pyfuser": 1.0}, predicted=0.5),
        Row("mul", 4, 8, "float32", 100, {"pyfuser": 1.0}),
    ]
    text = gpu_kernels.comparison(rows, 100.0)
    assert "2 rows: geometric mean 1.00, spread a factor of 2.00, from 0.50 to 2.00." in text
    assert "No row has a prediction" in gpu_kernels.comparison(rows[2:], 100.0)


def test_the_benchmark_of_gpus_runs_dry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line but the GPU's, from the arguments to the table."""
    arguments = ["--dry-run", "--cases", "SiLU *", "cross entropy", "--no-inductor"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--device", "cuda", *arguments])
    assert benchmarks.main() == 0
    shown = capsys.readouterr().out
    assert shown.count("| SiLU * mul, backward | 128x192 |") == 2
    assert "Measured share of the copy bandwidth over the predicted share, 3 rows" in shown


@requires_host_compiler
def test_a_prediction_is_a_share_of_the_bandwidth(tmp_path: Path) -> None:
    (add,) = (case for case in CASES if case.name == "add")
    found = predictions.predicted(add, 64, 1024, "float32")
    assert found == predictions.Prediction(1.0, 1.0)
    path, key = tmp_path / "predicted.json", ("add", 64, 1024, "float32")
    predictions.save({key: found}, path)
    assert predictions.load(path) == {key: found}
    assert "| add | 100%, - | 1.00 |" in predictions.table({key: found})
    assert predictions.load(tmp_path / "nothing.json") == {}


def test_traffic_counts_an_expanded_dimension_once() -> None:
    tensor = torch.zeros(3, 1).expand(3, 5)
    assert traffic_bytes([tensor, torch.zeros(2, dtype=torch.bfloat16)]) == 3 * 4 + 2 * 2


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([]))


def test_an_error_is_relative_to_the_greatest_magnitude() -> None:
    reference = torch.tensor([1.0, 4.0], dtype=torch.float64)
    assert error_of([torch.tensor([1.0, 5.0])], [reference]) == pytest.approx(0.25)
    assert error_of([torch.tensor([1.0, 5.0])], [reference], [reference * 2]) == 0.125
    assert error_of([torch.tensor([math.nan, 4.0])], [reference]) == math.inf
    assert error_of([torch.zeros(3)], [reference]) == math.inf


def results() -> Results:
    rows = [
        Row("add", 4, 8, "float32", 64 << 20, {"pyfuser": 1e-3, "eager": 3e-3, "inductor": 2e-3}),
        Row("add", 4, 8, "bfloat16", 100, {"eager": 3e-3}, failure="wrong by 1.0e-01"),
    ]
    return Results("fresh", {"cpu": "one", "threads": 2}, 64e9, rows)


def test_results_survive_json() -> None:
    assert Results.from_json(results().to_json()) == results()


def test_the_table_has_ratios_and_says_what_failed() -> None:
    right, wrong = results().table().splitlines()[2:]
    assert right == "| add | 4x8 | float32 | 1 ms | 3 ms | 2 ms | 3.00x | 2.00x | 105% |"
    assert wrong == "| add | 4x8 | bfloat16 | wrong by 1.0e-01 | 3 ms |  |  |  |  |"


def test_the_summary_names_the_worst_row() -> None:
    line = results().summary().splitlines()[2]
    assert line == (
        "| float32 | 1 | 3.00x | 2.00x | 2.00x | 2.00x (add, 4x8, float32) | 105%, 105% |"
    )


def test_sections_of_the_readme_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("a\n<!-- x -->\nold\n<!-- /x -->\nb\n", encoding="utf-8")
    write_readme({"x": "new"}, path)
    assert path.read_text(encoding="utf-8") == "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n"
    with pytest.raises(ValueError, match="expected one section 'y', got 0"):
        write_readme({"y": "new"}, path)


def test_the_readme_has_every_section() -> None:
    assert "<!-- speed -->\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name in (
        "models",
        "zoo",
        "fresh summary",
        "warm summary",
        "overhead",
        "fresh rows",
        "warm rows",
    ):
        assert f"<!-- {name} -->\n" in text


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="AttributeError: .*no attribute 'nothing'"):
        child.run("benchmarks.models", "nothing")


def test_a_call_s_memory_is_what_it_needs_at_its_peak() -> None:
    if not peak_memory.can_measure():
        pytest.skip("no high-water mark of memory here")
    script = """
import torch
from benchmarks.peak_memory import peak_bytes
x = torch.randn(4 << 20)
print(peak_bytes(lambda: x.sin()), peak_bytes(lambda: (x.sin(), x.cos())))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **peak_memory.ENVIRONMENT},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    one, two = (int(each) / (16 << 20) for each in done.stdout.split())
    assert one == pytest.approx(1, abs=0.25)
    assert two == pytest.approx(2, abs=0.25)


def test_the_distance_of_the_heuristics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import tuning
    from pyfuser.target import varied

    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(varied, "MOST_CANDIDATES", 2)
    arguments = ["tuning", "--cases", "add", "--sizes", "3x70", "--dtypes", "float32"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert tuning.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| add | 3 x 70 | float32 | pointwise | ") for line in lines)
    assert any(line.endswith(" over 10 % from the best found:") for line in lines)
