"""The native functions that aren't generated: LLVM IR in the files of the folder `native`.

A file is a template: a name after a dollar sign stands for a number of the Python module that
compiles it, so a number that both need is written once.
"""

from __future__ import annotations

from importlib import resources
from string import Template


def native_text(*names: str, **numbers: int) -> str:
    """The concatenated text of these files, with the numbers filled in."""
    folder = resources.files(__package__) / "native"
    texts = [(folder / f"{name}.ll").read_text(encoding="utf-8") for name in names]
    return Template("\n".join(texts)).substitute(numbers)
