"""`python -m tests.devices.cuda.register_table`: registers with 64-bit and with 32-bit indices.

Prints the table of docs/cuda.md, from ptxas' reports for sm_90.  Needs NVRTC, and no GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pyfuser.devices.cuda.codegen import generate
from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.devices.cuda.ptxas_report import kernel_resources

from .benchmark_kernels import codes_of

ARCHITECTURE, SHAPE = "sm_90", (2048, 4096)
# (the line's name, the function, the number of its kernel: those of the gradients are last)
LINES = (
    ("SiLU * mul", "silu * mul", 0),
    ("layer norm", "layer norm", 0),
    ("batch norm", "batch norm", 0),
    ("batch norm, backward", "batch norm", -1),
    ("batch norm of images", "batch norm of images", 0),
    ("sums of columns", "sum of columns", 0),
    ("RoPE", "rope", 0),
)


def registers(code: Any, index_bits: int) -> int:
    """The registers of a thread, of the launch that has most."""
    made = generate(replace(code.kernel, index_bits=index_bits))
    found = kernel_resources(with_device_helpers(made.text), ARCHITECTURE)
    return max(each.registers for each in found.values())


def main() -> None:
    """Prints the table."""
    print("| | float32 | bfloat16 |\n|---|--:|--:|")
    for line, name, number in LINES:
        cells = []
        for dtype in (torch.float32, torch.bfloat16):
            code = codes_of(name, ARCHITECTURE, dtype, *SHAPE)[number]
            cells.append(", ".join(str(registers(code, bits)) for bits in (64, 32)))
        print(f"| {line} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
