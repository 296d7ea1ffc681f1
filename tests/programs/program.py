"""A program of the random tests as text: its inputs, its statements, and what it returns.

    Program   = Input* Statement* output*    f(x0, x1, ...): statements; return (outputs)
    Input     = base expression, then a view of it (`.transpose(0, 1)`), for each set of sizes
    Statement = target* text                 `v0, v1 = x0.chunk(2, 1)`, or in place `v0[1:] = 1`

Everything is Python source, so that a program prints as the script that reproduces it.  Names are
x<n> for inputs and v<n> for values, which is how statements say what they read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

Shape = tuple[int, ...]
NAME = re.compile(r"\b[xv]\d+\b")


@dataclass(frozen=True)
class Input:
    """A tensor to call with: `base` makes its memory, `view` its layout there.

    `sizes` holds the shape of the base for each set of sizes; `{shape}` in the base stands for it.
    `view` may hold `{shape}` as well: then it stands for the shape of the view itself.
    """

    name: str
    dtype: str
    shapes: tuple[Shape, ...]
    bases: tuple[Shape, ...]
    base: str
    view: str = ""
    grad: bool = False

    def base_text(self, which: int) -> str:
        """The expression of the base tensor for one set of sizes."""
        return self.base.replace("{shape}", repr(self.bases[which]))

    def view_text(self, which: int) -> str:
        """The text appended to the base."""
        return self.view.replace("{shape}", repr(self.shapes[which]))

    def text(self, which: int) -> str:
        """The expression of the tensor to call with."""
        leaf = ".detach().requires_grad_()" if self.grad else ""
        return f"{self.base_text(which)}{self.view_text(which)}{leaf}"

    def contiguous(self) -> Input:
        """The same values' kind, laid out plainly."""
        return replace(self, bases=self.shapes, view="")


@dataclass(frozen=True)
class Statement:
    """One line of a program."""

    targets: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{', '.join(self.targets)} = {self.text}" if self.targets else self.text

    def reads(self) -> set[str]:
        """Names that the line mentions on its right, or at all where it writes in place."""
        return set(NAME.findall(self.text))


@dataclass(frozen=True)
class Program:
    """A function of tensors with its own number."""

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    @property
    def dynamic(self) -> bool:
        """True if two sets of sizes go through one compiled function."""
        return len(self.inputs[0].shapes) > 1

    @property
    def grad(self) -> bool:
        """True if some input needs a gradient."""
        return any(given.grad for given in self.inputs)

    def __str__(self) -> str:
        """The function as source."""
        arguments = ", ".join(given.name for given in self.inputs)
        lines = [f"def f({arguments}):", *(f"    {line}" for line in self.statements)]
        returned = "".join(f"{name}, " for name in self.outputs)
        return "\n".join([*lines, f"    return ({returned})"])

    def script(self) -> str:
        """A script that runs the program in eager and compiled and prints where they differ."""
        names = ", ".join(given.name for given in self.inputs)
        makers = []
        for which in range(len(self.inputs[0].shapes)):
            lines = [f"    {given.name} = {given.text(which)}" for given in self.inputs]
            makers.append("\n".join([f"def inputs{which}():", *lines, f"    return [{names}]"]))
        parts = [SCRIPT_HEAD, str(self), *makers, SCRIPT_RUN, SCRIPT_TAIL]
        text = "\n\n\n".join(part.strip() for part in parts)
        calls = ", ".join(f"inputs{which}" for which in range(len(self.inputs[0].shapes)))
        options = ", dynamic=True" if self.dynamic else ""
        return text.replace("OPTIONS", options).replace("CALLS", calls) + "\n"


SCRIPT_HEAD = """
import torch


def seed(number):
    return torch.Generator().manual_seed(number)
"""
# Outputs, gradients and inputs of a call; cotangents are those of the checker.
SCRIPT_RUN = """
def run(function, inputs):
    outputs = function(*inputs)
    leaves = [x for x in inputs if getattr(x, "requires_grad", False)]
    wanted = [(n, out) for n, out in enumerate(outputs) if out.requires_grad]
    gradients = []
    if leaves and wanted:
        given = [
            torch.randint(-8, 9, out.shape, generator=seed(n)).div(4).to(out.dtype)
            for n, out in wanted
        ]
        gradients = torch.autograd.grad([o for _, o in wanted], leaves, given, allow_unused=True)
    return [t.detach() for t in (*outputs, *gradients, *inputs) if isinstance(t, torch.Tensor)]
"""
SCRIPT_TAIL = """
compiled = torch.compile(f, backend="pyfuser"OPTIONS)
for make in (CALLS,):
    for eager, ours in zip(run(f, make()), run(compiled, make()), strict=True):
        error = (eager.double() - ours.double()).abs().max() if ours.numel() else 0.0
        print(f"error {float(error):.2e}, strides {eager.stride()}, ours {ours.stride()}")
"""
