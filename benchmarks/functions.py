"""Measures functions, forward and with their gradients, with all contestants in one process.

`measure` makes the rows of function_report.py.  `sample` are the rows of `make bench`: every
function at one of the sizes, and with its gradients at another, with sizes and dtypes in turn;
`everything` are those of `make bench-full`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .cases import CASES, DTYPES, Case
from .function_report import FunctionResults, FunctionRow
from .harness import error_of, machine_facts, rounds, traffic_bytes
from .kernels import inputs_of, is_named, outputs_of
from .limits import Limits, counted
from .limits import measure as measure_limits
from .peers import Peer
from .peers.peer import Call, Work
from .products import PRODUCTS
from .torch_cases import TORCH_CASES

ALL_CASES = (*CASES, *TORCH_CASES, *PRODUCTS)
# In the second cache, in the third, out of cache, long and short rows; primes, one row, one column.
SIZES = (
    (256, 1024),
    (2048, 768),
    (4096, 4096),
    (64, 65536),
    (65536, 64),
    (1021, 1031),
    (1, 65537),
    (65537, 1),
)
_SAMPLED_DTYPES = ("float32", "bfloat16", "float32", "float16", "float32", "bfloat16")
SECONDS = 0.15  # per contestant and row
_FEWEST_ROUNDS = 7
# As in kernels.py: roundings of the dtype, or times the error of eager torch.
_ROUNDINGS = 32
_EAGER_FACTOR = 4


@dataclass(frozen=True)
class Selection:
    """One row to measure."""

    case: Case
    rows: int
    columns: int
    dtype: str
    training: bool


def sample() -> Iterator[Selection]:
    """The rows of a short run."""
    for number, case in enumerate(ALL_CASES):
        for place, training in ((0, False), (5, True)):
            size = SIZES[(number + place) % len(SIZES)]
            turn = number + number // len(SIZES) + place  # so that sizes don't keep their dtypes
            dtype = _SAMPLED_DTYPES[turn % len(_SAMPLED_DTYPES)]
            yield Selection(case, *size, dtype, training)


def everything(
    sizes: Sequence[tuple[int, int]] = SIZES, dtypes: Iterable[str] = tuple(DTYPES)
) -> Iterator[Selection]:
    """Every function at every size, in every dtype, forward and with gradients."""
    for case in ALL_CASES:
        for training in (False, True):
            for dtype in dtypes:
                for size in sizes:
                    yield Selection(case, *size, dtype, training)


def selected(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    dtypes: Sequence[str],
    full: bool = False,
) -> Iterator[Selection]:
    """The rows of a run: of the cases named, or whose names contain one of `names`.

    Sizes or dtypes that are given are all measured; without them, the sample of a short run.
    """
    if full or sizes or dtypes:
        rows = everything(sizes or SIZES, dtypes or tuple(DTYPES))
    else:
        rows = sample()
    return (row for row in rows if is_named(row.case.name, names, ALL_CASES))


def measure(
    mode: str,
    selections: Iterable[Selection],
    peers: Sequence[Peer],
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda text: None,
) -> FunctionResults:
    """The rows of one memory mode."""
    limits = measure_limits()
    found = []
    for selection in selections:
        row = FunctionRow(*_titles(selection))
        progress(row.title)
        _measure_row(row, selection, peers, limits, seconds)
        found.append(row)
    return FunctionResults(mode, machine_facts(), limits, found)


def _titles(selection: Selection) -> tuple[str, bool, int, int, str]:
    case, training = selection.case.name, selection.training
    return case, training, selection.rows, selection.columns, selection.dtype


def work_of(selection: Selection) -> Work:
    """The inputs of a row, always the same, and the gradients of its outputs, laid out as these."""
    case = selection.case
    inputs = inputs_of(case, selection.rows, selection.columns, selection.dtype, "cpu")
    if not selection.training:
        return Work(case, inputs)
    for each in inputs:
        each.requires_grad_(each.is_floating_point())
    generator = torch.Generator().manual_seed(1)
    gradients = [
        torch.empty_like(each).copy_(torch.randn(each.shape, generator=generator))
        for each in outputs_of(case.reference(*inputs))
    ]
    return Work(case, inputs, gradients)


def _measure_row(
    row: FunctionRow, selection: Selection, peers: Sequence[Peer], limits: Limits, seconds: float
) -> None:
    torch._dynamo.reset()
    work = work_of(selection)
    row.operations, results = counted(work.call_of(work.case.reference))
    row.traffic_bytes = traffic_bytes([*work.inputs, *results, *(work.gradients or [])])
    row.floor_seconds = limits.floor_seconds(row.traffic_bytes, row.operations)
    check = _Check(work, results)
    del results
    contestants: dict[str, Call] = {}
    for peer in peers:
        call = _first_call(row, peer, work, check)
        if call is not None:
            contestants[peer.name] = call
    if "pyfuser" not in contestants:
        return
    samples = rounds(contestants, seconds, _FEWEST_ROUNDS)
    row.seconds = {name: statistics.median(each) for name, each in samples.items()}
    row.ratios = {
        name: _quartiles([a / b for a, b in zip(each, samples["pyfuser"], strict=False)])
        for name, each in samples.items()
    }


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


class _Check:
    """How far results are from float64, and how far they may be."""

    def __init__(self, work: Work, eager: Sequence[torch.Tensor]) -> None:
        self._shapes = [each.shape for each in eager]
        self._is_random = work.case.is_random
        if self._is_random:
            return
        doubles = [_wide(each) for each in work.inputs]
        gradients = None if work.gradients is None else [each.double() for each in work.gradients]
        wide = Work(work.case, doubles, gradients)
        self._references = [each.detach() for each in wide.call_of(work.case.reference)()]
        floats = [each.dtype for each in work.inputs if each.is_floating_point()]
        roundings = _ROUNDINGS * max(torch.finfo(each).eps for each in floats)
        self._allowed = max(roundings, _EAGER_FACTOR * self._error(eager))

    def _error(self, outputs: Sequence[torch.Tensor]) -> float:
        return error_of([each.detach() for each in outputs], self._references)

    def complaint(self, outputs: Sequence[torch.Tensor]) -> str:
        """What is wrong with the outputs; empty if nothing is.  Random ones may differ."""
        if self._is_random:
            return "" if [each.shape for each in outputs] == self._shapes else "wrong shapes"
        error = self._error(outputs)
        return "" if error <= self._allowed else f"wrong by {error:.1e}"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if not tensor.is_floating_point():
        return plain
    return plain.double().requires_grad_(tensor.requires_grad)


def _first_call(row: FunctionRow, peer: Peer, work: Work, check: _Check) -> Call | None:
    """Compiles, calls once and checks; what fails is noted in the row and left out."""
    start = time.perf_counter()
    try:
        call = peer.make(work)
        if call is None:
            return None
        outputs: Any = call()
    except Exception as error:  # whatever a contestant raises belongs in its row
        row.failures[peer.name] = type(error).__name__
        return None
    row.first_call_seconds[peer.name] = time.perf_counter() - start
    complaint = check.complaint(peer.tensors(outputs))
    if complaint:
        row.failures[peer.name] = complaint
        return None
    return call
