"""The 31 defects of torch's first fuser, that of FusionGroups, each as a test that it would fail.

There is one test per defect, by number, in this folder, or COVERED names the test elsewhere that
covers it. If a defect can be seen both by `torch.compile` and by a FusionDefinition, both are
tried; eager is the judge, and PYFUSER_STRICT forbids torch to compute what kernels should.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.folders import ROOT

COVERED = {
    17: "test_engine.py::test_a_failed_compilation_is_one_warning_and_right",
    22: "ops/test_random.py::test_the_extreme_words",
    23: "torch_compile/test_aten_regions.py::test_dropout_has_the_bits_and_the_stream_of_eager",
    31: "test_engine.py::test_a_fork_after_use",
}
"""17: no C compiler is needed, so what can fail is LLVM.  22, 23: kernels draw no random numbers,
torch does, in eager's order."""


def test_every_defect_has_a_test() -> None:
    here = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    own = {int(number) for text in here for number in re.findall(r"(?m)^def test_(\d+)_", text)}
    assert own | set(COVERED) == set(range(1, 32))
    for place in COVERED.values():
        file, name = place.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), place
