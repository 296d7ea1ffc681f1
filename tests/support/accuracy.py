"""How close a kernel's outputs must be to the oracle, the evaluator in higher precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pyfuser.ir.fusion import Fusion
from pyfuser.ops.evaluator import evaluate


def assert_close_to_oracle(
    fusion: Fusion,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    factor: float = 4,
    absolute: float = 0.0,
) -> None:
    """Each output is exact (integers, Bool) or has at most `factor` times torch's own error.

    The error allowed is never less than a few units in the last place of the output's largest
    intermediate: `factor` epsilons of the element itself and of the tensor's scale.
    """
    expected = evaluate(fusion, inputs)
    precise = evaluate(fusion, inputs, dtype_override=torch.float64)
    for got, eager, exact in zip(outputs, expected, precise, strict=True):
        assert got.dtype == eager.dtype
        assert got.shape == eager.shape
        if not got.dtype.is_floating_point:
            assert torch.equal(got, eager)
            continue
        assert_close(got, eager, exact, factor, absolute)


def assert_close(
    got: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    factor: float = 4,
    absolute: float = 0.0,
) -> None:
    """Asserts that `got` is as near to `exact` as `eager` is, up to `factor` and `absolute`."""
    info = torch.finfo(got.dtype)
    a, b, c = got.double(), eager.double(), exact.double()
    allowed = factor * ((b - c).abs().nan_to_num() + info.eps * c.abs().nan_to_num())
    allowed += info.tiny + absolute
    fits = ((a - c).abs() <= allowed) | (a == c) | (a == b) | (a.isnan() & b.isnan())
    if not bool(fits.all()):
        where = (~fits).nonzero()[0].tolist()
        index = tuple(where)
        raise AssertionError(
            f"{int((~fits).sum())} of {fits.numel()} elements differ, first at {where}: "
            f"got {a[index]}, torch {b[index]}, exact {c[index]}"
        )
