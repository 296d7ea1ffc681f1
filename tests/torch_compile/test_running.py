"""The runtime behaviour of a compiled model: threads, forks, random numbers, modes, changing
shapes.

Also things that a user would notice only later: settings of torch that must stay unchanged, and
memory, of which a compiled call may need no more than eager at its peak.  Tests that need their own
process run in one, through the scripts below.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from benchmarks import peak_memory
from pyfuser import UnsupportedError
from pyfuser.devices.registry import target_for
from pyfuser.interface import compiled_kernel_count
from pyfuser.profiling import Recorder, recording
from pyfuser.torch_compile import compiled_graph
from tests.support.compiled import BACKEND, graph_count
from tests.support.compiled import strict as strict
from tests.support.folders import ROOT
from tests.support.long_cases import first
from tests.torch_compile.model_blocks import Gpt2Block

THREADS = 16
CALLS = 200


def python(script: str, *arguments: str, timeout: float = 120, **environment: str) -> str:
    """Standard output of a script in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={"PATH": "/usr/bin:/bin", "PYFUSER_STRICT": "1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_region_becomes_a_kernel() -> None:
    compiled = torch.compile(lambda x: (x * 1.2345).sin() + 0.6789, backend=BACKEND)
    before = compiled_kernel_count()
    compiled(torch.randn(40, 30))
    assert compiled_kernel_count() == before + 1


def test_the_backend_needs_no_import_and_leaves_torch_as_it_was() -> None:
    script = """
import json, torch, torch._dynamo, torch._functorch.config, torch._inductor.config
configs = torch._dynamo.config, torch._functorch.config, torch._inductor.config
before = [str(config.get_config_copy()) for config in configs]
state = torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()
assert "pyfuser" in torch._dynamo.list_backends()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
torch.compile(model, backend="pyfuser", dynamic=True)(torch.randn(4, 8)).sum().backward()
import pyfuser
assert before == [str(config.get_config_copy()) for config in configs]
assert state == (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())
"""
    python(script)


def test_sixteen_threads_call_one_model() -> None:
    torch.manual_seed(0)
    model = Gpt2Block(width=32)
    compiled = torch.compile(model, backend=BACKEND, dynamic=True)
    inputs = [torch.randn(2 + number % 3, 5 + number, 32) for number in range(THREADS)]
    start = Barrier(THREADS)

    def work(x: Tensor) -> list[Tensor]:
        start.wait()
        results = []
        for _ in range(2):
            with torch.no_grad():
                results.append(compiled(x))
            leaf = x.clone().requires_grad_()
            results += torch.autograd.grad(compiled(leaf).sin().sum(), leaf)
        return results

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(work, inputs))
    for x, results in zip(inputs, found, strict=True):
        leaf = x.clone().requires_grad_()
        output = model(leaf)
        (gradient,) = torch.autograd.grad(output.sin().sum(), leaf)
        for got, expected in zip(results, [output.detach(), gradient] * 2, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


FORK = """
import os, signal, sys, torch
torch.set_num_threads(1)
function = lambda x: (x * 2 + 1).sin() * x
call = torch.compile(function, backend=sys.argv[1])
x = torch.randn(int(sys.argv[2]), 16)
expected = call(x)
process = os.fork()
if process == 0:
    signal.alarm(30)
    os._exit(0 if torch.equal(call(x), expected) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


@pytest.mark.parametrize("rows", [50, 50_000])
def test_a_forked_process_calls_what_its_parent_compiled(rows: int) -> None:
    """On one thread, as eager: if OpenMP has used more, eager hangs after a fork as well."""
    python(FORK, BACKEND, str(rows))


def seeded(call: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Output and gradient after the same seed, and the next number of torch's stream."""
    leaf = inputs[0].clone().requires_grad_()
    torch.manual_seed(3)
    output = call(leaf, *inputs[1:])
    (gradient,) = torch.autograd.grad(output.sum(), leaf, allow_unused=True)
    return [output.detach(), gradient, torch.rand(2)]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_gives_eager_s_numbers(rate: float, training: bool) -> None:
    def function(x: Tensor) -> Tensor:
        first = F.dropout(x * 2, rate, training)
        return F.dropout(first.relu() + x, rate, training) * 3

    compiled = torch.compile(function, backend=BACKEND, fullgraph=True)
    x = torch.randn(37, 41)
    for got, expected in zip(seeded(compiled, x), seeded(function, x), strict=True):
        torch.testing.assert_close(got, expected)
        assert torch.equal(got == 0, expected == 0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_dropout_is_drawn_again_as_it_was(reentrant: bool) -> None:
    layer = nn.Linear(24, 24)

    def inner(x: Tensor) -> Tensor:
        return F.dropout(torch.relu(layer(x)), 0.5)

    def function(x: Tensor) -> Tensor:
        y = torch.utils.checkpoint.checkpoint(inner, x * 2.0, use_reentrant=reentrant)
        assert isinstance(y, Tensor)
        return (y * y).sum()

    results = []
    for call in (function, torch.compile(function, backend=BACKEND)):
        torch.manual_seed(3)
        x = torch.linspace(-1, 1, 40 * 24).view(40, 24).requires_grad_()
        layer.zero_grad()
        call(x).backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None and layer.weight.grad is not None
        results.append((x.grad, layer.weight.grad))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


def test_random_numbers_are_eager_s() -> None:
    def function(x: Tensor) -> Tensor:
        noise = torch.rand_like(x) + torch.randn(x.shape) * 0.1
        return torch.where(torch.bernoulli(noise.clamp(0, 1)) > 0, x, noise)

    compiled = torch.compile(function, backend=BACKEND)
    x = torch.randn(30, 20)
    for got, expected in zip(seeded(compiled, x), seeded(function, x), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_second_random_call_waits_for_the_first() -> None:
    """The sum reads the second call, which waits for the first, which reads the sigmoid: the two
    are two kernels.
    """

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        rates = x.sigmoid()
        return torch.bernoulli(rates), rates + torch.rand_like(x)

    x = torch.randn(30, 20)
    torch.manual_seed(1)
    got = torch.compile(function, backend=BACKEND)(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, function(x))


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 16)

    def function(x: Tensor) -> Tensor:
        if inside:
            with torch.autocast("cpu", torch.bfloat16):
                return F.softmax(F.gelu(layer(x)), -1)
        return F.softmax(F.gelu(layer(x)), -1)

    compiled = torch.compile(function, backend=BACKEND, fullgraph=True)
    x = torch.randn(10, 24)
    for enabled in (not inside, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got, expected = compiled(x), function(x)
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_autograd(mode: Callable[[], Any]) -> None:
    layer = nn.Linear(6, 6)
    compiled = torch.compile(lambda x: layer(x).tanh() + x, backend=BACKEND)
    x = torch.randn(4, 6)
    with mode():
        got, expected = compiled(x), layer(x).tanh() + x
    torch.testing.assert_close(got, expected)
    assert got.requires_grad == expected.requires_grad
    assert got.is_inference() == expected.is_inference()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_runs_again_if_the_graph_is_retained(dynamic: bool) -> None:
    compiled = torch.compile(
        lambda x, y: (x.sin() * y.exp()).sum(), backend=BACKEND, dynamic=dynamic
    )
    x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
    compiled(x, y).backward()
    loss = compiled(x, y)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(x.grad, 3 * x.cos() * y.exp())


def test_a_model_goes_from_training_to_evaluation_and_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU())
    compiled = torch.compile(model, backend=BACKEND)
    x = torch.randn(8, 6)
    for is_training in (True, False, True):
        model.train(is_training)
        torch.manual_seed(1)
        got = compiled(x)
        torch.manual_seed(1)
        torch.testing.assert_close(got, model(x))


def shapes() -> list[tuple[int, int]]:
    """`CALLS` pairs of batch and length that both change at every call; 1 is special to torch."""
    return [(2 + (3 * number) % 7, 3 + (11 * number) % 41) for number in range(CALLS)]


@pytest.mark.parametrize(
    ("training", "dynamic"), first(2, [(True, True), (False, None), (True, None), (False, True)])
)
def test_moving_shapes_compile_nothing_new(training: bool, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    block = Gpt2Block(width=16)
    compiled = torch.compile(block, backend=BACKEND, dynamic=dynamic)
    kernels = graphs = 0
    for number, shape in enumerate(shapes()):
        x = torch.randn(*shape, 16, requires_grad=training)
        if training:
            got, expected = (
                torch.autograd.grad(call(x).square().sum(), x)[0] for call in (compiled, block)
            )
        else:
            with torch.no_grad():
                got, expected = compiled(x), block(x)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        if number == 1:
            kernels, graphs = compiled_kernel_count(), graph_count()
    # Threads have the part of a row in registers that is known to fit: a few classes of lengths.
    classes = 8 if target_for(torch.device("cpu")).threads_are_hardware else 0
    assert compiled_kernel_count() - kernels <= classes and graph_count() == graphs


def test_every_other_column_of_any_number_of_columns() -> None:
    """Half a size, rounded, minus one: the graph's function must fit the call it is written for."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        x[..., 1:-2:2] *= y
        return y + 1

    compiled = torch.compile(program, backend=BACKEND, dynamic=True)
    for columns in (2, 3, 4, 5, 12, 3):
        x, y = torch.randn(9, columns), torch.randn(1, 1)
        expected = x.clone()
        expected[..., 1:-2:2] *= y
        assert torch.equal(compiled(x, y), y + 1)
        assert torch.equal(x, expected)


def test_a_marked_axis_moves_without_a_second_graph() -> None:
    compiled = torch.compile(lambda x: (x.softmax(-1) + x).sum(0), backend=BACKEND)
    graphs = graph_count()
    for rows in (5, 6, 90, 2):
        x = torch.randn(rows, 12)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), (x.softmax(-1) + x).sum(0))
    assert graph_count() == graphs + 1


def test_asynchronous_compilation_answers_from_the_first_call() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 3.21).cos().softmax(-1) + 0.123

    compiled = torch.compile(function, backend=BACKEND, options={"async_compile": True})
    x, before = torch.randn(30, 50), compiled_kernel_count()
    deadline = time.monotonic() + 60
    while compiled_kernel_count() == before and time.monotonic() < deadline:
        torch.testing.assert_close(compiled(x), function(x))
        time.sleep(0.01)
    assert compiled_kernel_count() > before
    torch.testing.assert_close(compiled(x), function(x))


def test_strict_mode_raises_what_a_background_compilation_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")

    def refuse(graph_module: object, tunes: bool) -> Any:
        raise UnsupportedError("this graph isn't for kernels")

    monkeypatch.setattr(compiled_graph, "compile_graph", refuse)
    compiled = torch.compile(torch.exp, backend=BACKEND, options={"async_compile": True})
    with pytest.raises(UnsupportedError, match="isn't for kernels"):
        for _ in range(200):
            compiled(torch.ones(3))
            time.sleep(0.01)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_are_accepted(mode: str) -> None:
    compiled = torch.compile(torch.sinc, backend=BACKEND, mode=mode)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x), torch.sinc(x))


def test_an_unknown_option_is_named() -> None:
    compiled = torch.compile(torch.sinc, backend=BACKEND, options={"fast": True})
    with pytest.raises(Exception, match="expected an option among .*, got fast"):
        compiled(torch.randn(3))


MEMORY = """
import json, sys, torch
from benchmarks import peak_memory
from tests.torch_compile.test_running import WORKLOADS
name, backend = sys.argv[1:]
step = WORKLOADS[name](lambda f: f if backend == "eager" else torch.compile(f, backend=backend))
for _ in range(3):
    step()
empty = lambda: None
if backend == "pyfuser":
    import pyfuser.memory
    empty = pyfuser.memory.empty_cache
print(json.dumps(min(peak_memory.peak_bytes(step, empty) for _ in range(3))))
"""


def chain(compiler: Callable[..., Any]) -> Callable[[], object]:
    x, y = (torch.randn(2048, 2048) for _ in range(2))
    call = compiler(lambda x, y: torch.softmax((x * 2 + y).sin() + x, -1) * y)
    return lambda: call(x, y)


def late_use(compiler: Callable[..., Any]) -> Callable[[], object]:
    """Many independent sums of big temporaries: eager holds one temporary at a time."""
    x = torch.randn(2048, 2048)

    def function(x: Tensor) -> list[Tensor]:
        return [((x @ x[:, :64]) * x.sin()[:, :64] + number).sum() for number in range(4)]

    call = compiler(function)
    return lambda: call(x)


def training(compiler: Callable[..., Any]) -> Callable[[], object]:
    torch.manual_seed(0)
    layers = [nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)]
    model = nn.Sequential(*layers)
    call = compiler(model)
    x, targets = torch.randn(2048, 512), torch.randint(0, 512, (2048,))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(call(x), targets).backward()

    return step


def attention(compiler: Callable[..., Any]) -> Callable[[], object]:
    block = Gpt2Block(width=128)
    call = compiler(block)
    x = torch.randn(8, 256, 128)

    def step() -> None:
        block.zero_grad(set_to_none=True)
        call(x).square().mean().backward()

    return step


WORKLOADS = {each.__name__: each for each in (training, chain, late_use, attention)}


@pytest.mark.skipif(not peak_memory.can_measure(), reason="no high-water mark of memory here")
@pytest.mark.parametrize("name", first(1, list(WORKLOADS)))
def test_a_call_needs_the_memory_of_eager_at_most(name: str) -> None:
    peaks = {
        backend: json.loads(python(MEMORY, name, backend, **peak_memory.ENVIRONMENT))
        for backend in ("eager", BACKEND)
    }
    # 2 MiB for a huge page, which the system gives as a whole, and what isn't the tensors': stacks.
    assert peaks[BACKEND] <= peaks["eager"] + (2 << 20)


def test_assertions_are_checked() -> None:
    """They have no result, so nothing seems to need them."""

    def function(x: Tensor) -> Tensor:
        torch.ops.aten._assert_async.msg(x.sum() > 0, "a negative sum")
        return x * 2

    compiled = torch.compile(function, backend=BACKEND)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="a negative sum"):
        compiled(-torch.ones(3))


def test_dropout_of_an_expanded_input() -> None:
    """Eager's mask is an empty_like of the input, and is drawn in the order of its memory."""

    def function(x: Tensor) -> Tensor:
        return F.dropout(x[:, None, :1].expand(5, 3, 4, 8), 0.3)

    x = torch.randn(5, 4, 8)
    torch.manual_seed(0)
    expected = function(x)
    torch.manual_seed(0)
    actual = torch.compile(function, backend=BACKEND)(x)
    assert torch.equal(actual, expected) and actual.stride() == expected.stride()


def test_a_graph_compiled_while_a_recorder_records_is_timed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x).relu()

    x = torch.randn(8, 8)
    recorder = Recorder()
    with recording(recorder):
        got = torch.compile(function, backend="pyfuser")(x)
    torch.testing.assert_close(got, function(x))
    parts = [part for call in recorder.calls for part in call.parts]
    assert [part.scheduler for part in parts] == ["pointwise", "pointwise"]
    assert all(part.seconds > 0 and part.read == part.written == 256 for part in parts)
