"""The expected outcomes of each operator's first sample: a list of cases not fused or skipped.

The list is first_samples.txt, beside this file; all other cases are fused.  A case with a different
outcome fails, in either direction, so no operator stops being fused, and none is skipped, without a
change of the list; `pytest --update-golden` writes it.
"""

from __future__ import annotations

from pathlib import Path

_FILE = Path(__file__).parent / "first_samples.txt"

FUSED = "fused"  # a kernel computes some of it
UNFUSED = "unfused"  # the graphs have no region
UNTRACED = "untraced"  # Dynamo leaves it to eager: there is no graph
SKIPPED = "skipped"  # torch doesn't run it


def outcome(graphs: int, regions: int) -> str:
    """The meaning of the numbers of graphs and fused regions."""
    if regions:
        return FUSED
    return UNFUSED if graphs else UNTRACED


def listed() -> dict[str, str]:
    """The expected outcomes of the cases that aren't fused, by name."""
    found = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        expected, operator, *dtypes = line.split()
        found.update({f"{operator}-{dtype}": expected for dtype in dtypes})
    return found


def write(expected: dict[str, str]) -> None:
    """Writes the list: an outcome, an operator and its dtypes a line."""
    lines: dict[tuple[str, str], list[str]] = {}
    for name, found in expected.items():
        operator, dtype = name.rsplit("-", 1)
        if found != FUSED:
            lines.setdefault((found, operator), []).append(dtype)
    texts = [" ".join((*key, *sorted(dtypes))) for key, dtypes in sorted(lines.items())]
    _FILE.write_text("\n".join(texts) + "\n", encoding="utf-8")
