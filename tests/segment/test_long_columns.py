"""Columns are normalised by one kernel while they are short or fit in a cache."""

from __future__ import annotations

import pytest

from pyfuser import FusionDefinition
from pyfuser.analysis.columns import normalised_columns
from pyfuser.analysis.layouts import dense_layout
from pyfuser.compiler import prepare, rough_sizes, segmented
from tests.support.targets import PRETENDED


def _centred(axis: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [axis], keepdim=True)))
    return fd


def _schedulers(fd: FusionDefinition, sizes: tuple[int, int]) -> list[str]:
    prepared = prepare(fd.fusion.definition)
    names = dict(zip(("i0", "i1"), sizes, strict=True))
    rough = rough_sizes(prepared, names, PRETENDED)
    found = segmented(fd.fusion.definition, prepared, [dense_layout(2)], rough, names)
    return [segment.scheduler for segment in found.segmented.segments]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((511, 4096), ["outer_persistent"]),
        ((512, 511), ["outer_persistent"]),
        ((512, 512), ["reduction", "pointwise"]),
        ((65536, 4), ["reduction", "pointwise"]),
    ],
)
def test_long_columns_have_a_kernel_for_each_pass(
    sizes: tuple[int, int], expected: list[str]
) -> None:
    assert _schedulers(_centred(0), sizes) == expected


def test_only_columns_are_asked_for() -> None:
    assert not normalised_columns(prepare(_centred(1).fusion.definition))
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, [0]))
    assert not normalised_columns(prepare(fd.fusion.definition))
    (columns,) = normalised_columns(prepare(_centred(0).fusion.definition))
    assert (str(columns.length), str(columns.elements)) == ("i0", "i0*i1")
