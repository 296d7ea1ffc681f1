"""Codes on disk: the next process makes the same plans without lowering; nothing else is found."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, parts
from pyfuser.caches import code_cache, sources
from pyfuser.caches.disk_cache import disk_cache
from pyfuser.executor import Executor
from pyfuser.ir.scalar_functions import maximum, minimum
from pyfuser.ir.scalars import IntExpr, Symbol, ceil_div, floor_div, mod
from pyfuser.kernel_cache import KernelCache
from tests.support.folders import ROOT

Define = Callable[[Any, Any], list[Any]]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    monkeypatch.setattr(code_cache, "sources", lambda: "the sources")
    yield


@pytest.fixture
def lowerings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What has been lowered so far."""
    seen: list[Any] = []
    lowered = parts.lowered

    def noting(scheduled: Any, target: Any) -> Any:
        seen.append(scheduled)
        return lowered(scheduled, target)

    monkeypatch.setattr(parts, "lowered", noting)
    return seen


def _norm(fd: Any, x: Any) -> list[Any]:
    total = fd.ops.sum(x, [1], keepdim=True)
    return [fd.ops.mul(fd.ops.div(x, total), fd.define_scalar(2.5)), fd.ops.exp(x)]


def _columns(fd: Any, x: Any) -> list[Any]:
    return [fd.ops.sum(x, [0]), fd.ops.add(fd.ops.permute(x, [1, 0]), 1.0)]


def _gathered(fd: Any, x: Any) -> list[Any]:
    index = fd.ops.cast(fd.ops.abs(x), DataType.Int)
    return [fd.ops.gather(x, index, 1)]


def _windows(fd: Any, x: Any) -> list[Any]:
    return [fd.ops.cat([fd.ops.sin(x), fd.ops.neg(x)], 1), fd.ops.cumsum(x, 1)]


def _divided(fd: Any, x: Any) -> list[Any]:
    numbers = fd.ops.cast(x, DataType.Int)
    return [fd.ops.div(fd.define_scalar(7), numbers)]


DEFINITIONS = [_norm, _columns, _gathered, _windows, _divided]


def run(define: Define, x: torch.Tensor) -> tuple[list[str], list[torch.Tensor]]:
    """The sources of the plans, and the results, of a definition that nobody has compiled yet."""
    with FusionDefinition() as fd:
        for output in define(fd, fd.define_tensor([-1, -1], contiguity=True)):
            fd.add_output(output)
    executor = Executor(fd.fusion.graph)
    results = executor.execute([x])
    return [plan.source for plan in executor.plans], results


@pytest.mark.parametrize("define", DEFINITIONS)
def test_the_same_plan_without_lowering(define: Define, lowerings: list[Any]) -> None:
    x = torch.rand(40, 52) + 1
    plans, results = run(define, x)
    count = len(lowerings)
    assert count
    again, others = run(define, x)
    assert len(lowerings) == count
    assert again == plans
    for result, other in zip(results, others, strict=True):
        assert torch.equal(result, other)


def test_a_kernel_from_the_cache_refuses_what_it_refused(lowerings: list[Any]) -> None:
    x = torch.full((4, 3), 2.0)
    run(_gathered, x)
    count = len(lowerings)
    with pytest.raises(RuntimeError, match="index"):
        run(_gathered, x + 1)
    assert len(lowerings) == count


@pytest.mark.parametrize(
    "other",
    [
        lambda fd, x: fd.ops.topk(fd.ops.reshape(x, [3, 187]), 2, 1)[0],
        lambda fd, x: fd.ops.matmul(fd.ops.reshape(x, [3, 187]), fd.ops.reshape(x, [187, 3])),
        lambda fd, x: fd.ops.segment_set(fd.ops.reshape(x, [3, 187])),
    ],
)
@pytest.mark.parametrize("op", ["mul", "exp"])
def test_sizes_that_only_one_definition_knows(other: Any, op: str, lowerings: list[Any]) -> None:
    """A kernel may use that the elements are 561, which another segment of its definition says."""

    def result(fd: Any, x: Any) -> Any:
        return fd.ops.mul(x, 2.0) if op == "mul" else fd.ops.exp(x)

    run(lambda fd, x: [result(fd, x), other(fd, x)], torch.randn(17, 33))
    for shape in ((64, 129), (5, 7), (17, 33)):
        x = torch.randn(shape)
        _, (found,) = run(lambda fd, x: [result(fd, x)], x)
        torch.testing.assert_close(found, x * 2 if op == "mul" else x.exp())


def test_equal_definitions_whose_scalars_have_other_numbers(lowerings: list[Any]) -> None:
    """Sizes are printed as sizes, whatever their numbers."""

    def scaled(order: tuple[int, int]) -> Define:
        def define(fd: Any, x: Any) -> list[Any]:
            sizes = {axis: fd.ops.size(x, axis) for axis in order}
            return [fd.ops.add(fd.ops.mul(x, sizes[0]), sizes[1])]

        return define

    x = torch.rand(40, 52)
    counts = []
    for order in ((0, 1), (1, 0)):
        _, (found,) = run(scaled(order), x)
        torch.testing.assert_close(found, x * 40 + 52)
        counts.append(len(lowerings))
    assert counts[0] == counts[1] == 1


