"""Tuned parameters on disk: what was measured for a fusion's kernel, for all later compilations.

A `Result` is the outcome of one measurement: the heuristics' parameters, the best ones found, and
how much faster they are.  It is stored by the structure of the kernel's fusion, the shape class of
its sizes, the machine, and pyfuser's version: a file of JSON for each structure and machine, in the
folder `tuning` of the disk cache, under its rules of trust.

The compiler asks `result` before each kernel (decisions.py).  It costs microseconds if nothing is
stored for this machine: the folder is listed once per process, and no key is made.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import options
from ..errors import expected
from ..ir.fusion import Fusion
from ..ir.keys import kept_structure_key
from ..locks import ForkSafeLock
from ..nvfuser_direct_version import __version__
from ..schedule.registry import AutomaticScheduler
from ..target.parameter_records import from_record, to_record
from ..target.target import Machine, Target
from .disk_cache import TrustedDirectory

_FILE = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}\.json")


@dataclass(frozen=True, slots=True)
class Result:
    """What was found for a kernel at some sizes.

    sizes      those that were measured, by name
    heuristic  the parameters that the heuristics chose
    best       the best ones found; the heuristics' own if none was better
    ratio      the time with `best` over the time with `heuristic`
    is_chosen  True if `best` is better by more than the noise, and so is used
    measured   how many candidates were measured
    dropped    how many weren't, because they couldn't be compiled or their results were wrong
    """

    sizes: Mapping[str, int]
    heuristic: Any
    best: Any
    ratio: float
    is_chosen: bool
    measured: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Entry:
    """The results for one kernel on one machine, by shape class."""

    version: str
    machine: Machine
    scheduler: str
    structure: str
    operations: str
    results: Mapping[str, Result]

    @property
    def is_for_this_version(self) -> bool:
        """False for results that another version of pyfuser found."""
        return self.version == str(__version__)


def shape_class(sizes: Mapping[str, int]) -> str:
    """The sizes between powers of two: `512 <= i0 < 1024, i1 = 1`.

    Each size's bit length is recorded as a condition, if it is a number that records comparisons.
    """
    return ", ".join(_between(name, sizes[name].bit_length()) for name in sorted(sizes))


def _between(name: str, bits: int) -> str:
    if bits < 2:
        return f"{name} = {bits}"
    return f"{1 << bits - 1} <= {name} < {1 << bits}"


def sizes_of(fusion: Fusion, sizes: Mapping[str, int]) -> dict[str, int]:
    """Those of some sizes that the tensors of a fusion have."""
    names = {
        symbol.name
        for tensor in fusion.input_tensors
        for axis in tensor.domain.logical
        for symbol in axis.size.symbols
    }
    return {name: sizes[name] for name in sorted(names) if name in sizes}


def operations_of(fusion: Fusion) -> str:
    """The names of a fusion's operations, for readers."""
    return ", ".join(dict.fromkeys(expr.name for expr in fusion.exprs))


class _Files(TrustedDirectory):
    contents = "results of tuning"

    def names(self) -> set[str]:
        """The names of the files of entries."""
        try:
            return {name for name in os.listdir(self.directory) if _FILE.fullmatch(name)}
        except OSError:
            return set()


