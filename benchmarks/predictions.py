"""`python -m benchmarks.predictions`: the share of a GPU's bandwidth, from the emulator's counts.

Needs no GPU: each row's kernels, as the heuristics of an H100 choose them, run in the emulator for
a sample of their blocks, which counts the sectors that they ask for; a model of the second cache
says which of them the memory moves (devices/cuda/emulator/caches.py).  The share is the bytes that
the row needs over the bytes of those.  `make bench-gpu` puts it next to the measured share.  Rows
that the file has already, results/predicted_sm_90.json, are not made again; `--table` prints it.

A row of 2 GB needs little memory here: what no block of the sample touches is never filled.  What
the last block to arrive adds up isn't in the sample; it is at most 3 % of what is read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pyfuser.devices.cuda.emulator.caches import memory_sectors
from pyfuser.devices.cuda.emulator.counters import SECTOR_BYTES, Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.target import CudaTarget

from .cases import DEFAULT_DTYPES, DTYPES, Case
from .gpu_kernels import SIZES, ordered
from .harness import traffic_bytes
from .kernels import outputs_of, pyfuser_function
from .report import FOLDER, Key

# An H100 SXM5: NVIDIA H100 Tensor Core GPU architecture, table of GPU features.
H100 = CudaTarget("sm_90", multiprocessors=132, l1_bytes=256 << 10, l2_bytes=50 << 20)
PATH = FOLDER / "results" / "predicted_sm_90.json"
_SAMPLED_BLOCKS = 96


@dataclass(frozen=True)
class Prediction:
    """share  of the memory's bandwidth that moves bytes needed
    asked  bytes of the sectors that the multiprocessors ask for, per byte needed
    """

    share: float
    asked: float


def profile_of(
    case: Case, height: int, width: int, dtype: str, most_blocks: int = _SAMPLED_BLOCKS
) -> tuple[Profile, int]:
    """The launches of one call for an H100, and the bytes that it needs to move."""
    torch._dynamo.reset()
    inputs = case.inputs(height, width, lambda *shape: torch.empty(shape, dtype=DTYPES[dtype]))
    profile = Profile(most_blocks=most_blocks)
    with emulated(H100, profile):
        outputs = outputs_of(pyfuser_function(case, inputs)())
    return profile, traffic_bytes([*inputs, *outputs])


def predicted(case: Case, height: int, width: int, dtype: str) -> Prediction | None:
    """What one row is expected to do; None if pyfuser launches no kernel."""
    profile, needed = profile_of(case, height, width, dtype)
    if not profile.launches:
        return None
    moved = sum(memory_sectors(launch, H100) for launch in profile.launches)
    asked = sum(launch.counts.sectors * launch.scale for launch in profile.launches)
    return Prediction(needed / (SECTOR_BYTES * moved), SECTOR_BYTES * asked / needed)


def load(path: Path = PATH) -> dict[Key, Prediction]:
    """The rows of a file; none if there is no file."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {tuple(key): Prediction(share, asked) for *key, share, asked in rows}


def save(found: Mapping[Key, Prediction], path: Path = PATH) -> None:
    """Writes a line for each row."""
    lines = ",\n".join(
        json.dumps([*key, round(each.share, 4), round(each.asked, 4)])
        for key, each in found.items()
    )
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def table(found: Mapping[Key, Prediction], dtypes: Sequence[str] = DEFAULT_DTYPES) -> str:
    """A line for each case: its share at each size, and the sectors asked for at the first."""
    sizes = list(dict.fromkeys((height, width) for _, height, width, _ in found))
    titles = [f"{height}x{width}" for height, width in sizes]
    lines = ["| | " + " | ".join(titles) + " | asked for |", "|---|" + "--:|" * (len(sizes) + 1)]
    for name in dict.fromkeys(case for case, *_ in found):
        cells = [
            ", ".join(_percent(found.get((name, *size, dtype))) for dtype in dtypes)
            for size in sizes
        ]
        first = found.get((name, *sizes[0], dtypes[0]))
        asked = f"{first.asked:.2f}" if first else ""
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {asked} |")
    return "\n".join(lines)


def _percent(prediction: Prediction | None) -> str:
    return f"{prediction.share:.0%}" if prediction else "-"


def main() -> int:
    """Adds rows to the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[], help="parts of case names")
    parser.add_argument("--sizes", nargs="*", default=[], help="ROWSxCOLUMNS")
    parser.add_argument("--dtypes", nargs="*", default=DEFAULT_DTYPES, choices=tuple(DTYPES))
    parser.add_argument("--again", action="store_true", help="also rows that the file has")
    parser.add_argument("--table", action="store_true", help="print the file, for documents")
    given = parser.parse_args()
    if given.table:
        print(table(load()))
        return 0
    sizes = [(int(a), int(b)) for a, b in (each.split("x") for each in given.sizes)] or SIZES
    os.environ["PYFUSER_STRICT"] = "1"  # what runs through torch has no sectors
    found = load()
    for case, (height, width), dtype in ordered(given.cases, sizes, given.dtypes):
        key = (case.name, height, width, dtype)
        if key in found and not given.again:
            continue
        start = time.perf_counter()
        row = predicted(case, height, width, dtype)
        shown = f"{row.share:.0%}, asked {row.asked:.2f}" if row else "no kernel"
        print(*key, shown, f"({time.perf_counter() - start:.1f} s)", flush=True)
        if row is not None:
            found[key] = row
            save(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
