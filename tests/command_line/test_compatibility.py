"""docs/compat.md: every name of nvFuser's interface, looked up."""

from __future__ import annotations

from pyfuser.command_line.compatibility import GROUPS, NOTES, as_markdown, entries
from tests.support.folders import ROOT


def test_no_name_is_missing() -> None:
    assert [f"{e.group}.{e.name}" for e in entries() if e.state == "missing"] == []


def test_the_page_is_what_the_command_prints() -> None:
    """`python -m pyfuser compat --markdown > docs/compat.md` makes it."""
    assert (ROOT / "docs/compat.md").read_text(encoding="utf-8") == as_markdown()


def test_every_note_is_about_a_name() -> None:
    names = {f"{group}.{name}" for group, listed in GROUPS.items() for name in listed.split()}
    assert NOTES.keys() <= names


def test_the_interface_has_134_operations() -> None:
    assert len(GROUPS["ops"].split()) == len(set(GROUPS["ops"].split())) == 134
