"""torch's digest of its sources is kept on disk until one of its files changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyfuser.caches.disk_cache import DiskCache
from pyfuser.torch_compile import torch_digest


class Digest:
    """torch's function: computes the digest once in a process, unless it is given one."""

    def __init__(self, value: bytes) -> None:
        self.value, self.given, self.computed = value, b"", 0

    def __call__(self) -> bytes:
        self.computed += 1
        return self.value

    def set(self, value: bytes) -> None:
        if self.computed:
            raise RuntimeError("already set")
        self.given = value


@pytest.fixture
def torch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "torch"
    (folder / "fx").mkdir(parents=True)
    (folder / "fx" / "graph.py").write_text("old")
    monkeypatch.setattr(torch_digest, "_FOLDER", folder)
    monkeypatch.setattr(torch_digest, "_FRESH_SECONDS", -10.0)
    return folder


def in_a_process(
    monkeypatch: pytest.MonkeyPatch, directory: Path, value: bytes = b"digest"
) -> Digest:
    """What a process does before its first key."""
    digest = Digest(value)
    monkeypatch.setattr(torch_digest, "torch_key", digest)
    torch_digest.set_digest(DiskCache(directory / "kept"))
    return digest


def test_a_second_process_is_given_the_digest(
    torch_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = in_a_process(monkeypatch, tmp_path)
    assert (first.computed, first.given) == (1, b"")
    second = in_a_process(monkeypatch, tmp_path)
    assert (second.computed, second.given) == (0, b"digest")


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_a_changed_file_is_noticed(
    change: str, torch_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_process(monkeypatch, tmp_path)
    changed = torch_folder / "fx" / ("new.py" if change == "added" else "graph.py")
    if change == "removed":
        changed.rename(torch_folder / "graph.txt")
        (torch_folder / "version.py").write_text("")
    else:
        changed.write_text("new")
    assert in_a_process(monkeypatch, tmp_path, b"another").given == b""
    assert in_a_process(monkeypatch, tmp_path).given == b"another"


def test_a_file_that_may_change_again_keeps_nothing(
    torch_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_digest, "_FRESH_SECONDS", 1000.0)
    in_a_process(monkeypatch, tmp_path)
    assert in_a_process(monkeypatch, tmp_path).given == b""


def test_a_digest_that_torch_has_computed_stays(
    torch_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_process(monkeypatch, tmp_path)
    digest = Digest(b"digest")
    digest()
    monkeypatch.setattr(torch_digest, "torch_key", digest)
    torch_digest.set_digest(DiskCache(tmp_path / "kept"))
    assert digest.given == b""
