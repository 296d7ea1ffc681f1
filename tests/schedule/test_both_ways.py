"""A tensor that is read along two axes of a kernel's loops, beside its own transpose for example.

Each reader indexes such an input by its own loops.  A copy of it would have the loops of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.interface import ManualKernel
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ops import builders
from pyfuser.schedule.inlining import inline_most
from pyfuser.schedule.rewrite import cache_after
from tests.cuda.examples import input_tensor

pytestmark = pytest.mark.usefixtures("poison")

SIZES = (1, 3, 6, 17, 64, 257)


def rows(fd: FusionDefinition, v: Any) -> Any:
    return fd.ops.broadcast(v, [False, True])


def columns(fd: FusionDefinition, v: Any) -> Any:
    return fd.ops.broadcast(v, [True, False])


def transposed(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.permute(x, [1, 0])


def softmax(fd: FusionDefinition, x: Any, dim: int) -> Any:
    power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [dim], True)))
    return fd.ops.div(power, fd.ops.sum(power, [dim], True))


def pointwise(fd: FusionDefinition, x: Any, v: Any) -> list[Any]:
    return [fd.ops.add(x, transposed(fd, x)), fd.ops.mul(rows(fd, v), columns(fd, v))]


def of_cheap_values(fd: FusionDefinition, x: Any, v: Any) -> list[Any]:
    shifted = fd.ops.add(fd.ops.mul(x, 2.0), columns(fd, v))
    product = fd.ops.mul(shifted, transposed(fd, shifted))
    return [product, fd.ops.sum(product, [0]), shifted]


def of_computed_values(fd: FusionDefinition, x: Any, v: Any) -> list[Any]:
    wave, power = fd.ops.sin(v), fd.ops.exp(v)
    return [fd.ops.mul(x, fd.ops.add(rows(fd, wave), columns(fd, power))), power]


def sums_of_rows_and_columns(fd: FusionDefinition, x: Any, v: Any) -> list[Any]:
    scaled = fd.ops.mul(x, fd.ops.mul(rows(fd, v), columns(fd, v)))
    return [fd.ops.sum(scaled, [0]), fd.ops.sum(scaled, [1]), scaled]


def rows_less_their_sum(fd: FusionDefinition, x: Any, v: Any) -> list[Any]:
    product = fd.ops.mul(x, transposed(fd, x))
    rest = fd.ops.sub(product, fd.ops.sum(product, [1], True))
    return [rest, fd.ops.sum(rest, [0])]


def softmax_of_rows(fd: FusionDefinition, x: Any, v: Any) -> list[Any]:
    return [softmax(fd, fd.ops.add(fd.ops.mul(x, rows(fd, v)), columns(fd, v)), 1)]


def softmax_of_columns(fd: FusionDefinition, x: Any, v: Any) -> list[Any]:
    return [softmax(fd, fd.ops.add(fd.ops.mul(x, rows(fd, v)), columns(fd, v)), 0)]


def a_norm_of_all(fd: FusionDefinition, x: Any, v: Any) -> list[Any]:
    both = fd.ops.add(fd.ops.sin(transposed(fd, x)), x)
    mean, _, _ = fd.ops.welford(both, [0, 1])
    return [fd.ops.sub(both, fd.ops.broadcast(mean, [True, True])), fd.ops.abs(x)]


FUSIONS = (
    pointwise,
    of_cheap_values,
    of_computed_values,
    sums_of_rows_and_columns,
    rows_less_their_sum,
    softmax_of_rows,
    softmax_of_columns,
    a_norm_of_all,
)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("define", FUSIONS, ids=lambda each: each.__name__)
def test_fusions(define: Callable[..., list[Any]], size: int) -> None:
    inputs = [torch.rand(size, size) + 0.5, torch.rand(size) + 0.5]
    with FusionDefinition() as fd:
        for output in define(fd, *map(fd.from_pytorch, inputs)):
            fd.add_output(output)
    fd.validate(inputs)


@pytest.mark.parametrize("dims", [[0], [1], [0, 1]])
def test_an_expanded_input(dims: list[int]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[None, True])
        both = fd.ops.add(fd.ops.sin(transposed(fd, x)), x)
        mean, squares, _ = fd.ops.welford(both, dims)
        is_reduced = [dim in dims for dim in (0, 1)]
        rest = fd.ops.sub(both, fd.ops.broadcast(mean, is_reduced))
        fd.add_output(fd.ops.mul(rest, fd.ops.broadcast(squares, is_reduced)))
    fd.validate([torch.randn(1, 37).expand(37, 37)])


def test_a_reshape_of_repeated_elements_is_normalised() -> None:
    """The reduced axis that is innermost is no axis of the input."""
    x = torch.randn(7, 5)
    with FusionDefinition() as fd:
        wide = fd.ops.expand(
            fd.ops.broadcast(fd.from_pytorch(x), [False, True, False]), [-1, 2, -1]
        )
        repeated = fd.ops.reshape(wide, [fd.ops.size(wide, 0), -1])
        total = fd.ops.sum(repeated, [0, 1])
        fd.add_output(fd.ops.sub(repeated, fd.ops.broadcast(total, [True, True])))
    fd.validate([x])


@pytest.mark.parametrize("shape", [(5, 3), (6, 8), (17, 2), (2, 2), (64, 40), (3, 200)])
@pytest.mark.parametrize("is_given", [False, True])
def test_softmax_of_repeated_elements(shape: tuple[int, int], is_given: bool) -> None:
    """A copy of the elements has other loops than what a reshape makes of them."""
    x = torch.randn(shape)
    wide = x[..., None].expand(*shape, 2)
    with FusionDefinition() as fd:
        if is_given:
            repeated = fd.from_pytorch(wide)
        else:
            last = fd.ops.broadcast(fd.from_pytorch(x), [False, False, True])
            repeated = fd.ops.expand(last, [-1, -1, 2])
        rows = fd.ops.reshape(repeated, [fd.ops.size(repeated, 0), -1])
        fd.add_output(softmax(fd, rows, 1))
    fd.validate([wide if is_given else x])


def test_no_loop_is_shared_by_what_needs_all_that_it_makes() -> None:
    """A copy that is read as it is and transposed: its rows aren't all there while one is made."""
    fusion = Fusion()
    x = input_tensor(fusion, 2)
    permuted = builders.permute(fusion, x, [1, 0])
    other = builders.exp(fusion, permuted)
    fusion.add_output(builders.mul(fusion, x, other))
    scheduled = ScheduledFusion(fusion)
    copy = cache_after(scheduled, x)
    for tensor in (permuted, other):
        scheduled[tensor].reorder({0: 1})
    inline_most(scheduled)
    assert [scheduled[t].compute_at for t in (copy, permuted, other)] == [0, 2, 0]
    inputs = [torch.randn(5, 5)]
    (got,) = ManualKernel(scheduled, inputs).run(inputs)
    torch.testing.assert_close(got, inputs[0] * inputs[0].t().exp())
