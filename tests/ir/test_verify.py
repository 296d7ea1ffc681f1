"""The verifiers: they accept the pipeline's results, and name the fault in broken IR."""

from __future__ import annotations

import dataclasses

import pytest

from pyfuser import FusionDefinition, ParallelType
from pyfuser.dtypes import DataType
from pyfuser.errors import InternalError
from pyfuser.ir.domains import IterType
from pyfuser.ir.exprs import PointwiseOp, ReductionOp
from pyfuser.ir.fusion import Fusion, plain_domain
from pyfuser.ir.kernel import Allocate, For, Kernel
from pyfuser.ir.kernel_queries import walk
from pyfuser.ir.scalars import Symbol
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ir.segmented import SegmentedFusion
from pyfuser.ir.verify import verify_fusion, verify_kernel, verify_scheduled, verify_segmented
from pyfuser.lower.lowering import lower
from pyfuser.ops import builders
from tests.ops.test_builders import tensor
from tests.support.targets import PRETENDED, SM_90, segment


def broken(message: str) -> pytest.RaisesExc[InternalError]:
    return pytest.raises(InternalError, match=message)


# -- Fusion


def negated() -> tuple[Fusion, PointwiseOp]:
    fusion = Fusion()
    y = builders.neg(fusion, tensor(fusion, [-1, -1]))
    fusion.add_output(y)
    verify_fusion(fusion)
    assert isinstance(y.expr, PointwiseOp)
    return fusion, y.expr


def test_contiguity_must_fit_the_axes() -> None:
    fusion, expr = negated()
    domain = expr.tensor_outputs[0].domain
    domain.contiguity = [True]
    with broken("contiguity of T1 for 2 axes"):
        verify_fusion(fusion)
    domain.contiguity = [True, None]
    with broken("contiguity None exactly on broadcast axes of T1"):
        verify_fusion(fusion)


def test_values_must_be_defined_before_they_are_read() -> None:
    fusion, expr = negated()
    orphan = fusion.new_tensor(plain_domain(expr.tensor_inputs[0].axes), DataType.Float)
    fusion.exprs.insert(0, PointwiseOp((orphan,), expr.outputs, "neg"))
    with broken("T2.* defined before it is read"):
        verify_fusion(fusion)


def test_outputs_must_be_computed() -> None:
    fusion, expr = negated()
    fusion.outputs.append(fusion.new_tensor(plain_domain([]), DataType.Float))
    with broken("every output defined"):
        verify_fusion(fusion)
    fusion.outputs.pop()
    fusion.aliases[expr.output] = expr.output
    with broken("to alias an input"):
        verify_fusion(fusion)
    fusion.aliases.clear()
    fusion.hidden_outputs.add(expr.output)
    with broken("hidden .* to alias an input"):
        verify_fusion(fusion)


def test_links_between_values_and_expressions_must_hold() -> None:
    fusion, expr = negated()
    expr.inputs[0].uses_list.clear()
    with broken("T0.* to know its reader"):
        verify_fusion(fusion)
    fusion, expr = negated()
    expr.output.expr = None
    with broken("T1.* to know its definition"):
        verify_fusion(fusion)


def test_axes_must_fit_the_expression() -> None:
    fusion, expr = negated()
    axis = expr.tensor_outputs[0].axes[0]
    axis.iter_type = IterType.BROADCAST
    expr.tensor_outputs[0].domain.contiguity[0] = None
    with broken("broadcast axes of T1 of extent 1"):
        verify_fusion(fusion)
    fusion, expr = negated()
    axes = [fusion.ids.new(axis.extent) for axis in expr.tensor_inputs[0].axes]
    output = fusion.new_tensor(plain_domain(axes), DataType.Float)
    fusion.add_expr(ReductionOp(expr.inputs, (output,), "sum"))
    with broken("an axis that is reduced"):
        verify_fusion(fusion)


