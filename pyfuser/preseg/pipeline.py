"""The pipeline before segmentation: Fusion -> Fusion, simpler and equal.

PIPELINE is the order of the passes, written once; each pass's file explains its place. `run` works
on a copy, verifies after each pass, and can stop after the n-th pass or report each one. Invariant:
inputs and outputs keep their number and order, and outputs their values, up to the rounding of sums
in another order.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..ir.fusion import Fusion
from ..ir.verify import verify_fusion
from .broadcast_squeeze import broadcast_squeeze
from .cast_chains import cast_chains
from .cats_as_stacks import cats_as_stacks
from .common_subexpressions import common_subexpressions
from .constant_predicates import constant_predicates
from .dead_code import dead_code
from .empty_tensors import empty_tensors
from .expand_permute import expand_permute
from .identities import identities
from .move_gathers import move_gathers
from .move_permutes import move_permutes
from .move_split_cat import move_split_cat
from .move_windows import move_windows
from .nan_skipping_extrema import nan_skipping_extrema
from .narrow_reads import narrow_reads
from .one_hot_sums import one_hot_sums
from .rounded_comparisons import rounded_comparisons
from .rounded_selections import rounded_selections
from .scatter_accumulate import scatter_accumulate
from .separate_constants import separate_constants
from .separate_expanded_outputs import separate_expanded_outputs
from .shared_sigmoids import shared_sigmoids
from .two_pass_moments import two_pass_moments
from .unify_extents import unify_extents

Pass = Callable[[Fusion], Fusion]
AfterPass = Callable[[str, Fusion, float], None]  # the name of a pass, its result, its seconds

PIPELINE: tuple[Pass, ...] = (
    dead_code,
    two_pass_moments,
    unify_extents,
    empty_tensors,
    cast_chains,
    identities,
    constant_predicates,
    rounded_comparisons,
    rounded_selections,
    one_hot_sums,
    broadcast_squeeze,
    move_permutes,
    expand_permute,
    scatter_accumulate,
    move_split_cat,
    shared_sigmoids,
    cats_as_stacks,
    move_windows,
    move_gathers,
    narrow_reads,
    common_subexpressions,
    nan_skipping_extrema,
    separate_constants,
    separate_expanded_outputs,
    dead_code,
)


# The passes that may make reads repeat work: each read of a tensor does its own.
MOVES: tuple[Pass, ...] = (move_windows, move_gathers)


def run(
    fusion: Fusion,
    *,
    stop_after: int | None = None,
    after: AfterPass | None = None,
    verify: bool = True,
    moves_reads: bool = True,
) -> Fusion:
    """The simplified copy of a fusion; the given one stays unchanged.

    With `stop_after` only the first n passes run.  `after(name, fusion, seconds)` is called after
    each.  `verify` checks the fusion after each pass, which takes longer than the passes.  Without
    `moves_reads`, the source of a read at computed positions is computed before, once.
    """
    current, _ = fusion.clone()
    for simplify in PIPELINE[:stop_after]:
        if simplify in MOVES and not moves_reads:
            continue
        start = time.perf_counter()
        current = simplify(current)
        seconds = time.perf_counter() - start
        if verify:
            verify_fusion(current)
        if after is not None:
            after(simplify.__name__, current, seconds)
    return current
