"""Floats at which rounding to half precision changes."""

from __future__ import annotations

import math

import torch


def near_halves(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a half-precision dtype, the floats halfway between, and those next to these."""
    own = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).float()
    own = own[own.isfinite()].sort().values
    middles = (own[1:] + own[:-1]) / 2
    ends = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45])
    places = torch.cat([own, middles, ends])
    up, down = torch.full_like(places, math.inf), torch.full_like(places, -math.inf)
    return torch.cat([places, torch.nextafter(places, up), torch.nextafter(places, down)])
