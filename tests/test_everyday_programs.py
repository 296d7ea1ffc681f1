"""Small functions that any PyTorch user writes, on inputs and on intermediates; see the table.

Nothing falls back: the environment is strict (tests/support/compiled.py).
"""

from __future__ import annotations

import pytest

from tests.programs.check import check
from tests.programs.everyday import program, rows
from tests.programs.program import Program
from tests.support.compiled import strict as strict
from tests.support.long_cases import long

ROWS = rows()
# On intermediates, a short run has every fifth.
SOME_ROWS = [long(row) if number % 5 else row for number, row in enumerate(ROWS)]


@pytest.mark.parametrize("row", ROWS)
def test_on_inputs(row: str) -> None:
    require_eagers(program(row, intermediate=False))


@pytest.mark.parametrize("row", SOME_ROWS)
def test_on_intermediates_with_changing_sizes_and_gradients(row: str) -> None:
    require_eagers(program(row, intermediate=True))


def require_eagers(given: Program) -> None:
    """Fails with the script that shows how a program differs from eager."""
    outcome = check(given)
    if not outcome.passed:
        text = f"{outcome.signature}\n{outcome.detail}\n{given.script()}"
        pytest.fail(text, pytrace=False)


def test_there_are_two_hundred_of_them() -> None:
    assert len(ROWS) >= 200
