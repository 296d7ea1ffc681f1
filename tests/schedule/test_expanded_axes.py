"""Kernels over axes that a reshape, or preparation, makes of expanded ones."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import ScheduleError
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ir.vals import TensorView
from pyfuser.lower.loops import LoopStructure
from pyfuser.schedule.common import Layouts, first_of_range, reductions
from pyfuser.schedule.pointwise import pointwise_facts
from pyfuser.schedule.propagation import transform_like
from pyfuser.schedule.reduced_axes import weights

pytestmark = pytest.mark.usefixtures("poison")


def repeated(fd: FusionDefinition, x: TensorView) -> TensorView:
    """[n] -> [2 * n]"""
    wide = fd.ops.expand(fd.ops.broadcast(x, [True, False]), [2, -1])
    return fd.ops.reshape(wide, [-1])


def softmax(fd: FusionDefinition, x: TensorView, dim: int) -> TensorView:
    power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [dim], True)))
    return fd.ops.div(power, fd.ops.sum(power, [dim], True))


def test_softmax_of_a_repeated_axis() -> None:
    """The copies of the reshape that the passes over a row get have the same loops."""
    x = torch.randn(37)
    with FusionDefinition() as fd:
        fd.add_output(softmax(fd, repeated(fd, fd.from_pytorch(x)), 0))
    fd.validate([x])


def test_softmax_of_equal_parts() -> None:
    """A cat of a tensor with itself becomes an expanded tensor, read by axes that aren't."""
    x = torch.randn(1, 1, 1)
    with FusionDefinition() as fd:
        positive = fd.ops.gt(fd.from_pytorch(x), 0.0)
        both = fd.ops.cast(fd.ops.cat([positive, positive], 1), DataType.Float)
        fd.add_output(softmax(fd, both, 1))
    fd.validate([x])


@pytest.mark.parametrize("reduced", [False, True])
def test_a_repeated_axis_whose_parts_have_a_known_size(reduced: bool) -> None:
    """The sizes of the parts are those of another input, also where they are computed."""
    x, y = torch.randn(7), torch.randn(2) if reduced else torch.randn(2, 7)
    with FusionDefinition() as fd:
        parts = fd.ops.reshape(repeated(fd, fd.from_pytorch(x)), [-1, 7])
        parts = fd.ops.sum(parts, [1]) if reduced else parts
        fd.add_output(fd.ops.add(parts, fd.from_pytorch(y, static_sizes=True)))
    fd.validate([x, y])


def test_all_repeated_tensors_have_the_loops_of_their_result() -> None:
    """Each has the result's axis by a reshape of its own."""
    weight, bias, x = torch.randn(2, 7), torch.randn(2, 7), torch.randn(14)
    with FusionDefinition() as fd:
        inputs = [fd.from_pytorch(each) for each in (weight[0], bias[0], x)]
        scaled = fd.ops.mul(inputs[2], repeated(fd, inputs[0]))
        out = fd.ops.add(scaled, repeated(fd, inputs[1]))
        fd.add_output(out)
    scheduled = ScheduledFusion(fd.fusion.definition)
    scheduled[out].split(0, 4)
    assert transform_like(scheduled, out) == []
    depths = {len(scheduled[tensor].loop) for tensor in inputs}
    assert depths == {2}


@pytest.mark.parametrize("length", [3, 600, 8192])
@pytest.mark.parametrize("static", [False, True])
def test_what_is_stored_and_also_repeated(length: int, static: bool) -> None:
    """Its own loops are as long as those of the repeated elements where both are one block."""
    x = torch.randn(length)
    with FusionDefinition() as fd:
        doubled = fd.ops.mul(fd.from_pytorch(x, static_sizes=static), 2.0)
        parts = fd.ops.expand(fd.ops.broadcast(doubled, [False, True]), [-1, 2])
        fd.add_output(doubled)
        fd.add_output(fd.ops.reshape(parts, [-1]))
    fd.validate([x])


def test_shared_loops_are_made_of_axes_as_long() -> None:
    """6 and 12 elements split by 16 are one iteration each, of different elements."""
    with FusionDefinition() as fd:
        doubled = fd.ops.mul(fd.from_pytorch(torch.randn(6), static_sizes=True), 2.0)
        single = fd.ops.neg(doubled)
        parts = fd.ops.expand(fd.ops.broadcast(doubled, [False, True]), [-1, 2])
        both = fd.ops.reshape(parts, [12])
        fd.add_output(single)
        fd.add_output(both)
    scheduled = ScheduledFusion(fd.fusion.definition)
    scheduled[both].split(0, 16)
    transform_like(scheduled, both)
    for tensor in scheduled.fusion.tensors:
        scheduled[tensor].compute_at = 1 if tensor.uses_list and tensor.expr else 0
    with pytest.raises(ScheduleError, match="as long as that of"):
        LoopStructure(scheduled)


