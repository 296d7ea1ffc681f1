"""Scans equal torch's in every dtype, layout and shape, and fuse with what surrounds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import DefinitionError
from tests.ops.library_definitions import (
    FLOATS,
    INTEGERS,
    LAYOUTS,
    check,
    defined,
    numbers,
)
from tests.support.long_cases import pairwise
from tests.support.random_tensors import laid_out
from tests.support.targets import segment

pytestmark = pytest.mark.usefixtures("poison")

SHAPES = [((7,), 0), ((5, 3), 0), ((5, 3), -1), ((2, 5, 3), 1), ((1,), 0), ((0, 3), 0), ((5, 0), 0)]
# More than a vector, an unrolled step and a task, and no multiple of them.
LONG = [((1001,), 0), ((3, 333), 1), ((333, 3), 0), ((70, 333), 0), ((2, 67, 35), 1), ((2, 1), 1)]
FORWARD: dict[str, Callable[..., Any]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummin": lambda x, dim: torch.cummin(x, dim)[0],
    "cummax": lambda x, dim: torch.cummax(x, dim)[0],
}
SCANS = FORWARD | {
    f"reversed {name}": lambda x, dim, eager=eager: eager(x.flip(dim), dim).flip(dim)
    for name, eager in FORWARD.items()
    if name != "cummin"
}


@pytest.fixture(autouse=True)
def _strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that a kernel should compute is an error if it can't."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")


def scan(fd: Any, name: str, x: Any, dim: int, **options: Any) -> Any:
    """A scan of `SCANS` in a definition."""
    op = getattr(fd.ops, name.removeprefix("reversed "))
    return op(x, dim, reverse=name.startswith("reversed "), **options)


def schedulers_of(fd: FusionDefinition) -> list[str]:
    """The schedulers of a definition's segments."""
    return [each.scheduler for each in segment(fd.fusion.definition).segments]


# -- values


@pytest.mark.parametrize(
    ("shape", "dim", "name", "dtype"),
    pairwise([pytest.param(*each) for each in SHAPES], SCANS, [*FLOATS, *INTEGERS, torch.bool]),
)
def test_scans(name: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    def define(fd: Any, x: Any) -> Any:
        return scan(fd, name, x, dim)

    source = check(define, lambda x: SCANS[name](x, dim), numbers(shape, dtype))
    assert "library" not in source and "call_" not in source


@pytest.mark.parametrize(
    ("shape", "dim", "name", "dtype"),
    pairwise([pytest.param(*each) for each in LONG], SCANS, [*FLOATS, torch.int32, torch.bool]),
)
def test_long_scans(name: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    def define(fd: Any, x: Any) -> Any:
        return scan(fd, name, x, dim)

    x = numbers(shape, dtype)
    if name == "cumprod" and dtype.is_floating_point:
        x = torch.where(x == 0, 1, x.sign())  # else a few factors leave the range
    check(define, lambda x: SCANS[name](x, dim), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCANS)
def test_scans_take_every_layout(name: str, layout: str) -> None:
    def define(fd: Any, x: Any) -> Any:
        return scan(fd, name, fd.ops.add(x, 1.0), 1), scan(fd, name, x, 0)

    def eager(x: torch.Tensor) -> Any:
        return SCANS[name](x + 1, 1), SCANS[name](x, 0)

    check(define, eager, laid_out(numbers((6, 5)), layout))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((50_000,), 0), ((30, 2000), 1), ((2000, 30), 0)])
