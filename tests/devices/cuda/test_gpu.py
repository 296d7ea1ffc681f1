"""`make gpu`: fusions of tensors on a real NVIDIA GPU; skipped without one.

Strict: nothing may fall back to torch.  What needs no GPU is in test_runtime.py and test_graphs.py,
where the driver is a fake.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from pyfuser import DataType, FusionDefinition, can_fuse_on_gpu, debug_kernel_code
from pyfuser.devices.cuda.driver import system_driver
from pyfuser.interface import compiled_kernel_count, register_fusion
from tests.programs.everyday import program, rows
from tests.programs.running import given
from tests.support.definitions import blocks_of_64_threads
from tests.support.folders import ROOT

GPU = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing falls back, and no earlier test has compiled anything."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    torch.manual_seed(0)
    torch._dynamo.reset()


def randn(*shape: int, dtype: torch.dtype = torch.float32, device: str = GPU) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def defined(
    build: Callable[..., Any], rank: int = 2, count: int = 1, dtype: DataType = DataType.Float
) -> FusionDefinition:
    """A fusion that is computed in float32 and stored in a dtype."""
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype) for _ in range(count)]
        wide = [fd.ops.cast(x, DataType.Float) for x in inputs]
        fd.add_output(fd.ops.cast(build(fd.ops, *wide), dtype))
    return fd


def softmax(ops: Any, x: Any) -> Any:
    power = ops.exp(ops.sub(x, ops.max(x, 1, keepdim=True)))
    return ops.div(power, ops.sum(power, 1, keepdim=True))


def layer_norm(ops: Any, x: Any) -> Any:
    variance, mean = ops.var_mean(x, [1], correction=0, keepdim=True)
    return ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, 1e-5)))


def test_there_are_kernels() -> None:
    assert can_fuse_on_gpu()


# -- definitions

SHAPES = [(1, 1), (7, 33), (300, 257), (2048, 768), (64, 65536), (65536, 64), (4096, 4096)]
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "pointwise": (
        lambda ops, x: ops.mul(ops.tanh(x), ops.exp(x)),
        lambda x: x.tanh() * x.exp(),
    ),
    "rows": (lambda ops, x: ops.sum(x, 1), lambda x: x.sum(1)),
    "columns": (lambda ops, x: ops.sum(x, 0), lambda x: x.sum(0)),
    "everything": (lambda ops, x: ops.sum(x), lambda x: x.sum()),
    "maximum": (lambda ops, x: ops.max(x, 1), lambda x: x.amax(1)),
    "variance": (
        lambda ops, x: ops.var(x, [1], correction=0),
        lambda x: x.var(1, correction=0),
    ),
    "softmax": (softmax, lambda x: x.softmax(1)),
    "layer norm": (layer_norm, lambda x: functional.layer_norm(x, x.shape[1:])),
    "transposed": (
        lambda ops, x: ops.add(ops.permute(x, [1, 0]), 1.0),
        lambda x: x.t() + 1,
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_definitions(name: str, dtype: torch.dtype) -> None:
    build, reference = PROGRAMS[name]
    kinds = {torch.bfloat16: DataType.BFloat16, torch.float16: DataType.Half}
    fd = defined(build, dtype=kinds.get(dtype, DataType.Float))
    for shape in SHAPES:
        x = randn(*shape, dtype=dtype)
        (found,) = fd.execute([x])
        wanted = reference(x.double())
        size = max(1.0, wanted.abs().max().item())
        tolerance = 4e-3 if dtype is not torch.float32 else 2e-5
        assert found.device == x.device and found.dtype is dtype
        torch.testing.assert_close(
            found.double(), wanted, rtol=2 * tolerance, atol=tolerance * size
        )


def test_strided_inputs_and_an_update_in_place() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=False) for _ in "xy")
        total = fd.ops.add(x, fd.ops.mul(y, 0.5))
        fd.add_output(total, x)
        fd.add_output(fd.ops.permute(total, [1, 0]))
    x, y = randn(400, 330), randn(330, 800)[:, ::2].t()
    expected = x + y * 0.5
    (transposed,) = fd.execute([x, y])
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(transposed, expected.t())


def test_scalars_and_a_new_size_compile_nothing() -> None:
    with FusionDefinition() as fd:
        x, a = fd.define_tensor([-1], contiguity=True), fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.mul(x, a))
    fd.execute([randn(1000), 2.0])
    count = compiled_kernel_count()
    for size in (1001, 1020, 0):
        x = randn(size)
        torch.testing.assert_close(fd.execute([x, 3.0])[0], x * 3)
    assert compiled_kernel_count() == count


def test_a_schedule_by_hand() -> None:
    fd = blocks_of_64_threads()
    for shape in ((3, 50), (700, 90)):
        a, b = randn(*shape), randn(*shape)
        torch.testing.assert_close(fd.manual_execute([a, b])[0], (a + b) * 3)


def test_registered_fusions_show_cuda() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(softmax(fd.ops, x))
    key = register_fusion(fd.fusion.definition)
    assert "__global__" in debug_kernel_code(key, [randn(20, 300)])


# -- graphs


def block(x: torch.Tensor, weight: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    normal = functional.layer_norm(x, x.shape[-1:], weight)
    return functional.gelu(normal @ product).softmax(-1)


def norm(x: torch.Tensor, weight: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight)


@pytest.mark.parametrize("function", [block, norm])
@pytest.mark.parametrize("shape", [(12, 40), (4096, 1024)], ids=str)
def test_graphs_and_their_gradients(
    function: Callable[..., torch.Tensor], shape: tuple[int, int]
) -> None:
    rows, columns = shape
    given = [randn(rows, columns), randn(columns), randn(columns, 64) / columns**0.5]
    direction = randn(*function(*given).shape)
    results = []
    for run in (function, torch.compile(function, backend="pyfuser")):
        leaves = [x.clone().requires_grad_() for x in given]
        y = run(*leaves)
        gradients = torch.autograd.grad((y * direction).sum(), leaves, allow_unused=True)
        results.append([y, *(g for g in gradients if g is not None)])
    for eager, ours in zip(*results, strict=True):
        size = max(1.0, eager.abs().max().item())
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-4 * size)


def test_a_training_step() -> None:
    modules = (torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.LayerNorm(96))
    model = torch.nn.Sequential(*modules, torch.nn.Linear(96, 10)).to(GPU)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    x, target = randn(128, 64), torch.randint(0, 10, (128,), device=GPU)
    losses = []
    for run in (model, torch.compile(model, backend="pyfuser")):
        model.load_state_dict(state)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            optimiser.zero_grad()
            loss = functional.cross_entropy(run(x), target)
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


EVERYDAY = list(rows())


def on_gpu(value: Any) -> Any:
    """An input with the sizes, strides and offset that it has on the CPU."""
    if not isinstance(value, torch.Tensor):
        return value
    flat = torch.empty(0, dtype=value.dtype).set_(value.detach().untyped_storage())
    return flat.to(GPU).as_strided(value.shape, value.stride(), value.storage_offset())


def tensors(results: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(results) if isinstance(each, torch.Tensor)]


@pytest.mark.parametrize("row", EVERYDAY)
def test_everyday_programs(row: str) -> None:
    """Results and updated inputs are eager's on the same GPU, up to rounding."""
    text = program(row, intermediate=False)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(str(text), "<program>", "exec"), scope)
    runs = []
    traced = torch.compile(scope["f"], backend="aot_eager")
    for run in (scope["f"], traced, torch.compile(scope["f"], backend="pyfuser")):
        inputs = [on_gpu(each) for each in given(text, 0, exact=False).views]
        try:
            with torch.device(GPU):
                results = tensors(run(*inputs))
        except RuntimeError:
            if run is not traced:
                raise
            pytest.skip("torch doesn't trace its constants with a default device")
        runs.append([*results, *tensors(inputs)])
    for eager, ours in zip(runs[0], runs[-1], strict=True):
        assert ours.device == eager.device and ours.stride() == eager.stride()
        torch.testing.assert_close(ours, eager, rtol=2e-2, atol=2e-2, equal_nan=True)


