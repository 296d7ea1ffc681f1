"""The run-time sizes of a fusion as far as scheduling decisions may depend on them.

Symbolic sizes and their bindings -> SizeInfo, which programs are cached by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..ir.scalar_queries import evaluate, substitute
from ..ir.scalars import Integer, IntExpr, product
from ..ir.vals import TensorView
from ..target.target import Target


@dataclass(frozen=True, slots=True)
class SizeInfo:
    """What a scheduling decision may depend on: the target and the magnitudes of run-time sizes.

    Hashable, so that programs can be cached by it.

    `magnitudes` has the bit length of each symbolic size (0 for 0, 1 for 1, 2 for 2 and 3, ...), so
    that sizes within a factor of two share their plan.  Without them only structure decides.
    `disabled` has the names of schedulers that take nothing.  `splits_columns` if columns are too
    long to be normalised by one kernel (`Target.splits_columns`), `splits_rows` if rows of several
    axes are (`Target.row_refusal`).  `nests_rows` if one kernel should reduce the parts of some
    rows and then their results (`Target.nested_refusal`).
    """

    target: Target
    magnitudes: tuple[tuple[str, int], ...] = ()
    disabled: frozenset[str] = frozenset()
    splits_columns: bool = False
    splits_rows: bool = False
    nests_rows: bool = False

    @staticmethod
    def of(
        sizes: Mapping[str, int],
        target: Target,
        disabled: frozenset[str] = frozenset(),
        splits_columns: bool = False,
        splits_rows: bool = False,
        nests_rows: bool = False,
    ) -> SizeInfo:
        """The magnitudes of bound sizes (symbol name -> size in elements)."""
        ordered = tuple(sorted((name, size.bit_length()) for name, size in sizes.items()))
        return SizeInfo(target, ordered, disabled, splits_columns, splits_rows, nests_rows)

    def elements(self, extents: Iterable[IntExpr]) -> int | None:
        """About the product of the extents (too small by less than a factor of 2 per symbol)."""
        total = product(extents)
        known = {name: 1 << (bits - 1) if bits else 0 for name, bits in self.magnitudes}
        if any(symbol.name not in known for symbol in total.symbols):
            return None
        try:
            return int(evaluate(total, known))
        except ZeroDivisionError:
            return 0

    def is_empty(self, tensor: TensorView) -> bool:
        """True if the tensor has no elements for any sizes of these magnitudes.

        A difference of two sizes of equal magnitude is 0 for `elements`, but may not be 0.
        """
        if self.elements(axis.size for axis in tensor.axes) != 0:
            return False
        exact = {name: Integer.of(bits) for name, bits in self.magnitudes if bits <= 1}
        total = product(axis.size for axis in tensor.axes)
        known = {each: exact[each.name] for each in total.symbols if each.name in exact}
        try:
            return substitute(total, known) is Integer.of(0)
        except ZeroDivisionError:
            return True
