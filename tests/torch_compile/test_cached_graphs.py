"""Graphs in AOTAutograd's cache: another process traces with Dynamo, and cuts nothing again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.torch_compile import cached_graphs, keys_of_graphs, quick_calls

from .later_processes import HIT, MISS, PROGRAMS, again, events, own_directory, step  # noqa: F401

pytestmark = pytest.mark.skipif(not cached_graphs.IS_KNOWN, reason="this torch has no such cache")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_from_the_cache_computes_the_same(name: str, dynamic: bool) -> None:
    function, given = PROGRAMS[name]
    torch.manual_seed(0)
    first = step(again(function, dynamic=dynamic), given)
    assert events() == MISS
    second = step(again(function, dynamic=dynamic), given)
    assert events() == HIT
    for got, before, eager in zip(second, first, step(function, given), strict=True):
        assert torch.equal(got, before)
        assert got.stride() == before.stride()
        torch.testing.assert_close(got, eager)


def test_sizes_may_change() -> None:
    def rows(x: Tensor) -> Tensor:
        return x.softmax(-1).cumsum(0) * x.shape[0]

    for wanted in (MISS, HIT):
        compiled = again(rows, dynamic=True)
        for shape in ((5, 7), (3, 64), (2, 2), (129, 33)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), rows(x))
        assert events() == wanted
    compiled = again(rows, dynamic=True)
    torch.testing.assert_close(compiled(torch.ones(1, 1)), rows(torch.ones(1, 1)))


def test_random_numbers_and_updates_in_place() -> None:
    def dropped(x: Tensor, state: Tensor) -> Tensor:
        state.add_(1)
        return functional.dropout(x * state, 0.5) + torch.rand_like(x)

    results = []
    for wanted in (MISS, HIT):
        compiled = again(dropped)
        torch.manual_seed(3)
        x, state = torch.ones(40, requires_grad=True), torch.zeros(40)
        y = compiled(x, state)
        y.sum().backward()
        assert x.grad is not None
        results.append((y.detach(), state, x.grad))
        assert events() == wanted
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_options_belong_to_the_key() -> None:
    def three(x: Tensor) -> Tensor:
        return x.exp().sin().cos()

    x = torch.randn(9)
    for rematerialise, wanted in ((True, MISS), (False, MISS), (True, HIT), (False, HIT)):
        step(again(three, options={"rematerialise": rematerialise}), [x])
        assert events() == wanted


def test_switched_off_with_the_kernels_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_DISABLE_CACHE", "1")
    x = torch.randn(5)
    torch.testing.assert_close(again(torch.sin)(x), x.sin())
    assert events() == {}


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return slope * 3


def test_what_the_cache_does_not_take_runs_all_the_same() -> None:
    def own(x: Tensor) -> Tensor:
        return _Twice.apply(x).sin()  # type: ignore[no-untyped-call, no-any-return]

    x = torch.randn(6)
    for _ in range(2):
        for got, eager in zip(step(again(own), [x]), step(own, [x]), strict=True):
            torch.testing.assert_close(got, eager)
        assert "hit" not in events()


def test_artifacts_move_to_another_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7)
    step(again(_norm), [x])
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
    torch.compiler.load_cache_artifacts(saved[0])
    step(again(_norm), [x])
    assert events() == HIT


def _norm(x: Tensor) -> Tensor:
    return (x - x.mean()) * torch.rsqrt(x.var() + 1e-5)


SCRIPT = """
import sys
import torch
from torch._dynamo.utils import counters
import pyfuser

layers = [torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)] * 2
model = torch.nn.Sequential(*layers)
compiled = torch.compile(model, backend="pyfuser")
compiled(torch.ones(3, 8)).square().sum().backward()
found = counters["aot_autograd"]
print(found["autograd_cache_saved"], found["autograd_cache_hit"])
# Keys need no code generators, which take longer to import than a small graph to be traced.
print(any(f"torch._inductor.{name}" in sys.modules for name in ("codegen.cpp", "scheduler")))
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
print(isinstance(PythonWrapperCodegen, type))
"""


AHEAD = """
import pathlib
import torch
from torch._dynamo.utils import counters
import pyfuser

