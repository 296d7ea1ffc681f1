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

from benchmarks import child, gpu, peak_memory
from benchmarks.cases import CASES, DTYPES, Case, definition
from benchmarks.harness import error_of, geometric_mean, interleaved, traffic_bytes
from benchmarks.kernels import measure, selected
from benchmarks.models.results import ModelResults, ModelRow
from benchmarks.report import Results, Row, write_readme
from benchmarks.zoo.results import ZooResults, ZooRow
from demo import gpt, kernels, training
from tests.support.folders import ROOT


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
    eager, ours = training.trained(Console(quiet=True), steps=6)
    assert ours.losses == pytest.approx(eager.losses, rel=1e-3)
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


def test_rows_of_a_gpu_have_the_time_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "CudaClock", FakeClock)
    monkeypatch.setattr(gpu, "copy_bandwidth", lambda *_: 1e12)
    monkeypatch.setattr(gpu, "cold_seconds", lambda functions, *_: dict.fromkeys(functions, 0.5))
    names = ["softmax", "backward"]
    found = measure("gpu", names, [(4, 33)], ["float32"], inductor=False)
    assert len(found.rows) == 4
    for row in found.rows:
        assert not row.failure and row.seconds == {"eager": 0.5, "pyfuser": 0.5}
        assert set(row.host_seconds) == {"eager", "pyfuser"}
    assert found.table().splitlines()[0].endswith("| of copy | host |")
    assert Results.from_json(found.to_json()) == found


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


def model_results() -> ModelResults:
    rows = [
        ModelRow(
            "GPT-2",
            parameters=4_300_000,
            seconds={
                "forward": {"eager": 0.2, "inductor": 0.1, "pyfuser": 0.05},
                "training": {"eager": 0.4, "inductor": 0.4, "pyfuser": 0.2},
            },
            errors={
                "output": {"eager": 1e-6, "pyfuser": 0.5},
                "gradients": {"eager": 1e-6, "pyfuser": 1.5},
            },
            first_step={"inductor": 20.0, "pyfuser": 2.0, "pyfuser, disk": 1.0, "aot_eager": 1.5},
            peak_bytes={"eager": 3 << 20, "pyfuser": 2 << 20},
            kernels=27,
        ),
        ModelRow("T5", seconds={"forward": {"eager": 1.0}}, failures=["steady: it broke"]),
    ]
    machine = {"cpu": "one", "threads": 2, "torch": "2", "transformers": "5", "python": "3"}
    return ModelResults(machine, rows, {"eager": 1e-6})


def test_results_of_models_survive_json() -> None:
    assert ModelResults.from_json(model_results().to_json()) == model_results()


def test_the_tables_of_models_say_what_was_measured_and_what_failed() -> None:
    text = model_results().sections()["models"]
    assert "| forward | 1 | 4.00x | 2.00x | 4.00x (GPT-2) |" in text
    assert "| training | 1 | 2.00x | 1.00x | 2.00x (GPT-2) |" in text
    assert "| GPT-2 | 4.3M | 50.0 ms | 200.0 ms | 100.0 ms | 4.00x | 2.00x |" in text
    assert (
        "| GPT-2 | 2.00 s | 1.00 s | 20.00 s | 1.50 s | 10.00x | 1.50x |  | 2.0 MiB | 3.0 MiB |"
        in text
    )
    assert "steady: it broke" in text
    assert "| eager | 1.00 µs |" in text


def zoo_results() -> ZooResults:
    rows = [
        ZooRow(
            "Swin",
            parameters=1_300_000,
            errors={
                "gradients": {"eager": 1e-6, "pyfuser": 1.5},
                "state": {"eager": 1e-6, "pyfuser": 0.5},
            },
            seconds={"eager": 0.2, "pyfuser": 0.1},
            first_step=3.0,
            graphs=1,
            kernels=12,
        ),
        ZooRow(
            "RWKV",
            errors={"gradients": {"eager": 1e-6, "pyfuser": math.inf}},
            seconds={"eager": 0.1, "pyfuser": 0.2},
            graph_breaks={"a loop": 2},
            fallbacks=["a fusion of a | b isn't supported"],
        ),
        ZooRow("Mamba", failure="it broke"),
    ]
    machine = {"cpu": "one", "threads": 2, "torch": "2", "python": "3"}
    return ZooResults({**machine, "transformers": "5", "timm": "1"}, rows)


def test_results_of_the_zoo_survive_json() -> None:
    assert ZooResults.from_json(zoo_results().to_json()) == zoo_results()


def test_the_tables_of_the_zoo_say_what_falls_short() -> None:
    swin, rwkv, mamba = zoo_results().rows
    assert swin.problems() == []
    assert rwkv.problems() == [
        "infx of eager's error",
        "slower than eager",
        "fallback: a fusion of a | b isn't supported",
    ]
    assert mamba.problems() == ["it broke"]
    text = zoo_results().sections()["zoo"]
    assert "| 3 | 1.00x | 0.50x (RWKV) | 1 | infx (RWKV) | 1 | 1 | 1 |" in text
    line = (
        "| Swin | 1.3M | 100.0 ms | 200.0 ms |  | 2.00x |  | 1.50x |  | 3.0 s | 1 | 0 | 0 | 12 |  |"
    )
    assert line in text
    assert "fallback: a fusion of a / b isn't supported |" in text


def test_results_of_the_zoo_take_the_place_of_earlier_ones() -> None:
    again = ZooResults({"cpu": "two"}, [ZooRow("RWKV"), ZooRow("Hiera")])
    merged = again.merged(zoo_results())
    assert [row.name for row in merged.rows] == ["Swin", "RWKV", "Mamba", "Hiera"]
    assert merged.rows[1] == ZooRow("RWKV") and merged.machine == {"cpu": "two"}


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
