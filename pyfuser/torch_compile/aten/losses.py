"""Losses as formulas of plain operations, for the decomposition table.

Each takes the arguments of the aten overload; `reduction` is 0 for none, 1 for the mean, 2 for the
sum.  The conditions of the gradients are false for NaN, whose sign is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten


def _mean_or_sum(loss: torch.Tensor, reduction: int) -> torch.Tensor:
    """The reduction of a loss: 0 none, 1 mean, 2 sum."""
    if reduction == 1:
        return loss.mean()
    return loss.sum() if reduction == 2 else loss


def _divisor(x: torch.Tensor, reduction: int) -> int:
    """What the gradient of a sum is divided by.  Without elements it may be any number but 0."""
    return x.numel() if reduction == 1 and x.numel() else 1


def mse_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """The squared distance."""
    distance = x - target
    return _mean_or_sum(distance * distance, reduction)


def mse_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """Its gradient."""
    factor = 2.0 / _divisor(x, reduction)
    return (x - target) * factor * grad


def smooth_l1_loss(
    x: torch.Tensor, target: torch.Tensor, reduction: int = 1, beta: float = 1.0
) -> torch.Tensor:
    """A parabola below `beta`, the distance beyond."""
    distance = (x - target).abs()
    if beta == 0:
        return _mean_or_sum(distance, reduction)
    square = 0.5 * distance * distance / beta
    return _mean_or_sum(torch.where(distance < beta, square, distance - 0.5 * beta), reduction)


def smooth_l1_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """Its gradient."""
    factor = 1.0 / _divisor(x, reduction)
    distance = x - target
    scaled = grad * factor
    inner = distance * scaled if beta == 0 else distance * scaled / beta
    return torch.where(distance.abs() >= beta, scaled * distance.sign(), inner)


def huber_loss(
    x: torch.Tensor, target: torch.Tensor, reduction: int = 1, delta: float = 1.0
) -> torch.Tensor:
    """A parabola up to `delta`, a line beyond."""
    distance = (x - target).abs()
    outer = delta * (distance - 0.5 * delta)
    return _mean_or_sum(torch.where(distance <= delta, 0.5 * distance * distance, outer), reduction)


def huber_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, delta: float
) -> torch.Tensor:
    """Its gradient."""
    factor = 1.0 / _divisor(x, reduction)
    distance = x - target
    slope = torch.where(distance.abs() > delta, delta * distance.sign(), distance)
    return slope * factor * grad


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    aten.mse_loss.default: mse_loss,
    aten.mse_loss_backward.default: mse_loss_backward,
    aten.smooth_l1_loss.default: smooth_l1_loss,
    aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
    aten.huber_loss.default: huber_loss,
    aten.huber_loss_backward.default: huber_loss_backward,
}
