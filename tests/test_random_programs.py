"""200 random programs against eager, and the machinery that finds, judges and shrinks them.

`make fuzz` runs thousands more.  A failure prints the script that reproduces it; with
`python -m tests.programs --seeds N --most 12` it is shrunk.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.programs.check import Wrong, check, compare, judged
from tests.programs.fusions import check_fusions
from tests.programs.generate import generate
from tests.programs.outcome import Outcome
from tests.programs.program import Input, Program, Statement
from tests.programs.running import Chaotic, references
from tests.programs.shrink import shrunk
from tests.programs.traced import TracedLayouts
from tests.programs.workers import Worker
from tests.support.compiled import strict as strict
from tests.support.long_cases import first

# Statements at most: tracing takes most of the time, and grows with their number.
MOST = 12
RANDOM = "torch.randn({shape}, generator=seed(1))"


# The seeds on which torch itself fails, with backend="aot_eager" too, and how.
TORCH_FAILS = {
    102: "RuntimeError when making fake tensor call",
    120: "more than one element of the written-to tensor refers to a single memory location",
}


@pytest.mark.parametrize("seed", first(60, range(200)))
def test_random_programs(seed: int) -> None:
    program = generate(seed, MOST)
    outcome = check(program)
    if seed in TORCH_FAILS:
        assert outcome.kind == "torch" and TORCH_FAILS[seed] in outcome.message
    elif outcome.kind != "ok":
        text = f"{outcome.signature}\n{outcome.detail}\n{program.script()}"
        pytest.fail(text, pytrace=False)


def test_the_same_seed_makes_the_same_program() -> None:
    assert [generate(seed) for seed in range(8)] == [generate(seed) for seed in range(8)]


def test_the_programs_have_everything_in_them() -> None:
    programs = [generate(seed) for seed in range(80)]
    text = "\n".join(map(str, programs))
    for wanted in ("gather", "scatter", "softmax", "cumsum", "[", "cat", " @ ", "unfold", "copy_"):
        assert wanted in text
    assert 15 < sum(program.grad for program in programs) < 40
    assert 8 < sum(program.dynamic for program in programs) < 28
    dtypes = {given.dtype for program in programs for given in program.inputs}
    assert dtypes == {
        "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"
    }  # fmt: skip
    sizes = {n for program in programs for given in program.inputs for n in given.shapes[0]}
    assert {0, 1, 33} <= sizes
    assert any(not given.shapes[0] for program in programs for given in program.inputs)


def of(*lines: str, **inputs: str) -> Program:
    """A program of these lines, the last of which is the output."""
    made = [
        Input(name, "float32", ((4, 6),), ((4, 6),), f"torch.{how}({{shape}}, generator=seed(1))")
        for name, how in inputs.items()
    ]
    statements = [Statement((f"v{n}",), line) for n, line in enumerate(lines)]
    return Program(0, tuple(made), tuple(statements), (f"v{len(lines) - 1}",))


def test_a_program_prints_as_a_script_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    both = next(p for p in map(generate, range(100)) if p.grad and p.dynamic)
    for program in (of("x0.exp()", x0="randn"), both):
        exec(compile(program.script(), "script", "exec"), {})
        assert "error 0.00e+00, strides" in capsys.readouterr().out


def traced_layouts(program: Program) -> tuple[Outcome, Outcome, TracedLayouts]:
    """pyfuser's results, those of torch's graph as traced, and which of its metadata is false."""
    layouts, wanted = TracedLayouts(), [references(program, 0)]
    return judged(program, wanted, "pyfuser", []), judged(program, wanted, layouts, []), layouts


def test_strides_that_tracing_takes_from_axes_of_size_1_are_torch_s_own() -> None:
    narrow = Input("x0", "float32", ((1, 2, 1, 4),), ((1, 2, 1, 4),), RANDOM)
    moved = Input("x1", "float32", ((1, 1, 2, 4),), ((1, 4, 2, 1),), RANDOM, ".transpose(1, 3)")
    lines = ["x1.view(1, -1, 1, 2, 4)", "torch.where(v0 == 0, v0, x0)"]
    statements = tuple(Statement((f"v{n}",), line) for n, line in enumerate(lines))
    program = Program(0, (narrow, moved), statements, ("v1",))
    ours, theirs, layouts = traced_layouts(program)
    assert ours.signature == theirs.signature == "wrong: output: strides"
    assert not layouts.false
    assert check(program).kind == "torch"


def test_false_metadata_is_not_excused_by_tracing() -> None:
    """pyfuser corrects this one: were it to stop, that would be its own failure."""
    program = of("torch.copysign(x0.t().contiguous().t(), x0)", x0="randn")
    ours, theirs, layouts = traced_layouts(program)
    assert ours.kind == "ok"
    assert theirs.signature == "wrong: output: strides"
    assert layouts.false == ["aten.copysign.Tensor"]


def test_gradients_that_cancel_have_the_noise_of_their_terms() -> None:
    x = Input("x0", "float64", ((7,),), ((7,),), f"{RANDOM}.double()", grad=True)
    lines = ["x0.expand(33, 7)", "v0 - v0.amax(0, keepdim=True)"]
    statements = tuple(Statement((f"v{n}",), line) for n, line in enumerate(lines))
    eager, exact, noisy = references(Program(0, (x,), statements, ("v1",)), 0)
    (value,) = eager.gradients
    assert value is not None and value.abs().max() < 1e-14
    compare(replace(eager, gradients=[value + 1e-15]), eager, exact, noisy)
    with pytest.raises(Wrong, match="gradient: values"):
        compare(replace(eager, gradients=[value + 1e-13]), eager, exact, noisy)


def test_norms_of_constant_rows_are_chaotic() -> None:
    program = of("x0[:, :1].expand(4, 6)", "torch.nn.functional.layer_norm(v0, (6,))", x0="randn")
    with pytest.raises(Chaotic):
        references(program, 0)
    references(of("torch.nn.functional.layer_norm(x0, (6,))", x0="randn"), 0)


def test_eager_is_within_its_own_error_and_nothing_else_is() -> None:
    program = of("x0.softmax(1)", "v0.log()", x0="randn")
    eager, exact, noisy = references(program, 0)
    compare(eager, eager, exact, noisy)
    value = eager.outputs[0]
    for changed, what in (
        (value + 1e-4, "output: values"),
        (value.double(), "output: dtype"),
        (value[:2], "output: shape"),
        (value.t().contiguous().t(), "output: strides"),
        (value * float("nan"), "output: values"),
    ):
        with pytest.raises(Wrong, match=what):
            compare(replace(eager, outputs=[changed]), eager, exact, noisy)


def test_changed_inputs_and_shared_memory_are_seen() -> None:
    program = of("x0.t()", x0="randn")
    eager, exact, noisy = references(program, 0)
    with pytest.raises(Wrong, match="output: sharing of memory"):
        compare(replace(eager, outputs=[eager.inputs[0].clone().t()]), eager, exact, noisy)
    other = eager.bases[0].clone()
    other[0, 0] += 1
    with pytest.raises(Wrong, match="memory of input: values"):
        compare(replace(eager, bases=[other]), eager, exact, noisy)


def test_chaotic_programs_are_no_programs() -> None:
    assert check(of("x0 / 3", "v0 * 3 == x0", x0="randn")).kind == "invalid"
    assert check(of("x0.exp() * 1e9", x0="randn")).kind == "invalid"


def test_a_failure_shrinks_to_what_fails() -> None:
    def judge(program: Program) -> Outcome:
        text = str(program)
        return Outcome("wrong" if "cumsum" in text and "x0" in text else "ok")

    program = of("x0 + 1", "v0.exp()", "v1.cumsum(1)", "v2.sum(0)", "v3 * v2", x0="randn")
    small = shrunk(program, Outcome("wrong"), judge, 20)
    assert [str(line) for line in small.statements] == ["v2 = x0.cumsum(1)"]
    assert small.outputs == ("v2",)


@pytest.mark.long
def test_a_process_that_dies_or_hangs_is_an_outcome() -> None:
    worker = Worker(timeout=60)
    try:
        assert worker.judge(of("x0 + 1", x0="randn"))[1].kind == "ok"
        abort = of("x0 + __import__('os').abort()", x0="randn")
        assert worker.judge(abort)[1].kind == "crash"
        assert worker.judge(of("x0 + 1", x0="randn"))[1].kind == "ok"
        sleeps = of("x0 + (__import__('time').sleep(0.5) or 1)", x0="randn")
        assert worker.judge(sleeps)[1].kind == "ok"  # it waits for others to compute
        worker.timeout = 0.2
        assert worker.judge(sleeps)[1].kind == "hang"
        assert worker.judge(of("x0 + sum(range(10**10))", x0="randn"))[1].kind == "hang"
    finally:
        worker.stop()


@pytest.mark.parametrize("seed", [2, 3, 10, 17, 19])
def test_random_fusions_by_seed(seed: int) -> None:
    outcome = check_fusions(seed)
    assert outcome.kind == "ok", outcome.detail
    assert outcome.schedulers
