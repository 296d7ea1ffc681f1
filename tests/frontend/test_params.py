"""Parameters of schedulers and of matrix products: shown, edited, followed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pyfuser as nvfuser_direct
from pyfuser import FusionDefinition, SchedulerType
from pyfuser.errors import ScheduleError
from pyfuser.frontend.params import check_compile_params, decisions_of, params_of
from pyfuser.kernel_builds import lowered
from pyfuser.target.parameters import InnerOuterParameters, PointwiseParameters, ReductionParameters
from pyfuser.target.thread_parameters import ThreadedPointwise, ThreadedReduction
from tests.cuda.cubins import requires_nvrtc
from tests.frontend.definitions import doubled
from tests.support.targets import SM_90


@pytest.fixture(autouse=True)
def engine() -> None:
    """These tests run kernels."""


@pytest.mark.parametrize("is_threaded", [False, True])
@pytest.mark.parametrize(
    ("kind", "decisions"),
    [
        (SchedulerType.pointwise, PointwiseParameters(16, 4, 1024)),
        (SchedulerType.reduction, ReductionParameters(True, 16, 8, 0, 4)),
        (SchedulerType.reduction, ReductionParameters(False, 8, 4, 64, 2)),
        (SchedulerType.inner_persistent, ReductionParameters(True, 16, 2, 0, 1)),
        (SchedulerType.outer_persistent, ReductionParameters(False, 16, 4, 256, 1)),
        (
            SchedulerType.inner_outer_persistent,
            InnerOuterParameters(ReductionParameters(True, 16, 2, 0, 8), ((0, 32),)),
        ),
        (SchedulerType.pointwise, ThreadedPointwise(32, 4, 0, lines=4, vector=8)),
        (SchedulerType.inner_persistent, ThreadedReduction(True, 64, 8, 0, 1, vector=2)),
        (SchedulerType.reduction, ThreadedReduction(False, 32, 8, 0, 2, lines=8, vector=4)),
    ],
)
def test_unedited_parameters_are_the_decisions(
    kind: SchedulerType, decisions: Any, is_threaded: bool
) -> None:
    params = params_of(kind, decisions, is_threaded)
    assert params.scheduler_type is kind
    assert decisions_of(params) == decisions


def test_a_schedule_by_hand_makes_no_assumption_about_the_length_of_rows() -> None:
    decisions = ThreadedReduction(True, 64, 8, 0, 1, is_whole=True)
    params = params_of(SchedulerType.reduction, decisions, True)
    params.lparams.bdimx = 32
    assert decisions_of(params) == ThreadedReduction(True, 32, 8, 0, 1)
    both = params_of(SchedulerType.reduction, InnerOuterParameters(decisions, ()), True)
    rows = ReductionParameters(True, 64, 8, 0, 1)
    assert decisions_of(both) == InnerOuterParameters(rows, ())


def row_sums() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), dims=[1]))
    return fd


def scheduled_with(fd: FusionDefinition, kind: SchedulerType, x: torch.Tensor, **edits: Any) -> str:
    """The schedule with edited parameters; its result must be that of the plain one."""
    params = fd.sched.compute_heuristics(fd.fusion, kind, [x])
    for name, value in edits.items():
        assert hasattr(params, name)
        setattr(params, name, value)
    fd.sched.schedule(fd.fusion, kind, params)
    text = str(fd.fusion.user_schedule)
    (ours,) = fd.manual_execute([x])
    (expected,) = (doubled() if kind is SchedulerType.pointwise else row_sums()).execute([x])
    torch.testing.assert_close(ours, expected)
    return text


def test_an_edited_vector_width_is_in_the_schedule() -> None:
    x = torch.randn(37, 101)
    text = scheduled_with(doubled(), SchedulerType.pointwise, x, vectorization_factor=2)
    assert "threadIdx.x" in text and "{2}" in text
    assert "{2}" not in scheduled_with(doubled(), SchedulerType.pointwise, x)


def test_edited_reductions_are_in_the_schedule() -> None:
    x = torch.randint(-8, 9, (37, 1001)).float()  # sums are exact
    kind = SchedulerType.reduction
    edits = {"unroll_factor_inner_reduction": 4, "unroll_factor_top_of_vectorization": 3}
    text = scheduled_with(row_sums(), kind, x, **edits)
    assert "{4}" in text and "{3}" in text
    params = nvfuser_direct.LaunchParams(gdimy=5)
    split = {"split_grid_dim_inner_reduction": True, "lparams": params}
    assert "blockIdx.y" in scheduled_with(row_sums(), kind, x, **split)


def test_parameters_made_by_hand_schedule() -> None:
    params = nvfuser_direct.PointwiseParams(vectorization_factor=4, unroll_factor_inner=2)
    fd, x = doubled(), torch.randn(5, 13)
    fd.sched.schedule(fd.fusion, SchedulerType.pointwise, params)
    assert torch.equal(fd.manual_execute([x])[0], x * 2)


def test_reduction_parameters_have_the_interface_s_fields() -> None:
    own = vars(nvfuser_direct.ReductionParams()).keys()
    inherited = vars(nvfuser_direct.HeuristicParams()).keys()
    assert len(own - inherited) == 38


def test_parameters_of_matrix_products() -> None:
    a, b = nvfuser_direct.MatmulParams(), nvfuser_direct.MatmulParams()
    assert a == b and a.hash() == b.hash()
    b.tile_sizes.cta_tile = nvfuser_direct.GemmTile(64, 64, 64)
    assert a != b and "GemmTile(m=64" in repr(b)
    assert a.scheduler_type is SchedulerType.matmul


def test_matrix_instructions_are_encoded() -> None:
    encoded = nvfuser_direct.MmaMacroEncode(nvfuser_direct.MmaMacroArch.hopper, 64, 128, 16)
    macro = encoded.mma_macro()
    assert macro is nvfuser_direct.MmaMacro.Hopper_64_128_16  # type: ignore[attr-defined]
    for each in nvfuser_direct.MmaMacro:
        assert nvfuser_direct.MmaMacroEncode.of(each).mma_macro() is each
    with pytest.raises(ValueError, match="is not a valid MmaMacro"):
        nvfuser_direct.MmaMacroEncode(nvfuser_direct.MmaMacroArch.volta, 1, 2, 3).mma_macro()


def scheduled_by_hand(cache_op: Any = None) -> tuple[FusionDefinition, torch.Tensor]:
    """A kernel of 32 blocks of 128 threads for 4096 numbers."""
    x = torch.randn(4096)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        made = fd.ops.mul(t, 2.0)
        fd.add_output(made)
        if cache_op is not None:
            t.cache_after(cache_op=cache_op)
        made.split(0, 128)
        made.axis(0).parallelize(nvfuser_direct.ParallelType.grid_x)
        made.axis(1).parallelize(nvfuser_direct.ParallelType.block_x)
        nvfuser_direct.schedule.transform_like(made)
        nvfuser_direct.schedule.parallelize_like(made)
        nvfuser_direct.schedule.inline_most()
    return fd, x


def test_launch_constraints_are_checked() -> None:
    fd, x = scheduled_by_hand()
    executor = nvfuser_direct.KernelExecutor()
    executor.compile(fd.fusion, [x], nvfuser_direct.LaunchParams(gdimx=32, bdimx=128))
    (got,) = executor.run([x], nvfuser_direct.LaunchParams(bdimx=128, bdimy=1))
    assert torch.equal(got, x * 2)
    for constraints, found in (({"bdimx": 64}, 128), ({"gdimx": 31}, 32), ({"bdimy": 2}, 1)):
        with pytest.raises(ScheduleError, match=f"as the launch constraints say, got {found}"):
            executor.run([x], nvfuser_direct.LaunchParams(**constraints))
    narrow = nvfuser_direct.CompileParams(index_type=nvfuser_direct.DataType.Int32)
    executor.run([x], compile_params=narrow)
    huge = torch.empty(1, dtype=torch.uint8).expand(1 << 31)
    with pytest.raises(ScheduleError, match="indices of 32 bits"):
        check_compile_params(narrow, [huge])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"maxrregcount": 0}, "a maxrregcount of at least 1, got 0"),
        ({"maxrregcount": "all"}, "a maxrregcount of at least 1, got 'all'"),
        ({"include_paths": "/usr/include"}, "a list of include_paths, got '/usr/include'"),
        ({"device": torch.device("meta")}, "inputs on meta, as CompileParams says, got one on cpu"),
        ({"device": object}, "a torch.device in CompileParams, got <class 'object'>"),
        ({"index_type": nvfuser_direct.DataType.Float}, "an index_type of Int or Int32, got"),
    ],
)
def test_compile_parameters_are_checked(fields: dict[str, Any], message: str) -> None:
    fd, x = scheduled_by_hand()
    executor = nvfuser_direct.KernelExecutor()
    with pytest.raises(ScheduleError, match=message):
        executor.compile(fd.fusion, [x], compile_params=nvfuser_direct.CompileParams(**fields))


def test_compile_parameters_without_effect_are_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fd, x = scheduled_by_hand()
    executor = nvfuser_direct.KernelExecutor()
    params = nvfuser_direct.CompileParams(
        index_type=nvfuser_direct.DataType.Int, maxrregcount=64, enable_magic_zero=False,
        enable_ptxas_verbose=True, device=torch.device("cpu"), include_paths=["/usr/include"],
    )  # fmt: skip
    executor.compile(fd.fusion, [x], compile_params=params)
    assert torch.equal(executor.run([x])[0], x * 2)
    assert capsys.readouterr().out == ""


@requires_nvrtc
def test_the_report_of_a_cuda_kernels_compiler() -> None:
    text = SM_90.generate(lowered(scheduled_by_hand()[0].fusion.user_schedule, SM_90)).text
    assert "registers" in SM_90.compiler_report(text)


@pytest.mark.parametrize(
    ("operator", "intrinsic"),
    [("streaming", "load_streaming"), ("global", "load_global"), ("all_levels", "load_all_levels")],
)
def test_cache_operators_are_in_the_text_of_cuda_kernels(operator: str, intrinsic: str) -> None:
    fd, x = scheduled_by_hand(getattr(nvfuser_direct.CacheOp, operator))
    kernel = lowered(fd.fusion.user_schedule, SM_90)
    assert "T0[" in str(kernel) and f"{operator} load" in str(kernel)
    assert f"{intrinsic}(&T0[" in SM_90.generate(kernel).text
    (got,) = fd.execute([x])
    assert torch.equal(got, x * 2)


def test_disabled_schedulers_take_nothing() -> None:
    x = torch.randn(40, 30)

    def schedulers(disable: list[str]) -> list[str]:
        with FusionDefinition() as fd:
            t = fd.from_pytorch(x)
            fd.add_output(fd.ops.mul(fd.ops.cumsum(t, 1), fd.ops.exp(t)))
        (got,) = fd.execute([x], _disable_options=disable)
        torch.testing.assert_close(got, x.cumsum(1) * x.exp())
        (program,) = fd.fec.engine.executor.programs.values()
        return [part.segment.scheduler for part in program.parts]

    assert schedulers([]) == ["greedy"]
    assert schedulers(["greedy_scheduler"]) == ["expr_eval", "pointwise"]
