"""The command line: the records and texts of `show`, the op table, doctor's findings."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import pyfuser
from benchmarks import __main__ as benchmarks
from benchmarks.report import Results
from pyfuser import options
from pyfuser.__main__ import main
from pyfuser.command_line import doctor, operations, show
from pyfuser.devices.cuda import nvrtc
from pyfuser.ops.table import OPS, REDUCTIONS
from pyfuser.schedule import registry
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.folders import ROOT

HEADER = """
import sys
import torch
from pyfuser import FusionDefinition, ParallelType
"""
DEFINE = """
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, 3], contiguity=True)
    fd.add_output(fd.ops.mul(x, 2.0))
"""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(HEADER + text, encoding="utf-8")
    return str(path)


def test_an_executed_definition_is_recorded_with_its_inputs(tmp_path: Path) -> None:
    text = DEFINE + "(y,) = fd.execute([torch.ones(4, 3)])\nassert y.sum() == 24\n"
    (recorded,), _ = show.record(script(tmp_path, text))
    assert recorded.inputs is not None
    assert recorded.inputs[0].shape == (4, 3)
    assert not recorded.by_hand


def test_a_loop_over_one_definition_is_recorded_once(tmp_path: Path) -> None:
    text = DEFINE + "for n in (4, 5, 6):\n    fd.execute([torch.ones(n, 3)])\n"
    (recorded,), _ = show.record(script(tmp_path, text))
    assert recorded.inputs is not None
    assert recorded.inputs[0].shape == (4, 3)


def test_definitions_that_are_not_executed_are_recorded(tmp_path: Path) -> None:
    recorded, _ = show.record(script(tmp_path, DEFINE + DEFINE))
    assert [each.inputs for each in recorded] == [None, None]


def test_a_failing_definition_is_not_recorded(tmp_path: Path) -> None:
    text = """
try:
    with FusionDefinition() as fd:
        raise ValueError("no fusion")
except ValueError:
    pass
"""
    assert show.record(script(tmp_path, text)) == ([], None)


def test_the_script_sees_its_arguments_and_prints_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show.record(script(tmp_path, "print(sys.argv[1:], __name__)"), ["one", "two"])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "['one', 'two'] __main__\n"


def test_recording_leaves_the_interface_as_it_was(tmp_path: Path) -> None:
    execute = show.FusionDefinition.execute
    path = script(tmp_path, "1 / 0")
    assert show.record(path) == ([], f"ZeroDivisionError: division by zero ({path}:5)")
    assert show.FusionDefinition.execute is execute


def test_made_up_inputs_fit_the_definition(tmp_path: Path) -> None:
    text = """
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, 3, 1], contiguity=[True, None, True], stride_order=[0, 2, 1])
    s = fd.define_scalar(None)
    fd.add_output(fd.ops.mul(x, s))
