"""Random fusions for hypothesis: a definition built step by step, and inputs in random layouts.

`fusions()` draws one from the steps of tests/support/steps/: one for every operation of the
interface, and some for common compositions.  `fusions("gather")` has that operation in it.  The
operations of pyfuser's tables are drawn from these, so a new row joins by itself.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Callable
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from pyfuser import FusionDefinition
from pyfuser.dtypes import from_torch
from pyfuser.ops.builders import DEVICE_ONLY
from tests.support.random_tensors import Shape, random_tensor
from tests.support.steps import indexed, library, pointwise, reductions, shapes
from tests.support.steps.made import Draw, RandomFusion, Value
from tests.support.steps.pointwise import Step

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
RARE = (*FLOAT8, torch.uint64, torch.bool)
SIZES = (1, 1, 2, 3, 7, 16, 37)
# Sizes at which rows are split over cores, accumulators unrolled, persistent buffers long.
LARGE_SIZES = (1, 9, 130, 600, 1500)

# How often a kind of step is drawn, and its operations.
_KINDS: tuple[tuple[int, dict[str, Step]], ...] = (
    (6, pointwise.STEPS),
    (1, {"cast": pointwise.cast, **pointwise.COMPOSITES}),
    (3, reductions.STEPS),
    (1, reductions.COMPOSITES),
    (4, shapes.STEPS | shapes.COMPOSITES),
    (2, indexed.STEPS | indexed.COMPOSITES),
    (1, library.STEPS | library.COMPOSITES),
)
Kinds = tuple[tuple[tuple[str, Step], ...], ...]
_WEIGHTED: Kinds = tuple(tuple(kind.items()) for weight, kind in _KINDS for _ in range(weight))
# The same without what torch computes.
IN_KERNELS: Kinds = tuple(
    tuple(kind.items()) for weight, kind in _KINDS[:-1] for _ in range(weight)
)
STEPS: dict[str, Step] = {
    name: step for _, kind in _KINDS for name, step in kind.items()
} | pointwise.COMPLEX

COMPOSITES = frozenset(
    name for kind in (pointwise, reductions, shapes, indexed, library) for name in kind.COMPOSITES
)

# The operations of the interface that no step draws, and why.
NOT_DRAWN: dict[str, str] = dict.fromkeys(DEVICE_ONLY, "no device that pyfuser runs on computes it")


def examples(count: int, seed: int) -> Callable[[Any], Any]:
    """hypothesis' settings for this many fusions, the same in every run."""
    settings = hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    return lambda test: hypothesis.seed(seed)(settings(test))


def seed_of(name: str) -> int:
    """A seed for the fusions with an operation."""
    return zlib.crc32(name.encode())


@st.composite
def fusions(draw: Draw, name: str | None = None, large: bool = False) -> RandomFusion:
    """A fusion of up to three inputs and five steps, each of a kind that fits.

    With a name, one of the steps is that operation.  `large` is for the schedulers' decisions: one
    or two axes, some of them long.
    """
    # A definition prints the exception that interrupts it; hypothesis abandons examples that way.
    with contextlib.redirect_stdout(io.StringIO()), FusionDefinition() as fd:
        made = RandomFusion(fd, draw)
        add_inputs(made, _large_shape(made) if large else small_shape(made))
        count = made.number(0 if name else 1, 4)
        place = made.number(0, count)
        for number in range(count + 1):
            if name is not None and number == place:
                made.take(name, STEPS[name])
            else:
                made.take(*made.one_of(made.one_of(_WEIGHTED)))
        add_outputs(made)
    return made


def add_inputs(made: RandomFusion, full: Shape) -> None:
    """One to three inputs like this shape."""
    for _ in range(made.number(1, 3)):
        _add_input(made, full)


def small_shape(made: RandomFusion) -> Shape:
    """Up to four short dimensions."""
    rank = made.one_of((2, 2, 3, 1, 4, 0))
    sizes = (*SIZES, 0) if made.flag(12) else SIZES
    shape = tuple(made.one_of(sizes if rank < 4 else sizes[:5]) for _ in range(rank))
    return _square(shape) if made.flag(4) else shape


def _large_shape(made: RandomFusion) -> Shape:
    shape = tuple(made.one_of(LARGE_SIZES) for _ in range(made.number(1, 2)))
    return _square(shape) if made.flag(4) and max(shape) < LARGE_SIZES[-1] else shape


def _square(shape: Shape) -> Shape:
    """The shape, with the last two dimensions alike."""
    return (*shape[:-1], shape[-2]) if len(shape) > 1 else shape


def _add_input(made: RandomFusion, full: Shape) -> None:
    """A tensor of the full shape, or of its last dimensions, some of which are 1."""
    kept = full[made.number(0, len(full)) if made.flag(5) else 0 :]
    shape = tuple(1 if made.flag(6) else size for size in kept)
    dtype = made.one_of(made.one_of((FLOATS[:1], FLOATS, FLOATS, INTEGERS, RARE)))
    made.input(random_tensor(shape, dtype, len(made.known.inputs)))
    assert made.values[-1].dtype is from_torch(dtype)


def add_outputs(made: RandomFusion) -> None:
    """The values that nothing reads, some of those that are read, and an update of an input."""
    inputs = set(made.fd.fusion.inputs())
    computed = [value for value in made.values if value.tensor not in inputs]
    if not computed:
        computed = made.add(made.ops.set(made.values[0].tensor))
    needed: set[object] = set()
    outputs: list[Value] = []
    for value in reversed(computed):
        if value.tensor not in needed or made.flag(6):
            outputs.append(value)
        _add_operands(needed, value)
    for value in reversed(outputs):
        if not _updates(made, value):
            made.fd.add_output(value.tensor)


def _add_operands(needed: set[object], value: Value) -> None:
    """Adds what a value is computed from."""
    stack = [value.tensor]
    while stack:
        expr = stack.pop().expr
        new = [] if expr is None else [v for v in expr.tensor_inputs if v not in needed]
        needed.update(new)
        stack += new


def _updates(made: RandomFusion, value: Value) -> bool:
    """True if the value becomes an update of an input like it, which is then no other's."""
    if not made.flag(6):
        return False
    for position, tensor in enumerate(made.fd.fusion.inputs()):
        given = made.known.inputs[position]
        if (
            isinstance(given, torch.Tensor)
            and position not in made.updates
            and tensor.dtype is value.dtype
            and given.shape == value.shape
            and 0 not in given.stride()
        ):
            made.updates[position] = value
            made.fd.add_output(value.tensor, tensor)
            return True
    return False


def check(made: RandomFusion) -> None:
    """Runs a fusion and compares its outputs, and the inputs that it updates, with the evaluator.

    A failure has the definition and the layouts of the inputs in its notes.
    """
    inputs = made.inputs
    layouts = [
        (tuple(x.shape), x.stride(), x.storage_offset()) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]
    try:
        made.fd.validate(inputs)
        for position, value in made.updates.items():
            absolute, relative = made.known.tolerance(value.tensor)
            updated = inputs[position].to(torch.float64 if value.is_floating else torch.int64)
            wanted = value.numbers.to(updated.dtype)
            torch.testing.assert_close(
                updated, wanted, rtol=relative, atol=absolute, equal_nan=True
            )
    except Exception as error:
        error.add_note(f"{made.fd!r}\ninputs: {layouts}")
        raise
