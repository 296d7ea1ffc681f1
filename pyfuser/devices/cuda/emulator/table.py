"""A profile as a table: a line for each launch, with ptxas' resources and the occupancy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ....errors import UnsupportedError
from ..device_helpers import with_device_helpers
from ..occupancy import occupancy
from ..ptxas_report import KernelResources, kernel_resources
from .counters import CountedLaunch, Counts, Profile

# A launch, and its kernel's resources if they are known.
_Line = tuple[CountedLaunch | None, Counts, KernelResources | None]
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class _Column:
    """A title, and a cell's text; `of_total`: the line of the sum has one too."""

    title: str
    cell: Callable[[_Line], str]
    of_total: bool = False


def table(profile: Profile, architecture: str) -> str:
    """A line for each launch and one for their sum; a last one if NVRTC isn't installed."""
    found, complaint = _resources(profile, architecture)
    lines: list[_Line] = [
        (launch, launch.counts, found.get((launch.text, launch.function)))
        for launch in profile.launches
    ]
    columns = _columns(architecture)
    rows = [[each.title for each in columns]]
    rows += [[each.cell(line) for each in columns] for line in lines]
    total: _Line = (None, profile.total, None)
    rows.append([each.cell(total) if each.of_total else _NOTHING for each in columns])
    return "\n".join((*_aligned(rows), *complaint))


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns of one width each: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [each.rjust(width) for each, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join((first.ljust(widths[0]), *cells)))
    return lines


def _resources(
    profile: Profile, architecture: str
) -> tuple[Mapping[tuple[str, str], KernelResources], list[str]]:
    """Of each (text, function); or what is missing to know them."""
    found = {}
    try:
        for text in {launch.text for launch in profile.launches}:
            of_text = kernel_resources(with_device_helpers(text), architecture)
            found.update({(text, function): each for function, each in of_text.items()})
    except UnsupportedError as error:
        return {}, [f"registers, shared memory and occupancy aren't known: {error}"]
    return found, []


def _columns(architecture: str) -> list[_Column]:
    return [
        _Column("kernel", lambda line: line[0].function if line[0] else "total", True),
        _Column("blocks", lambda line: _extents(line[0].geometry.grid) if line[0] else ""),
        _Column("threads", lambda line: _extents(line[0].geometry.block) if line[0] else ""),
        _counted("bytes needed", "bytes_needed"),
        _counted("of scratch", "scratch_bytes"),
        _counted("sectors read", "read_sectors"),
        _counted("written", "write_sectors"),
        _counted("per request", "sectors_per_request", "{:.1f}"),
        _counted("overhead", "overhead", "{:.2f}"),
        _counted("if cached", "cached_overhead", "{:.2f}"),
        _counted("bank conflicts", "bank_conflicts"),
        _counted("per request", "conflicts_per_request", "{:.1f}"),
        _counted("barriers", "barriers"),
        _counted("atomics", "atomics"),
        _counted("divergent branches", "divergent_branches"),
        _counted("operations a thread", "operations_per_thread", "{:.0f}"),
        _Column("registers", lambda line: str(line[2].registers) if line[2] else _NOTHING),
        _Column("spilled bytes", lambda line: _spilled(line[2])),
        _Column("shared bytes", lambda line: str(_shared_bytes(line)) if line[2] else _NOTHING),
        _Column("occupancy", functools.partial(_occupancy, architecture)),
        _counted("roof", "share_of_roof", "{:.0%}"),
    ]


def _counted(title: str, name: str, form: str = "{}") -> _Column:
    """A column of a count, or of a number that follows from counts."""

    def cell(line: _Line) -> str:
        value = getattr(line[1], name)
        return _NOTHING if math.isnan(value) else form.format(value)

    return _Column(title, cell, of_total=True)


def _spilled(resources: KernelResources | None) -> str:
    return str(resources.spill_stores + resources.spill_loads) if resources else _NOTHING


def _shared_bytes(line: _Line) -> int:
    """Static and dynamic, of a block."""
    launch, _, resources = line
    assert launch is not None and resources is not None
    return resources.shared_bytes + launch.geometry.shared_bytes


def _occupancy(architecture: str, line: _Line) -> str:
    launch, _, resources = line
    if launch is None or resources is None:
        return _NOTHING
    threads = math.prod(launch.geometry.block)
    share = occupancy(architecture, threads, resources.registers, _shared_bytes(line))
    return f"{share:.0%}"


def _extents(extents: tuple[int, ...]) -> str:
    """`4 x 2`: without the dimensions after the last that is used."""
    used = [n for n, extent in enumerate(extents) if extent != 1]
    return " x ".join(map(str, extents[: used[-1] + 1 if used else 1]))
