"""docs/tour.md shows what the compiler really prints; `pytest --update-golden` rewrites its texts.

The tour is for one fixed processor (512-bit vectors), so that its texts are the same everywhere;
only LLVM's, which is printed for the processor at hand, is compared on such processors alone.  The
README's examples must run as they stand there.
"""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyfuser import compiler
from pyfuser.analysis.layouts import layout_of
from pyfuser.command_line import show, targets
from pyfuser.devices import registry
from pyfuser.devices.cpu.codegen import generate
from pyfuser.devices.cpu.machine import Machine, machine
from pyfuser.ir.kernel import Kernel
from pyfuser.ops.binding import bind

ROOT = Path(__file__).resolve().parent.parent
TOUR = ROOT / "docs" / "tour.md"
STAGES = ("fusion", "segments", "scheduled", "kernel", "llvm", "cuda")
WIDE = Machine(
    cpu_name="znver4",
    features="+avx512f",
    architecture="x86_64",
    vector_bits=512,
    has_fma=True,
    cores=8,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
    cache_line_bytes=64,
)


@dataclass
class WideCpu:
    """This CPU's code generator with the heuristics of a fixed processor."""

    machine: Machine = WIDE
    traits = registry.device("cpu").traits

    def texts(self, kernel: Kernel) -> dict[str, str]:
        return {"llvm": first_loop(generate(kernel).text)}


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
    found = compiler.stages(fusion, sizes, layouts, WideCpu())
    (by_hand,), _ = show.record(str(ROOT / "docs" / "examples" / "schedule.py"))
    kernel_of_hand = show.stages_of(by_hand, "sm_90")
    return {**found, "cuda": kernel_of_hand["cuda"]}


@pytest.mark.parametrize("stage", STAGES)
def test_the_tour_shows_what_is_printed(
    stage: str, texts: dict[str, str], request: pytest.FixtureRequest
) -> None:
    if stage == "llvm" and machine().vector_bits != WIDE.vector_bits:
        pytest.skip("LLVM IR is printed for this processor's vectors")
    tour = TOUR.read_text(encoding="utf-8")
    section = re.compile(rf"(<!-- {stage} -->\n```\w*\n).*?(```\n<!-- /{stage} -->)", re.DOTALL)
    expected = texts[stage].rstrip() + "\n"
    if request.config.getoption("--update-golden"):
        tour, count = section.subn(lambda match: match[1] + expected + match[2], tour)
        assert count == 1
        TOUR.write_text(tour, encoding="utf-8")
        return
    match = section.search(tour)
    assert match is not None
    assert match[0] == match[1] + expected + match[2]


def test_a_softmax_is_one_kernel(texts: dict[str, str]) -> None:
    assert texts["segments"].count("segment ") == 1


def test_targets_know_both_devices() -> None:
    assert targets.target_of("cpu") is registry.device("cpu")
    assert targets.target_of("sm_90").traits.threads_are_hardware


def test_the_examples_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    printed = []
    for example in re.findall(r"```python\n(.*?)```", readme, re.DOTALL):
        exec(compile(example, "README.md", "exec"), {})
        printed.append(capsys.readouterr().out)
    of_model, of_kernel = printed
    assert "native_layer_norm" in of_model and "no graph breaks" in of_model
    assert "def nvfuser_fusion(fd : FusionDefinition)" in of_kernel


@pytest.mark.parametrize("name", ["softmax", "schedule"])
def test_the_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "docs" / "examples" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out in ("rows sum to 1.0\n", "equal to torch: True\n")
