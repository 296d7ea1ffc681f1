"""`show` of a script that calls torch.compile: its graphs, the passes over them, their fusions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pyfuser.__main__ import main
from pyfuser.command_line import show
from pyfuser.torch_compile.graph_passes import GRAPH_PASSES
from tests.support.compiled import strict  # noqa: F401

SCRIPT = """
import torch

def program(x, w, b):
    y = torch.nn.functional.dropout(torch.exp(x @ w + b), 0.0).clone()
    return (y * 2 + 1) @ w

x, w, b = torch.ones(4, 8), torch.ones(8, 8), torch.ones(8)
with torch.no_grad():
    torch.compile(program, backend="pyfuser")(x, w, b)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return str(path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


def test_a_graph_is_shown_in_the_order_of_the_flow(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    titles = [line for line in shown(capsys, script).splitlines() if line.startswith("# graph")]
    stages = [title.rsplit(", ", 2)[1] for title in titles]
    assert stages[:4] == list(show.GRAPH_STAGES)
    assert titles[4].startswith("# graph 1 of 1, fusion 1 of 1, fusion")
    of_fusion = stages[4:]
    assert {"preseg", "kernel", "llvm"} <= set(of_fusion)
    assert of_fusion == [stage for stage in show.STAGES if stage in of_fusion]


def test_the_passes_are_listed_in_their_order(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *names = shown(capsys, script, "--stage", "graph_passes").splitlines()
    passes = (change.__name__ for change in GRAPH_PASSES)
    assert names == ["return_views_of_arguments", *passes, "move_numbers", "merge_equal_results"]


def test_after_a_graph_pass(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = shown(capsys, script, "--after", "flatten_foreach")
    torch._dynamo.reset()
    after = shown(capsys, script, "--after", "drop_copies")
    assert before.startswith("# graph 1 of 1, after flatten_foreach, cpu\n")
    assert "= clone(" in before and "= clone(" not in after
    assert "exp = exp(add)  # float32 [4, 8]\n" in after


def test_after_a_pass_of_a_fusion_of_the_graph(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "exp(" in shown(capsys, script, "--after", "dead_code")


def test_regions_and_the_function_that_a_call_runs(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    regions = shown(capsys, script, "--stage", "regions")
    assert "\n0  exp = exp(add)" in regions and "\n-  mm = mm(" in regions
    torch._dynamo.reset()
    assert "f0_launch0(" in shown(capsys, script, "--stage", "call")


def test_the_fusions_of_a_graph_for_another_device(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "__global__" in shown(capsys, script, "--stage", "cuda", "--device", "sm_90")


def test_a_pass_that_there_is_not(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", script, "--after", "nothing"]) == 1
    assert (
        "expected one of the passes return_views_of_arguments, call_effects_directly, "
        in capsys.readouterr().err
    )


def test_a_stage_can_be_dumped(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_DUMP", "regions")
    torch.compile(lambda x: torch.exp(x) * 2, backend="pyfuser")(torch.ones(5))
    assert "---- regions ----\n" in capsys.readouterr().err
