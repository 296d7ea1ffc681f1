"""Arguments that share memory, of graphs that update some of them.

Each arrangement of two arguments follows each other one in the same compiled function, and finds
the graphs of all others on disk.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pyfuser.torch_compile.overlapping_inputs import overlap
from tests.support.long_cases import first

_Function = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=100):
        yield
    torch._dynamo.reset()


def _scaled(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


def _copied(x: Tensor, y: Tensor) -> Tensor:
    y.copy_(x.exp())
    return x * 3


def _both(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(3)
    return x * y


def _neither(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() * y


def _rows_of_one_history(m: Tensor) -> tuple[Tensor, Tensor]:
    made = m.requires_grad_() * 1
    return made[:4], made[2:6]


# Of 12 rows of 6 numbers.
ARRANGEMENTS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "apart": lambda m: (m[:4].clone(), m[4:8].clone()),
    "one after the other": lambda m: (m[:4], m[4:8]),
    "some rows are both": lambda m: (m[:4], m[2:6]),
    "the other way round": lambda m: (m[2:6], m[:4]),
    "a view of the other": lambda m: (m[:4], m[:4].view(4, 6)),
    "columns beside columns": lambda m: (m.view(4, 18)[:, :6], m.view(4, 18)[:, 6:12]),
    "columns that are both": lambda m: (m.view(4, 18)[:, :6], m.view(4, 18)[:, 3:9]),
    "with histories": lambda m: (m.requires_grad_()[:4] * 1, m[4:8] * 2),
    "rows of one history": _rows_of_one_history,
}


def _results(function: _Function, arrangement: str) -> list[Tensor]:
    """What a call returns, and what it makes of its arguments."""
    memory = torch.linspace(-1, 1, 72).view(12, 6)
    x, y = ARRANGEMENTS[arrangement](memory)
    made = function(x, y)
    return [each.detach().clone() for each in (made, x, y)]


CASES = [(_scaled, False), (_both, True), (_scaled, True), (_both, False)]
CASES += [(function, dynamic) for function in (_copied, _neither) for dynamic in (False, True)]


@pytest.mark.parametrize(("function", "dynamic"), first(2, CASES))
def test_every_call_is_eager_s_whatever_the_first_was(function: _Function, dynamic: bool) -> None:
    for first_call in ARRANGEMENTS:
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
        for arrangement in (first_call, *ARRANGEMENTS):
            expected = _results(function, arrangement)
            torch.testing.assert_close(_results(compiled, arrangement), expected)


def test_gradients_of_the_first_step_are_not_kept() -> None:
    parameters = [torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)]
    step = torch.compile(torch.optim.SGD(parameters, 0.1).step, backend="pyfuser")
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    first = weakref.ref(parameters[0].grad.untyped_storage())
    step()
    for parameter in parameters:
        parameter.grad = None
    gc.collect()
    assert first() is None


def test_memory_of_numpy_s() -> None:
    """Two storages with common memory."""
    compiled = torch.compile(_scaled, backend="pyfuser")
    for start in (4, 2, 0):
        results = []
        for function in (compiled, _scaled):
            memory = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)
            x, y = torch.from_numpy(memory[:4]), torch.from_numpy(memory[start : start + 4])
            results.append([function(x, y), torch.from_numpy(memory)])
        torch.testing.assert_close(*results)


def test_overlaps_with_a_chosen_tensor() -> None:
    memory = torch.zeros(10)
    rows = memory.view(2, 5)
    assert overlap([memory[:4], memory[3:]], [0])
    assert not overlap([memory[:4], memory[4:]], [0, 1])
    assert not overlap([memory[:4], memory[3:], torch.zeros(3)], [2])
    assert not overlap([rows[:, :2], rows[:, 2:]], [0])
    assert overlap([rows[:, :3], 7, rows[:, 2:]], [2])
    assert not overlap([memory[3:3], memory], [0, 1])
    assert overlap([memory[:2].view(torch.int32), memory], [0])
