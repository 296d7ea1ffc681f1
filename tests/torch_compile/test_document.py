"""docs/torch_compile.md shows what the backend really makes; `pytest --update-golden` rewrites it.

Its texts are printed by docs/examples/block.py in its own process, so that fusions are
numbered from 0.  The block is small: no part of a text depends on the processor or its threads.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.documents import require_section
from tests.support.folders import ROOT

PAGE = ROOT / "docs" / "torch_compile.md"
SCRIPT = ROOT / "docs" / "examples" / "block.py"
SECTIONS = ("aten", "regions", "fusion", "call", "explain")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The script's output, by section."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "PYFUSER_STRICT": "1", "PYTHONUTF8": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parts = re.split(r"(?m)^# (\w+)\n", done.stdout)[1:]
    lines = {name: text.splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return {name: "\n".join(map(str.rstrip, text)).rstrip() + "\n" for name, text in lines.items()}


def test_the_script_prints_every_section(texts: dict[str, str]) -> None:
    assert tuple(texts) == SECTIONS


@pytest.mark.parametrize("name", SECTIONS)
def test_the_page_shows_what_is_printed(
    name: str, texts: dict[str, str], request: pytest.FixtureRequest
) -> None:
    update = request.config.getoption("--update-golden")
    require_section(PAGE, name, texts[name], update)


def test_the_options_of_the_page_are_those_of_the_code() -> None:
    from pyfuser.torch_compile.backend import BackendOptions

    page = PAGE.read_text(encoding="utf-8")
    documented = set(re.findall(r"(?m)^\| `(\w+)` \|", page))
    assert documented == set(BackendOptions.__dataclass_fields__)
