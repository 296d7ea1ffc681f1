"""A program of the random tests as text: its inputs, its statements, and what it returns.

    Program   = Input* Statement* output*    f(x0, x1, ...): statements; return (outputs)
    Input     = base expression, then a view of it (`.transpose(0, 1)`), for each set of sizes
    Statement = target* text                 `v0, v1 = x0.chunk(2, 1)`, or without targets `v0[1:] = 1`

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
    """A tensor to call with: `base` makes its memory, `view` how it is laid out there.

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
        """What is appended to the base."""
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
    """A function of tensors with a number of its own."""

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    @property
    def dynamic(self) -> bool:
        """True where two sets of sizes go through one compiled function."""
        return len(self.inputs[0].shapes) > 1

    @property
    def grad(self) -> bool:
        """True where some input wants a gradient."""
        return any(given.grad for given in self.inputs)

    @property
    def dtypes(self) -> set[str]:
        """Names of the dtypes that occur."""
        text = str(self)
        return {given.dtype for given in self.inputs} | set(re.findall(r"torch\.(\w+\d+)", text))

    def __str__(self) -> str:
        """The function as source."""
        arguments = ", ".join(given.name for given in self.inputs)
        lines = [f"def f({arguments}):", *(f"    {line}" for line in self.statements)]
        returned = "".join(f"{name}, " for name in self.outputs)
        return "\n".join([*lines, f"    return ({returned})"])

    def script(self) -> str:
        """A script that runs the program in eager and compiled and prints where they differ."""
        lines = (
            ["import torch", "from torch.autograd import grad"] if self.grad else ["import torch"]
        )
        lines += ["", "", "def seed(number):", "    return torch.Generator().manual_seed(number)"]
        lines += ["", "", str(self), ""]
        option = ", dynamic=True" if self.dynamic else ""
        lines += ["", f'compiled = torch.compile(f, backend="pyfuser"{option})']
        for which in range(len(self.inputs[0].shapes)):
            lines += ["", "", f"def inputs{which}():"]
            lines += [f"    {given.name} = {given.text(which)}" for given in self.inputs]
            lines += [f"    return [{', '.join(given.name for given in self.inputs)}]", "", ""]
            lines += [f"a, b = inputs{which}(), inputs{which}()"]
            lines += ["for eager, ours in zip([*f(*a), *a], [*compiled(*b), *b]):"]
            lines += ["    print((eager - ours * 1).abs().max(), eager.stride(), ours.stride())"]
            if self.grad:
                lines += self._gradient_lines(which)
        return "\n".join(lines)

    def _gradient_lines(self, which: int) -> list[str]:
        return [
            "for function, x in ((f, a), (compiled, b)):",
            "    y = [out for out in function(*x) if out.requires_grad]",
            "    leaves = [each for each in x if each.requires_grad]",
            "    given = [torch.randint(-8, 9, each.shape, generator=seed(n)).div(4) for n, each in enumerate(y)]",
            "    print(grad(y, leaves, [g.to(out.dtype) for g, out in zip(given, y)], allow_unused=True))",
        ]
