"""timm without torchvision and Pillow, which only its image loading needs.

timm imports both on import, and package indexes have torchvision built for CUDA: with a torch for
CPUs it can't be imported, and neither can transformers once it is installed. timm is therefore
installed alone, and during its import, modules that have a class for every name stand in for the
two.  Afterwards they are removed, so nothing else mistakes them for the real ones.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGES = ("torchvision", "PIL")


class _Anything(type):
    """A class whose attributes are classes of this kind."""

    def __getattr__(cls, name: str) -> Any:
        return _stand_in(name)


def _stand_in(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(name, (), {})


class _Module(ModuleType):
    """A package whose attributes are such classes."""

    __path__: list[str] = []
    __version__ = "0.0"

    def __getattr__(self, name: str) -> Any:
        return _stand_in(name)


class _Finder:
    """Finds the missing packages of _PACKAGES, and everything in them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """A module that stands in for `name`; None for any other module."""
        return ModuleSpec(name, self, is_package=True) if self.finds(name) else None  # type: ignore

    def finds(self, name: str) -> bool:
        """True for a module that has a stand-in."""
        return name.partition(".")[0] in self.packages

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module, as importlib asks for it."""
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing has to run."""


@contextmanager
def importable() -> Iterator[None]:
    """Within this context, timm and all its parts can be imported."""
    finder = _Finder([each for each in _PACKAGES if importlib.util.find_spec(each) is None])
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for name in [each for each in sys.modules if finder.finds(each)]:
            del sys.modules[name]
