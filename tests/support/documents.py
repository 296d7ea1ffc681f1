"""Documents with sections of recorded output, between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

import re
from pathlib import Path


def require_section(page: Path, name: str, text: str, update: bool) -> None:
    """Asserts that the section of a page is this text; with `update` it is rewritten instead."""
    written = page.read_text(encoding="utf-8")
    section = re.compile(rf"(<!-- {name} -->\n```\w*\n).*?(```\n<!-- /{name} -->)", re.DOTALL)
    if update:
        written, count = section.subn(lambda match: match[1] + text + match[2], written)
        assert count == 1
        page.write_text(written, encoding="utf-8")
        return
    match = section.search(written)
    assert match is not None
    assert match[0] == match[1] + text + match[2]