"""
    (recorded,), _ = show.record(script(tmp_path, text))
    tensor, number = (show.made_up(value) for value in recorded.definition.fusion.inputs())
    assert isinstance(tensor, torch.Tensor)
    assert tensor.shape == (100, 3, 1)
    assert tensor.stride(0) == 1
    assert number == 1.0


@pytest.mark.parametrize("stage", ["fusion", "preseg", "segments", "scheduled", "kernel", "llvm"])
def test_show_prints_a_stage(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "docs" / "examples" / "softmax.py")
    assert main(["show", path, "--stage", stage]) == 0
    heading, _, text = capsys.readouterr().out.partition("\n")
    assert heading == f"# fusion 1 of 1, {stage}, cpu"
    assert text.strip()


def test_show_prints_all_stages_in_the_order_of_the_flow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", str(ROOT / "docs" / "examples" / "schedule.py")]) == 0
    out = capsys.readouterr().out
    headings = [line.split(", ")[1] for line in out.splitlines() if line.startswith("# fusion 1")]
    assert headings == [stage for stage in show.STAGES if stage in headings]
    assert {"fusion", "scheduled", "kernel", "llvm"} <= set(headings)


def test_show_prints_cuda_where_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "docs" / "examples" / "schedule.py")
    assert main(["show", path, "--device", "sm_90", "--stage", "cuda"]) == 0
    assert "__global__" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["missing.py"], 2, "show: expected a script, got missing.py"),
        (["missing.py", "--device", "gpu"], 2, "show: expected the device cpu or sm_NN, got gpu"),
    ],
)
def test_show_says_what_is_wrong_with_its_arguments(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *arguments]) == status
    assert capsys.readouterr().err.strip() == message


def test_show_says_that_a_script_defines_no_fusion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", script(tmp_path, "")]) == 1
    error = capsys.readouterr().err.replace("\n", " ")
    assert "expected a FusionDefinition or a torch.compile with pyfuser in" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "cuda"], "for cpu, got cuda; add --device sm_90"),
        (["--stage", "llvm", "--device", "sm_90"], "for sm_90, got llvm; leave --device out"),
    ],
)
def test_show_refuses_a_stage_that_the_device_does_not_have_before_it_runs_the_script(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", script(tmp_path, "1 / 0"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("show: expected one of graph, ")
    assert error.strip().endswith(message)


def test_show_refuses_an_architecture_that_there_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not nvrtc.is_available():
        pytest.skip("without NVRTC nothing says which architectures there are")
    assert main(["show", script(tmp_path, "1 / 0"), "--device", "sm_12345"]) == 2
    assert capsys.readouterr().err.startswith("show: expected the device cpu or one of sm_")


def test_show_knows_architectures_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvrtc, "is_available", lambda: False)
    assert main(["show", script(tmp_path, "1 / 0"), "--device", "sm_1"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("show: expected the device cpu or one of sm_75, sm_80")
    assert error.endswith(", got sm_1")


@pytest.mark.parametrize(
    "arguments",
    [["FILE", "--", "--n", "8"], ["--stage", "fusion", "FILE", "--", "--n", "8"]]
    + [
        ["FILE", "--stage", "fusion", "--", "--n", "8"],
        ["FILE", "--stage=fusion", "--", "--n", "8"],
    ],
)
def test_show_passes_on_what_follows_two_dashes(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path, DEFINE + "print(sys.argv)\n")
    assert main(["show", *(path if each == "FILE" else each for each in arguments)]) == 0
    assert capsys.readouterr().err.strip() == str([path, "--n", "8"])


def test_the_other_commands_take_nothing_after_two_dashes() -> None:
    with pytest.raises(SystemExit) as end:
        main(["ops", "--", "--markdown"])
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero (FILE:9)"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("fd.execute([])", "pyfuser.errors.InputError: execute: expected 1 inputs, got 0 (FILE:9)"),
        ("raise ValueError('two\\nlines')", "lines (FILE:9)"),
    ],
)
def test_show_shows_what_a_script_defined_before_it_failed(
    ending: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path, DEFINE + ending)
    assert main(["show", path, "--stage", "fusion"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("# fusion 1 of 1, fusion, cpu\n")
    assert printed.err.strip().endswith(message.replace("FILE", path))


def test_a_script_may_end_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", script(tmp_path, DEFINE + "sys.exit()"), "--stage", "fusion"]) == 0
    assert capsys.readouterr().err == ""


def test_a_script_may_import_from_its_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "outer_package" / "inner"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder.parent / "widths.py").write_text("WIDTH = 3\n")
    path = script(folder, "from ..widths import WIDTH\nassert __name__ == '__main__'\n" + DEFINE)
    assert main(["show", path, "--stage", "fusion"]) == 0
    assert capsys.readouterr().out
    (folder / "__init__.py").unlink()
    assert main(["show", path, "--stage", "fusion"]) == 1
    assert "ImportError: attempted relative import" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pyfuser", "ops", "--markdown"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_an_unknown_stage_to_dump_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_DUMP", "kernel,kernels")
    options._known_names.cache_clear()
    with pytest.warns(UserWarning, match="PYFUSER_DUMP: expected some of .*, got kernels"):
        assert "kernel" in options.dump_stages()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options.dump_stages()


def test_an_unknown_scheduler_to_disable_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_DISABLE_SCHEDULERS", "greedy, transposes")
    options._known_names.cache_clear()
    with pytest.warns(UserWarning, match="SCHEDULERS: expected some of .*, got transposes"):
        assert options.disabled_schedulers(registry.NAMES) == {"greedy"}


def test_the_stages_to_dump_are_those_of_show() -> None:
    lists_of_passes = {"lower", "graph_passes"}
    assert frozenset(show.STAGES) - lists_of_passes == options._STAGES


def test_ops_prints_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in (*OPS, *REDUCTIONS, *operations.shape_functions()):
        assert any(line.startswith(f"| `{name}` |") for line in lines)


def test_ops_prints_tables_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    out = capsys.readouterr().out
    assert f"{len(OPS)} pointwise ops" in out
    assert f"{len(REDUCTIONS)} reductions" in out
    words = out.split()
    for name in (*OPS, *REDUCTIONS, "var_mean", "welford", "broadcast_in_dim"):
        assert name in words


def test_doctor_finds_versions_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.kernel").write_bytes(bytes(2048))
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("PYFUSER_DISABLE_CACHE", raising=False)
    monkeypatch.setattr(doctor, "_BANDWIDTH_BYTES", 1 << 20)
    found = {finding.what: finding.found for finding in doctor.findings()}
    assert found["torch"] == torch.__version__
    assert found["disk cache"] == f"{tmp_path}: 1 kernels, 2 KiB"
    assert found["copy bandwidth"].endswith(" GB/s")


def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PYFUSER_DISABLE_CACHE", "1")
    monkeypatch.setattr(doctor, "_BANDWIDTH_BYTES", 1 << 20)
    remedies = {finding.what: finding.remedy for finding in doctor.findings()}
    assert "C++17 compiler" in remedies["C++ compiler"]
    assert remedies["NVIDIA GPU"]
    assert remedies["disk cache"].startswith("unset PYFUSER_DISABLE_CACHE")


def test_doctor_says_why_the_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("PYFUSER_DISABLE_CACHE", raising=False)
    found = doctor._disk_cache()
    assert f"{tmp_path}, to which others can write (mode 777" in found.found
    assert found.remedy


def test_the_module_runs_as_a_program() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pyfuser", "ops", "--markdown"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "| `tanh` |" in result.stdout


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "benchmarks: expected a device that torch sees, got cuda; there is no GPU here"),
        ("gpu", "benchmarks: expected the device cpu or cuda, got gpu"),
    ],
)
def test_the_benchmarks_refuse_a_device_that_there_is_not(
    device: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--device", device])
    assert benchmarks.main() == 2
    assert capsys.readouterr().err.strip() == message


def test_the_benchmarks_of_a_gpu_have_a_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_part(part: str, target: Path, scratch: str) -> int:
        assert part == "gpu" and target != tmp_path
        facts = {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2", "python": "3"}
        (target / "gpu.json").write_text(Results("gpu", facts, 1e12, []).to_json())
        return 0

    written: list[Path] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(benchmarks, "_run_part", run_part)
    monkeypatch.setattr(benchmarks, "_write_readme", written.append)
    arguments = ["benchmarks", "--device", "cuda", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--cases", "softmax"])
    assert benchmarks.main() == 0
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(sys, "argv", arguments)
    assert benchmarks.main() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_nvidia_h100_80gb_hbm3.json"]
    assert not written


def test_the_benchmarks_of_a_gpu_need_no_llvm() -> None:
    code = "import sys; sys.modules['llvmlite'] = None; import benchmarks.__main__"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@requires_host_compiler
def test_profile_prints_a_line_for_each_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = DEFINE + "print(sys.argv[1:])\nfd.execute([torch.ones(4, 3)])\n"
    path = script(tmp_path, text)
    assert main(["profile", path, "--device", "sm_80", "--", "one", "--two"]) == 0
    printed = capsys.readouterr()
    heading, row, total = printed.out.splitlines()
    assert heading.startswith("kernel") and heading.endswith("roof")
    assert " 96 " in row and " 96 " in total  # bytes needed: 12 elements read, 12 written
    assert printed.err == "['one', '--two']\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "profile: expected a script, got missing.py"),
        ([__file__, "--device", "cpu"], "profile: expected a device sm_NN, got cpu"),
    ],
)
def test_profile_says_what_it_needs(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_profile_without_a_compiler_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert main(["profile", str(ROOT / "docs" / "examples" / "softmax.py")]) == 1
    message = "expected g++, which compiles the kernels for this machine, got none; install GCC"
    assert message in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pyfuser {pyfuser.__version__}\n"


@pytest.mark.parametrize("text", ["0", "false", "No", " off "])
def test_a_switch_is_off(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("PYFUSER_STRICT", "PYFUSER_DISABLE_CACHE", "PYFUSER_COMPILER_PROCESS")
    for value, is_on in ((text, False), ("1", True), ("yes", True)):
        for name in names:
            monkeypatch.setenv(name, value)
        found = options.strict(), options.cache_directory() is None, options.compiler_process()
        assert found == (is_on,) * 3
