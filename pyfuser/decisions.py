"""Which parameters a kernel gets: those of the heuristics, or better ones that were measured.

(scheduler, fusion, sizes, target) -> Decision, which says where the parameters come from.  What was
measured is used only if it is among the candidates for these sizes, which decide where sums are
cut.  Sizes that record comparisons get the shape class as their only conditions then: a plan is for
all sizes of the class, so the parts of its sums have up to twice as many additions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .caches.tuning_store import Result, tuning_store
from .ir.fusion import Fusion
from .schedule.registry import AutomaticScheduler
from .target.parameters import without_cascade
from .target.target import Target


@dataclass(frozen=True, slots=True)
class Decision:
    """The parameters of a kernel; `heuristic` are the target's, and `result` what was measured."""

    scheduler: str
    heuristic: Any
    result: Result | None = None

    @property
    def parameters(self) -> Any:
        """Those to schedule with."""
        return self.heuristic if self.result is None else self.result.best

    def __str__(self) -> str:
        text = f"{self.scheduler}: {self.parameters}\n"
        if self.result is None:
            return f"{text}  // by the heuristics\n"
        sizes = ", ".join(f"{name} = {size}" for name, size in self.result.sizes.items())
        share = f"{self.result.ratio:.2f} of the time of the heuristics' choice"
        return f"{text}  // tuned: {share} at {sizes}\n  // heuristics: {self.heuristic}\n"


def decide(
    scheduler: AutomaticScheduler, fusion: Fusion, sizes: Mapping[str, int], target: Target
) -> Decision:
    """The parameters of the kernel of a fusion for these sizes."""
    store = tuning_store()
    found = store.result(target, scheduler, fusion, sizes) if store.names else None
    if found is not None and found.is_chosen:
        known = {name: int(size) for name, size in sizes.items()}
        heuristic = scheduler.heuristics(fusion, known, target)
        best = without_cascade(found.best)
        for candidate in scheduler.candidates(fusion, heuristic, known, target):
            if without_cascade(candidate) == best:
                return Decision(scheduler.name, heuristic, replace(found, best=candidate))
    return Decision(scheduler.name, scheduler.heuristics(fusion, sizes, target))
