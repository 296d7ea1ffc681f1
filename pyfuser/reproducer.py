"""Reproducer scripts: turns a definition and a description of its inputs into a Python program.

Inputs are described by dtype, sizes and strides, and integers by the range of their values, which
may be indices; scalars by value.  A script runs by itself wherever pyfuser is installed.  `write`
saves one for a compilation that failed, in the directory named by PYFUSER_REPRODUCER_DIR or a
temporary one.  It never fails itself, and a process writes at most MOST_SCRIPTS.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from . import options
from .ir.fusion import Fusion
from .ir.strides import is_contiguous
from .ir.text import translate
from .ir.vals import PythonNumber
from .locks import ForkSafeLock
from .ops.binding import Input
from .ops.metadata import TensorLike

MOST_SCRIPTS = 16
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

_lock = ForkSafeLock()
_written = 0
_temporary: str | None = None


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """What a reproducer needs to know about a tensor; `values` is the range of integers."""

    dtype: torch.dtype
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_contiguous: bool
    values: range | None = None

    def __str__(self) -> str:
        if self.is_contiguous:
            return self._made(self.shape)
        span = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        elements = span + 1 if all(self.shape) else 0
        return f"{self._made((elements,))}.as_strided({self.shape}, {self.stride})"

    def _made(self, shape: tuple[int, ...]) -> str:
        """New memory of any values."""
        is_exponent = self.dtype is getattr(torch, "float8_e8m0fnu", None)  # no make_tensor has it
        dtype = torch.uint8 if is_exponent else self.dtype
        kind = f"dtype={dtype}, device='{self.device}'"
        if self.values is not None:
            kind += f", low={self.values.start}, high={self.values.stop}"
        made = f"torch.testing.make_tensor({shape}, {kind})"
        return f"{made}.view({self.dtype})" if is_exponent else made


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
            _values(value),
        )
        if isinstance(value, TensorLike)
        else value
        for value in inputs
    ]


def _values(tensor: object) -> range | None:
    """The range of a tensor's integers; None for other numbers, and where none can be read."""
    if type(tensor) is not torch.Tensor or tensor.dtype not in _INTEGERS:
        return None
    if tensor.is_meta or not tensor.numel():
        return None
    least, greatest = map(int, torch.aminmax(tensor))
    # make_tensor takes no bound that the dtype doesn't have.
    stop = min(greatest + 1, torch.iinfo(tensor.dtype).max)
    return range(min(least, stop - 1), stop)


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
