"""Rows of a few elements, one in each lane, which are loaded and stored as whole vectors."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.devices.cpu.host import host
from tests.support.long_cases import pairwise
from tests.support.targets import Pretend

from .test_machines import MACHINES

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="x86 code"),
]

KINDS = ["host", *MACHINES]
CASES = [
    (torch.float32, 2),
    (torch.float32, 3),
    (torch.float32, 13),
    (torch.float64, 4),
    (torch.bfloat16, 3),
    (torch.bfloat16, 16),
]


def _joined_halves(x: Tensor) -> Tensor:
    return torch.stack((x[:, ::2] + 1, x[:, 1::2] * 2), -1)


MOVED: dict[str, Callable[[Tensor], Tensor]] = {
    "one place": lambda x: x[:, 1] + 1,
    "last place": lambda x: x[:, -1] + 1,
    "all places": lambda x: torch.stack([place + 1 for place in x.unbind(-1)], 1),
    "reversed": lambda x: torch.stack(x.unbind(-1)[::-1], 1) + 1,
    "some places": lambda x: torch.stack((x[:, 1], x[:, 0]), 1) + 1,
    "a part": lambda x: x[:, 1:] + x[:, :-1],
    "with a longer one": lambda x: torch.cat((x + 1, x[:, :1]), 1),
    "across": lambda x: x.t() + x.t().roll(1, 0),
    "halves": lambda x: _joined_halves(functional.pad(x, (0, x.shape[1] % 2))),
}
COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: (x * x).sum(-1),
    "greatest": lambda x: x.amax(-1, keepdim=True) - x,
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "length": lambda x: x / (x.norm(dim=-1, keepdim=True) + 1),
    "function of both": lambda x: torch.stack((x[:, 0].exp() * x[:, 1], x[:, 0].exp() - 1), 1),
}


def _compiled(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch._dynamo.reset()
    return torch.compile(function, backend="pyfuser", dynamic=False)(x)


@pytest.mark.parametrize(
    ("kind", "dtype", "length", "name"),
    pairwise(
        KINDS,
        [torch.bfloat16, torch.float32, torch.int8, torch.float64],
        [13, 3, 5, 2, 16, 4, 8],
        MOVED,
        strength=3,
        count=35,
    ),
)
def test_places_of_rows(
    kind: str, dtype: torch.dtype, length: int, name: str, pretend: Pretend
) -> None:
    pretend(MACHINES.get(kind, host()))
    function = MOVED[name]
    for rows in (1, 100):
        x = torch.arange(rows * length).remainder(61).view(rows, length).to(dtype)
        assert torch.equal(_compiled(function, x), function(x))


@pytest.mark.parametrize(
    ("kind", "dtype", "length", "name"),
    pairwise(KINDS, [pytest.param(*case) for case in CASES], COMPUTED),
)
def test_what_rows_give(
    kind: str, dtype: torch.dtype, length: int, name: str, pretend: Pretend
) -> None:
    pretend(MACHINES.get(kind, host()))
    torch.manual_seed(0)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    x = torch.randn(333, length).to(dtype)
    function = COMPUTED[name]
    found, right = _compiled(function, x), function(x.double())
    torch.testing.assert_close(found.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17])
def test_few_rows(rows: int) -> None:
    x = torch.rand(rows, 3)
    for function in (MOVED["all places"], COMPUTED["sum"], COMPUTED["softmax"]):
        torch.testing.assert_close(_compiled(function, x), function(x))


def test_neighbours_of_rows_stay() -> None:
    """A part of longer rows, written in place: what is beside it in memory isn't touched."""
    whole = torch.full((100, 5), 7.0)

    def function(x: Tensor) -> None:
        x.mul_(2).add_(x.sum(-1, keepdim=True))

    torch.compile(function, backend="pyfuser", dynamic=False)(whole[:, 1:4])
    assert whole[:, [0, 4]].eq(7).all()
    assert whole[:, 1:4].eq(14 + 42).all()


def test_rows_are_vectors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values of pixels: vectors are loaded and stored whole, and shuffled."""
    monkeypatch.setenv("PYFUSER_DUMP", "llvm")
    x = torch.rand(64, 64, 3)
    _compiled(lambda x: torch.stack((x[..., 0] + x[..., 2], x[..., 1], x[..., 2] * 2), -1), x)
    whole = "".join(capsys.readouterr()).partition("masked")[0]
    assert whole.count("shufflevector") >= 12
    assert "gather" not in whole and "scatter" not in whole


OF_TWO_AXES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: (x * 2).sum((1, 2)),
    "norm": lambda x: functional.layer_norm(x, x.shape[1:]),
    "weights": lambda x: x / (x.square().mean((1, 2), keepdim=True) + 1) * x.new_ones(x.shape[1:]),
    "in place": lambda x: x.clone().sub_(x.amax((1, 2), keepdim=True)),
    "one place": lambda x: x[:, -1, 0] + x[:, 0, -1],
    "across": lambda x: x.permute(1, 2, 0).sin(),
}


SHAPES = [(333, 5, 3), (100, 3, 3), (1, 2, 8), (40, 1, 7), (65, 4, 4)]


@pytest.mark.parametrize(("kind", "shape", "name"), pairwise(KINDS, SHAPES, OF_TWO_AXES))
def test_rows_of_two_axes(kind: str, shape: tuple[int, ...], name: str, pretend: Pretend) -> None:
    """Also of a part of a longer tensor, and of permuted axes."""
    pretend(MACHINES.get(kind, host()))
    whole = torch.randn(shape[0], shape[1] + 1, shape[2] + 2)
    for x in (
        torch.randn(shape),
        whole[:, 1:, 1:-1],
        torch.randn(shape[0], shape[2], shape[1]).transpose(1, 2),
        whole[:, 1:, :3],
    ):
        function = OF_TWO_AXES[name]
        torch.testing.assert_close(_compiled(function, x), function(x))


@pytest.mark.parametrize(("kind", "shape"), pairwise(KINDS, SHAPES))
def test_neighbours_of_rows_of_two_axes_stay(
    kind: str, shape: tuple[int, ...], pretend: Pretend
) -> None:
    """Nothing is touched beside a part of a longer tensor."""
    pretend(MACHINES.get(kind, host()))
    whole = torch.randn(shape[0], shape[1] + 1, shape[2] + 2)
    edges = whole.clone()
    part = whole[:, 1:, 1:-1]
    torch.compile(lambda x: x.mul_(2), backend="pyfuser", dynamic=False)(part)
    edges[:, 1:, 1:-1] *= 2
    assert torch.equal(whole, edges)


def test_rows_of_two_axes_are_vectors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of as many elements as there are lanes at most."""
    monkeypatch.setenv("PYFUSER_DUMP", "llvm")
    columns = 3 if host().vector_bits >= 9 * 32 else 2
    _compiled(OF_TWO_AXES["norm"], torch.rand(640, 3, columns))
    assert "".join(capsys.readouterr()).count("shufflevector") >= 30
