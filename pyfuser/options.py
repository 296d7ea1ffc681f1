"""Options from the environment, read where they are used, so that a test can set them.

`overridden` replaces some of them in the current thread while something runs.  Switches are off if
they are 0, false, no or off.

PYFUSER_STRICT=1            a fusion that can't be compiled raises instead of running through torch
PYFUSER_DUMP=stage,...      prints the named stages (fusion, preseg, segments, parameters,
                            scheduled, kernel, llvm, asm, cuda, ptx; graph, regions, call of a
                            torch.compile graph) of everything that is compiled, to stderr
PYFUSER_CACHE_DIR=DIR       where compiled kernels are kept (default: ~/.cache/pyfuser); used only
                            if nobody but this user and root can write to it
PYFUSER_DISABLE_CACHE=1     no disk cache
PYFUSER_COMPILER_PROCESS=0  no second process that compiles kernels ahead
PYFUSER_DISABLE_SCHEDULERS=name,...  these schedulers take nothing (greedy: torch runs scans and
                            scatters)
PYFUSER_REPRODUCER_DIR=DIR  where reproducer scripts of failed compilations go (default: a
                            temporary directory)
PYFUSER_POOL_BYTES=N        the most bytes of freed memory that the CPU memory pool keeps
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from .errors import InputError, expected

_STAGES = frozenset(
    (
        *("graph", "regions", "call"),
        *("fusion", "preseg", "segments", "parameters", "scheduled"),
        *("kernel", "llvm", "asm", "cuda", "ptx"),
    )
)


_overrides: ContextVar[Mapping[str, str]] = ContextVar("_overrides", default={})  # noqa: B039


@contextmanager
def overridden(values: Mapping[str, str]) -> Iterator[None]:
    """Replaces variables of the environment, for pyfuser alone."""
    token = _overrides.set({**_overrides.get(), **values})
    try:
        yield
    finally:
        _overrides.reset(token)


def _variable(name: str) -> str:
    found = _overrides.get().get(name)
    return os.environ.get(name, "") if found is None else found


def _is_on(name: str, default: bool = False) -> bool:
    """The value of a switch: 0, false, no and off switch it off, anything else on."""
    text = _variable(name).strip().lower()
    return text not in ("0", "false", "no", "off") if text else default


def strict() -> bool:
    """True if a failed compilation must raise instead of falling back."""
    return _is_on("PYFUSER_STRICT")


def dump_stages() -> frozenset[str]:
    """The stages to print, from PYFUSER_DUMP; warns once about an unknown name."""
    return _known_names("PYFUSER_DUMP", _variable("PYFUSER_DUMP"), _STAGES)


@functools.lru_cache(maxsize=64)
def _known_names(variable: str, text: str, known: frozenset[str]) -> frozenset[str]:
    """The names in `text`; cached, so that there is one warning per text."""
    names = frozenset(filter(None, map(str.strip, text.split(","))))
    for name in sorted(names - known):
        listed = ", ".join(sorted(known))
        warnings.warn(f"{variable}: expected some of {listed}, got {name}", stacklevel=4)
    return names


def compiler_process() -> bool:
    """True unless the second process for LLVM is switched off."""
    return _is_on("PYFUSER_COMPILER_PROCESS", default=True)


def disabled_schedulers(known: frozenset[str]) -> frozenset[str]:
    """Which of the `known` schedulers are switched off; warns once about another name."""
    text = _variable("PYFUSER_DISABLE_SCHEDULERS")
    return _known_names("PYFUSER_DISABLE_SCHEDULERS", text, known) & known


def with_disabled_schedulers(names: frozenset[str]) -> dict[str, str]:
    """What to override so that these schedulers are switched off, too."""
    already = _variable("PYFUSER_DISABLE_SCHEDULERS")
    return {"PYFUSER_DISABLE_SCHEDULERS": ",".join((already, *sorted(names)))} if names else {}


def pool_bytes() -> int | None:
    """The most bytes of freed memory that the CPU memory pool keeps; None for the default."""
    configured = _variable("PYFUSER_POOL_BYTES").strip()
    try:
        return max(0, int(configured)) if configured else None
    except ValueError:
        raise InputError(expected("PYFUSER_POOL_BYTES", "a number", configured)) from None


def reproducer_directory() -> Path | None:
    """The directory for reproducer scripts, or None for a temporary directory."""
    configured = _variable("PYFUSER_REPRODUCER_DIR")
    return Path(configured) if configured else None


def cache_directory() -> Path | None:
    """The directory of the disk cache; None if it is switched off or the user has no home.

    Warns once about a missing home.
    """
    if _is_on("PYFUSER_DISABLE_CACHE"):
        return None
    configured = _variable("PYFUSER_CACHE_DIR")
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "pyfuser"
    try:
        return Path.home() / ".cache" / "pyfuser"
    except RuntimeError as error:  # neither HOME nor an entry in the user database
        _warn_of_no_home(str(error))
        return None


@functools.cache
def _warn_of_no_home(reason: str) -> None:
    """Warns once: a container often runs under a user id without a name."""
    warnings.warn(
        f"pyfuser disk cache: expected a home directory to keep compiled kernels in, got none "
        f"({reason}); set PYFUSER_CACHE_DIR to a directory, or PYFUSER_DISABLE_CACHE=1",
        RuntimeWarning,
        stacklevel=3,
    )
