"""The documents are up to date: paths exist, options and commands are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.folders import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SOURCES = sorted((ROOT / "pyfuser").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

_FOLDERS = "pyfuser|tests|docs|benchmarks|demo|examples"
LINK = r"\]\(([^)#:]+)(?:#[^)]*)?\)"
PATH = rf"(?<![\w/.])((?:{_FOLDERS})/[\w/]*\w\.(?:py|md|txt|h))\b"
COMMAND = r"(?m)(?:^|`)make ([a-z][\w-]*)"
PYTHON = r"(?s)```python\n(.*?)```"


@pytest.mark.parametrize(
    ("pattern", "least"),
    [(LINK, 3), (PATH, 10), (COMMAND, 10), (PYTHON, 3)],
    ids=["links", "paths", "commands", "blocks"],
)
def test_the_documents_have_what_is_looked_for(pattern: str, least: int) -> None:
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    assert sum(len(re.findall(pattern, text)) for text in texts) >= least


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(LINK, text):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for path in re.findall(PATH, text):
        assert (ROOT / path).exists() or (document.parent / path).exists(), path


def test_paths_of_tests_in_comments_exist() -> None:
    named = {
        path: source.name
        for source in (*SOURCES, *TESTS)
        for path in re.findall(PATH, source.read_text(encoding="utf-8"))
        if path.startswith("tests/")
    }
    assert len(named) > 3
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_names_every_folder() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    packages = [p.parent for p in (ROOT / "pyfuser").glob("*/__init__.py")]
    assert len(packages) > 8
    for package in packages:
        assert f"{package.name}/" in readme, package.name


def test_the_options_are_those_of_the_code() -> None:
    documented = set(
        re.findall(
            r"^(PYFUSER_\w+)=", (ROOT / "pyfuser/options.py").read_text("utf-8"), re.MULTILINE
        )
    )
    read = {
        name
        for source in SOURCES
        for name in re.findall(
            r'(?:environ(?:\.get)?|_variable|_is_on)[(\[]\s*"(PYFUSER_\w+)"',
            source.read_text(encoding="utf-8"),
        )
    }
    assert documented == read


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_targets_of_the_makefile(document: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = document.read_text(encoding="utf-8")
    for target in re.findall(COMMAND, text):
        assert target in targets, target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_blocks_of_python_are_python(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for block in re.findall(PYTHON, text):
        compile(block, document.name, "exec")


def test_every_module_says_what_it_is_for() -> None:
    for source in SOURCES:
        text = source.read_text(encoding="utf-8").strip()
        assert not text or text.startswith('"""'), source.name
