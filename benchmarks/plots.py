"""The results of `make bench` as pictures: speed-ups as bars, and all rows under their roofline.

They are SVG files next to the JSON; nothing is drawn where matplotlib isn't installed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from .function_report import FunctionResults, FunctionRow
from .harness import geometric_mean

_PEERS = (("eager", "tab:gray"), ("inductor", "tab:blue"), ("jax", "tab:orange"))


def write(results: FunctionResults, folder: Path) -> None:
    """Writes speedups.svg and roofline.svg."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pyfuser"  # the same names in every run
    from matplotlib import pyplot

    figure = _speedups(pyplot, results.rows)
    figure.savefig(folder / "speedups.svg", metadata={"Date": None})
    figure = _roofline(pyplot, results)
    figure.savefig(folder / "roofline.svg", metadata={"Date": None})


def _speedups(pyplot: Any, rows: list[FunctionRow]) -> Any:
    """A function's geometric means over its rows."""
    cases = list(dict.fromkeys(row.case for row in rows))
    figure, axes = pyplot.subplots(figsize=(8, 0.32 * len(cases) + 1), layout="constrained")
    height = 0.8 / len(_PEERS)
    for number, (peer, colour) in enumerate(_PEERS):
        means = []
        for case in cases:
            found = [r for row in rows if row.case == case and (r := row.ratio(peer))]
            means.append(geometric_mean(found) if found else 0.0)
        places = [place + (number - 1) * height for place in range(len(cases))]
        axes.barh(places, means, height, color=colour, label=f"{peer} / pyfuser")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(cases)), cases, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("time of the peer over pyfuser's (above 1: pyfuser is faster)")
    axes.legend(fontsize=8)
    return figure


def _roofline(pyplot: Any, results: FunctionResults) -> Any:
    """Operations a second against operations a byte; the lines are the machine's limits."""
    limits = results.limits
    bandwidth = max(limits.copy, limits.triad)
    rows = [row for row in results.rows if row.operations and row.seconds.get("pyfuser")]
    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for name, colour in (("pyfuser", "tab:green"), ("inductor", "tab:blue")):
        points = [
            (row.operations / row.traffic_bytes, row.operations / row.seconds[name] / 1e9)
            for row in rows
            if name in row.seconds
        ]
        axes.scatter(*zip(*points, strict=True), s=9, color=colour, label=name) if points else None
    intensities = [10**exponent for exponent in (-2, -1, 0, 1, 2)]
    roof = [min(each * bandwidth, limits.multiply_adds) / 1e9 for each in intensities]
    axes.plot(intensities, roof, color="black", label="memory and multiply-adds")
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="billion a second")
    axes.legend(fontsize=8)
    return figure