def test_sums_are_as_precise_as_torchs(
    dtype: torch.dtype, shape: tuple[int, ...], dim: int
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    fd = defined(lambda fd, x: fd.ops.cumsum(x, dim), [x])
    exact = x.double().cumsum(dim)
    error, eager = ((y.double() - exact).abs().max() for y in (fd.execute([x])[0], x.cumsum(dim)))
    if dtype is torch.float64:  # the order of the additions is another
        torch.testing.assert_close(fd.execute([x])[0], exact, rtol=1e-13, atol=1e-12)
    else:
        assert error <= eager


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dim", [0, 1])
def test_special_values(name: str, dim: int) -> None:
    """NaN stays, infinities cancel, and -0.0 is torch's: 0.0 in sums, and the last of equals."""
    inf, nan = float("inf"), float("nan")
    rows = [
        [0.0, 0.0, -0.0, 0.0, 1.0, nan, 2.0, inf],
        [-0.0, 0.0, -0.0, 1.0, inf, 2.0, -inf, 3.0],
        [-0.0, -0.0, inf, 3.0, -inf, -0.0, 0.0, 1.0],
        [-1.0, inf, 0.0, -inf, nan, nan, -2.0, 1.0],
    ]
    x = torch.tensor(rows).repeat(1, 5)
    x = x if dim else x.t().contiguous()

    def define(fd: Any, x: Any) -> Any:
        return scan(fd, name, x, dim)

    check(define, lambda x: SCANS[name](x, dim), x)
    got = defined(define, [x]).execute([x])[0]
    same = torch.equal(torch.signbit(got), torch.signbit(SCANS[name](x, dim)))
    assert same or got.isnan().any()  # the sign of NaN has no meaning


def test_zeros_keep_torchs_signs() -> None:
    zeros = torch.tensor([-0.0, -0.0, 0.0, -0.0] * 9)
    for x in (zeros, zeros[:1], zeros[:1].expand(4), zeros[0]):
        for name, eager in SCANS.items():
            fd = defined(lambda fd, x, name=name: scan(fd, name, x, 0), [x], static=True)
            got, want = fd.execute([x])[0], eager(x, 0)
            assert torch.equal(torch.signbit(got), torch.signbit(want)), (name, x, got)


def test_integers_wrap() -> None:
    x = torch.tensor([2**62] * 5 + [-(2**62)] * 40)
    check(lambda fd, x: fd.ops.cumsum(x, 0), lambda x: x.cumsum(0), x)
    check(lambda fd, x: fd.ops.cumprod(x, 0), lambda x: x.cumprod(0), torch.full((90,), 3))


@pytest.mark.cpu
def test_products_stay_in_range_where_they_are_in_range_in_order() -> None:
    x = torch.tensor([1e-200, 1e150, 1e150, 1e-150] * 20, dtype=torch.float64)[:4].repeat(20)
    check(lambda fd, x: fd.ops.cumprod(x, 0), lambda x: x.cumprod(0), x)
    half = torch.tensor([2.0**-100, 2.0**100, 2.0**-100, 2.0**100] * 12, dtype=torch.bfloat16)
    check(lambda fd, x: fd.ops.cumprod(x, 0), lambda x: x.cumprod(0), half)


def test_scans_start_with_an_initial_value() -> None:
    for name, first in {"cumsum": 3.5, "cumprod": 2.5, "cummin": 1.0, "cummax": 2.5}.items():
        x = torch.tensor([1.0, 2.0, 0.5])
        fd = defined(lambda fd, x, name=name: scan(fd, name, x, 0, init=2.5), [x])
        got = fd.execute([x])[0]
        assert got[0].item() == first, name
        assert got.dtype is torch.float32
        assert schedulers_of(fd) == ["greedy"]
    half = numbers((4,), torch.float16)
    fd = defined(lambda fd, x: fd.ops.cumsum(x, 0, 1.0), [half])
    torch.testing.assert_close(fd.execute([half])[0], half.cumsum(0) + 1)


def test_complex_sums_are_torchs() -> None:
    x = torch.randn(3, 40, dtype=torch.complex64)
    source = check(lambda fd, x: fd.ops.cumsum(x, 1), lambda x: x.cumsum(1), x)
    assert "call_aten__cumsum_out(" in source
    check(lambda fd, x: fd.ops.cumprod(x, 1), lambda x: x.cumprod(1), x)


def test_a_number_is_its_own_scan() -> None:
    for name, eager in SCANS.items():
        for dtype in (torch.float32, torch.int32, torch.bool):
            x = torch.tensor(3).to(dtype)
            check(
                lambda fd, x, name=name: scan(fd, name, x, -1),
                lambda x, eager=eager: eager(x, 0),
                x,
            )


# -- fusion


def _scaled(fd: Any, x: Any, dim: int) -> Any:
    return fd.ops.add(fd.ops.cumsum(fd.ops.mul(x, 2.0), dim), 1.0)


@pytest.mark.parametrize(("shape", "dim"), [*SHAPES, *LONG])
def test_what_surrounds_a_scan_is_in_its_kernel(shape: tuple[int, ...], dim: int) -> None:
    x = numbers(shape)
    source = check(lambda fd, x: _scaled(fd, x, dim), lambda x: (x * 2).cumsum(dim) + 1, x)
    assert source.count("launch") <= 1 and "call_" not in source


def _exclusive(fd: Any, x: Any, y: Any) -> Any:
    """Read before and after the scan, an output of its own, and read by a second scan."""
    before = fd.ops.abs(x)
    total = fd.ops.cumsum(before, 1)
    return fd.ops.sub(total, before), total, fd.ops.cummax(fd.ops.mul(total, y), 1)


def test_scans_along_one_axis_share_a_kernel() -> None:
    x, y = numbers((5, 77)), numbers((77,), seed=1)

    def define(fd: Any, x: Any, y: Any) -> Any:
        return _exclusive(fd, x, fd.ops.broadcast(y, [True, False]))

    def eager(x: torch.Tensor, y: torch.Tensor) -> Any:
        total = x.abs().cumsum(1)
        return total - x.abs(), total, (total * y).cummax(1)[0]

    assert check(define, eager, x, y).count("launch") == 1


def test_a_transposed_output_is_in_the_kernel() -> None:
    def define(fd: Any, x: Any) -> Any:
        total = fd.ops.cumsum(x, 1)
        return total, fd.ops.add(fd.ops.permute(total, [1, 0]), 1.0)

    def eager(x: torch.Tensor) -> Any:
        return x.cumsum(1), x.cumsum(1).t() + 1

    assert check(define, eager, numbers((6, 37))).count("launch") == 1


def test_broadcast_values_are_scanned_along_their_repetition() -> None:
    def define(fd: Any, x: Any) -> Any:
        rows = fd.ops.broadcast_in_dim(x, [5, 40], [0])
        return fd.ops.cumsum(rows, 1), fd.ops.cumsum(rows, 0)

    def eager(x: torch.Tensor) -> Any:
        rows = x[:, None].expand(5, 40)
        return rows.cumsum(1), rows.cumsum(0)

    check(define, eager, numbers((5,)))


def test_an_input_is_updated_in_place() -> None:
    x = numbers((9, 50))
    want = x.cumsum(1) * 2
    with FusionDefinition() as fd:
        handle = fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(fd.ops.cumsum(handle, 1), 2.0), handle)
    fd.execute([x])
    assert torch.equal(x, want)


