"""Normalised rows and sums of their columns in one kernel, against torch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from pyfuser import DataType, FusionDefinition
from tests.support.kernels import lowered_kernels

pytestmark = pytest.mark.usefixtures("poison")

FLOAT = DataType.Float
NAMES = {torch.float32: FLOAT, torch.bfloat16: DataType.BFloat16, torch.float64: DataType.Double}


def mean(fd: FusionDefinition, x: Any) -> Any:
    """The mean of each row."""
    return fd.ops.div(fd.ops.sum(x, [-1], True), fd.ops.size(x, -1))


def layer_norm_backward(fd: FusionDefinition, dtype: DataType = FLOAT, rank: int = 2) -> None:
    """From x, dy, mean, rstd and weight, the gradients of x, weight and bias."""
    wide = DataType.Double if dtype is DataType.Double else FLOAT
    shape = [-1] * rank
    x, dy = (fd.ops.cast(fd.define_tensor(shape, contiguity=True, dtype=dtype), wide) for _ in "xy")
    saved = [*shape[:-1], 1]
    contiguity = [*[True] * (rank - 1), None]
    average, rstd = (fd.define_tensor(saved, contiguity=contiguity, dtype=wide) for _ in "mr")
    weight = fd.ops.cast(fd.define_tensor([-1], contiguity=True, dtype=dtype), wide)
    normal = fd.ops.mul(fd.ops.sub(x, average), rstd)
    slope = fd.ops.mul(dy, fd.ops.broadcast(weight, [True] * (rank - 1) + [False]))
    across = mean(fd, slope)
    along = mean(fd, fd.ops.mul(slope, normal))
    inner = fd.ops.sub(fd.ops.sub(slope, across), fd.ops.mul(normal, along))
    rows = list(range(rank - 1))
    for gradient in (
        fd.ops.mul(inner, rstd),
        fd.ops.sum(fd.ops.mul(dy, normal), rows),
        fd.ops.sum(dy, rows),
    ):
        fd.add_output(fd.ops.cast(gradient, dtype))


def expected(x: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """The gradients in float64."""
    leaves = [t.double().requires_grad_() for t in (x, weight, torch.zeros_like(weight))]
    y = functional.layer_norm(leaves[0], weight.shape, *leaves[1:])
    return list(torch.autograd.grad(y, leaves, dy.double()))


def operands(
    shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The definition's inputs and the results."""
    x, dy = (torch.randn(shape).to(dtype) for _ in "xy")
    weight = torch.randn(shape[-1]).to(dtype)
    wide = x.double() if dtype is torch.float64 else x.float()
    average = wide.mean(-1, keepdim=True)
    rstd = ((wide - average).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return [x, dy, average, rstd, weight], expected(x, dy, weight)


def schedulers(fd: FusionDefinition) -> list[str]:
    """Those of the most recent program's parts."""
    programs = list(fd.fec.engine.executor.programs.values())
    return [part.segment.scheduler for part in programs[-1].parts]


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_sizes_of_all_kinds_are_one_kernel(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    with FusionDefinition() as fd:
        layer_norm_backward(fd, NAMES[dtype])
    rtol, atol = (2e-2, 6e-2) if dtype is torch.bfloat16 else (1e-4, 1e-4)
    for shape in ((64, 40), (64, 1), (1031, 257), (64, 7), (129, 768), (4099, 16)):
        inputs, wanted = operands(shape, dtype)
        for got, want in zip(fd.execute(inputs), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)
        if shape[0] > 600 and shape[1] > 64:  # enough for any target
            assert schedulers(fd) == ["inner_outer_persistent"]


def test_few_and_no_rows() -> None:
    with FusionDefinition() as fd:
        layer_norm_backward(fd)
    for shape in ((1, 40), (2, 3), (0, 5), (9, 1), (5, 0)):
        inputs, wanted = operands(shape)
        for got, want in zip(fd.execute(inputs), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_rows_of_several_axes() -> None:
    with FusionDefinition() as fd:
        layer_norm_backward(fd, rank=4)
    for shape in ((3, 5, 7, 40), (2, 64, 1, 65), (8, 5, 16, 128)):
        inputs, wanted = operands(shape)
        for got, want in zip(fd.execute(inputs), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
    assert schedulers(fd) == ["inner_outer_persistent"]


def test_strided_rows() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=False, dtype=FLOAT) for _ in "xy")
        both = fd.ops.mul(x, y)
        fd.add_output(fd.ops.sub(both, fd.ops.max(both, [1], keepdim=True)))
        fd.add_output(fd.ops.sum(x, [0]))
        fd.add_output(fd.ops.max(both, [0]))
    base = torch.randn(300, 170)
    for x, y in (
        (base[::2, ::2], base[1::2, 1::2]),
        (base[:, :85], base[:, 85:]),
        (base[:1].expand(300, 170), base),
        (base.t()[:170, :170].t(), base[:170]),
    ):
        got = fd.execute([x, y])
        both = x * y
        for ours, want in zip(
            got, (both - both.amax(1, True), x.double().sum(0).float(), both.amax(0)), strict=True
        ):
            torch.testing.assert_close(ours, want, rtol=1e-5, atol=1e-4)


def test_rows_that_are_only_summed() -> None:
    """No normalisation: both sums, and their epilogues, from one reading."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        power = fd.ops.exp(x)
        fd.add_output(fd.ops.sqrt(fd.ops.sum(power, [1])))
        fd.add_output(fd.ops.cast(fd.ops.neg(fd.ops.sum(power, [0])), DataType.Half))
    x = torch.randn(513, 70)
    rows, columns = fd.execute([x])
    power = x.double().exp()
    torch.testing.assert_close(rows.double(), power.sum(1).sqrt(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(columns, -power.sum(0).half())
    assert schedulers(fd) == ["inner_outer_persistent"]


def test_an_update_in_place_beside_the_sums() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        normal = fd.ops.sub(x, mean(fd, x))
        fd.add_output(normal, x)
        fd.add_output(fd.ops.sum(normal, [0]))
    x = torch.randn(200, 30)
    want = x.double() - x.double().mean(1, True)
    (total,) = fd.execute([x])
    torch.testing.assert_close(x.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total.double(), want.sum(0), rtol=1e-5, atol=1e-4)


def test_values_that_are_not_numbers_stay_in_their_rows_and_columns() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        fd.add_output(fd.ops.div(x, fd.ops.sum(x, [1], True)))
        fd.add_output(fd.ops.sum(x, [0]))
    x = torch.rand(80, 50)
    x[3, 4], x[70, 0] = torch.nan, torch.inf
    for got, want in zip(fd.execute([x]), (x / x.sum(1, True), x.sum(0)), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.cpu
def test_long_columns_are_as_precise_as_short_ones() -> None:
    """A task's sums of columns are cut into blocks, as in sums of columns alone."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], True)))
        fd.add_output(fd.ops.sum(x, [0]))
    x = torch.rand(100_000, 16)
    _, total = fd.execute([x])
    exact = x.double().sum(0)
    assert ((total.double() - exact).abs() / exact).max() < 5e-7
    assert schedulers(fd) == ["inner_outer_persistent"]


MODELS: list[Callable[..., torch.Tensor]] = [
    lambda x, w, b: functional.layer_norm(x, w.shape, w, b).sin(),
    lambda x, w, b: functional.layer_norm(x * b, w.shape, w, b) + x,
    lambda x, w, b: functional.rms_norm(x, w.shape, w) * b,
    lambda x, w, b: (x * w + b).softmax(-1),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("number", range(len(MODELS)))
def test_gradients_of_models(number: int, dynamic: bool) -> None:
    call = MODELS[number]
    made: Any = torch.compile(call, backend="pyfuser", dynamic=dynamic)
    for shape in ((4, 33, 48), (5, 20, 48)):
        given = [torch.randn(shape), torch.randn(48), torch.randn(48)]
        results = []
        for run, dtype in ((call, torch.float64), (made, torch.float32)):
            leaves = [t.to(dtype).requires_grad_() for t in given]
            y = run(*leaves)
            slope = torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)
            results.append([y, *torch.autograd.grad(y, leaves, slope, allow_unused=True)])
        for exact, ours in zip(*results, strict=True):
            if exact is not None:
                torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=2e-4)


def _after_the_columns(
    ops: Any, x: Any, w: Any, b: Any, reduce: Callable[[Any, int], Any]
) -> list[list[Any]]:
    """Outputs that are computed after the sums of columns, from what the rows need as well."""
    add, sub, mul, sin = ops.add, ops.sub, ops.mul, ops.sin
    rows, columns = reduce(x, 1), reduce(x, 0)
    normal = sub(x, rows)
    gain = ops.exp(w)
    both = add(gain, b)
    return [
        [mul(normal, w), mul(columns, b)],
        [mul(normal, w), mul(columns, w)],
        [add(sin(x), reduce(sin(x), 1)), mul(reduce(sin(x), 0), w), mul(rows, w)],
        [mul(normal, gain), add(mul(columns, gain), mul(ops.exp(b), w)), gain],
        [mul(normal, w), mul(columns, b), mul(w, b), add(ops.exp(b), w)],
        [mul(normal, both), mul(reduce(mul(x, both), 0), both), reduce(mul(normal, x), 0)],
    ]


@pytest.mark.parametrize("number", range(6))
def test_what_follows_from_the_columns_reads_what_the_rows_read(number: int) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        w, b = (
            fd.ops.broadcast(fd.define_tensor([-1], contiguity=True, dtype=FLOAT), [True, False])
            for _ in "wb"
        )

        def total(value: Any, dim: int) -> Any:
            return fd.ops.sum(value, [dim], keepdim=True)

        for output in _after_the_columns(fd.ops, x, w, b, total)[number]:
            fd.add_output(output)
    shapes = ((700, 65), (3, 40), (1031, 128))
    for rows, columns in shapes:
        given = [torch.randn(rows, columns), torch.randn(columns), torch.randn(columns)]
        exact = [t.double() for t in given]
        wanted = _after_the_columns(torch, *exact, lambda t, dim: t.sum(dim, keepdim=True))[number]
        for got, want in zip(fd.execute(given), wanted, strict=True):
            torch.testing.assert_close(got.double().view_as(want), want, rtol=1e-4, atol=2e-3)
    assert "inner_outer_persistent" in schedulers(fd)


@pytest.mark.parametrize("shape", [(300, 7), (64, 7), (300, 7, 1), (300, 1, 7), (1, 5), (0, 3)])
def test_sums_of_columns_that_share_no_tensor(shape: tuple[int, ...]) -> None:
    """Only the sum of rows reads both inputs."""
    inputs = [torch.randn(shape) for _ in "xy"]
    with FusionDefinition() as fd:
        x, y = map(fd.from_pytorch, inputs)
        for output in (
            fd.ops.sum(x, [0]), fd.ops.sum(y, [0]), fd.ops.sum(fd.ops.mul(x, y), [1])
        ):  # fmt: skip
            fd.add_output(output)
    fd.validate(inputs)


def task_loops(shape: Sequence[int]) -> int:
    """How many loops over tasks the kernel has: the gradients of a norm's rows and of its weight,
    which is summed without the axes of one row.
    """
    rank = len(shape)
    ones = [place for place, size in enumerate(shape) if size == 1]
    inputs = [torch.randn(shape) for _ in "xy"]
    with FusionDefinition() as fd:
        x, dy = (fd.from_pytorch(tensor) for tensor in inputs)
        products = fd.ops.mul(x, dy)
        fd.add_output(fd.ops.sub(dy, fd.ops.mul(x, fd.ops.sum(products, [rank - 1], True))))
        fd.add_output(fd.ops.sum(fd.ops.squeeze(products, ones) if ones else products, [0]))
    rows, columns = fd.execute(inputs)
    left, right = (tensor.double() for tensor in inputs)
    wanted = right - left * (left * right).sum(-1, keepdim=True)
    torch.testing.assert_close(rows.double(), wanted, rtol=1e-4, atol=1e-4)
    sums = (left * right).reshape(-1, shape[-1]).sum(0)
    torch.testing.assert_close(columns.double(), sums, rtol=1e-4, atol=1e-4)
    assert schedulers(fd) == ["inner_outer_persistent"]
    (program,) = fd.fec.engine.executor.programs.values()
    (kernel,) = lowered_kernels(program)
    return str(kernel).count("for blockIdx.x")


@pytest.mark.cpu
def test_axes_of_one_row_share_the_loops() -> None:
    """A reference that has merged such an axis matches what has a stand-in for it; rows of a batch
    of one had loops of their own, after all sums, and were read again."""
    shapes = ((1, 64, 1024), (64, 1, 1024), (1, 64, 1, 1024))
    assert {task_loops(shape) for shape in shapes} == {task_loops((64, 1024))}
