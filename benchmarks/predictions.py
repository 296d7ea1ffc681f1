"""`python -m benchmarks.predictions`: the share of a GPU's bandwidth, from the emulator's counts.

Needs no GPU: each row's kernels, as the heuristics of an H100 choose them, run in the emulator for
a sample of their blocks, which counts the sectors that they move.  The share is the bytes that the
row needs over the bytes of all sectors; no cache is modelled.  `make bench-gpu` puts it next to the
measured share.  Rows that the file has already, results/predicted_sm_90.json, are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from pyfuser.devices.cuda.emulator.counters import SECTOR_BYTES, Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.target import CudaTarget

from .cases import DEFAULT_DTYPES, DTYPES, Case
from .gpu_kernels import SIZES, ordered
from .harness import traffic_bytes
from .kernels import inputs_of, outputs_of, pyfuser_function
from .report import FOLDER, Key

# An H100 SXM5: NVIDIA H100 Tensor Core GPU architecture, table of GPU features.
H100 = CudaTarget("sm_90", multiprocessors=132, l1_bytes=256 << 10, l2_bytes=50 << 20)
PATH = FOLDER / "results" / "predicted_sm_90.json"
_SAMPLED_BLOCKS = 8


def predicted(case: Case, height: int, width: int, dtype: str) -> float | None:
    """The share of the bandwidth that moves bytes needed; None if pyfuser launches no kernel."""
    torch._dynamo.reset()
    inputs = inputs_of(case, height, width, dtype, "cpu")
    profile = Profile(most_blocks=_SAMPLED_BLOCKS)
    with emulated(H100, profile):
        outputs = outputs_of(pyfuser_function(case, inputs)())
    sectors = sum(launch.counts.sectors * launch.scale for launch in profile.launches)
    return traffic_bytes([*inputs, *outputs]) / (SECTOR_BYTES * sectors) if sectors else None


def load(path: Path = PATH) -> dict[Key, float]:
    """The shares in a file; none if there is no file."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {(case, height, width, dtype): share for case, height, width, dtype, share in rows}


def save(shares: Mapping[Key, float], path: Path = PATH) -> None:
    """Writes a line for each row."""
    lines = ",\n".join(json.dumps([*key, round(share, 4)]) for key, share in shares.items())
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main() -> int:
    """Adds rows to the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[], help="parts of case names")
    parser.add_argument("--sizes", nargs="*", default=[], help="ROWSxCOLUMNS")
    parser.add_argument("--dtypes", nargs="*", default=DEFAULT_DTYPES, choices=tuple(DTYPES))
    parser.add_argument("--again", action="store_true", help="also rows that the file has")
    given = parser.parse_args()
    sizes = [(int(a), int(b)) for a, b in (each.split("x") for each in given.sizes)] or SIZES
    os.environ["PYFUSER_STRICT"] = "1"  # what runs through torch has no sectors
    shares = load()
    for case, (height, width), dtype in ordered(given.cases, sizes, given.dtypes):
        key = (case.name, height, width, dtype)
        if key in shares and not given.again:
            continue
        share = predicted(case, height, width, dtype)
        print(*key, "no kernel" if share is None else f"{share:.0%}", flush=True)
        if share is not None:
            shares[key] = share
            save(shares)
    return 0


if __name__ == "__main__":
    sys.exit(main())
