"""What the parts of a stack, or of an axis of known length, have in common is computed once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition
from pyfuser.frontend.executors import stage_texts
from pyfuser.profiling import Recorder, recording
from tests.support.long_cases import pairwise
from tests.support.targets import Pretend

from .test_machines import MACHINES

pytestmark = pytest.mark.usefixtures("poison")

DTYPES = {
    torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16,
    torch.float16: DataType.Half, torch.float64: DataType.Double,
}  # fmt: skip


def product_of_parts(shape: tuple[int, ...], parts: int, at: int, dtype: torch.dtype) -> None:
    """tanh(a) times b, which has an axis of parts besides."""
    whole = [*shape[:at], parts, *shape[at:]]
    kept = [d for d in range(len(whole)) if d != at]
    with FusionDefinition() as fd:
        a = fd.define_tensor([*shape], contiguity=True, dtype=DTYPES[dtype])
        b = fd.define_tensor(whole, contiguity=True, dtype=DTYPES[dtype])
        wide = fd.ops.broadcast_in_dim(fd.ops.tanh(a), whole, kept)
        fd.add_output(fd.ops.cast(fd.ops.mul(wide, b), DTYPES[dtype]))
    torch.manual_seed(0)
    x, y = torch.randn(shape).to(dtype), torch.randn(whole).to(dtype)
    recorder = Recorder()
    with recording(recorder):
        (found,) = fd.execute([x, y])
    eager, exact = (torch.tanh(x).unsqueeze(at) * y for x, y in ((x, y), (x.double(), y.double())))
    if found.numel():
        error, allowed = ((each.double() - exact).abs().amax() for each in (found, eager))
        assert error <= 2 * allowed + 1e-6
    assert [len(each.parts) for each in recorder.calls] == [1]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("shape", "at", "dtype"),
    pairwise(
        [(8, 64), (3, 17), (70, 1), (1, 1000), (90, 3)],
        [0, 1, 2],
        DTYPES,
        count=20,
    ),
)
def test_a_function_that_lacks_an_axis(shape: tuple[int, ...], at: int, dtype: torch.dtype) -> None:
    for parts in (2, 3, 8):
        product_of_parts(shape, parts, at, dtype)


@pytest.mark.cpu
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_processors(machine: str, dtype: torch.dtype, pretend: Pretend) -> None:
    pretend(MACHINES[machine])
    for shape, at in (((8, 64), 1), ((5, 37), 0), ((2, 9, 20), 1)):
        product_of_parts(shape, 3, at, dtype)


@pytest.mark.cpu
def test_the_loop_over_parts_is_around_the_lanes() -> None:
    with FusionDefinition() as fd:
        a = fd.define_tensor([512, 1024], contiguity=True, dtype=DataType.Float)
        s = fd.ops.sigmoid(a)
        parts = [fd.ops.mul(s, a), fd.ops.sub(1.0, s)]
        wide = [fd.ops.broadcast_in_dim(part, [512, 1, 1024], [0, 2]) for part in parts]
        fd.add_output(fd.ops.cat(wide, 1))
    x = torch.randn(512, 1024)

    def eager(x: Tensor) -> Tensor:
        return torch.stack([torch.sigmoid(x) * x, 1 - torch.sigmoid(x)], 1)

    torch.testing.assert_close(fd.execute([x])[0], eager(x))
    text = stage_texts(fd.fusion, [x])["kernel"]
    assert text.count("sigmoid(") == text.count("= sub(1.0") == 1


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(2, 8), (3, 1), (17, 40), (130, 257)], ids=str)
def test_parts_of_what_lies_transposed_in_memory(shape: tuple[int, ...]) -> None:
    def stacked(x: Tensor) -> Tensor:
        s = torch.sin(x.rot90())
        r = torch.rsqrt(s * s + 1)
        return torch.stack([-r, s, s * r], -2)

    x = torch.randn(shape)
    for dynamic in (False, True):
        compiled = torch.compile(stacked, backend="pyfuser", dynamic=dynamic)
        torch.testing.assert_close(compiled(x), stacked(x))