def test_tensors_of_an_op_must_have_one_dtype() -> None:
    fusion = Fusion()
    out = builders.add(fusion, tensor(fusion, [-1]), tensor(fusion, [-1]))
    fusion.inputs[1].dtype = DataType.Half
    assert out.expr is not None
    with broken("tensors of one dtype"):
        verify_fusion(fusion)


# -- ScheduledFusion


def test_loops_must_be_made_of_the_axes() -> None:
    fusion, expr = negated()
    scheduled = ScheduledFusion(fusion)
    schedule = scheduled[expr.tensor_outputs[0]]
    schedule.merge(0)
    schedule.split(0, 8)
    verify_scheduled(scheduled)
    kept = list(schedule.loop)
    for wrong in (kept[:1], [*kept, kept[0]], [*kept, fusion.ids.new(Symbol.of("n"))]):
        schedule.loop = wrong
        with broken("the loops of T1 made of its logical axes"):
            verify_scheduled(scheduled)
    schedule.loop = [*kept, fusion.ids.broadcast()]  # a stand-in of propagation is fine
    verify_scheduled(scheduled)
    schedule.compute_at = 4
    with broken(r"a compute position of T1 in \[0, 3\]"):
        verify_scheduled(scheduled)


# -- SegmentedFusion


def two_segments() -> SegmentedFusion:
    fusion = Fusion()
    x = tensor(fusion, [-1, -1])
    y = builders.segment_set(fusion, builders.exp(fusion, x))
    fusion.add_output(builders.sum(fusion, y, [0]))
    fusion.add_output(builders.sum(fusion, x, [1]))
    segmented = segment(fusion)
    assert len(segmented.segments) > 1
    return segmented


def test_segments_compute_everything_in_order() -> None:
    segmented = two_segments()
    verify_segmented(segmented)
    segments = segmented.segments
    segmented.segments = segments[::-1]
    with broken("computed before it is read"):
        verify_segmented(segmented)
    segmented.segments = segments[:-1]
    with broken("the output .* computed"):
        verify_segmented(segmented)


def test_segments_declare_their_inputs() -> None:
    segmented = two_segments()
    for each in segmented.segments:
        kept, each.inputs = each.inputs, []
        with broken("as input of its segment"):
            verify_segmented(segmented)
        each.inputs = kept
    verify_segmented(segmented)


# -- Kernel


def kernel(threads_are_hardware: bool = False) -> Kernel:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.neg(x)
        z = fd.ops.sum(fd.ops.add(y, 1.0), [1])
        fd.add_output(z)
        z.split(0, 4)
        z.axis(0).parallelize(ParallelType.grid_x)
        fd.sched.transform_like(z)
        fd.sched.inline_at(z, 1)
    return lower(fd.fusion.user_schedule, SM_90 if threads_are_hardware else PRETENDED)


@pytest.mark.parametrize("threads_are_hardware", [False, True])
def test_lowered_kernels_are_valid(threads_are_hardware: bool) -> None:
    verify_kernel(kernel(threads_are_hardware))


def test_buffers_must_be_allocated() -> None:
    made = kernel()
    for phase in made.phases:
        bodies = [phase.body, *(s.body for s in walk(phase.body) if isinstance(s, For))]
        for body in bodies:
            body[:] = [s for s in body if not isinstance(s, Allocate)]
    with broken("allocated where it is used"):
        verify_kernel(made)


def test_indices_must_be_bound() -> None:
    made = kernel()
    (outer,) = (s for s in made.phases[0].body if isinstance(s, For))
    made.phases[0].body = outer.body
    with broken("indices that are bound"):
        verify_kernel(made)
    outer.body = [dataclasses.replace(outer)]
    made.phases[0].body = [outer]
    with broken("each index bound once in a nest"):
        verify_kernel(made)


def test_launch_extents_are_of_their_kinds() -> None:
    made = kernel()
    phase = made.phases[0]
    phase.block, phase.grid = phase.grid, {}
    with broken("block types for the block"):
        verify_kernel(made)