# -- streams, graphs, devices


def test_another_stream() -> None:
    fd, x = defined(layer_norm), randn(2048, 4096)
    fd.execute([x])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        y = x * 2  # after the sleep: a kernel on another stream would read garbage
        (found,) = fd.execute([y])
        del y
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(found, functional.layer_norm(x * 2, (4096,)), rtol=1e-4, atol=1e-4)


CAPTURED = ["pointwise", "everything", "softmax", "transposed"]


def check_capture(name: str, fd: FusionDefinition, x: torch.Tensor) -> None:
    """Captures a call, and runs its graph on other contents."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = fd.execute([x])
    for _ in range(3):
        x.copy_(randn(*x.shape))
        graph.replay()
        wanted = PROGRAMS[name][1](x.double())
        size = max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=2e-5 * size)


@pytest.mark.parametrize("name", CAPTURED)
def test_cuda_graphs(name: str) -> None:
    fd, x = defined(PROGRAMS[name][0]), randn(1000, 1000)
    fd.execute([x])
    check_capture(name, fd, x)


@pytest.fixture
def loads_in_captures() -> None:
    """Drivers load modules during a capture from this version on."""
    if system_driver().version() < (12, 3):
        pytest.skip("the driver may load no module during a capture")


@pytest.mark.usefixtures("loads_in_captures")
@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_call_that_has_not_run_before(name: str) -> None:
    check_capture(name, defined(PROGRAMS[name][0]), randn(1000, 1001))


@pytest.mark.usefixtures("loads_in_captures")
@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_call_whose_inputs_are_not_aligned(name: str) -> None:
    fd, whole = defined(PROGRAMS[name][0]), randn(1000 * 1000 + 1)
    fd.execute([whole[:-1].view(1000, 1000)])
    check_capture(name, fd, whole[1:].view(1000, 1000))


@pytest.mark.usefixtures("loads_in_captures")
def test_another_thread_compiles_during_a_capture() -> None:
    fd, x, y = defined(softmax), randn(1000, 1000), randn(99, 401)
    fd.execute([x])
    torch.cuda.synchronize()
    graph, results = torch.cuda.CUDAGraph(), []
    # torch itself can't draw random numbers in another thread during a capture.
    thread = threading.Thread(target=lambda: results.append(defined(layer_norm).execute([y])))
    with torch.cuda.graph(graph):
        thread.start()
        thread.join()
        (found,) = fd.execute([x])
    graph.replay()
    assert len(results) == 1
    torch.testing.assert_close(found, x.softmax(1))


def check_random_replays(graph: torch.cuda.CUDAGraph, found: torch.Tensor) -> None:
    """Each replay has other numbers, which the seed decides."""
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        for _ in range(2):
            graph.replay()
            drawn.append(found.clone())
    first, second, *again = drawn
    assert not torch.equal(first, second)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])


def test_random_numbers_in_a_cuda_graph() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.rand_like(x))
    x = randn(100, 1000)
    fd.execute([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = fd.execute([x])
    check_random_replays(graph, found)
    assert 0 <= found.min() < 0.01 < 0.99 < found.max() < 1


def test_fused_random_numbers_in_a_cuda_graph() -> None:
    options = {"fused_random": True}
    drop = torch.compile(lambda x: functional.dropout(x, 0.5), backend="pyfuser", options=options)
    x = torch.ones(100, 1000, device="cuda")
    drop(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = drop(x)
    check_random_replays(graph, found)
    assert set(found.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_call_waits_for_nothing(name: str) -> None:
    fd, x = defined(PROGRAMS[name][0]), randn(300, 257)
    fd.execute([x])
    with no_waiting():
        fd.execute([x])


def test_a_number_of_the_host_is_not_waited_for() -> None:
    with FusionDefinition() as fd:
        x, a = fd.define_tensor([-1], contiguity=True), fd.define_tensor([], contiguity=[])
        fd.add_output(fd.ops.mul(x, a))
    compiled = torch.compile(lambda x, a: (x * a).relu(), backend="pyfuser")
    x, a = randn(1000), torch.tensor(3.0)
    for run in (lambda: fd.execute([x, a])[0].relu(), lambda: compiled(x, a)):
        run()
        with no_waiting():
            found = run()
        torch.testing.assert_close(found, (x * 3).relu())


@contextmanager
def no_waiting() -> Iterator[None]:
    """While it lasts, torch raises an error where it waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_thread_that_has_not_used_cuda() -> None:
    """It has no context until the driver is told."""
    code = (
        "import threading, torch\n"
        "from pyfuser import FusionDefinition\n"
        "with FusionDefinition() as fd:\n"
        "    fd.add_output(fd.ops.mul(fd.define_tensor([-1], contiguity=True), 3.0))\n"
        "x = torch.ones(1000, device='cuda')\n"
        "found = []\n"
        "thread = threading.Thread(target=lambda: found.append(fd.execute([x])[0]))\n"
        "thread.start(); thread.join()\n"
        "assert found[0].sum().item() == 3000\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_refused_value_fails_the_launch() -> None:
    """As in torch: an assertion, after which the process can't use the GPU any more."""
    code = (
        "import torch\n"
        "from pyfuser import DataType, FusionDefinition\n"
        "with FusionDefinition() as fd:\n"
        "    x = fd.define_tensor([-1, -1], contiguity=True)\n"
        "    index = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)\n"
        "    fd.add_output(fd.ops.index_select(fd.ops.mul(x, 2.0), index, 0))\n"
        "x = torch.ones(5, 9, device='cuda')\n"
        "fd.execute([x, torch.tensor([4, 0], device='cuda')])\n"
        "torch.cuda.synchronize()\n"
        "fd.execute([x, torch.tensor([4, 5], device='cuda')])\n"
        "try:\n"
        "    torch.cuda.synchronize()\n"
        "except RuntimeError as error:\n"
        "    print('assert' in str(error), flush=True)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "True", run.stderr


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU here")
def test_two_gpus() -> None:
    fd = defined(softmax)
    for ordinal in (0, 1, 0, 1):
        x = randn(300, 700, device=f"cuda:{ordinal}")
        (found,) = fd.execute([x])
        assert found.device == x.device
        torch.testing.assert_close(found, x.softmax(1))
    assert torch.cuda.current_device() == 0
