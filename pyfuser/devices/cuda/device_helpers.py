"""The device-side prelude: CUDA C++ text that every generated kernel may use.

A generated kernel's text + the sections of the `.cuh` files that it uses -> the self-contained text
that a compiler gets.  NVRTC takes longer for all sections than for a small kernel.  The kernel that
people read stays short, and the compiler's messages keep the line numbers of its text and of the
files.  Invariant: a section depends on no kernel, so the files can be part of a cache key.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from ...dtypes import DataType, beyond_range

KERNEL_FILE_NAME = "kernel.cu"

_FILES = (
    "number_types.cuh",
    "memory.cuh",
    "arithmetic.cuh",
    "half_precision.cuh",
    "reductions.cuh",
    "random_numbers.cuh",
)
_SECTION = "// ----"
# A struct or a function at the start of a line, as in `template <class T> struct sum_of`.
_DEFINED = re.compile(
    r"^(?:template <[^;{(]*> )?"
    r"(?:struct (?:__align__\(.*\) )?(\w+)|static (?:__device__|inline) [\w<>:, ]*?(\w+)\()",
    re.MULTILINE,
)
_WORD = re.compile(r"\b[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a file, from a line on: what it is the first to define, and all words of its code.

    Overloads in later sections are for types that these define.
    """

    file: str
    line: int
    text: str
    defined: frozenset[str]
    words: frozenset[str]


@functools.cache
def device_helpers() -> str:
    """The text of the prelude, with all sections."""
    return _assembled(sections())


@functools.cache
def sections() -> tuple[Section, ...]:
    """The sections of the files, in order; the first, the fixed-width types, defines no names."""
    found: list[Section] = []
    for name in _FILES:
        lines = _text_of(name).splitlines(keepends=True)
        starts = [i for i, line in enumerate(lines) if line.startswith(_SECTION) or i == 0]
        for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
            text = "".join(lines[start:stop])
            names = frozenset(name for pair in _DEFINED.findall(text) for name in pair if name)
            defined = names.difference(*(each.defined for each in found))
            words = frozenset(_WORD.findall(re.sub("//.*", "", text)))
            found.append(Section(name, start + 1, text, defined, words))
    return tuple(found)


def with_device_helpers(kernel_text: str) -> str:
    """`kernel_text` after the sections that it uses; line numbers count from its start."""
    prelude = _assembled(_used(frozenset(_WORD.findall(kernel_text))))
    return f'{prelude}#line 1 "{KERNEL_FILE_NAME}"\n{kernel_text}'


@functools.lru_cache(maxsize=256)
def _used(words: frozenset[str]) -> tuple[Section, ...]:
    """The sections that define one of the words, and those that they use themselves."""
    first, *others = sections()
    used = {first}
    while new := {each for each in others if each not in used and each.defined & words}:
        used |= new
        words = words.union(*(each.words for each in new))
    return tuple(each for each in sections() if each in used)


def _assembled(chosen: Iterable[Section]) -> str:
    beyond = beyond_range(DataType.Float8_e4m3fn)
    parts = [f"#define FLOAT8_E4M3FN_BEYOND {beyond}u\n"]
    for section in chosen:
        parts.append(f'#line {section.line} "{section.file}"\n{section.text}')
    return "".join(parts)


def _text_of(file: str) -> str:
    return (resources.files(__package__) / file).read_text(encoding="utf-8")
