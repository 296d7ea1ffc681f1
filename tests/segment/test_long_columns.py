"""Columns, and rows of several axes, are normalised by one kernel while they are short or fit in a
cache.
"""

from __future__ import annotations

import pytest

from pyfuser import FusionDefinition
from pyfuser.analysis.layouts import dense_layout
from pyfuser.analysis.normalised import normalised
from pyfuser.compiler import prepare, rough_sizes, segmented
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.target.target import Target
from tests.support.targets import PRETENDED


def _centred(*axes: int, rank: int = 2) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1] * max(rank, axes[-1] + 1), contiguity=True)
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, list(axes), keepdim=True)))
    return fd


def _schedulers(
    fd: FusionDefinition, sizes: tuple[int, ...], target: Target = PRETENDED
) -> list[str]:
    prepared = prepare(fd.fusion.definition)
    names = {f"i{place}": size for place, size in enumerate(sizes)}
    rough = rough_sizes(prepared, names, target)
    found = segmented(fd.fusion.definition, prepared, [dense_layout(len(sizes))], rough, names)
    return [segment.scheduler for segment in found.segmented.segments]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((511, 4096), ["outer_persistent"]),
        ((512, 255), ["outer_persistent"]),
        ((512, 256), ["reduction", "pointwise"]),
        ((65536, 4), ["reduction", "pointwise"]),
    ],
)
def test_long_columns_have_a_kernel_for_each_pass(
    sizes: tuple[int, int], expected: list[str]
) -> None:
    assert _schedulers(_centred(0), sizes) == expected


def test_columns_and_rows_of_several_axes_are_asked_for() -> None:
    assert not normalised(prepare(_centred(1).fusion.definition))
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, [0]))
    assert not normalised(prepare(fd.fusion.definition))
    (columns,) = normalised(prepare(_centred(0).fusion.definition))
    assert (str(columns.length), str(columns.count)) == ("i0", "i1")
    assert (columns.are_columns, columns.are_rows) == (True, False)
    (both,) = normalised(prepare(_centred(0, 2).fusion.definition))
    assert (str(both.length), str(both.count)) == ("i0*i2", "i1")
    assert (both.are_columns, both.are_rows) == (True, True)


def test_groups_of_columns_for_all_cores_are_one_kernel() -> None:
    middle, workers = _centred(1, rank=3), PRETENDED.workers
    assert _schedulers(middle, (workers - 1, 1024, 128)) == ["reduction", "pointwise"]
    assert _schedulers(middle, (workers, 512, 64)) == ["outer_persistent"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((16384, 64, 64), ["reduction", "pointwise"]),  # 64 rows of 2^20 elements
        ((256, 64, 64), ["inner_persistent"]),
        ((16384, 256, 64), ["inner_persistent"]),  # a block for each row keeps a GPU busy
    ],
)
def test_the_product_of_a_rows_sizes_counts(sizes: tuple[int, ...], expected: list[str]) -> None:
    assert _schedulers(_centred(0, 2), sizes, CudaTarget.of("sm_90")) == expected


def test_a_sum_that_keeps_its_place_is_not_read_again() -> None:
    """The gradient of a weight has axes of one element, which it isn't read along."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        sums = fd.ops.sum(x, [0], keepdim=True)
        fd.add_output(fd.ops.mul(sums, 2.0))
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)))
    assert not normalised(prepare(fd.fusion.definition))
    assert _schedulers(fd, (4096, 512)) == ["inner_outer_persistent"]


def test_long_sums_beside_short_columns_leave_these_in_one_kernel() -> None:
    """A norm along channels, and the gradients of its weight, over all else."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)))
        fd.add_output(fd.ops.sum(x, [0, 2], keepdim=True))
    assert _schedulers(fd, (64, 64, 4096)) == ["outer_persistent", "reduction"]
