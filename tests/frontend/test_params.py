"""Parameters of schedulers and of matrix products: shown, edited, followed."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import pyfuser as nvfuser_direct
from pyfuser import FusionDefinition, SchedulerType, TensorView, options
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.occupancy import registers_of_a_block
from pyfuser.errors import DefinitionError, InputError, ScheduleError
from pyfuser.frontend.options import applied
from pyfuser.frontend.params import (
    check_compile_params,
    decisions_of,
    for_all_sizes,
    params_of,
)
from pyfuser.kernel_builds import lowered
from pyfuser.schedule import registry
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
    decisions = ThreadedReduction(True, 64, 8, 0, 1, is_whole=True, is_full=True)
    assert for_all_sizes(decisions) == ThreadedReduction(True, 64, 8, 0, 1)
    rows = ReductionParameters(True, 64, 8, 0, 1)
    both = for_all_sizes(InnerOuterParameters(decisions, ()))
    assert both == InnerOuterParameters(rows, ())


def inner_sum(fd: FusionDefinition, x: TensorView) -> None:
    """Of all but the first and the last column: short rows that are no range."""
    fd.add_output(fd.ops.sum(fd.ops.slice(x, [0, 1], [9000, 9]), dims=[0, 1]))


def row_and_column_sums(fd: FusionDefinition, x: TensorView) -> None:
    scaled = fd.ops.mul(x, fd.ops.sum(x, dims=[1], keepdim=True))
    fd.add_output(scaled)
    fd.add_output(fd.ops.sum(scaled, dims=[0]))


@pytest.mark.parametrize("runtime", [nullcontext, emulated])
@pytest.mark.parametrize(
    ("define", "shape"),
    [
        (lambda fd, x: fd.add_output(fd.ops.exp(x)), (1, 1)),
        (lambda fd, x: fd.add_output(fd.ops.exp(x)), (37, 101)),
        (lambda fd, x: fd.add_output(fd.ops.sum(x, dims=[0])), (20000, 2)),
        (lambda fd, x: fd.add_output(fd.ops.sum(x, dims=[0])), (512, 512)),
        (lambda fd, x: fd.add_output(fd.ops.sum(x, dims=[1])), (3, 5)),
        (lambda fd, x: fd.add_output(fd.ops.sum(x, dims=[1])), (2, 50000)),
        (lambda fd, x: fd.add_output(fd.ops.sum(x, dims=[0, 1])), (2, 50000)),
        (row_and_column_sums, (5000, 2)),
        (inner_sum, (9000, 10)),
    ],
)
def test_decided_parameters_are_constraints_that_their_kernel_meets(
    define: Callable[[FusionDefinition, TensorView], None], shape: tuple[int, int], runtime: Any
) -> None:
    x = torch.randint(-2, 3, shape).float()
    with FusionDefinition() as fd:
        define(fd, fd.from_pytorch(x))
    with runtime():
        (kind, *_) = fd.sched.find_compatible_schedulers(fd.fusion, [x])
        params = fd.sched.schedule(fd.fusion, kind, [x])
        scheduled = str(fd.fusion.user_schedule)
        fd.manual_validate([x])
        fd.manual_execute([x], params)
        fd.sched.schedule(fd.fusion, kind, params)
    assert str(fd.fusion.user_schedule) == scheduled


@pytest.mark.parametrize(("dim", "axis", "field"), [(1, "y", "inner"), (0, "z", "outer")])
def test_parts_are_of_the_axis_that_the_parameters_name(dim: int, axis: str, field: str) -> None:
    x = torch.randint(-8, 9, (1001, 1003)).float()
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), dims=[dim]))
    params = fd.sched.compute_heuristics(fd.fusion, SchedulerType.reduction, [x])
    setattr(params, f"split_grid_dim_{field}_reduction", True)
    setattr(
        params, f"grid_dim_{field}_reduction", getattr(nvfuser_direct.ParallelType, f"grid_{axis}")
    )
    params.lparams = nvfuser_direct.LaunchParams(**{f"gdim{axis}": 7})
    fd.sched.schedule(fd.fusion, SchedulerType.reduction, params)
    (got,) = fd.manual_execute([x], params)
    assert torch.equal(got, x.sum(dim))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"vectorization_factor": 0}, "vectorization_factor of at least 1, got 0"),
        ({"unroll_factor_inner": "2"}, "unroll_factor_inner of at least 1, got '2'"),
        ({"lparams": nvfuser_direct.LaunchParams(bdimx=0)}, "bdimx of at least 1, got 0"),
        ({"lparams": 3}, "expected LaunchParams, got an object of type int"),
    ],
)
def test_edits_that_cannot_be_followed_are_named(edits: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        scheduled_with(doubled(), SchedulerType.pointwise, torch.randn(3, 4), **edits)


def test_parameters_of_another_scheduler() -> None:
    fd, x = doubled(), torch.randn(5, 13)
    kind, sched = SchedulerType.pointwise, fd.sched
    for params in (nvfuser_direct.ReductionParams(), nvfuser_direct.MatmulParams()):
        with pytest.raises(ScheduleError, match=f"pointwise, got {type(params).__name__} of"):
            sched.schedule(fd.fusion, kind, params)
    with pytest.raises(ScheduleError, match="cannot find reference tensor"):
        sched.schedule(row_sums().fusion, kind, nvfuser_direct.PointwiseParams())
    with pytest.raises(ScheduleError, match="pyfuser has no such scheduler"):
        sched.schedule(fd.fusion, SchedulerType.matmul, nvfuser_direct.MatmulParams())
    with pytest.raises(ScheduleError, match="expected HeuristicParams, got an object of type"):
        sched.schedule(fd.fusion, kind, nvfuser_direct.LaunchParams())
    with pytest.raises(ScheduleError, match=r"did you mean SchedulerType\.pointwise\?"):
        sched.can_schedule(fd.fusion, "pointwise", [x])
    with pytest.raises(DefinitionError, match="expected a Fusion, .* pass its `fusion`"):
        sched.find_compatible_schedulers(fd, [x])
    with pytest.raises(InputError, match=r"a list of inputs, got a tensor; .*\[x\]"):
        sched.compute_heuristics(fd.fusion, kind, x)
    with pytest.raises(ScheduleError, match="expected HeuristicParams, got an object of type"):
        fd.manual_execute([x], nvfuser_direct.LaunchParams())
    assert torch.equal(fd.manual_execute([x])[0], x * 2)


@pytest.mark.parametrize(
    "params",
    [
        nvfuser_direct.LaunchParams(), nvfuser_direct.CompileParams(),
        nvfuser_direct.PointwiseParams(), nvfuser_direct.ReductionParams(),
        nvfuser_direct.MatmulParams(), nvfuser_direct.GemmTile(),
    ],
)  # fmt: skip
def test_parameters_have_no_other_fields(params: Any) -> None:
    with pytest.raises(AttributeError, match="vectorisation_factor"):
        params.vectorisation_factor = 4


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
    own = {field.name for field in fields(nvfuser_direct.ReductionParams)}
    inherited = {field.name for field in fields(nvfuser_direct.HeuristicParams)}
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
    with pytest.raises(ScheduleError, match="expected LaunchParams, got an object of type Compile"):
        executor.run([x], nvfuser_direct.CompileParams())
    narrow = nvfuser_direct.CompileParams(index_type=nvfuser_direct.DataType.Int32)
    executor.run([x], compile_params=narrow)
    many = torch.empty(1, device="meta").expand((1 << 31) + 1)
    far_apart = torch.empty((1 << 31) + 1, device="meta")[:: 1 << 31]
    for huge in (many, far_apart):
        with pytest.raises(ScheduleError, match="indices of 32 bits"):
            check_compile_params(narrow, [huge])
        check_compile_params(narrow, [huge[:-1]])


def test_constraints_of_a_kernel_that_the_first_run_compiles() -> None:
    fd, x = scheduled_by_hand()
    executor = nvfuser_direct.KernelExecutor()
    executor.compile(fd.fusion, launch_constraints=nvfuser_direct.LaunchParams(bdimx=64))
    with pytest.raises(ScheduleError, match="bdimx of 64, as the launch constraints say, got 128"):
        executor.run([x])
    executor.compile(fd.fusion, launch_constraints=nvfuser_direct.LaunchParams(bdimx=128))
    assert torch.equal(executor.run([x])[0], x * 2)
    params = nvfuser_direct.CompileParams(maxrregcount=0)
    with pytest.raises(ScheduleError, match="maxrregcount of at least 1, got 0"):
        executor.compile(fd.fusion, compile_params=params)


def test_a_compilation_that_failed_leaves_no_kernel() -> None:
    fd, x = scheduled_by_hand()
    executor = nvfuser_direct.KernelExecutor()
    with pytest.raises(ScheduleError, match="bdimx of 64"):
        executor.compile(fd.fusion, [x], nvfuser_direct.LaunchParams(bdimx=64))
    assert not executor.is_compiled()
    with pytest.raises(ScheduleError, match="call compile first"):
        executor.run([x])
    executor.compile(fd.fusion, [x])
    assert torch.equal(executor.run([x])[0], x * 2)
    with pytest.raises(InputError, match=r"got a tensor; write run\(\[x\]\)"):
        executor.run(x)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="compile: expected a Fusion, .* pass its `fusion`"):
        executor.compile(fd, [x])  # type: ignore[arg-type]


def test_kernels_are_printed_for_the_device_of_the_parameters() -> None:
    fd, x = row_sums(), torch.randn(3, 5)
    fd.sched.schedule(fd.fusion, SchedulerType.reduction, [x])
    texts = [
        fd.fusion.print_kernel(nvfuser_direct.CompileParams(device=device))
        for device in ("cpu", "cuda", None)
    ]
    assert texts[0] == texts[2] != texts[1]
    with pytest.raises(ScheduleError, match="print_kernel: expected a torch.device"):
        fd.fusion.print_kernel(nvfuser_direct.CompileParams(device="nowhere"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"maxrregcount": 0}, "maxrregcount of at least 1, got 0"),
        ({"maxrregcount": "all"}, "maxrregcount of at least 1, got 'all'"),
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
        index_type=nvfuser_direct.DataType.Int, maxrregcount=255, enable_magic_zero=False,
        enable_ptxas_verbose=True, device=torch.device("cpu:0"), include_paths=["/usr/include"],
    )  # fmt: skip
    executor.compile(fd.fusion, [x], compile_params=params)
    assert torch.equal(executor.run([x])[0], x * 2)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("asked", "bounds"),
    [
        (255, "__launch_bounds__(128, 1)"),
        (64, "__maxnreg__(64)"),
        (32, "__maxnreg__(32)"),
    ],
)
def test_a_kernel_has_at_most_the_registers_of_the_parameters(asked: int, bounds: str) -> None:
    fd, x = scheduled_by_hand()
    params = nvfuser_direct.CompileParams(maxrregcount=asked)
    with emulated():
        executor = nvfuser_direct.KernelExecutor()
        executor.compile(fd.fusion, [x])
        (got,) = executor.run([x], compile_params=params)
        assert torch.equal(got, x * 2)
        assert executor._kernel is not None
        (built,) = executor._kernel.executor.resolve([x]).kernels
        assert built is not None and bounds in built.code.text
        executor.run([x])
        assert executor._kernel.executor.resolve([x]).kernels[0] is built  # not compiled again


@requires_nvrtc
def test_fewer_registers_than_a_kernel_needs() -> None:
    fd, x = row_sums(), torch.randn(64, 4096)
    with emulated():
        fd.sched.schedule(fd.fusion, SchedulerType.reduction, [x])

    def registers(most: int | None) -> int:
        scheduled = replace(fd.fusion.user_schedule, most_registers=most)
        report = SM_90.compiler_report(SM_90.generate(lowered(scheduled, SM_90)).text)
        (found,) = re.findall(r"Used (\d+) registers", report)
        return int(found)

    assert registers(32) <= 32 < registers(None)


def test_a_block_of_many_threads_leaves_each_the_registers_that_there_are() -> None:
    found = {threads: registers_of_a_block(threads) for threads in (32, 128, 512, 768, 1024)}
    assert found == {32: 512, 128: 512, 512: 128, 768: 80, 1024: 64}


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
    """Also after a call with them, whose plans must not be used."""
    x = torch.randn(40, 30)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(fd.ops.cumsum(t, 1), fd.ops.exp(t)))

    def schedulers(disable: list[str]) -> list[str]:
        (got,) = fd.execute([x], _disable_options=disable)
        torch.testing.assert_close(got, x.cumsum(1) * x.exp())
        engine = fd.fec.engine_without(disable)
        (program,) = engine.executor.programs.values()
        return [part.segment.scheduler for part in program.parts]

    assert schedulers([]) == ["greedy"]
    assert schedulers(["greedy_scheduler"]) == ["expr_eval", "pointwise"]
    assert schedulers([]) == ["greedy"]


def test_options_add_to_the_disabled_schedulers_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYFUSER_DISABLE_SCHEDULERS", "transpose")
    with applied([], ["greedy_scheduler"]):
        assert options.disabled_schedulers(registry.NAMES) == {"transpose", "greedy"}