torch._dynamo.config.caching_precompile = True
kept = pathlib.Path(__file__).with_name("kept")
if kept.exists():
    torch.compiler.load_cache_artifacts(kept.read_bytes())
x = torch.ones(3, 8)
torch.compile(lambda x: x.mul_(2).softmax(-1), backend="pyfuser")(x)
print(counters["dynamo_cache"]["dynamo_cache_hit"], float(x.sum()))
if not kept.exists():
    kept.write_bytes(torch.compiler.save_cache_artifacts()[0])
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SCRIPT, [["1", "0", "False", "True"], ["0", "1", "False", "True"]]),
        (AHEAD, [["0", "48.0"], ["1", "48.0"]]),
    ],
    ids=["traced by Dynamo", "compiled ahead"],
)
def test_another_process_finds_the_graphs(
    text: str, expected: list[list[str]], tmp_path: Path
) -> None:
    """Where torch finds what was compiled ahead, it doesn't call the backend."""
    script = tmp_path / "script.py"
    script.write_text(text)
    seen = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        seen.append(done.stdout.split())
    assert seen == expected


def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    x = torch.randn(5)
    torch.testing.assert_close(again(torch.cos)(x), x.cos())
    assert events() == {}


def test_a_graph_of_one_call_is_kept() -> None:
    x = torch.randn(5)
    for expected in (MISS, HIT):
        torch.testing.assert_close(again(torch.cos)(x), x.cos())
        assert events() == expected


@pytest.mark.parametrize("dynamic", [False, True])
def test_later_calls_of_a_graph_from_the_cache_are_quick(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = quick_calls.inference

    def recording(*given: Any) -> Any:
        made.append(make(*given))
        return made[-1]

    monkeypatch.setattr(quick_calls, "inference", recording)
    for expected in (MISS, HIT):
        compiled = again(torch.cos, dynamic=dynamic)
        for rows in (5, 5, 3 if dynamic else 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), x.cos())
        assert made.pop().__module__ == quick_calls.__name__
        assert not made
        assert events() == expected


def test_a_graph_with_upsampling_is_kept() -> None:
    """It has a function of pyfuser's, which torch doesn't know."""

    def twice(x: Tensor) -> Tensor:
        return functional.interpolate(x.sin(), scale_factor=2.0, mode="bilinear").cos()

    x = torch.randn(2, 3, 5, 7)
    for wanted in (MISS, HIT):
        torch.testing.assert_close(step(again(twice), [x]), step(twice, [x]))
        assert events() == wanted


def test_a_module_whose_import_is_deferred_is_there_when_it_is_needed() -> None:
    """What asks for another name of it while a key is made gets it from the module."""
    name = keys_of_graphs._GENERATOR
    known = sys.modules.pop(name, None)
    try:
        with keys_of_graphs.without_code_generators():
            assert type(sys.modules[name]) is not type(sys)
            from torch._inductor.codegen.wrapper import PythonWrapperCodegen

            assert isinstance(PythonWrapperCodegen, type)
            assert type(sys.modules[name]) is type(sys)
        assert type(sys.modules[name]) is type(sys)
    finally:
        if known is not None:
            sys.modules[name] = known


def test_a_float_that_changes_is_not_that_of_an_earlier_call() -> None:
    """A learning rate: as a tensor where it is multiplied, and as a number in `alpha`."""

    def descend(x: Tensor, rate: float) -> Tensor:
        return (x * rate).add(x.sin(), alpha=rate)

    x = torch.randn(5)
    for rates in ((0.1, 0.05, 0.02), (0.3, 0.2, 0.05)):
        compiled = again(descend)
        for rate in rates:
            torch.testing.assert_close(compiled(x, rate), descend(x, rate))


def test_a_view_of_a_product_of_batches() -> None:
    """torch keeps no sizes of the `_unsafe_view` between the two."""

    def views(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        y = x.flip(1)[:, ::2] @ weight
        return y.transpose(1, 2), y[:, :0], y[0], y.amax(-1)

    given = [torch.randn(3, 24, 32), torch.randn(32, 32)]
    eager = step(views, given)
    for wanted in (MISS, HIT):
        made = step(again(views), given)
        assert events() == wanted
        for got, other in zip(made, eager, strict=True):
            assert got.stride() == other.stride()
            torch.testing.assert_close(got, other)
