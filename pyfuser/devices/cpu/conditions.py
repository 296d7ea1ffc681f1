"""Conditions of statements as values: one for all lanes, or a mask with one for each.

Less, Predicate -> i1, or a vector of them.  A comparison of lanes with a bound is computed once, as
far out as the bound is known, so that the same mask serves all statements of a row's end.
"""

from __future__ import annotations

from ...ir.kernel import Less
from ...ir.scalars import ONE, IntExpr
from .lanes import Lanes, first_lane, stride_along, vector_integer
from .llvm_writer import I32, I64, FunctionWriter, Value
from .scopes import Scopes


class Conditions:
    """The conditions of one phase; `lanes` are those of the loop that is being written."""

    def __init__(self, writer: FunctionWriter, scopes: Scopes) -> None:
        self.writer, self.scopes = writer, scopes
        self.lanes: Lanes | None = None
        self.first_lanes: dict[str, Value] = {}  # by a mask of the first lanes: their number
        self.bounds: dict[str, IntExpr] = {}  # by such a mask: the number, not cut to the lanes
        self.for_all_lanes: dict[str, Value] = {}  # by a mask: a condition without which it's empty

    def condition(self, predicate: tuple[Less, ...]) -> Value | None:
        """The conjunction: i1, or a mask if it depends on the lane; None if it is empty."""
        return self._joined(*self._parts(predicate))

    def _parts(self, predicate: tuple[Less, ...]) -> tuple[Value | None, Value | None]:
        """The conditions that are the same for all lanes, and the mask of the others."""
        alike: Value | None = None
        mask: Value | None = None
        for less in predicate:
            one = self._less(less)
            if one.type.lanes == 1:
                alike = one if alike is None else self.writer.and_(alike, one)
            else:
                mask = one if mask is None else self.writer.and_(mask, one)
        return alike, mask

    def _less(self, less: Less) -> Value:
        w, lanes = self.writer, self.lanes
        a, b = self.scopes.resolve(less.a), self.scopes.resolve(less.b)
        if lanes is None or lanes.symbol not in a.symbols | b.symbols:
            value = w.icmp("slt", self.scopes.integer(a), self.scopes.integer(b))
        elif stride_along(a, lanes) is ONE and lanes.symbol not in b.symbols:
            value = self.lanes_below(b - first_lane(a, lanes), lanes.count)
        elif stride_along(b, lanes) is ONE and lanes.symbol not in a.symbols:
            value = w.not_(self.lanes_below(a - first_lane(b, lanes) + 1, lanes.count))
        else:
            value = w.icmp(
                "slt",
                vector_integer(self.scopes, a, lanes),
                vector_integer(self.scopes, b, lanes),
            )
        return value

    def active(self, predicate: tuple[Less, ...]) -> Value | None:
        """The lanes (or the i1) in which a statement does anything; None for all."""
        alike, mask = self._parts(predicate)
        if self.lanes is not None:
            own = self.lanes.mask
            if own is not None:
                mask = own if mask is None else self.writer.and_(own, mask)
            elif mask is None and alike is not None:
                return self._in_lanes(alike, self.lanes.count)
        return self._joined(alike, mask)

    def _joined(self, alike: Value | None, mask: Value | None) -> Value | None:
        if alike is None or mask is None:
            return alike if mask is None else mask
        made = self.writer.and_(mask, self._in_lanes(alike, mask.type.lanes))
        self.for_all_lanes[made.name] = alike
        return made

    def _in_lanes(self, alike: Value, count: int) -> Value:
        made = self.writer.splat(alike, count)
        self.for_all_lanes[made.name] = alike
        return made

    def lanes_below(self, left: IntExpr, count: int) -> Value:
        """lane < left: one comparison, hoisted as far out as possible.

        Of 32 bits, as most elements have that are selected by it; there are fewer lanes than that.
        """
        key = ("lanes below", left, count)
        known = self.scopes.known(key)
        if known is not None:
            return known
        w, end = self.writer, self.scopes.integer(left)
        with self.scopes.at(self.scopes.level_of_expr(left)) as scope:
            most, none = w.constant(count, I64), w.constant(0, I64)
            end = w.intrinsic("smax", I64, w.intrinsic("smin", I64, end, most), none)
            numbers = w.lane_numbers(I32.with_lanes(count))
            limit = w.splat(w.truncate(end, "i32"), count)
            value = scope.others[key] = w.icmp("slt", numbers, limit)
            self.first_lanes[value.name], self.bounds[value.name] = end, left
        return value
