"""Reproducer scripts: turns a definition and a description of its inputs into a Python program.

Inputs are described only by dtype, sizes and strides, never by their values; scalars by value.  A
script runs by itself wherever pyfuser is installed.  `write` saves one for a compilation that
failed, in the directory named by PYFUSER_REPRODUCER_DIR or a temporary one.  It never fails itself,
and a process writes at most MOST_SCRIPTS.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from . import options
from .ir.fusion import Fusion
from .ir.strides import is_contiguous
from .ir.text import translate
from .ir.vals import PythonNumber
from .ops.binding import Input
from .ops.metadata import TensorLike

MOST_SCRIPTS = 16

_lock = threading.Lock()
_written = 0
_temporary: str | None = None


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """What a reproducer needs to know about a tensor."""

    dtype: torch.dtype
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_contiguous: bool

    def __str__(self) -> str:
        if self.is_contiguous:
            return (
                f"torch.testing.make_tensor({self.shape}, dtype={self.dtype}, "
                f"device='{self.device}')"
            )
        span = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        elements = span + 1 if all(self.shape) else 0
        source = (
            f"torch.testing.make_tensor(({elements},), dtype={self.dtype}, device='{self.device}')"
        )
        return f"{source}.as_strided({self.shape}, {self.stride})"


Description = TensorDescription | PythonNumber


def descriptions(inputs: Sequence[Input]) -> list[Description]:
    """Descriptions of the inputs."""
    return [
        TensorDescription(
            value.dtype,
            str(value.device),
            tuple(value.shape),
            tuple(value.stride()),
            is_contiguous(tuple(value.shape), tuple(value.stride())),
        )
        if isinstance(value, TensorLike)
        else value
        for value in inputs
    ]


def literal(description: Description) -> str:
    """A description as Python."""
    if isinstance(description, float) and not abs(description) < float("inf"):
        return f'float("{description}")'
    return str(description)


def script(definition: str, inputs: Sequence[Description] | None, method: str = "execute") -> str:
    """The program: the definition, then inputs and a call of `method` if inputs are given."""
    lines = [
        f"# torch version: {torch.__version__}",
        "import torch",
        "from pyfuser import FusionDefinition, DataType",
        definition,
        "with FusionDefinition() as fd:",
        "    nvfuser_fusion(fd)",
        "",
    ]
    if inputs is not None:
        lines += ["inputs = [", *(f"    {literal(value)}," for value in inputs), "]"]
        lines.append(f"fd.{method}(inputs)")
    return "\n".join(lines) + "\n"


def fusion_script(fusion: Fusion, inputs: Sequence[Input] | None) -> str:
    """The program that runs a fusion on inputs like these, or only defines it."""
    return script(translate(fusion), None if inputs is None else descriptions(inputs))


def write(make: Callable[[], str], error: Exception) -> Path | None:
    """Writes the script returned by `make` into a new file; None if that isn't possible.

    The script sets PYFUSER_STRICT, so it raises errors that a program would only warn about.
    """
    global _written
    with _lock:
        if _written >= MOST_SCRIPTS:
            return None
        _written += 1
        number = _written
    with contextlib.suppress(Exception):  # the original failure must be reported, not this one
        reason = "".join(f"# {line}\n" for line in f"{type(error).__name__}: {error}".splitlines())
        strict = 'import os\n\nos.environ["PYFUSER_STRICT"] = "1"\n'
        text = f"{reason}{strict}{make()}"
        path = Path(_directory()) / f"pyfuser-{os.getpid()}-{number}.py"
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        return path
    return None


def _directory() -> str:
    """The directory for scripts; a temporary one is made when it is first needed."""
    global _temporary
    configured = options.reproducer_directory()
    if configured is not None:
        configured.mkdir(parents=True, exist_ok=True)
        return str(configured)
    with _lock:
        if _temporary is None or not os.path.isdir(_temporary):
            _temporary = tempfile.mkdtemp(prefix="pyfuser-")
        return _temporary
