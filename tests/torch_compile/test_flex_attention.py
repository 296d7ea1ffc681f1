"""Flex attention: programs for scores against their definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.support.compiled import BACKEND
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict

pytestmark = pytest.mark.usefixtures("poison")

_LIBRARY, _FLEX = "_scaled_dot_product_flash_attention_for_cpu", "call_flex_attention"
_LENGTH = 48
Score = Callable[..., Tensor]

_SLOPES = torch.linspace(0.1, 0.4, 4)
_TABLE = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
_HALF = _TABLE[0].bfloat16()
_DOCUMENTS = torch.arange(64) // 10


@dataclass(frozen=True)
class Program:
    """What is done to a score, and which scores are kept (None: all).

    adds    torch's attention can do it
    """

    score: Score | None = None
    kept: Score | None = None
    adds: bool = True


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def _window(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < 7)


PROGRAMS = {
    "nothing": Program(),
    "causal": Program(kept=_causal),
    "causal score": Program(lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf"))),
    "acausal score": Program(lambda s, b, h, i, j: torch.where(j > i, -float("inf"), s)),
    "window": Program(kept=_window),
    "rows without a column": Program(kept=lambda b, h, i, j: i > j + 9),
    "prefix": Program(kept=lambda b, h, i, j: (j < 5) | (i >= j)),
    "documents": Program(kept=lambda b, h, i, j: _DOCUMENTS[i] == _DOCUMENTS[j]),
    "slopes": Program(lambda s, b, h, i, j: s + _SLOPES[h] * (j - i), _causal),
    "distances": Program(lambda s, b, h, i, j: s - _TABLE[h, (i - j).abs()], _window),
    "large numbers": Program(lambda s, b, h, i, j: s + (i * 123_456_789 + j) % 7 * 0.1, _causal),
    "tables in half precision": Program(lambda s, b, h, i, j: s + _HALF[h] - _HALF[j]),
    "scaled": Program(lambda s, b, h, i, j: (s - 0.1 * h) * 2 / 3 + 1, _causal),
    "by batch": Program(lambda s, b, h, i, j: torch.where(b == 0, s, -float("inf")) + j * 0.01),
    "soft cap": Program(lambda s, b, h, i, j: 2 * torch.tanh(s / 2), _causal, adds=False),
    "squares": Program(lambda s, b, h, i, j: s * s * (i + 1), adds=False),
    "masked cap": Program(
        lambda s, b, h, i, j: torch.where(i > j + 9, s.tanh(), -float("inf")), adds=False
    ),
    "negative scale": Program(lambda s, b, h, i, j: s * -1.5, adds=False),
}


def operands(
    length: int = _LENGTH, *, heads: int = 4, dtype: torch.dtype = torch.float32, width: int = 8
) -> tuple[Tensor, ...]:
    torch.manual_seed(length)
    shapes = ((2, 4, length, 8), (2, heads, length, 8), (2, heads, length, width))
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def definition(program: Program, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """All scores in float64, one by one as far as the program is concerned."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1).double() for x in (key, value))
    scores = query.double() @ key.mT / query.shape[-1] ** 0.5
    index = [
        torch.arange(size).view([-1 if n == axis else 1 for n in range(4)])
        for axis, size in enumerate(scores.shape)
    ]
    if program.score is not None:
        scores = program.score(scores, *index)
    if program.kept is not None:
        scores = torch.where(program.kept(*index), scores, -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ value


def attention(program: Program, length: int = _LENGTH, **options: Any) -> Callable[..., Any]:
    mask = None
    if program.kept is not None:
        mask = create_block_mask(program.kept, None, None, length, length, device="cpu")

    def function(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(
            query, key, value, score_mod=program.score, block_mask=mask, **options
        )

    return function


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, sources: list[str]) -> None:
    program, inputs = PROGRAMS[name], operands()
    got = torch.compile(attention(program), backend=BACKEND, fullgraph=True)(*inputs)
    (source,) = sources
    assert (_LIBRARY in source, _FLEX in source) == (program.adds, False)
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), definition(program, *inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ("distances", "soft cap"))
def test_half_precision(name: str, sources: list[str]) -> None:
    """Scores aren't rounded: the error is that of the shares and of the result."""
    program, inputs = PROGRAMS[name], operands(dtype=torch.bfloat16)
    got = torch.compile(attention(program), backend=BACKEND, fullgraph=True)(*inputs)
    assert _FLEX not in sources[0]
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.double(), definition(program, *inputs), rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("error:Raw SymInt")
@pytest.mark.parametrize("name", ("causal score", "distances", "squares"))
def test_changing_lengths(name: str) -> None:
    program = Program(PROGRAMS[name].score, None, PROGRAMS[name].adds)
    compiled = torch.compile(attention(program), backend=BACKEND, fullgraph=True, dynamic=True)
    for length in (_LENGTH, 31, 64):
        inputs = operands(length)
        expected = definition(program, *inputs)
        torch.testing.assert_close(compiled(*inputs).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ("slopes", "soft cap"))
def test_heads_that_share_keys(name: str) -> None:
    program, inputs = PROGRAMS[name], operands(heads=2)
    function = attention(program, enable_gqa=True)
    got = torch.compile(function, backend=BACKEND, fullgraph=True)(*inputs)
    torch.testing.assert_close(got.double(), definition(program, *inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ("causal", "soft cap"))
def test_transposed_operands(name: str) -> None:
    """The result has the queries' memory order, which what follows was traced with."""
    program, inputs = PROGRAMS[name], operands()

    def function(*given: Tensor) -> tuple[Tensor, Tensor]:
        result = attention(program)(*(x.transpose(1, 2) for x in given))
        return result, result.transpose(1, 2).reshape(2, _LENGTH, -1) * 2

    stored = [x.transpose(1, 2).contiguous() for x in inputs]
    got, merged = torch.compile(function, backend=BACKEND, fullgraph=True)(*stored)
    expected = definition(program, *inputs)
    assert got.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
    expected = expected.transpose(1, 2).reshape(2, _LENGTH, -1) * 2
    torch.testing.assert_close(merged.double(), expected, rtol=1e-4, atol=1e-5)


def test_values_of_another_width() -> None:
    program, inputs = PROGRAMS["causal"], operands(width=5)
    got = torch.compile(attention(program), backend=BACKEND, fullgraph=True)(*inputs)
    torch.testing.assert_close(got.double(), definition(program, *inputs), rtol=1e-4, atol=1e-5)


def test_sums_of_exponentials() -> None:
    inputs = operands()
    function = attention(PROGRAMS["rows without a column"], return_lse=True)
    got, sums = torch.compile(function, backend=BACKEND, fullgraph=True)(*inputs)
    expected = definition(PROGRAMS["rows without a column"], *inputs)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
    scores = inputs[0].double() @ inputs[1].double().mT / 8**0.5
    row, column = torch.arange(_LENGTH)[:, None], torch.arange(_LENGTH)
    scores = torch.where(row > column + 9, scores, -torch.inf)
    torch.testing.assert_close(sums.double(), scores.logsumexp(-1), rtol=1e-4, atol=1e-5)


def test_other_programs_are_torchs(sources: list[str]) -> None:
    """One that reads a whole row for each score."""
    program, inputs = Program(lambda s, b, h, i, j: s + _TABLE[h].sum()), operands()
    got = torch.compile(attention(program), backend=BACKEND, fullgraph=True)(*inputs)
    assert _FLEX in sources[0]
    torch.testing.assert_close(got.double(), definition(Program(), *inputs), rtol=1e-4, atol=1e-5)
