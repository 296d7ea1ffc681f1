"""Every row of the op table on special values, as the CPU and CUDA compute it, against eager.

A fusion holds all rows of a dtype that take as many tensors, on all combinations of the special
values; the few results that aren't eager's are listed with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import from_torch
from pyfuser.interface import CompiledFusion
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ops.op import Op
from pyfuser.ops.table import OPS
from pyfuser.ops.value_checks import ZERO_DIVISION
from tests.cuda.emulate import run_emulated
from tests.cuda.examples import flat_schedule
from tests.cuda.host_compiler import requires_host_compiler
from tests.ops.resolving import takes
from tests.support.special_values import (
    FLOATS,
    HALVES,
    INTEGERS,
    grid,
    judge,
    report,
    spread,
    widened,
)

pytestmark = pytest.mark.usefixtures("poison")

Eager = Callable[..., torch.Tensor]
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
inf, nan = math.inf, math.nan

# Numbers that follow the tensors of a row that wants scalars.
SCALARS: dict[str, tuple[tuple[float, ...], ...]] = {
    "clamp": ((1, 3), (0.0, 6.0), (-0.0, 0.0), (-1.0, 0.0), (-inf, -0.0), (nan, 1.0), (0.0, nan)),
    "threshold": ((1, 2), (0.0, -0.0), (-0.0, 1.0), (inf, 1.0), (nan, 1.0), (-inf, nan)),
    "addcmul": ((2,), (inf,), (-0.0,)),
}


def _erfcinv(x: torch.Tensor) -> torch.Tensor:
    """Torch has no such op, and the reference halves its operand, so the least number becomes 0."""
    x = x if x.is_floating_point() else x.float()
    found = torch.where(x < 0, nan, OPS["erfcinv"].reference(x))
    return torch.where(x.double() == 5e-324, 27.213293210812949, found)


# Rows that torch spells otherwise.
EAGER: dict[str, Eager] = {
    "div": lambda a, b: torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc"),
    "erfcinv": _erfcinv,
    "mod": torch.fmod,
    "truediv": torch.true_divide,
    "set": torch.clone,
    "segment_set": torch.clone,
    "silu": F.silu,
    "threshold": F.threshold,
    "where": lambda c, a, b: torch.where(c.bool(), a, b),
    "addcmul": lambda a, b, c, value: torch.addcmul(a, b, c, value=value),
}
# Values of a row's reference that differ from torch's; {} if torch has no such op.
MEANT_OTHERWISE = {
    "the lowest integer divided by -1 wraps; torch traps": {"div", "mod", "fmod", "remainder"},
    "a greatest common divisor is positive; torch's has the sign of the lowest integer": {"gcd"},
    "eager rounds a product and a sum once where the machine has fma; here each is rounded": {
        "lerp", "addcmul",
    },
}  # fmt: skip
BY_REFERENCE = {name for names in MEANT_OTHERWISE.values() for name in names}


@dataclass(frozen=True)
class Call:
    """One row with the scalars it is called with."""

    op: Op
    scalars: tuple[float, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.op.name}{self.scalars or ''}"

    @property
    def count(self) -> int:
        """How many tensors it takes."""
        return self.op.arity - len(self.scalars)

    def eager(self, *tensors: torch.Tensor) -> torch.Tensor:
        """torch's result, or the row's reference if torch has no such op or dtype."""
        counterpart = EAGER.get(self.op.name) or getattr(torch, self.op.name, None)
        try:
            assert counterpart is not None
            return counterpart(*tensors, *self.scalars)
        except (AssertionError, RuntimeError, NotImplementedError):
            return self.reference(*tensors)

    def reference(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The defined result of a row."""
        if self.op.name == "where":
            tensors = (tensors[0].bool(), *tensors[1:])
        scalars = [torch.tensor(s).to(tensors[0].dtype) for s in self.scalars]
        return self.op.reference(*tensors, *scalars)

    def wanted(self, dtype: torch.dtype, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """All results of eager, whose loops differ, or the defined result."""
        integers = not dtype.is_floating_point
        if self.op.name in BY_REFERENCE and integers:
            return [self.reference(*tensors)]
        found = [self.eager(*tensors), self.eager(*(spread(t) for t in tensors))]
        if dtype in HALVES:
            wide = [widened(t, dtype, torch.float32) for t in tensors]
            found += [self.eager(*wide), self.eager(*(spread(t) for t in wide))]
            if self.op.name in BY_REFERENCE:
                found.append(self.reference(*wide))
        elif self.op.name in BY_REFERENCE:
            found.append(self.reference(*tensors))
        return found


def calls_of(op: Op, dtype: torch.dtype) -> list[Call]:
    """The calls of a row with tensors of a dtype."""
    if not op.in_kernels or op.name == "cast" or not takes(op, from_torch(dtype)):
        return []
    if op.check not in (None, ZERO_DIVISION):  # test_checks.py has those
        return []
    numbers = SCALARS.get(op.name, ((),))
    return [Call(op, n) for n in numbers if dtype.is_floating_point or not n]


def accepted(dtype: torch.dtype, call: Call, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The operands without divisors that the row refuses."""
    if call.op.check is None or dtype.is_floating_point:
        return tensors
    dividend, divisor = tensors
    return [dividend, torch.where(divisor == 0, 3, divisor).to(dtype)]


def define(calls: Sequence[tuple[torch.dtype, Call]]) -> Fusion:
    """A fusion with tensors and an output for each call."""
    with FusionDefinition() as fd:
        for dtype, call in calls:
            tensors = [fd.define_tensor([-1], dtype=from_torch(dtype)) for _ in range(call.count)]
            if call.op.name == "where" and dtype is not torch.bool:
                tensors[0] = fd.ops.ne(tensors[0], 0)
            fd.add_output(getattr(fd.ops, call.op.name)(*tensors, *call.scalars))
    return fd.fusion.definition


def complaint(
    dtype: torch.dtype, call: Call, tensors: list[torch.Tensor], got: torch.Tensor
) -> str:
    """What is wrong with a call's result; empty if it is eager's."""
    eager = call.wanted(dtype, tensors)
    exact = eager[0]
    if dtype.is_floating_point:
        exact = call.eager(*(widened(t, dtype, torch.float64) for t in tensors))
    ulp = max(4 * call.op.ulp32, 4 * call.op.ulp64, 2)
    wrong = judge(got, eager, exact, ulp)
    return report(f"{call.name} {dtype}", wrong, got, eager, tensors)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.in_kernels], ids=lambda op: op.name)
def test_row_in_a_kernel_for_the_cpu(op: Op) -> None:
    """One kernel with vectors of equal length for all dtypes, hence padded."""
    calls = [(dtype, call) for dtype in DTYPES for call in calls_of(op, dtype)]
    if not calls:
        pytest.skip("casts and checks have tests of their own")
    count = calls[0][1].count
    grids = {dtype: grid(dtype, count) for dtype, _ in calls}
    length = max(len(tensors[0]) for tensors in grids.values())
    grids = {
        dtype: [torch.cat([t, t.new_ones(length - len(t))]) for t in tensors]
        for dtype, tensors in grids.items()
    }
    operands = [accepted(dtype, call, grids[dtype]) for dtype, call in calls]
    got = CompiledFusion(define(calls)).execute([t for tensors in operands for t in tensors])
    rows = zip(calls, operands, got, strict=True)
    found = [complaint(d, c, tensors, mine) for (d, c), tensors, mine in rows]
    assert not any(found), "\n".join(filter(None, found))


@requires_host_compiler
@pytest.mark.parametrize("count", (1, 2, 3))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int32), ids=str)
def test_rows_in_kernels_for_cuda(dtype: torch.dtype, count: int) -> None:
    """All rows of as many tensors in one kernel: it is the host's compiler that takes its time."""
    calls = [c for op in OPS.values() for c in calls_of(op, dtype) if c.count == count]
    tensors = grid(dtype, count)
    fusion = define([(dtype, call) for call in calls])
    scheduled = flat_schedule(ScheduledFusion(fusion), fusion.outputs)
    operands = [accepted(dtype, call, tensors) for call in calls]
    got = run_emulated(scheduled, [t for each in operands for t in each], (0,))
    rows = zip(calls, operands, got, strict=True)
    found = [complaint(dtype, call, each, mine) for call, each, mine in rows]
    assert not any(found), "\n".join(filter(None, found))


NARROW = (
    torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
)  # fmt: skip


@pytest.mark.parametrize("number", [0.0, 0.1, 3.3, 300.0])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_filled_tensor_has_numbers_of_its_dtype(dtype: torch.dtype, number: float) -> None:
    """Also where a kernel reads it in float32; float8_e8m0fnu has no zero."""
    x = torch.zeros(3, 130)
    with FusionDefinition() as fd:
        filled = fd.ops.full([3, 130], number, dtype=from_torch(dtype))
        fd.add_output(fd.ops.add(fd.ops.cast(filled, DataType.Float), fd.from_pytorch(x)))
    wanted = torch.tensor(number).to(dtype).float()
    assert torch.equal(fd.execute([x])[0], wanted.expand(3, 130))
