"""The resize scheduler: pointwise fusions that slice, pad or concatenate.

A window is read where it is: an index and, for padding, a condition.  So the loops are those of the
pointwise scheduler; `Layouts` keeps axes apart that a window can't merge.
"""

from __future__ import annotations

from ..ir.fusion import Fusion
from ..ir.schedule import ScheduledFusion
from ..target.parameters import PointwiseParameters
from . import pointwise
from .pointwise import candidates, heuristics

__all__ = ["candidates", "heuristics", "schedule"]


def schedule(fusion: Fusion, parameters: PointwiseParameters) -> ScheduledFusion:
    """The loops of the pointwise scheduler."""
    return pointwise.schedule(fusion, parameters, "resize")