def test_normalised_rows_with_repeated_weights() -> None:
    """A row's weight is one element, not what all rows have in common."""
    x, weight, bias = torch.randn(12, 64), torch.randn(6), torch.randn(6)
    with FusionDefinition() as fd:
        rows, *columns = (fd.from_pytorch(each) for each in (x, weight, bias))
        scale, shift = (fd.ops.broadcast(repeated(fd, c), [False, True]) for c in columns)
        fd.add_output(fd.ops.add(fd.ops.mul(softmax(fd, rows, 1), scale), shift))
    assert weights(Layouts(fd.fusion.definition), reductions(fd.fusion.definition)[0].axes) == []
    fd.validate([x, weight, bias])


def test_the_count_of_a_welford_of_equal_rows() -> None:
    x = torch.randn(1, 37).expand(3, 37)
    with FusionDefinition() as fd:
        for result in fd.ops.welford(fd.from_pytorch(x), [1]):
            fd.add_output(result)
    fd.validate([x])


@pytest.mark.parametrize("op", ["cumsum", "cummax"])
def test_a_reversed_scan_of_a_repeated_axis(op: str) -> None:
    """The last element's place in the tensor isn't computed from a negative number."""
    x = torch.randn(37)
    with FusionDefinition() as fd:
        scan = getattr(fd.ops, op)
        fd.add_output(fd.ops.neg(scan(repeated(fd, fd.from_pytorch(x)), 0, reverse=True)))
    fd.validate([x])


def test_rows_with_a_repeated_weight_are_not_merged_with_their_columns() -> None:
    """A merged loop would find each element's weight by a division."""
    x, weight = torch.randn(12, 64), torch.randn(6)
    with FusionDefinition() as fd:
        rows, column = fd.from_pytorch(x), fd.from_pytorch(weight)
        scale = fd.ops.broadcast(repeated(fd, column), [False, True])
        out = fd.ops.mul(rows, scale)
        fd.add_output(out)
    assert not Layouts(fd.fusion.definition).merges(*out.axes)
    fd.validate([x, weight])


def test_what_varies_along_the_lanes_decides_how_many_there_are() -> None:
    """Not an index, or a double, of a whole row."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        place = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.index_select(x, fd.ops.add(place, 1), 0))
    assert pointwise_facts(fd.fusion.definition).bytes == 4


def test_an_axis_that_broadcasts_joins_no_others() -> None:
    """[m, 1, n], of which an output has m and an input n: m isn't one range with n."""
    x, y = torch.randn(12), torch.randn(7)
    with FusionDefinition() as fd:
        rows = fd.ops.exp(fd.from_pytorch(x))
        columns = fd.ops.broadcast(fd.from_pytorch(y), [True, True, False])
        out = fd.ops.add(fd.ops.broadcast(rows, [False, True, True]), columns)
        fd.add_output(rows)
        fd.add_output(out)
    assert first_of_range(out.axes, 2, Layouts(fd.fusion.definition)) == 1
    fd.validate([x, y])


@pytest.mark.parametrize(
    ("define", "expected"),
    [
        (lambda ops, t: ops.sum(t, [0]), torch.zeros(3)),
        (lambda ops, t: ops.prod(t, [0]), torch.ones(3)),
        (lambda ops, t: ops.pad(ops.exp(t), [0, 0, 1, 1]), torch.zeros(2, 3)),
        (
            lambda ops, t: ops.cat([ops.exp(t), ops.full([2, 3], 1, DataType.Float)]),
            torch.ones(2, 3),
        ),
    ],
)
def test_no_kernel_reads_a_tensor_that_is_expanded_to_no_elements(
    define: Callable[[ModuleType, TensorView], TensorView], expected: torch.Tensor
) -> None:
    """Along an expanded axis, kernels read one element; here the memory may have none."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3], contiguity=[None, True])
        fd.add_output(define(fd.ops, x))
    for given in (torch.randn(1, 3), torch.full((1, 3), torch.inf), torch.empty(0, 3)):
        (got,) = fd.execute([given.expand(0, 3)])
        assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("dim", "shape"), [(1, (3, 100000)), (1, (300, 50, 3)), (0, (200000,)), (2, (3, 5, 7))]
)
def test_an_output_whose_repetition_is_cut_into_tasks(dim: int, shape: tuple[int, ...]) -> None:
    """A task of one isn't a task of the other, even where both share an outer loop."""
    rank = len(shape)
    with FusionDefinition() as fd:
        x = fd.ops.neg(fd.define_tensor([-1] * rank, contiguity=True))
        wide = fd.ops.broadcast(x, [d == dim for d in range(rank + 1)])
        sizes = [fd.ops.size(x, d) for d in range(rank)]
        repeats = fd.ops.expand(wide, [*sizes[:dim], 3, *sizes[dim:]])
        fd.add_output(x)
        fd.add_output(fd.ops.reshape(repeats, [*sizes[:dim], -1, *sizes[dim + 1 :]]))
    fd.validate([torch.randn(shape)])
