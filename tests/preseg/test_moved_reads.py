"""Reads of broadcasts: slice assignments of expanded values, gathers with expanded indices.

A read that moves past an expansion meets different sizes there: a value expanded to a slice's
length is not as long as the tensor that contains the slice.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser import DataType, FusionDefinition
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

pytestmark = pytest.mark.usefixtures("poison")

Program = Callable[..., object]


def _rows(x: Tensor) -> Tensor:
    x[1:] = 1
    return x * 1


def _columns(x: Tensor) -> Tensor:
    x[:, 1:] = 1
    return x + 1


def _every_other(x: Tensor) -> Tensor:
    x[::2] = 7
    return x


def _half(x: Tensor) -> Tensor:
    v = x + 0
    first, _ = v.tensor_split(2, 0)
    first.copy_(x[0])
    return v


def _box(x: Tensor) -> Tensor:
    z = torch.zeros(8, 10)
    z[1:7, 1:9] = 3
    return z + x.sum()


def _kept_sum(x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    z[:3] = x[:3].sum(0, keepdim=True)
    return z


def _expanded_row(x: Tensor) -> Tensor:
    c = x.clone()
    c[1:4] = (x[0] + 1)[None].expand(3, x.shape[1])
    return c


def _square(x: Tensor) -> Tensor:
    """The sizes of the slice are those of the other dimension."""
    x[1:5] = x[0, :4, None].expand(4, x.shape[1]) * 2
    return x


SLICES = [_rows, _columns, _every_other, _half, _box, _kept_sum, _expanded_row, _square]


@pytest.mark.parametrize("shape", [(5, 4), (6, 8), (5, 5), (17, 33)])
@pytest.mark.parametrize("program", SLICES)
def test_slice_assignment_of_an_expanded_value(program: Program, shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    ours, eagers = x.clone(), x.clone()
    got = torch.compile(program, backend=BACKEND)(ours)
    torch.testing.assert_close(got, program(eagers))
    assert torch.equal(ours, eagers)


def _computed_index(a: Tensor, i: Tensor) -> Tensor:
    return torch.gather(a, 1, (i % a.shape[1]).expand(a.shape[0], 3)) * 2


def _along_dim(a: Tensor, i: Tensor) -> Tensor:
    return torch.take_along_dim(a.exp(), i % a.shape[1], 1)


def _columns_of_rows(a: Tensor, i: Tensor) -> Tensor:
    rows = torch.arange(4)[:, None] % a.shape[0]
    return torch.gather(a, 0, rows.expand(4, a.shape[1]))


def _of_an_expanded_source(a: Tensor, i: Tensor) -> Tensor:
    """Shorter than the source along the other axis, which is expanded."""
    source = a[0].exp()[None].expand(9, a.shape[1])
    return torch.gather(source, 1, (i % a.shape[1]).expand(4, 3)) + a[:4, :1]


GATHERS = [_computed_index, _along_dim, _columns_of_rows, _of_an_expanded_source]


@pytest.mark.parametrize("shape", [(4, 8), (5, 5), (17, 33)])
@pytest.mark.parametrize("program", GATHERS)
def test_gather_with_an_expanded_index(program: Program, shape: tuple[int, int]) -> None:
    a, i = torch.randn(shape), torch.tensor([[3, 9, 1]])
    got = torch.compile(program, backend=BACKEND)(a, i)
    torch.testing.assert_close(got, program(a, i))


def test_gather_with_an_expanded_index_in_a_definition() -> None:
    with FusionDefinition() as fd:
        source, index = fd.define_tensor([-1, -1]), fd.define_tensor([1, -1], dtype=DataType.Int)
        rows = fd.ops.size(source, 0)
        wide = fd.ops.expand(fd.ops.neg(index), [rows, fd.ops.size(index, 1)])
        fd.add_output(fd.ops.gather(source, fd.ops.neg(wide), 1))
    x, i = torch.randn(6, 5), torch.tensor([[4, 0, 2]])
    (got,) = fd.execute([x, i])
    assert torch.equal(got, torch.gather(x, 1, i.expand(6, 3)))


def test_result_that_keeps_an_expanded_axis_across_segments() -> None:
    """A tensor stored for another segment has one element along it, the output all of them."""

    def program(x: Tensor) -> Tensor:
        return torch.var_mean(torch.ones_like(x)[None].expand(3, -1, -1), 1, keepdim=True)[0]

    x = torch.randn(2, 1)
    assert torch.equal(torch.compile(program, backend=BACKEND)(x), program(x))


def test_several_outputs_that_are_expanded() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        x[:, :] = 0
        wide = x[0, 0, 0].expand(1, 5, 1, 9)
        return functional.hardtanh(x), wide + 1, wide.exp(), x * 2

    x = torch.randn(1, 1, 2)
    ours, eagers = x.clone(), x.clone()
    got = torch.compile(program, backend=BACKEND)(ours)
    torch.testing.assert_close(got, program(eagers))


def test_expanded_output_that_is_read_as_well() -> None:
    """It is stored in full, and another kernel reads it."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        v = x[(torch.arange(33) % 33 - 33)[:, None].expand(-1, 3)]
        return v, torch.hypot(v, y)

    operands = torch.randn(33), torch.randn(())
    got = torch.compile(program, backend=BACKEND)(*operands)
    torch.testing.assert_close(got, program(*operands))