class TuningStore:
    """Entries as files of JSON, and in memory; without a directory, in memory alone."""

    def __init__(self, directory: Path | None) -> None:
        self._files = None if directory is None else _Files(directory)
        self._machines: set[str] = set()
        self._entries: dict[str, Entry | None] = {}
        self._complained: set[str] = set()
        self._lock = ForkSafeLock()
        self._listed: set[str] | None = None

    @property
    def names(self) -> set[str]:
        """The names of the entries: those that another process adds from now on aren't seen."""
        if self._listed is None:
            with self._lock:
                self._list()
        assert self._listed is not None
        return self._listed

    def _list(self) -> None:
        found = set() if self._files is None else self._files.names()
        self._machines = {_machine_of(name) for name in found}
        self._listed = found

    def entry(self, name: str) -> Entry | None:
        """The entry of a name; None if there is none, or no whole one (with one warning)."""
        with self._lock:
            if name not in self._entries:
                self._entries[name] = self._load(name) if name in self.names else None
            return self._entries[name]

    def entries(self) -> Iterator[Entry]:
        """All whole entries, of other machines and versions too."""
        for name in sorted(self.names):
            found = self.entry(name)
            if found is not None:
                yield found

    def _load(self, name: str) -> Entry | None:
        if self._files is None:
            return None
        with suppress(OSError):
            try:
                found = _entry(json.loads(self._files.read(name)))
                if _name(found.version, found.machine, found.scheduler, found.structure) == name:
                    return found
                raise ValueError("an entry of another name")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if name in self._complained:
                    return None
                self._complained.add(name)
                path = self._files.directory / name
                what = expected("tuning", f"results of tuning in {path}", f"{error}")
                warnings.warn(f"{what}; the file is ignored", RuntimeWarning, stacklevel=2)
        return None

    def add(
        self, target: Target, scheduler: AutomaticScheduler, fusion: Fusion, result: Result
    ) -> None:
        """Stores a result, in place of an earlier one of the same shape class."""
        machine, structure = target.machine(), kept_structure_key(fusion)
        version = str(__version__)
        name = _name(version, machine, scheduler.name, structure)
        exclusive = nullcontext() if self._files is None else self._files.exclusive()
        with self._lock, exclusive:
            if self._files is not None:  # another process may have added to it
                self._entries.pop(name, None)
                self._list()
            operations = operations_of(fusion)
            empty = Entry(version, machine, scheduler.name, structure, operations, {})
            found = self.entry(name) or empty
            results = {**found.results, shape_class(result.sizes): result}
            self._entries[name] = made = replace(found, results=results)
            self.names.add(name)
            self._machines.add(_machine_of(name))
            if self._files is not None:
                self._files.write(name, (json.dumps(_record(made), indent=1) + "\n").encode())

    def result(
        self,
        target: Target,
        scheduler: AutomaticScheduler,
        fusion: Fusion,
        sizes: Mapping[str, int],
    ) -> Result | None:
        """What was found for a kernel at sizes of this class, on this machine."""
        if not self.names:
            return None
        machine = target.machine()
        if _machine_digest(machine) not in self._machines:
            return None
        name = _name(str(__version__), machine, scheduler.name, kept_structure_key(fusion))
        found = self.entry(name)
        if found is None:
            return None
        return found.results.get(shape_class(sizes_of(fusion, sizes)))


def tuning_store() -> TuningStore:
    """The store in the disk cache that the environment selects."""
    return _store_of(options.cache_directory())


@functools.cache
def _store_of(cache: Path | None) -> TuningStore:
    return TuningStore(None if cache is None else cache / "tuning")


# -- the files


@functools.lru_cache(maxsize=64)
def _machine_digest(machine: Machine) -> str:
    return _digest(json.dumps(sorted(machine)), 16)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _name(version: str, machine: Machine, scheduler: str, structure: str) -> str:
    """The name of an entry's file: which machine, and which kernel in which version."""
    kernel = _digest("\n".join((version, scheduler, structure)), 32)
    return f"{_machine_digest(machine)}-{kernel}.json"


def _machine_of(name: str) -> str:
    return name.partition("-")[0]


def _record(entry: Entry) -> dict[str, Any]:
    return {
        "version": entry.version,
        "machine": dict(entry.machine),
        "scheduler": entry.scheduler,
        "operations": entry.operations,
        "structure": entry.structure.split("\n"),
        "results": {
            name: {
                "sizes": {key: int(size) for key, size in each.sizes.items()},
                "heuristic": to_record(each.heuristic),
                "best": to_record(each.best),
                "ratio": each.ratio,
                "is_chosen": each.is_chosen,
                "measured": each.measured,
                "dropped": each.dropped,
            }
            for name, each in entry.results.items()
        },
    }


def _entry(record: Any) -> Entry:
    """The entry of a record; ValueError, KeyError, TypeError or AttributeError for others."""
    results = {}
    for name, each in record["results"].items():
        results[name] = made = Result(
            {str(key): int(size) for key, size in each["sizes"].items()},
            from_record(each["heuristic"]),
            from_record(each["best"]),
            float(each["ratio"]),
            each["is_chosen"] is True,
            int(each["measured"]),
            int(each["dropped"]),
        )
        if shape_class(made.sizes) != name:
            raise ValueError(f"{name} for {dict(made.sizes)}")
    structure = "\n".join(record["structure"])
    return Entry(
        str(record["version"]),
        tuple(record["machine"].items()),
        str(record["scheduler"]),
        structure,
        str(record["operations"]),
        results,
    )
