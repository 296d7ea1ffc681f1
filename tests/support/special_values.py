"""Special values, and the judge of their results: eager in the same dtype.

`judge` takes a computed result and all results of eager for the same operands.  Eager's vectorised
and scalar loops differ (a maximum of two zeros, fmod of a huge quotient, gelu of an infinity), so
the layout decides which of its values a model sees: each is correct.  Half precision is computed in
Float and rounded once, which is eager's float32, rounded.  Finite numbers may differ by `ulp`
units, or as long as their error against float64 is at most 4 times eager's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
HALVES = (torch.bfloat16, torch.float16)

# Vectors of every dtype and a tail: no grid is shorter, and each is padded to a multiple.
_LENGTH = 64


def _float_values(dtype: torch.dtype, operands: int) -> list[float]:
    """Fewer for more operands, since all combinations are tried."""
    info = torch.finfo(dtype)
    root, tiny = 2 * math.sqrt(info.max), info.smallest_normal
    values = [0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan, info.max, -tiny / 2, 0.5]
    if operands <= 2:
        values += [-1.0, -info.max, tiny, 3.0, -3.0, 6.0, -0.5, 2.0, -2.5, 100.0, -100.0]
        values += [root, -root, tiny * info.eps, -tiny * info.eps, 1 - info.eps / 2]
    if operands <= 1:
        values += [info.eps / 2 - 1, info.eps / 8, -info.eps / 8, 20.5, -20.5, 88.0, -88.0, -95.0]
        values += [104.0, -104.0, 740.0, -740.0, 1e4, -1e4, 0.4999999, 1.5, 2.5]
    return values


def _integer_values(dtype: torch.dtype, operands: int) -> list[int]:
    info = torch.iinfo(dtype)
    values = [0, 1, 2, info.max, info.min, info.min + 1]
    values += [-1, -2] if info.min else [200]
    if operands <= 2:
        values += [3, 7, 31, 100, info.max - 1]
        values += [-3, -64] if info.min else []
    return values


def values(dtype: torch.dtype, operands: int = 1) -> torch.Tensor:
    """The values of each of this many operands."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor(_float_values(dtype, operands), dtype=torch.float64).to(dtype)
    return torch.tensor(_integer_values(dtype, operands), dtype=dtype)


def grid(dtype: torch.dtype, operands: int) -> list[torch.Tensor]:
    """All combinations, one vector an operand; 1000 drawn ones for more than three operands."""
    column = values(dtype, operands)
    if operands > 3:
        generator = torch.Generator().manual_seed(operands)
        drawn = torch.randint(len(column), (operands, 1000), generator=generator)
        columns = list(column[drawn])
    else:
        columns = [c.flatten() for c in torch.meshgrid(*[column] * operands, indexing="ij")]
    padding = torch.ones(-len(columns[0]) % _LENGTH, dtype=dtype)
    return [torch.cat([c, padding]) for c in columns]


def spread(operand: Any) -> Any:
    """The operand with gaps between its elements, which eager computes one by one."""
    if not isinstance(operand, torch.Tensor) or not operand.dim():
        return operand
    return torch.stack([operand, operand], -1)[..., 0]


def widened(operand: Any, dtype: torch.dtype, to: torch.dtype) -> Any:
    """A tensor of `dtype` in another one; anything else unchanged."""
    is_one = isinstance(operand, torch.Tensor) and operand.dtype is dtype
    return operand.to(to) if is_one else operand


def judge(
    got: torch.Tensor,
    eager: Sequence[torch.Tensor],
    exact: torch.Tensor,
    ulp: float,
    slack: Any = 0.0,
) -> torch.Tensor:
    """Where `got` is none of eager's values.

    exact   eager in float64, for the error of finite numbers and the sign of underflows
    slack   an absolute error that is allowed besides
    """
    wrong = torch.ones_like(got, dtype=torch.bool)
    for one in eager:
        wrong &= _differs(got, one.to(got.dtype), exact, ulp, slack)
    return wrong


def _differs(
    got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, ulp: float, slack: Any
) -> torch.Tensor:
    if not got.dtype.is_floating_point:
        return got != eager
    info = torch.finfo(got.dtype)
    least = info.smallest_normal * info.eps
    mine, theirs, right = got.double(), eager.double(), exact.double()
    same = (mine == theirs) & (mine.signbit() == theirs.signbit())
    same |= mine.isnan() & theirs.isnan()
    # A value too small for the dtype has the sign of the exact value.
    vanished = (mine == 0) & (right.abs() < least) & (mine.signbit() == right.signbit())
    allowed = 4 * (theirs - right).abs() + ulp * info.eps * right.abs()
    allowed = (
        torch.maximum(allowed.nan_to_num(0.0, 0.0, 0.0), ulp * info.eps * theirs.abs()) + 2 * least
    )
    near = ((mine - right).abs() <= allowed + slack) | ((mine - theirs).abs() <= allowed + slack)
    near &= mine.isfinite() & theirs.isfinite() & ((mine != 0) | (theirs != 0))
    return ~(same | (vanished & (theirs == 0)) | near)


def report(
    name: str,
    wrong: torch.Tensor,
    got: torch.Tensor,
    eager: Sequence[torch.Tensor],
    operands: Sequence[Any],
) -> str:
    """The first few elements that are wrong; empty if there are none."""
    if not bool(wrong.any()):
        return ""
    lines = [f"{name}: {int(wrong.sum())} of {wrong.numel()} elements differ"]
    for place in wrong.nonzero()[:6].tolist():
        place = tuple(place)
        given = [o[place[: o.dim()]].tolist() for o in operands if isinstance(o, torch.Tensor)]
        theirs = sorted({str(one[place].item()) for one in eager})
        lines.append(f"  of {given}: got {got[place].item()}, eager {' or '.join(theirs)}")
    return "\n".join(lines)
