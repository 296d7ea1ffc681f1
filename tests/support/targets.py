"""Targets of the tests: processors and GPUs that need not exist, and decisions made for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from pyfuser.devices.cpu.processor import Processor
from pyfuser.devices.cpu.target import CpuTarget
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.segmented import SegmentedFusion
from pyfuser.schedule.size_info import SizeInfo
from pyfuser.segment import segmenter

# A processor with 256-bit vectors; golden texts are for this one.
_PROCESSOR = Processor(
    cpu_name="x86-64-v3",
    features="",
    architecture="x86_64",
    vector_bits=256,
    has_fma=True,
    cores=4,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=16 << 20,
    cache_line_bytes=64,
)
PRETENDED = CpuTarget(_PROCESSOR)
WIDE = CpuTarget(
    replace(_PROCESSOR, cpu_name="x86-64-v4", vector_bits=512, cores=8, l3_bytes=32 << 20)
)
# One core: its decisions depend only on structure.
SINGLE = CpuTarget(replace(_PROCESSOR, cores=1))
SM_90 = CudaTarget("sm_90")

# Runs CPU tensors by kernels for another processor: the fixture `pretend` of devices/cpu.
Pretend = Callable[[Processor], None]


def size_info(sizes: Mapping[str, int] | None = None, workers: int = 1) -> SizeInfo:
    """The facts about these sizes for a decision with this many cores."""
    return SizeInfo.of(sizes or {}, CpuTarget(replace(_PROCESSOR, cores=workers)))


def segment(
    fusion: Fusion, sizes: SizeInfo | None = None, stored: Collection[int] = ()
) -> SegmentedFusion:
    """The segments, by structure alone if no sizes are given."""
    return segmenter.segment(fusion, sizes or size_info(), stored)