def test_gather_of_an_expanded_conversion() -> None:
    def program(x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).expand(3)[..., torch.arange(3) % 3 - 3]

    x = torch.randn(())
    assert torch.equal(torch.compile(program, backend=BACKEND)(x), program(x))


def test_softmax_of_padded_rows_under_a_view() -> None:
    """Rows are counted by a quotient and a remainder by a sum."""

    def program(x: Tensor) -> Tensor:
        v = functional.pad(torch.fmod(x, 2), (0, -1, 2, 0), value=-1)
        return v.unflatten(0, (1, -1)).softmax(-1)

    for shape in ((2, 3), (2, 2, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(torch.compile(program, backend=BACKEND)(x), program(x))


def test_one_element_for_all_of_an_axis_that_is_empty() -> None:
    """The read moves out of a loop that has no iterations: there is nothing to read."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        index = torch.arange(1).reshape(-1, 1).expand(-1, x.shape[1])
        return torch.where(y >= 0, x.scatter(-2, index, -1), y)

    x = torch.randn(1, 0, requires_grad=True)
    y = torch.tensor(0.5, requires_grad=True)
    made = torch.compile(program, backend=BACKEND)(x, y)
    gradients = torch.autograd.grad(made, [x, y], torch.zeros_like(made))
    assert gradients[0].shape == x.shape
    assert gradients[1] == 0


def test_copying_a_number() -> None:
    def program(x: Tensor) -> Tensor:
        x.select(0, 0).copy_(1)
        return 1 / (x**2 + 1)

    for shape in ((1,), (3, 2)):
        ours, eagers = (torch.full(shape, 3.0) for _ in range(2))
        got = torch.compile(program, backend=BACKEND)(ours)
        torch.testing.assert_close(got, program(eagers))
        assert torch.equal(ours, eagers)


PADDED: dict[str, Program] = {
    "moved result": lambda x: functional.pad(x.logsumexp(1, keepdim=True).mT, (1, 1, 2, 0)),
    "moved conversion": lambda x: functional.pad(x.half().mT, (1, 1, 2, 0)).exp(),
    "permuted": lambda x: functional.pad(x.sum(1, keepdim=True)[None].mT, (0, 2, 1, 1, 1, 0)).sin(),
    "not moved": lambda x: functional.pad(x.exp().sum(1, keepdim=True), (1, 1, 2, 0), value=3.0),
    "cut and padded": lambda x: functional.pad(x.logsumexp(1, keepdim=True).mT, (0, 0, 2, -1)),
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("shape", [(2, 1), (3, 4), (1, 1)])
def test_padding_of_an_axis_of_size_1(name: str, shape: tuple[int, int]) -> None:
    """Around its one element is the fill, and not that element again."""
    x = torch.randn(shape)
    got = torch.compile(PADDED[name], backend=BACKEND)(x)
    torch.testing.assert_close(got, PADDED[name](x), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("widths", [[1, 2, 0, 0], [0, 0, 1, 2], [1, 1, 1, 1]])
def test_padding_of_an_expanded_input(widths: list[int]) -> None:
    x = torch.randn(3, 1).expand(3, 4)
    with FusionDefinition() as fd:
        moved = fd.ops.permute(fd.from_pytorch(x), [1, 0])
        padded = fd.ops.pad(fd.ops.cast(moved, DataType.Double), widths)
        fd.add_output(fd.ops.neg(padded))
    torch.testing.assert_close(fd.execute([x])[0], -functional.pad(x.t().double(), widths))
