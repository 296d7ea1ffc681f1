"""`tune`: the kernels of a script, what is stored, and wrong arguments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyfuser.__main__ import main
from pyfuser.devices.runtime import Runtime
from pyfuser.target import varied
from pyfuser.tuning.measuring import Contestant
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.folders import ROOT

SOFTMAX = str(ROOT / "docs" / "examples" / "softmax.py")
SCHEDULE = str(ROOT / "docs" / "examples" / "schedule.py")
GRAPH = """
import torch
import pyfuser
compiled = torch.compile(lambda x: torch.nn.functional.gelu(x) * 2, backend="pyfuser")
compiled(torch.randn(64, 96))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, few candidates, and a clock that likes another unroll factor.

    What the heuristics choose, which is timed first, depends on the processor.
    """
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(varied, "MOST_CANDIDATES", 4)

    chosen: dict[Runtime, int] = {}

    def cost(self: Runtime, call: Contestant, calls: int = 1) -> float:
        unroll = call.parameters.unroll
        return 1.0 if chosen.setdefault(self, unroll) == unroll else 0.5

    monkeypatch.setattr(Runtime, "cost", cost)


def test_a_script_is_tuned_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", SOFTMAX]) == 0
    out = capsys.readouterr().out
    assert re.search(r"i0 = 256, i1 = 1024: tuned\n  best 2\.00x as fast: unroll \d -> \d", out)
    assert "1 kernels, 1 tuned; the heuristics are over 10 % from the best found in 1" in out
    assert main(["tune", SOFTMAX]) == 0
    assert "known from an earlier measurement" in capsys.readouterr().out
    assert main(["tune", "--show"]) == 0
    assert capsys.readouterr().out.strip() == out.strip()
    assert main(["show", SOFTMAX, "--stage", "parameters"]) == 0
    assert "// tuned: 0.50 of the time" in capsys.readouterr().out


def test_the_graphs_of_a_script_are_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.py"
    path.write_text(GRAPH, encoding="utf-8")
    assert main(["tune", str(path)]) == 0
    assert "pointwise" in capsys.readouterr().out


def test_schedules_by_hand_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", SCHEDULE]) == 1
    assert "no kernels to tune" in capsys.readouterr().out


@requires_host_compiler
def test_a_gpu_is_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(varied, "MOST_CANDIDATES", 2)
    path = tmp_path / "small.py"
    text = Path(SOFTMAX).read_text("utf-8")
    assert "256, 1024" in text
    path.write_text(text.replace("256, 1024", "4, 64"), encoding="utf-8")
    assert main(["tune", str(path), "--device", "sm_90"]) == 0
    assert "2 candidates measured, 0 dropped" in capsys.readouterr().out
    assert main(["tune", "--show", "--device", "sm_90"]) == 0
    assert main(["tune", "--show"]) == 1
    assert "nothing is stored for cpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "tune: expected a script, or --show, got missing.py"),
        ([], "tune: expected a script, or --show, got neither"),
        ([SOFTMAX, "--show"], "tune --show: expected no script, got"),
        ([SOFTMAX, "--seconds", "0"], "tune --seconds: expected a positive number, got 0.0"),
        ([SOFTMAX, "--device", "gpu"], "expected"),
    ],
)
def test_what_is_wrong_with_the_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err
