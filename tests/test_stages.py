"""Every stage of the compiler as text: golden for a softmax, a sum and the classic schedule.

The texts are for one fixed processor, so that they are the same everywhere; LLVM IR, which is
printed for the current processor, is only checked for its structure.  `pytest --update-golden`
rewrites them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, ParallelType, compiler
from pyfuser.analysis.layouts import layout_of
from pyfuser.command_line import show
from pyfuser.devices.cpu.host import host
from pyfuser.devices.registry import target_of
from pyfuser.ir.keys import definition_key
from pyfuser.lower.lowering import KERNEL_PASSES, SCHEDULE_PASSES, build_nests
from pyfuser.ops.binding import bind
from pyfuser.preseg.pipeline import PIPELINE
from pyfuser.trace import Texts
from tests.support.targets import PRETENDED

Golden = Callable[[str, str], None]
STAGES = ("fusion", "preseg", "segments", "scheduled", "kernel")


def softmax() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        fd.add_output(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)))
    return fd


def column_sums_and_more() -> FusionDefinition:
    """Two segments: sums of columns, and a pointwise that reads them."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        wide = fd.ops.cast(x, DataType.Float)
        total = fd.ops.sum(wide, [0])
        ranked = fd.ops.sum(fd.ops.mul(total, total), [0])
        fd.add_output(fd.ops.mul(wide, fd.ops.broadcast(ranked, [True, True])))
    return fd


def classic() -> FusionDefinition:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        t1 = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        t3 = fd.ops.add(t0, fd.ops.add(t1, 2.0))
        fd.add_output(t3)
        t3.merge(0).split(0, 128).split(0, 4)
        fd.sched.transform_like(t3)
        for axis, kind in enumerate(("grid_x", "unroll", "block_x")):
            t3.axis(axis).parallelize(ParallelType[kind])
        fd.sched.parallelize_like(t3)
        fd.sched.inline_at(t3, 1)
    return fd


def stages_of(fd: FusionDefinition, inputs: list[torch.Tensor], target: Any) -> dict[str, str]:
    definition = fd.fusion.definition
    layouts = [layout_of(x.shape, x.stride()) for x in inputs]
    return compiler.stages(definition, bind(definition, inputs).sizes, layouts, target)


@pytest.fixture(scope="module")
def softmax_stages() -> dict[str, str]:
    return stages_of(softmax(), [torch.empty(256, 1000)], PRETENDED)


@pytest.mark.parametrize("stage", STAGES)
def test_softmax(stage: str, softmax_stages: dict[str, str], golden: Golden) -> None:
    golden(f"softmax_{stage}.txt", softmax_stages[stage] + "\n")


@pytest.mark.parametrize("stage", ["segments", "kernel"])
def test_column_sums_and_more(stage: str, golden: Golden) -> None:
    inputs = [torch.empty(300, 500, dtype=torch.bfloat16)]
    texts = stages_of(column_sums_and_more(), inputs, PRETENDED)
    assert texts["segments"].count("segment ") >= 2
    golden(f"column_sums_{stage}.txt", texts[stage] + "\n")


@pytest.mark.parametrize("stage", ["scheduled", "kernel"])
def test_the_classic_schedule(stage: str, golden: Golden) -> None:
    texts = Texts()
    compiler.scheduled_stages(classic().fusion.user_schedule, PRETENDED, texts)
    golden(f"classic_{stage}.txt", texts.stages[stage] + "\n")


def test_texts_are_deterministic(softmax_stages: dict[str, str]) -> None:
    again = stages_of(softmax(), [torch.empty(256, 1000)], PRETENDED)
    assert {stage: again[stage] for stage in STAGES} == {
        stage: softmax_stages[stage] for stage in STAGES
    }


def test_llvm_ir_has_vectors_masks_and_no_fast_math() -> None:
    texts = stages_of(softmax(), [torch.empty(256, 1000)], target_of("cpu"))
    llvm = texts["llvm"]
    lanes = host().lanes(4)
    assert "define void @kernel_phase0(ptr noalias %args, i64 %thread, i64 %threads)" in llvm
    assert f"load <{lanes} x float>" in llvm or f"load.v{lanes}f32" in llvm
    assert "masked" in llvm
    instructions = [line for line in llvm.splitlines() if re.search(r"= f(add|sub|mul|div) ", line)]
    assert instructions
    assert not any(re.search(r"= f\w+ (fast|nnan|ninf|reassoc|contract)", i) for i in instructions)
    defined = re.findall(r"^  (%\S+) = ", llvm, re.MULTILINE)
    assert len(defined) == len(set(defined))


def test_the_fusion_text_rebuilds_the_fusion(softmax_stages: dict[str, str]) -> None:
    for make in (softmax, column_sums_and_more, classic):
        first = make()
        names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
        exec(repr(first), names)
        with FusionDefinition() as second:
            names["nvfuser_fusion"](second)
        assert repr(second) == repr(first)
        assert definition_key(second.fusion.definition) == definition_key(first.fusion.definition)


@pytest.mark.parametrize("stage", [*STAGES, "llvm", "asm"])
def test_each_stage_is_dumped_on_demand(
    stage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYFUSER_DUMP", stage)
    softmax().execute([torch.randn(3, 70)])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.findall(r"^---- (\w+) ----$", captured.err, re.MULTILINE) == [stage]
    assert len(captured.err.splitlines()) > 5


def test_nothing_is_dumped_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYFUSER_DUMP", raising=False)
    softmax().execute([torch.randn(3, 70)])
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_what_is_shown_is_what_runs() -> None:
    """The texts of `stages` are those of the kernels that a call runs."""
    for fd, x in (
        (softmax(), torch.randn(256, 1000)),
        (column_sums_and_more(), torch.randn(300, 40).bfloat16()),
    ):
        fd.execute([x])
        executor = fd.fec.engine.executor
        texts = [k.code.text for k in executor.resolve([x]).kernels if k is not None]
        assert stages_of(fd, [x], target_of("cpu"))["llvm"] == "".join(texts)


def test_every_pass_can_be_seen() -> None:
    texts, fd = Texts(), softmax()
    definition, x = fd.fusion.definition, torch.empty(256, 1000)
    sizes = bind(definition, [x]).sizes
    compiler.stages(definition, sizes, [layout_of(x.shape, x.stride())], PRETENDED, texts)
    passes = (*PIPELINE, *SCHEDULE_PASSES, build_nests, *KERNEL_PASSES)
    names = [each.__name__ for each in passes]
    assert list(texts.passes) == list(dict.fromkeys(names))
    assert texts.passes["name_symbols"] == texts.stages["kernel"]
    assert "for" in texts.passes["build_nests"] != texts.passes["peel_loops"]


def test_show_lists_passes_and_prints_what_one_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    path = "docs/examples/softmax.py"
    assert show.run(path, "cpu", "lower") == 0
    assert "split_grid_reductions\nbuild_nests\n" in capsys.readouterr().out
    assert show.run(path, "sm_90", None, after="synchronise") == 0
    assert "after synchronise, sm_90" in capsys.readouterr().out
    assert show.run(path, "cpu", None, after="two_pass_moments") == 0
    assert "= div(T" in capsys.readouterr().out
    assert show.run(path, "cpu", None, after="nothing") == 1
    assert "one of the passes dead_code" in capsys.readouterr().err
