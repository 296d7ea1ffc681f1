"""docs/tour.md shows what the compiler really prints; `pytest --update-golden` rewrites its texts.

The tour is for one fixed processor (512-bit vectors), so that its texts are the same everywhere.
The README's examples must run unchanged.
"""

from __future__ import annotations

import re
import runpy

import pytest

from pyfuser import compiler
from pyfuser.analysis.layouts import layout_of
from pyfuser.command_line import show
from pyfuser.ops.binding import bind
from tests.support.documents import require_section
from tests.support.folders import ROOT
from tests.support.targets import WIDE

TOUR = ROOT / "docs" / "tour.md"
STAGES = ("fusion", "segments", "scheduled", "kernel", "llvm", "cuda")


def first_loop(llvm: str) -> str:
    """The body of the first loop that works on vectors it loads."""
    blocks = re.split(r"(?m)^(?=\w+:$)", llvm)
    return next(block for block in blocks if "= load <16 x float>" in block)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    (softmax,), _ = show.record(str(ROOT / "docs" / "examples" / "softmax.py"))
    assert softmax.inputs is not None
    fusion = softmax.definition.fusion.definition
    layouts = [layout_of(each.shape, each.stride()) for each in softmax.inputs]
    sizes = bind(fusion, softmax.inputs).sizes
    found = compiler.stages(fusion, sizes, layouts, WIDE)
    found["llvm"] = first_loop(found["llvm"])
    (by_hand,), _ = show.record(str(ROOT / "docs" / "examples" / "schedule.py"))
    kernel_of_hand = show.stages_of(by_hand, "sm_90")
    return {**found, "cuda": kernel_of_hand.stages["cuda"]}


@pytest.mark.parametrize("stage", STAGES)
def test_the_tour_shows_what_is_printed(
    stage: str, texts: dict[str, str], request: pytest.FixtureRequest
) -> None:
    update = request.config.getoption("--update-golden")
    require_section(TOUR, stage, texts[stage].rstrip() + "\n", update)


def test_a_softmax_is_one_kernel(texts: dict[str, str]) -> None:
    assert texts["segments"].count("segment ") == 1


def test_the_examples_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    printed = []
    for example in re.findall(r"```python\n(.*?)```", readme, re.DOTALL):
        exec(compile(example, "README.md", "exec"), {})
        printed.append(capsys.readouterr().out)
    _, of_model, of_kernel = printed
    assert "native_layer_norm" in of_model and "no graph breaks" in of_model
    assert "def nvfuser_fusion(fd : FusionDefinition)" in of_kernel


@pytest.mark.parametrize("name", ["softmax", "schedule"])
def test_the_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "docs" / "examples" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out in ("rows sum to 1.0\n", "equal to torch: True\n")
