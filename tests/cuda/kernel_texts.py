"""All kernels of a test run through NVRTC: `pytest --emulate --nvrtc`, `make cubins`.

While tests run, each distinct text that a runtime of the emulator is asked to compile is kept in a
folder, which the processes of a run share.  At the end all of them are compiled for four
architectures, in threads, several in one program.  A warning counts as an error.
`python -m tests.cuda.kernel_texts FOLDER` compiles a folder again.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.devices.cuda.emulator.runtime import EmulatedRuntime
from pyfuser.errors import CompilationError
from tests.support.folders import ROOT

FOLDER = ROOT / "build" / "kernels"
_BATCH = 16
_WARNING = re.compile(r"^.*\bwarning\b.*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Failure:
    """A text that doesn't compile for an architecture, or not without warnings."""

    path: Path
    architecture: str
    log: str

    def __str__(self) -> str:
        return f"{self.path.name} for {self.architecture}: {self.log.strip()}"


@contextmanager
def kept_texts(folder: Path = FOLDER) -> Iterator[None]:
    """While it lasts, the texts of the emulator's kernels are kept in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_kernel = EmulatedRuntime.compile

    def kept(self: EmulatedRuntime, code: Any) -> Any:
        path = folder / f"{hashlib.sha256(code.text.encode()).hexdigest()[:24]}.cu"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(code.text, encoding="utf-8")
            partial.replace(path)
        return compile_kernel(self, code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedRuntime, "compile", kept)
        yield


def failures(
    paths: Sequence[Path],
    architectures: Sequence[str] = nvrtc.ARCHITECTURES,
) -> list[Failure]:
    """Compiles each text for each architecture: those that fail, in the order of texts."""

    def attempt(job: tuple[str, Sequence[_Text]]) -> list[Failure]:
        architecture, batch = job
        if len(batch) > 1 and _complaint(_together(batch), architecture) is None:
            return []
        complaints = [_complaint(each.prelude + each.kernel, architecture) for each in batch]
        return [
            Failure(each.path, architecture, complaint)
            for each, complaint in zip(batch, complaints, strict=True)
            if complaint
        ]

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        found = [
            failure
            for of_batch in threads.map(attempt, product(architectures, _batches(paths)))
            for failure in of_batch
        ]
    return sorted(found, key=lambda each: paths.index(each.path))


@dataclass(frozen=True)
class _Text:
    """The two parts of what NVRTC compiles."""

    path: Path
    prelude: str
    kernel: str

    @staticmethod
    def read(path: Path) -> _Text:
        kernel = path.read_text(encoding="utf-8")
        return _Text(path, with_device_helpers(kernel).removesuffix(kernel), kernel)


def _batches(paths: Sequence[Path]) -> list[Sequence[_Text]]:
    """Texts with the same prelude, some at a time: together they take half of the time."""
    of_prelude: dict[str, list[_Text]] = {}
    for text in map(_Text.read, paths):
        of_prelude.setdefault(text.prelude, []).append(text)
    return [
        group[first : first + _BATCH]
        for group in of_prelude.values()
        for first in range(0, len(group), _BATCH)
    ]


def _together(batch: Sequence[_Text]) -> str:
    """One program: the prelude once, and each kernel in a namespace, as all have the same names."""
    kernels = (each.kernel.replace('extern "C"', "") for each in batch)
    return batch[0].prelude + "".join(
        f"namespace kernel_{number} {{\n{kernel}\n}}\n" for number, kernel in enumerate(kernels)
    )


def _complaint(program: str, architecture: str) -> str | None:
    """NVRTC's errors or warnings, if there are any."""
    try:
        cubin, log = nvrtc.compile_with_report(program, architecture)
    except CompilationError as error:
        return str(error)
    if not cubin.startswith(b"\x7fELF"):
        return "no cubin"
    return "\n".join(_WARNING.findall(log)) or None


def report(folder: Path = FOLDER) -> tuple[str, bool]:
    """What became of a folder's texts, and whether all of them compiled without warnings."""
    paths = sorted(folder.glob("*.cu"))
    found = failures(paths)
    names = ", ".join(nvrtc.ARCHITECTURES)
    summary = f"{len(paths)} kernels for {names}: {len(found)} don't compile without warnings"
    return "\n".join((*map(str, found), summary)), bool(paths) and not found


if __name__ == "__main__":
    text, passed = report(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    print(text)
    sys.exit(not passed)
