"""Counts operations of basic blocks: assembly of a kernel -> the same, with a table of them.

The host's compiler calls a function at the start of each basic block (-fsanitize-coverage), so the
emulator knows which blocks a thread runs.  Here each call gets an entry in a table: its address,
the number of operations up to the next call, and whether the block is so short that a GPU's
compiler would predicate it instead of branching.

An operation is an instruction that computes: arithmetic, a comparison, conversion, selection or
branch, or a call (expf is one).  Moves and jumps that depend on nothing are none, nor is what the
instrumentation adds; accesses of memory are counted when they are made.  This is x86-64 code at
-O1, not a GPU's: it serves to compare kernels.
"""

from __future__ import annotations

import platform
import re

VERSION = "2"  # of the table; part of the name of a compiled kernel

_CALL = "\tcall\t__sanitizer_cov_trace_pc"
_INSTRUCTION = re.compile(r"^\t([a-z]\w*)(?:\t(.*))?$", re.MULTILINE)
_NO_OPERATION = re.compile(r"mov|push|pop|jmp|ret|leave|nop|endbr|cltq|cqto|cltd|ud2")
# Calls of checks, and the address that such a call is about.
_OF_CHECKS = re.compile(r"call .*__(?:tsan|ubsan|sanitizer)_|leaq? .*, %rdi$")
# A block that ends so is no block that is simply skipped.
_ENDS_OTHERWISE = re.compile(r"ret|j(?!mp)|call")
# The compiler's limit for conditions that are likely to diverge, as older editions of the CUDA
# programming guide give it (branch predication).
_MOST_PREDICATED = 7


def is_counted() -> bool:
    """True if operations are known: the rules are those of x86-64's assembly."""
    return platform.machine() in ("x86_64", "AMD64")


def with_block_table(assembly: str) -> str:
    """The assembly with the section simt_blocks: three numbers for each basic block."""
    if not is_counted():
        return assembly
    first, *blocks = assembly.split(_CALL)
    parts, entries = [first], []
    for number, block in enumerate(blocks):
        rest_of_call, _, text = block.partition("\n")
        parts.append(f"{_CALL}{rest_of_call}\n.Lsimt_{number}:\n{text}")
        count, is_predicated = _facts(text)
        entries.append(f"\t.quad\t.Lsimt_{number}, {count}, {int(is_predicated)}\n")
    return f'{"".join(parts)}\n\t.section\tsimt_blocks,"aw",@progbits\n{"".join(entries)}'


def _facts(block: str) -> tuple[int, bool]:
    """The number of operations of a block, and whether it would be predicated."""
    body = block.partition("\t.cfi_endproc")[0]  # other functions follow
    instructions = [
        found
        for name, operands in _INSTRUCTION.findall(body)
        if not _OF_CHECKS.match(found := f"{name} {operands}")
    ]
    count = sum(not _NO_OPERATION.match(each) for each in instructions)
    is_simple = not any(_ENDS_OTHERWISE.match(each) for each in instructions)
    return count, is_simple and count <= _MOST_PREDICATED
