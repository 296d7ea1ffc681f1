"""Numbers of the host that a GPU's kernels read: nothing copies the host's memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pyfuser import FusionDefinition, executor
from pyfuser.devices.cuda.library_functions import FUNCTIONS
from pyfuser.devices.registry import runtime_of
from pyfuser.ops.metadata import filled_in
from tests.cuda.fake_driver import at_home, fake_gpus, on
from tests.cuda.host_compiler import requires_host_compiler

aten = torch.ops.aten


class Called(TorchDispatchMode):
    """Notes the operations that reach a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


NUMBERS = [
    torch.tensor(0.1),
    torch.tensor(-0.0, dtype=torch.float64),
    torch.tensor(float("inf")).bfloat16(),
    torch.tensor(float("nan")).half(),
    torch.tensor((1 << 63) - 1),
    torch.tensor(200, dtype=torch.uint8),
    torch.tensor(True),
    torch.tensor(1 - 2j).conj(),
]


def bits(number: torch.Tensor) -> list[int]:
    return number.reshape(1).view(torch.uint8).tolist()


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_a_number_is_filled_in(number: torch.Tensor) -> None:
    made = filled_in(number, torch.device("cpu"))
    assert made.dtype is number.dtype
    assert bits(made) == bits(number.resolve_conj())


def test_a_graph_copies_no_number_to_a_gpu() -> None:
    to_copy = FUNCTIONS[aten._to_copy.default]
    gpu = torch.device("meta")
    with Called() as called:
        assert to_copy(torch.tensor(2.0), device=gpu).device == gpu
    assert "_to_copy" not in called.names and "copy_" not in called.names
    for tensor, options in (
        (torch.tensor(2.0), {"device": gpu, "dtype": torch.float16}),
        (torch.ones(3), {"device": gpu}),
        (torch.tensor(2.0), {"dtype": torch.float64}),
    ):
        found, wanted = to_copy(tensor, **options), aten._to_copy.default(tensor, **options)
        assert (found.device, found.dtype, found.shape) == (
            wanted.device,
            wanted.dtype,
            wanted.shape,
        )


@requires_host_compiler
def test_a_definition_copies_no_number_to_a_gpu(
    strict: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.device] = []

    def fill(number: torch.Tensor, device: torch.device) -> torch.Tensor:
        asked.append(device)
        return on(0, filled_in(number, torch.device("cpu")))

    monkeypatch.setattr(executor, "filled_in", fill)
    with FusionDefinition() as fd:
        x, a = fd.define_tensor([-1], contiguity=True), fd.define_tensor([], contiguity=[])
        fd.add_output(fd.ops.mul(x, a))
    x, a = torch.randn(100), torch.tensor(3.0)
    with fake_gpus():
        assert runtime_of(torch.device("cuda", 0)).library_functions is FUNCTIONS
        for _ in range(2):
            (found,) = fd.execute([on(0, x), a])
            torch.testing.assert_close(at_home(found), x * 3)
    assert asked == [torch.device("cuda", 0)] * 2
