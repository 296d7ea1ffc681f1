"""What `--nvrtc` does with a run's kernels: keeps distinct texts, and reports those that fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.emulator.runtime import emulated
from tests.cuda.cubins import requires_nvrtc
from tests.cuda.host_compiler import requires_host_compiler
from tests.cuda.kernel_texts import failures, kept_texts, report

RIGHT = 'extern "C" __global__ void right(float* out) { out[threadIdx.x] = 1; }\n'
WARNED = 'extern "C" __global__ void warned(float* out) { int unused; out[threadIdx.x] = 1; }\n'
WRONG = 'extern "C" __global__ void wrong(float* out) { out[threadIdx.x] = nothing; }\n'


@requires_host_compiler
def test_the_texts_of_a_run_are_kept_once(tmp_path: Path) -> None:
    with kept_texts(tmp_path), emulated():
        for factor in (2.0, 2.0, 3.0):
            with FusionDefinition() as fd:
                x = fd.define_tensor([-1], contiguity=True)
                fd.add_output(fd.ops.mul(x, factor))
            assert fd.execute([torch.ones(8)])[0].tolist() == [factor] * 8
    texts = [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()]
    assert len(texts) == 2
    assert all("__global__" in text for text in texts)


@requires_nvrtc
def test_errors_and_warnings_are_reported_by_text(tmp_path: Path) -> None:
    for name, text in (("right", RIGHT), ("warned", WARNED), ("wrong", WRONG)):
        (tmp_path / f"{name}.cu").write_text(text, encoding="utf-8")
    warned, wrong = failures(sorted(tmp_path.iterdir()), ["sm_80"])
    assert str(warned).startswith("warned.cu for sm_80: kernel.cu(1): warning")
    assert 'identifier "nothing" is undefined' in wrong.log
    text, passed = report(tmp_path)
    assert not passed
    assert text.endswith(
        "3 kernels for sm_75, sm_80, sm_90, sm_100: 8 don't compile without warnings"
    )


@requires_nvrtc
def test_texts_of_equal_names_compile_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.cu").write_text(RIGHT.replace("= 1", f"= {number}"))
    programs = []
    compiled = nvrtc.compile_with_report

    def noted(source: str, architecture: str) -> tuple[bytes, str]:
        programs.append(source)
        return compiled(source, architecture)

    monkeypatch.setattr(nvrtc, "compile_with_report", noted)
    paths = sorted(tmp_path.iterdir())
    assert not failures(paths, ["sm_80"])
    assert len(programs) == 2
    paths[7].write_text(WRONG)
    assert [each.path for each in failures(paths, ["sm_80"])] == [paths[7]]
