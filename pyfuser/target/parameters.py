"""What a target's heuristics are asked with, and what they decide, for each scheduler.

A scheduler computes its facts once for a fusion: sizes stay symbolic in them.  A target turns them
and the sizes of a call into parameters; the scheduler turns those into loops.  Parameters are
frozen, so that kernels can be cached by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.scalars import IntExpr
from .cascade import Levels


@dataclass(frozen=True, slots=True)
class PointwiseFacts:
    """rows        elements of the outer axes of the reference output
    columns     elements of its innermost range in memory
    groups      the rows without their last axis; None where they have only one
    transposed  the extent along which transposed inputs lie in memory; None when there are none
    bytes       of the widest element that is computed
    narrowest   bytes of the narrowest element of an input or output
    work        what computing an element costs, in additions
    touched     bytes of all inputs and outputs
    """

    rows: IntExpr
    columns: IntExpr
    groups: IntExpr | None
    transposed: IntExpr | None
    bytes: int
    narrowest: int
    work: int
    touched: IntExpr


@dataclass(frozen=True, slots=True)
class PointwiseParameters:
    """lanes      elements of one vector
    unroll     vectors a step, written out; with a tile: vectors that share a cache line
    chunk      elements a task takes of the innermost range; 0: a task takes the whole row
    tile       rows a task takes when inputs are transposed; 0: none are
    prefetch   bytes that reads fetch ahead
    rows       True where a task takes the rows of the last outer axis: short ones, for each of
               which finding its place (a division an axis) would take longer than computing it
    """

    lanes: int
    unroll: int
    chunk: int
    tile: int = 0
    prefetch: int = 0
    rows: bool = False


@dataclass(frozen=True, slots=True)
class ReductionFacts:
    """inner      the innermost axis is reduced
    kept       elements of the axes that stay
    reduced    elements of the axes that are reduced
    chain      of the loops that walk along them, outermost first; their product is `reduced`
    bytes      of the widest element that is computed
    count      how many reductions there are
    work       what computing an element costs, in additions
    touched    bytes of all inputs and outputs
    """

    inner: bool
    kept: IntExpr
    reduced: IntExpr
    chain: tuple[IntExpr, ...]
    bytes: int
    count: int
    work: int
    touched: IntExpr


@dataclass(frozen=True, slots=True)
class ReductionParameters:
    """inner      the innermost axis is reduced
    lanes      elements of one vector
    unroll     vectors (inner) or rows (outer) a step, written out
    block      columns a task takes (outer)
    parts      pieces that the reduced axes are cut into over the grid; 1: they are not
    prefetch   bytes that reads fetch ahead
    cascade    where the chain of a sum's additions is cut
    """

    inner: bool
    lanes: int
    unroll: int
    block: int
    parts: int
    prefetch: int = 0
    cascade: Levels = ()