def test_machine_code_may_be_missing(lowerings: list[Any], monkeypatch: Any) -> None:
    """It is made from the text."""
    x = torch.randn(4, 6)
    _, results = run(_norm, x)
    found = disk_cache()
    assert found is not None
    for path in found.directory.glob("*.kernel"):
        if b"\x7fELF" in path.read_bytes()[:64]:
            path.unlink()
    monkeypatch.setattr("pyfuser.kernel_builds._binaries", KernelCache())
    count = len(lowerings)
    _, others = run(_norm, x)
    assert len(lowerings) == count
    assert all(map(torch.equal, results, others))


@pytest.mark.parametrize("version", ["other sources", None])
def test_other_sources_find_nothing(
    version: str | None, lowerings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 6)
    run(_norm, x)
    count = len(lowerings)
    monkeypatch.setattr(code_cache, "sources", lambda: version)
    run(_norm, x)
    assert len(lowerings) == 2 * count
    run(_norm, x)
    assert len(lowerings) == (2 if version else 3) * count


@pytest.mark.parametrize(("name", "value"), [("PYFUSER_STRICT", "1"), ("PYFUSER_DUMP", "kernel")])
def test_stages_that_are_verified_or_shown_run(
    name: str, value: str, lowerings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 6)
    run(_norm, x)
    count = len(lowerings)
    monkeypatch.setenv(name, value)
    run(_norm, x)
    assert len(lowerings) == 2 * count


def test_every_fact_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two definitions, schedulers, parameters or targets never share an entry."""
    keys = []
    make = code_cache._key

    def noting(*facts: Any) -> str | None:
        keys.append((facts, make(*facts)))
        return keys[-1][1]

    monkeypatch.setattr(code_cache, "_key", noting)
    run(_norm, torch.randn(4, 600))
    (facts, key), *_ = keys
    fusion, scheduler, parameters, target = facts
    assert make(fusion, scheduler, parameters, target) == key
    assert make(fusion, "another", parameters, target) != key
    assert make(fusion, scheduler, (parameters,), target) != key
    processor = target.processor
    for field in processor.__dataclass_fields__:
        other = type(processor)(
            **{
                each: getattr(processor, each) if each != field else "other"
                for each in processor.__dataclass_fields__
            }
        )
        assert make(fusion, scheduler, parameters, type(target)(other)) != key


@pytest.mark.parametrize("content", [b"not compressed", zlib.compress(pickle.dumps(("x",))[:-1])])
def test_an_entry_that_cannot_be_loaded_is_made_again(
    content: bytes, lowerings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 6)
    run(_norm, x)
    count = len(lowerings)
    cache = disk_cache()
    assert cache is not None
    load = cache.load

    def damaged(key: str) -> bytes | None:
        return content if key.startswith("code\n") else load(key)

    monkeypatch.setattr(type(cache), "load", lambda _, key: damaged(key))
    run(_norm, x)
    assert len(lowerings) == 2 * count


def test_expressions_stay_interned() -> None:
    i, j = Symbol.of("i"), Symbol.of("j", Symbol.of("i"))
    exprs: list[IntExpr] = [
        i * 4 + j,
        i * j * 3 - 1,
        floor_div(i + 7, j),
        ceil_div(i, j) * 64,
        mod(i, j + 1),
        minimum(i, j * 2),
        maximum(i, j * j),
    ]
    for expr, loaded in zip(exprs, pickle.loads(pickle.dumps(exprs)), strict=True):
        assert expr is loaded
    assert pickle.loads(pickle.dumps(j)).upper is i


SCRIPT = """
import torch
from pyfuser import FusionDefinition, parts

seen = []
lowered = parts.lowered
parts.lowered = lambda *given: seen.append(given) or lowered(*given)
with FusionDefinition() as fd:
    x = fd.define_tensor([-1, -1], contiguity=True)
    fd.add_output(fd.ops.div(fd.ops.exp(x), fd.ops.sum(fd.ops.exp(x), [1], keepdim=True)))
(y,) = fd.execute([torch.randn(30, 50)])
torch.testing.assert_close(y.sum(1), torch.ones(30))
print(len(seen))
"""


def test_another_process_does_not_lower(tmp_path: Path) -> None:
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        counts.append(int(done.stdout))
    assert counts == [1, 0]


def test_the_digest_is_of_the_code_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changed after the import says nothing about the code in memory."""

    def digest() -> str | None:
        sources.sources.cache_clear()
        return sources.sources()

    try:
        monkeypatch.setattr(sources, "_FOLDER", tmp_path)
        assert digest() is None
        file = tmp_path / "code.py"
        file.write_text("1")
        os.utime(file, (1, 1))
        first = digest()
        assert first is not None
        assert digest() == first
        file.write_text("2")
        assert digest() is None
        os.utime(file, (1, 1))
        assert digest() not in (None, first)
        file.rename(tmp_path / "other.py")
        assert digest() not in (None, first)
    finally:
        sources.sources.cache_clear()
