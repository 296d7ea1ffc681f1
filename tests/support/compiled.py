"""Helpers of the torch.compile(backend="pyfuser") tests: the backend, strictness, a judge.

`assert_as_close_as_eager` compares named tensors with float64: ours may have at most 4 times the
error that eager has.  `strict` is a fixture for every test of a module that imports it, `sources`
for those that ask for it.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from pyfuser.torch_compile.compiled_graph import CompiledGraph

BACKEND = "pyfuser"
Result = dict[str, Tensor]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No silent fallback of a kernel that fails to compile."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The code of the graphs that a test compiles."""
    found: list[str] = []
    make = CompiledGraph.__init__

    def noted(self: CompiledGraph, *args: object, **options: object) -> None:
        make(self, *args, **options)  # type: ignore[arg-type]
        found.append(self.source)

    monkeypatch.setattr(CompiledGraph, "__init__", noted)
    return found


def graph_count() -> int:
    """Graphs that Dynamo has compiled since the last reset."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def in_float64(
    module: nn.Module, inputs: tuple[Tensor, ...] = ()
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A copy of the module and its inputs in float64; integers stay unchanged."""
    doubles = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    return copy.deepcopy(module).double(), doubles


def assert_as_close_as_eager(got: Result, eager: Result, exact: Result, factor: float = 4) -> None:
    """Greatest errors, tensor by tensor; integers are equal.

    A gradient that cancels to nothing (such as a key's bias) is noise in every result, so no
    tensor's scale counts as less than a hundredth of the greatest one.
    """
    assert got.keys() == eager.keys()
    scales = {name: each.abs().max().item() for name, each in exact.items() if each.numel()}
    least = max(scales.values()) / 100
    for name, tensor in got.items():
        reference, other = exact[name], eager[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        if not tensor.is_floating_point():
            assert torch.equal(tensor, other), name
            continue
        error, eagers = ((each.double() - reference).abs().max().item() for each in (tensor, other))
        floor = torch.finfo(tensor.dtype).eps * max(scales[name], least)
        assert error <= factor * (eagers + floor), (
            f"{name}: error {error:.1e}, eager's {eagers:.1e}, scale {scales[name]:.1e}"
        )
