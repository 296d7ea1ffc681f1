"""Reproducer scripts: turns a definition and what its inputs looked like into a Python program.

Inputs are described by dtype, sizes and strides only, never by their values; scalars by value.  A
script runs by itself where pyfuser is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..ir.vals import PythonNumber


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """What a reproducer needs to know of a tensor."""

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


def descriptions(inputs: Sequence[torch.Tensor | PythonNumber]) -> list[Description]:
    """What the inputs look like."""
    return [
        TensorDescription(
            value.dtype,
            str(value.device),
            tuple(value.shape),
            value.stride(),
            value.is_contiguous(),
        )
        if isinstance(value, torch.Tensor)
        else value
        for value in inputs
    ]


def _literal(description: Description) -> str:
    if isinstance(description, float) and not abs(description) < float("inf"):
        return f'float("{description}")'
    return str(description)


def script(definition: str, inputs: Sequence[Description] | None) -> str:
    """The program: definition, then inputs and a call where inputs are given."""
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
        lines += ["inputs = [", *(f"    {_literal(value)}," for value in inputs), "]"]
        lines.append("fd.execute(inputs)")
    return "\n".join(lines) + "\n"
