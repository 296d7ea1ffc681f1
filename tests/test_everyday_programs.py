"""Small functions that any PyTorch user writes, on inputs and on intermediates; see the table.

Nothing falls back: the environment is strict (tests/compiled.py).
"""

from __future__ import annotations

import pytest

from tests.compiled import fresh as fresh
from tests.programs.check import check
from tests.programs.everyday import program, rows

ROWS = rows()


@pytest.mark.parametrize("row", ROWS)
def test_on_inputs(row: str) -> None:
    outcome = check(program(row, intermediate=False))
    assert outcome.kind in ("ok", "torch"), f"{outcome.signature}\n{outcome.detail}"


@pytest.mark.parametrize("row", ROWS)
def test_on_intermediates_with_changing_sizes_and_gradients(row: str) -> None:
    outcome = check(program(row, intermediate=True))
    assert outcome.kind in ("ok", "torch"), f"{outcome.signature}\n{outcome.detail}"


def test_there_are_two_hundred_of_them() -> None:
    assert len(ROWS) >= 200