def _reasons(build: Callable[[Any, Any], Any]) -> list[str]:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        made = build(fd, x)
        for output in made if isinstance(made, tuple) else (made,):
            fd.add_output(output)
    return [f"{s.scheduler} {s.reason}" for s in segment(fd.fusion.definition).segments]


def _sum_of_scan(fd: Any, x: Any) -> Any:
    return fd.ops.sum(fd.ops.cumsum(x, 1), [1])


def _scan_of_sum(fd: Any, x: Any) -> Any:
    return fd.ops.cumsum(fd.ops.sum(x, [1]), 0)


def _both_axes(fd: Any, x: Any) -> Any:
    return fd.ops.cumsum(fd.ops.cumsum(x, 1), 0)


def _broadcast(fd: Any, x: Any) -> Any:
    counts = fd.ops.cumsum(fd.ops.sum(x, [1]), 0)
    return fd.ops.add(x, fd.ops.broadcast(counts, [False, True]))


def _both_ways(fd: Any, x: Any) -> Any:
    return fd.ops.cumsum(fd.ops.cumsum(x, 1), 1, reverse=True)


def _reshaped(fd: Any, x: Any) -> Any:
    return fd.ops.exp(fd.ops.reshape(fd.ops.cumsum(x, 1), [-1]))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_sum_of_scan, "a reduction and a scan or scatter have different loops"),
        (_scan_of_sum, "a reduction and a scan or scatter have different loops"),
        (_both_axes, "scans or scatters along different axes"),
        (_both_ways, "scans in opposite directions"),
        (_broadcast, "a tensor has an axis that the scan or scatter doesn't have"),
        (_reshaped, ""),
    ],
)
def test_where_a_scans_kernel_ends(build: Callable[[Any, Any], Any], reason: str) -> None:
    reasons = _reasons(build)
    assert len(reasons) >= 2
    assert any(each.startswith("greedy") for each in reasons)
    assert any(reason in each for each in reasons), reasons
    x = numbers((6, 35))
    fd = defined(lambda fd, x: build(fd, x), [x])
    torch.testing.assert_close(fd.execute([x])[0], _eager(build, x))


def _eager(build: Callable[[Any, Any], Any], x: torch.Tensor) -> torch.Tensor:
    found: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
        _sum_of_scan: lambda x: x.cumsum(1).sum(1),
        _scan_of_sum: lambda x: x.sum(1).cumsum(0),
        _both_axes: lambda x: x.cumsum(1).cumsum(0),
        _both_ways: lambda x: x.cumsum(1).flip(1).cumsum(1).flip(1),
        _broadcast: lambda x: x + x.sum(1).cumsum(0)[:, None],
        _reshaped: lambda x: x.cumsum(1).reshape(-1).exp(),
    }
    return found[build](x)


def test_a_scan_between_kernels() -> None:
    """The exclusive sum of a mask's counts, as mixtures of experts use it."""

    def define(fd: Any, x: Any) -> Any:
        counts = fd.ops.sum(fd.ops.cast(fd.ops.gt(x, 0.0), DataType.Int), [1])
        return fd.ops.sub(fd.ops.cumsum(counts, 0), counts)

    def eager(x: torch.Tensor) -> torch.Tensor:
        counts = (x > 0).sum(1)
        return counts.cumsum(0) - counts

    source = check(define, eager, torch.randn(9, 40))
    assert source.count("launch") == 2 and "call_" not in source


# -- errors


def test_wrong_calls() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        z = fd.define_tensor([-1], dtype=DataType.ComplexFloat)
        with pytest.raises(DefinitionError, match=r"cumsum: expected a dimension in \[-2, 1\]"):
            fd.ops.cumsum(x, 2)
        with pytest.raises(DefinitionError, match="cummax: expected real numbers"):
            fd.ops.cummax(z, 0)
        fd.add_output(x)
