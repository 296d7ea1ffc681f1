"""The refusals of a phase: collected during the computation and reported once.

Wherever an operand may be refused, a value that is 0 if all is well is or-ed into a variable of the
thread; `sroa` turns these variables into registers, so a check costs an instruction or two and no
branch.  When a thread has finished its share, it sets the status slot of the call unless they are
all 0.
"""

from __future__ import annotations

from .llvm_writer import I64, PTR, FunctionWriter, Value


class Refusals:
    """The refusals of one phase, for its writer; `entry` are the lines of its entry block."""

    def __init__(self, writer: FunctionWriter, entry: list[str]) -> None:
        self.writer, self.entry = writer, entry
        self.found: dict[int, Value] = {}  # by lanes

    def note(self, wrong: Value, active: Value | None) -> None:
        """Refuses the call if an i64 isn't 0 in some active lane."""
        w = self.writer
        if active is not None:
            if active.type.lanes != wrong.type.lanes:
                active = w.any(active)
            wrong = w.select(active, wrong, w.constant(0, wrong.type))
        place = self._place(wrong.type.lanes)
        known = w.load(wrong.type, place, _alignment(wrong))
        w.store(w.or_(known, wrong), place, _alignment(wrong))

    def note_mask(self, bad: Value, active: Value | None) -> None:
        """Refuses the call if a condition holds in some active lane."""
        w = self.writer
        if active is not None:
            if active.type.lanes != bad.type.lanes:
                active = w.any(active)
            bad = w.and_(bad, active)
        self.note(w.zext(w.any(bad), I64), None)

    def report(self, slot: int) -> None:
        """Sets the status, one of the argument slots, if something was refused."""
        if not self.found:
            return
        w = self.writer
        parts = [
            w.reduce("or", w.load(I64.with_lanes(lanes), place, 8 * lanes))
            for lanes, place in self.found.items()
        ]
        everything = parts[0]
        for part in parts[1:]:
            everything = w.or_(everything, part)
        refused, done = w.fresh("refused"), w.fresh("accepted")
        w.branch_if(w.icmp("ne", everything, w.constant(0, I64)), refused, done)
        w.label(refused)
        status = w.element_pointer(Value("%args", PTR), "i64", w.constant(slot, I64))
        w.store(w.constant(1, I64), status, 8)  # every thread that stores it stores the same value
        w.branch(done)
        w.label(done)

    def _place(self, lanes: int) -> Value:
        if lanes not in self.found:
            w, type_ = self.writer, I64.with_lanes(lanes)
            with w.into(self.entry):
                self.found[lanes] = place = w.alloca(type_, 1, 64)
                w.store(w.constant(0, type_), place, 8 * lanes)
        return self.found[lanes]


def _alignment(value: Value) -> int:
    return 8 * value.type.lanes
