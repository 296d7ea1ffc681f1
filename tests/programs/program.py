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
        """A script that runs the program in eager, in float64 and compiled, and prints errors."""
        sets = range(len(self.inputs[0].shapes))
        lines = [SCRIPT_HEAD, str(self), ""]
        for which in sets:
            lines.append(f"def inputs{which}():")
            for given in self.inputs:
                made = f"{given.base_text(which)}{given.view_text(which)}"
                leaf = ".detach().requires_grad_()" if given.grad else ""
                lines.append(f"    {given.name} = {made}{leaf}")
            lines += [f"    return [{', '.join(given.name for given in self.inputs)}]", ""]
        option = ", dynamic=True" if self.dynamic else ""
        lines.append(f'compiled = torch.compile(f, backend="pyfuser"{option})  # seed {self.seed}')
        lines += [SCRIPT_TAIL.replace("{which}", str(which)) for which in sets]
        if self.grad:
            lines.insert(1, SCRIPT_GRADIENTS)
            lines[-len(sets) :] = [
                SCRIPT_TAIL.replace(
                    "compare(f(*a), compiled(*b)", "compare(results(f, a), results(compiled, b)"
                ).replace("{which}", str(which))
                for which in sets
            ]
        return "\n".join(lines)


SCRIPT_HEAD = """import torch

def seed(n):
    return torch.Generator().manual_seed(n)

def compare(eager, ours):
    for n, (a, b) in enumerate(zip(eager, ours)):
        error = (a.double() - b.double()).abs().max().item() if a.numel() and a.shape == b.shape else 0
        print(n, a.dtype, b.dtype, tuple(a.shape), tuple(b.shape), a.stride(), b.stride(), error)
"""

SCRIPT_GRADIENTS = """def results(f, inputs):
    outputs = f(*inputs)
    wanted = [o for o in outputs if o.requires_grad]
    leaves = [x for x in inputs if x.requires_grad]
    cotangents = [torch.randint(-8, 9, o.shape, generator=seed(n)).div(4).to(o.dtype) for n, o in enumerate(wanted)]
    gradients = torch.autograd.grad(wanted, leaves, cotangents, allow_unused=True)
    return [o.detach() for o in outputs] + [g for g in gradients if g is not None]
"""

SCRIPT_TAIL = """a, b = inputs{which}(), inputs{which}()
compare(f(*a), compiled(*b))
compare(a, b)
"""
