"""Loops that are cut where slices and pads begin and end."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser import FusionDefinition
from pyfuser.frontend.executors import stage_texts
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

Function = Callable[[Tensor, Tensor], Tensor]


def _rolled(a: Tensor, b: Tensor) -> Tensor:
    half = a.shape[1] // 2
    return torch.cat((-a[:, half:], a[:, :half]), 1) * b[:, :1] + a


def _updated(a: Tensor, b: Tensor) -> Tensor:
    copy = a.clone()
    copy[:, a.shape[1] // 3 : a.shape[1] // 2] = 7.0
    return copy * b[:, :1]


FUNCTIONS = {
    "three parts": lambda a, b: torch.cat((a * 2, b.sigmoid(), a - 1), 1),
    "six parts": lambda a, b: torch.cat((a, b, a.exp(), b.neg(), a, b * 2), 1),
    "sum of rows": lambda a, b: torch.cat((a * 2, b.sigmoid()), 1).sum(1),
    "sum of columns": lambda a, b: torch.cat((a * 2, b.sigmoid()), 1).sum(0),
    "softmax": lambda a, b: torch.cat((a * 2, b.sigmoid()), 1).softmax(1),
    "pad": lambda a, b: functional.pad(a.exp(), (3, 7), value=-2.0) * 2,
    "rotated halves": _rolled,
    "updated slice": _updated,
    "nine parts": lambda a, b: torch.cat([a * n for n in range(8)] + [b.exp()], 1),
    "nine rows": lambda a, b: torch.stack([a * n for n in range(9)]),
    "nine short rows": lambda a, b: torch.stack([a[:, :3] * n for n in range(9)], 1),
    "rolled rows": lambda a, b: torch.stack([a.roll((n, -n), (0, 1)) for n in range(4)]),
    "blocks": lambda a, b: torch.block_diag(a * 2, b.exp(), a),
    "first axis": lambda a, b: torch.cat((a.t() * 2, b.t().sigmoid()), 0),
}


@pytest.mark.parametrize(
    ("name", "dynamic", "dtype"),
    pairwise(
        FUNCTIONS,
        [pytest.param(True, id="dynamic"), pytest.param(False, id="static")],
        [torch.bfloat16, torch.float32],
        strength=1,
    ),
)
def test_parts_of_any_size(name: str, dynamic: bool, dtype: torch.dtype) -> None:
    """Shorter than a vector, ending on its boundary and around it, longer."""
    function: Function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    torch.manual_seed(0)
    for rows, first, second in ((2, 5, 9), (3, 31, 33), (3, 64, 64), (2, 100, 1), (1, 257, 1000)):
        a, b = torch.randn(rows, first).to(dtype), torch.randn(rows, second).to(dtype)
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        expected = function(a.double(), b.double()).to(dtype)
        torch.testing.assert_close(compiled(a, b), expected, rtol=tolerance, atol=tolerance)


def test_a_row_of_a_stack_is_in_one_part() -> None:
    """Rows are tasks, so each part has a loop of its own, without conditions."""
    with FusionDefinition() as fd:
        parts = [fd.define_tensor(shape=[-1, -1, -1], contiguity=[True] * 3) for _ in range(3)]
        operations = (fd.ops.exp, fd.ops.neg, fd.ops.sin)
        computed = [operation(x) for operation, x in zip(operations, parts, strict=True)]
        fd.add_output(
            fd.ops.mul(fd.ops.cat(computed, 1), fd.ops.slice(parts[0], [0, 0, 0], [64, 1, 96]))
        )
    given = [torch.randn(64, rows, 96) for rows in (2, 1, 3)]
    (result,) = fd.execute(given)
    expected = torch.cat((given[0].exp(), -given[1], given[2].sin()), 1) * given[0][:, :1]
    torch.testing.assert_close(result, expected)
    text = stage_texts(fd.fusion, given)["kernel"]
    # The first part or not, the second or the third.
    assert len(re.findall(r"^ +if ", text, re.MULTILINE)) == 2
    along_rows = max(re.findall(r"for j\d in ", text))  # the innermost, by its number
    loops = [loop.partition("}")[0] for loop in text.split(along_rows)[1:4]]
    found = [tuple(f"{name}(" in loop for name in ("exp", "neg", "sin")) for loop in loops]
    assert found == [(True, False, False), (False, True, False), (False, False, True)]
    assert not any(" if " in loop for loop in loops)


def test_one_window_is_one_case() -> None:
    """All conditions for a window are tested together: it is read, or it isn't."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True] * 3)
        padded = fd.ops.pad(x, [1, 1, 2, 3])
        whole = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True] * 3)
        fd.add_output(fd.ops.add(padded, whole))
    given = [torch.randn(4, 7, 62), torch.randn(4, 12, 64)]
    (result,) = fd.execute(given)
    torch.testing.assert_close(result, functional.pad(given[0], (1, 1, 2, 3)) + given[1])
    text = stage_texts(fd.fusion, given)["kernel"]
    assert (text.count("    if 2 < "), text.count("} else {")) == (1, 1)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_what_a_part_lacks_is_not_read(reduced: bool, is_first: bool) -> None:
    """A column that all lanes read, of a tensor whose rows are 4 MiB apart: no memory is where the
    rows of the other part would be."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        parts = (a[:, :1].expand(-1, 64) * 2, b[:, :1].expand(-1, 64) + 1)
        joined = torch.cat(parts if is_first else parts[::-1]) * 1.5
        return joined.sum(1) if reduced else joined

    a, b = torch.randn(1000, 4), torch.randn(2, 1 << 20)
    compiled = torch.compile(function, backend="pyfuser", dynamic=False)
    torch.testing.assert_close(compiled(a, b), function(a, b))


@pytest.mark.parametrize("columns", [3, 16, 40, 100])
def test_rows_of_which_every_second_one_is_written(columns: int) -> None:
    """Gradients of strided slices: a row is in one window, in the other, or in both."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        even, odd = torch.zeros_like(y), torch.zeros_like(y)
        even[:, ::2] = x[:, ::2] * 2
        odd[:, 1:-1:3] = x[:, 1:-1:3].exp()
        total = (even + odd + x) * y
        return total, total.sum(-1)

    for rows in (1, 2, 5, 32):
        x, y = torch.randn(6, rows, columns), torch.randn(6, rows, columns)
        compiled = torch.compile(function, backend="pyfuser", dynamic=False)
        for found, right in zip(compiled(x, y), function(x, y), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


def test_no_condition_is_left_within_a_part() -> None:
    """Two parts, in the order of the cat, and between them a loop that decides."""
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor(shape=[-1, -1], contiguity=[True, True]) for _ in range(2))
        fd.add_output(fd.ops.cat([fd.ops.exp(a), fd.ops.neg(b)], 1))
    given = [torch.randn(4, 96), torch.randn(4, 64)]
    (result,) = fd.execute(given)
    torch.testing.assert_close(result, torch.cat((given[0].exp(), -given[1]), 1))
    loops = stage_texts(fd.fusion, given)["kernel"].split("for j1 in ")[1:]
    of_exp, deciding, of_neg = (
        ("exp(" in loop, "neg(" in loop, " if " in loop) for loop in loops[:3]
    )
    assert of_exp == (True, False, False)
    assert deciding == (True, True, True)
    assert of_neg == (False, True, False)
