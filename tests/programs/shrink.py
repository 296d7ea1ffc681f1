"""Makes a failing program small: fewer outputs, statements, inputs, plainer layouts, fewer sizes.

Greedy: a change stays if the program still fails in the same way.  Two changes make most of the
difference: a value becomes a separate input, and a statement is replaced by one of its operands.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from tests.programs.outcome import Outcome
from tests.programs.program import NAME, Input, Program, Statement
from tests.programs.running import Lockstep

Case = TypeVar("Case")


def shrunk(
    program: Program, outcome: Outcome, judge: Callable[[Program], Outcome], seconds: float
) -> Program:
    """The smallest program found within a time that fails as `outcome` says."""

    def smaller(program: Program) -> Iterator[Program]:
        return map(without_dead_code, candidates(program))

    return smallest(program, smaller, size, judge, outcome, seconds)


def smallest(
    case: Case,
    candidates: Callable[[Case], Iterable[Case]],
    size: Callable[[Case], tuple[int, ...]],
    judge: Callable[[Case], Outcome],
    outcome: Outcome,
    seconds: float,
    key: Callable[[Case], Hashable] = lambda case: case,
) -> Case:
    """The smallest case found within a time that fails as `outcome` says.

    Cases with the same `key` are tried once.
    """
    end = time.monotonic() + seconds
    tried = {key(case)}
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for candidate in candidates(case):
            if time.monotonic() > end:
                break
            if key(candidate) in tried or size(candidate) >= size(case):
                continue
            tried.add(key(candidate))
            if _same(judge(candidate), outcome):
                case, progress = candidate, True
                break
    return case


def _same(a: Outcome, b: Outcome) -> bool:
    return a.kind == b.kind and pattern(a.message) == pattern(b.message)


def pattern(message: str) -> str:
    """A message without its numbers and names."""
    return re.sub(r"\d+", "#", message)[:100]


def size(program: Program) -> tuple[int, ...]:
    """The measures that a shrink reduces, the most important first."""
    layouts = sum(bool(given.view) for given in program.inputs)
    sizes = sum(sum(shape) for given in program.inputs for shape in given.shapes)
    text = sum(len(str(statement)) for statement in program.statements)
    others = sum(given.dtype != "float32" for given in program.inputs)
    flags = program.dynamic + program.grad
    inputs = sum(len(str(given.base)) for given in program.inputs)
    return (
        len(program.statements),
        flags,
        len(program.outputs),
        layouts + others,
        text,
        sizes,
        inputs,
    )


def without_dead_code(program: Program) -> Program:
    """Only inputs and values that something uses; in-place lines on unused values go as well."""
    while True:
        needed = set(program.outputs)
        kept: list[Statement] = []
        for statement in reversed(program.statements):
            if not statement.targets or needed & set(statement.targets):
                kept.insert(0, statement)
                needed |= statement.reads()
        inputs = tuple(given for given in program.inputs if given.name in needed)
        smaller = replace(program, statements=tuple(kept), inputs=inputs or program.inputs[:1])
        if smaller == program:
            return program
        program = smaller


def candidates(program: Program) -> Iterator[Program]:
    """Programs that are a little smaller."""
    count = len(program.statements)
    for chunk in (count // 2, count // 4):
        for start in range(0, count, chunk or count) if chunk else ():
            yield _without(program, range(start, min(start + chunk, count)))
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield replace(program, outputs=(name,))
        for name in program.outputs:
            yield replace(program, outputs=tuple(n for n in program.outputs if n != name))
    yield from _plainer_flags(program)
    yield from _values_as_inputs(program)
    for place in reversed(range(count)):
        yield _without(program, range(place, place + 1))
    yield from _operands(program)
    yield from _earlier_outputs(program)
    yield from _plainer_inputs(program)
    yield from _simpler_text(program)


def _without(program: Program, places: range) -> Program:
    """The program without some lines and the readers of their values."""
    gone: set[str] = set()
    kept = []
    for place, statement in enumerate(program.statements):
        if place in places or statement.reads() & gone:
            gone |= set(statement.targets)
        else:
            kept.append(statement)
    outputs = tuple(name for name in program.outputs if name not in gone)
    if not outputs:
        left = [name for statement in kept for name in statement.targets]
        outputs = tuple(left[-1:]) or (program.inputs[0].name,)
    return replace(program, statements=tuple(kept), outputs=outputs)


def _plainer_flags(program: Program) -> Iterator[Program]:
    if program.dynamic:
        for which in (0, 1):
            inputs = tuple(
                replace(g, shapes=(g.shapes[which],), bases=(g.bases[which],))
                for g in program.inputs
            )
            yield replace(program, inputs=inputs)
    if program.grad:
        yield replace(program, inputs=tuple(replace(g, grad=False) for g in program.inputs))


def _substituted(program: Program, place: int, old: str, new: str) -> Program:
    """Another name for a value, from a line on."""
    name = re.compile(rf"\b{old}\b")
    later = [replace(s, text=name.sub(new, s.text)) for s in program.statements[place + 1 :]]
    outputs = tuple(new if n == old else n for n in program.outputs)
    statements = (*program.statements[:place], *later)
    return replace(program, statements=statements, outputs=outputs)


def _operands(program: Program) -> Iterator[Program]:
    """Replaces a line by one of its operands."""
    for place, statement in enumerate(program.statements):
        if len(statement.targets) == 1:
            for name in sorted(statement.reads()):
                yield _substituted(program, place, statement.targets[0], name)


def _earlier_outputs(program: Program) -> Iterator[Program]:
    """Replaces an output by one of its operands."""
    by_target = {t: s for s in program.statements for t in s.targets}
    for number, name in enumerate(program.outputs):
        if name in by_target:
            for read in sorted(by_target[name].reads()):
                outputs = (*program.outputs[:number], read, *program.outputs[number + 1 :])
                yield replace(program, outputs=outputs)


def _values_as_inputs(program: Program) -> Iterator[Program]:
    """A value is given instead of computed: contiguous, with values of its kind."""
    try:
        all_steps = [Lockstep.of(program, n) for n in range(len(program.inputs[0].shapes))]
        for statement in program.statements:
            for steps in all_steps:
                steps.execute(statement)
    except Exception:  # Not a program any longer.
        return
    for place in reversed(range(len(program.statements))):
        statement = program.statements[place]
        if not statement.targets:
            continue
        inputs, new = list(program.inputs), program
        names = {}
        for target in statement.targets:
            value = all_steps[0].native.names[target]
            shapes = tuple(tuple(steps.native.names[target].shape) for steps in all_steps)
            names[target] = f"x{max(int(given.name[1:]) for given in inputs) + 1}"
            inputs.append(_input_like(names[target], value, shapes, program.grad))
        new = replace(program, inputs=tuple(inputs))
        for target, name in names.items():
            new = _substituted(
                replace(
                    new,
                    statements=(
                        *new.statements[:place],
                        Statement((), "pass"),
                        *new.statements[place + 1 :],
                    ),
                ),
                place,
                target,
                name,
            )
            new = replace(
                new,
                statements=(
                    *new.statements[:place],
                    Statement((), "pass"),
                    *new.statements[place:],
                ),
            )
        statements = tuple(s for n, s in enumerate(new.statements) if n != place)
        yield replace(new, statements=statements)


def _input_like(name: str, value: Tensor, shapes: tuple[tuple[int, ...], ...], grad: bool) -> Input:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype == "bool":
        base = "torch.randint(0, 2, {shape}, generator=seed(1)).bool()"
    elif value.is_floating_point():
        base = f"torch.randn({{shape}}, generator=seed(1)).to(torch.{dtype})"
    else:
        base = f"torch.randint(0, 5, {{shape}}, generator=seed(1)).to(torch.{dtype})"
    return Input(name, dtype, shapes, shapes, base, "", grad and value.is_floating_point())


def _plainer_inputs(program: Program) -> Iterator[Program]:
    """Contiguous, in float32, without a gradient, of smaller sizes."""
    for number, given in enumerate(program.inputs):
        changes = [given.contiguous()] if given.view else []
        if given.dtype not in ("float32", "bool"):
            changes.append(
                replace(given, dtype="float32", base=given.base.replace(given.dtype, "float32"))
            )
        if given.grad:
            changes.append(replace(given, grad=False))
        if ".to(memory" in given.base:
            changes.append(replace(given, base=given.base[: given.base.index(".to(memory")]))
        if "randn" in given.base:
            changes.append(
                replace(
                    given,
                    base=given.base.replace(f".to(torch.{given.dtype})", "")
                    if given.dtype == "float32"
                    else given.base,
                )
            )
        for change in changes:
            inputs = (*program.inputs[:number], change, *program.inputs[number + 1 :])
            yield replace(program, inputs=inputs)
    lengths = {n for given in program.inputs for shape in given.shapes for n in shape if n > 1}
    for length in sorted(lengths, reverse=True):
        for smaller in (1, 2, 3, 4, 8):
            if smaller < length:
                yield _resized(program, length, smaller)


def _resized(program: Program, old: int, new: int) -> Program:
    """Changes the length of axes, in inputs with a simple layout."""
    inputs = []
    for given in program.inputs:
        if given.bases != given.shapes and ".transpose" not in given.view:
            inputs.append(given)
            continue
        shapes = tuple(tuple(new if n == old else n for n in shape) for shape in given.shapes)
        bases = tuple(tuple(new if n == old else n for n in shape) for shape in given.bases)
        inputs.append(replace(given, shapes=shapes, bases=bases))
    return replace(program, inputs=tuple(inputs))


def _simpler_text(program: Program) -> Iterator[Program]:
    """A line's expression loses a call at its end, or is only its first name."""
    for place, statement in enumerate(program.statements):
        text = statement.text
        shorter = [re.sub(r"\.\w+\([^()]*\)$", "", text)]
        shorter += [re.sub(r"\.(clone|detach|contiguous|to|long|abs)\([^()]*\)", "", text, count=1)]
        shorter += [re.sub(r" [-+*] [\w.]+$", "", text)]
        for new in shorter:
            if new != text and NAME.search(new):
                statements = list(program.statements)
                statements[place] = replace(statement, text=new)
                yield replace(program, statements=tuple(statements))
