"""Results of tuning on the disk: whose they are, and what a reader does about bad ones."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pyfuser
from pyfuser.caches import tuning_store
from tests.support.concurrency import in_threads

from .tuned import (
    likes_unroll_of_four,
    reset,
    softmax,
    unrolls,
)

pytestmark = pytest.mark.usefixtures("directory")


def tuned_file(directory: Path, x: torch.Tensor) -> Path:
    pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    (path,) = directory.iterdir()
    return path


def test_another_number_of_threads_is_another_machine() -> None:
    fd, x, threads = softmax(), torch.randn(512, 1000), torch.get_num_threads()
    pyfuser.autotune(fd, [x], cost=likes_unroll_of_four)
    try:
        torch.set_num_threads(threads + 1)
        assert unrolls(softmax(), x) != [4]
    finally:
        torch.set_num_threads(threads)
    assert unrolls(softmax(), x) == [4]


def test_another_version_asks_for_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(512, 1000)
    pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    monkeypatch.setattr(tuning_store, "__version__", "0.0.1")
    assert unrolls(softmax(), x) != [4]


@pytest.mark.parametrize("what", ["version", "machine", "structure", "scheduler"])
def test_a_file_under_the_name_of_another_is_ignored(
    what: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(512, 1000)
    path = tuned_file(directory, x)
    edited = json.loads(path.read_text("utf-8"))
    edited[what] = {"version": "9", "machine": {}, "structure": ["no"], "scheduler": "no"}[what]
    path.write_text(json.dumps(edited), "utf-8")
    reset(monkeypatch)
    with pytest.warns(RuntimeWarning, match="an entry of another name; the file is ignored"):
        assert unrolls(softmax(), x) != [4]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"results": {"a": 1}}', b"\xff"])
def test_a_corrupted_file_is_ignored_with_one_warning(
    content: bytes, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(512, 1000)
    path = tuned_file(directory, x)
    path.write_bytes(content)
    reset(monkeypatch)
    with pytest.warns(
        RuntimeWarning, match="tuning: expected results of tuning in .*json"
    ) as found:
        assert unrolls(softmax(), x) != [4]
        assert unrolls(softmax(), x) != [4]
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    assert unrolls(softmax(), x) == [4]


def test_a_file_that_others_can_write_is_not_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(512, 1000)
    tuned_file(directory, x).chmod(0o666)
    reset(monkeypatch)
    with pytest.warns(RuntimeWarning, match="the file is ignored"):
        assert unrolls(softmax(), x) != [4]


def test_the_results_of_two_processes_are_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one listed the folder before the first one wrote."""
    second = tuning_store.TuningStore(directory)
    assert not second.names
    path = tuned_file(directory, torch.randn(512, 1000))
    first = tuning_store.tuning_store().entry(path.name)
    assert first is not None
    (result,) = first.results.values()
    resolved = softmax().engine.executor.resolve([torch.randn(512, 1000)])
    part: Any = resolved.program.parts[0]
    other = replace(result, sizes={"i0": 9, "i1": 9})
    second.add(resolved.program.runtime.target, part.scheduler, part.fusion, other)
    assert len(json.loads(path.read_text("utf-8"))["results"]) == 2


def test_without_a_disk_cache_results_are_kept_in_memory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_DISABLE_CACHE", "1")
    reset(monkeypatch)
    x = torch.randn(512, 1000)
    pyfuser.autotune(softmax(), [x], cost=likes_unroll_of_four)
    assert unrolls(softmax(), x) == [4]
    assert not directory.exists()
    reset(monkeypatch)
    assert unrolls(softmax(), x) != [4]


def test_no_key_is_made_if_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_store, "kept_structure_key", lambda fusion: pytest.fail("a key"))
    fd, x = softmax(), torch.randn(512, 1000)
    torch.testing.assert_close(fd.execute([x])[0], x.softmax(1))


def test_stores_that_add_at_once_keep_the_results_of_all(directory: Path) -> None:
    """As processes do: each store has locks of its own, but for that of the directory."""
    path = tuned_file(directory, torch.randn(512, 1000))
    found = tuning_store.tuning_store().entry(path.name)
    assert found is not None
    (result,) = found.results.values()
    path.unlink()
    resolved = softmax().engine.executor.resolve([torch.randn(512, 1000)])
    part: Any = resolved.program.parts[0]
    target = resolved.program.runtime.target

    def add(thread: int) -> None:
        store = tuning_store.TuningStore(directory)
        for column in range(16):
            made = replace(result, sizes={"i0": 1 << thread, "i1": 1 << column})
            store.add(target, part.scheduler, part.fusion, made)

    in_threads(4, add)
    assert len(json.loads(path.read_text("utf-8"))["results"]) == 4 * 16
