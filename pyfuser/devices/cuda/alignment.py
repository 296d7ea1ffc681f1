"""What must be a multiple of what, so that the vectors of a kernel are aligned.

A kernel is written for aligned vectors, which nearly all calls have: its text tests no address.
Whoever launches it asks `misaligned` about the arguments first, and launches the text for any
address instead (`CudaSource.for_any_address`) if one isn't aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.kernel import Buffer
from ...ir.scalars import Symbol, product
from .spelling import index_text


@dataclass(frozen=True, slots=True)
class Alignment:
    """The address of a buffer, or a product of sizes and strides, is a multiple of `divisor`."""

    of: Buffer | tuple[Symbol, ...]
    divisor: int

    def __str__(self) -> str:
        """The condition in CUDA C++."""
        if isinstance(self.of, Buffer):
            return f"is_aligned<{self.divisor}>({self.of.name})"
        return f"{index_text(product(self.of))} % {self.divisor} == 0"

    def is_known_from(self, parameters: Iterable[object]) -> bool:
        """True if the parameters of a launch have all that it is about."""
        return {*(self.of if isinstance(self.of, tuple) else (self.of,))} <= {*parameters}


def misaligned(
    alignments: Sequence[Alignment],
    parameters: Sequence[object],
    address: Callable[[Any], int] | None = None,
) -> Callable[..., int]:
    """(arguments, one for each parameter) -> not 0 unless all alignments hold.

    An argument is a number; `address` is given those that aren't.
    """
    text = misaligned_text(alignments, parameters, "{}" if address is None else "address({})")
    made: Callable[..., int] = eval(f"lambda *given: {text}", {"address": address})
    return made


def misaligned_text(
    alignments: Sequence[Alignment], parameters: Sequence[object], address: str = "{}"
) -> str:
    """A Python expression about `given`, the arguments; not 0 unless all alignments hold.

    It is text because each launch evaluates it: a loop would take several times as long.
    """
    places = {parameter: f"given[{place}]" for place, parameter in enumerate(parameters)}
    by_divisor: dict[int, list[str]] = {}
    sizes = []
    for each in alignments:
        if isinstance(each.of, Buffer):
            by_divisor.setdefault(each.divisor, []).append(address.format(places[each.of]))
        else:
            sizes.append(f"{' * '.join(places[size] for size in each.of)} % {each.divisor}")
    addresses = [f"({' | '.join(found)}) % {n}" for n, found in by_divisor.items()]
    return " or ".join([*addresses, *sizes])
