"""What schedulers take when a user asks them: what an execution would give them."""

from __future__ import annotations

import pytest
import torch

from pyfuser import FusionDefinition, SchedulerType


def test_a_scheduler_takes_what_an_execution_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated halves: passes before the schedulers make the parts that cat reads computed ones."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        x, cos, sin = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(3))
        halves = fd.ops.neg(fd.ops.slice(x, [0, 32], [64, 64])), fd.ops.slice(x, [0, 0], [64, 32])
        turned = fd.ops.cat(halves, 1)
        fd.add_output(fd.ops.add(fd.ops.mul(x, cos), fd.ops.mul(turned, sin)))
    inputs = [torch.randn(64, 64) for _ in range(3)]
    kind = SchedulerType.resize
    assert kind in fd.sched.find_compatible_schedulers(fd.fusion, inputs)
    assert fd.sched.can_schedule(fd.fusion, kind, inputs) == (True, "")
    assert not fd.sched.can_schedule(fd.fusion, SchedulerType.transpose, inputs)[0]
    params = fd.sched.compute_heuristics(fd.fusion, kind, inputs)
    assert fd.sched.schedule(fd.fusion, kind, inputs) == params
    (got,) = fd.manual_execute(inputs)
    a, b, c = inputs
    torch.testing.assert_close(got, a * b + torch.cat([-a[:, 32:], a[:, :32]], 1) * c)
