"""The package under another name: `sys.modules["nvfuser_direct"] = pyfuser`.

A program may then import the interface's modules by the name it has always used, as in
`from nvfuser_direct.pytorch_utils import torch_dtype_to_nvfuser_dtype`.  Python would load their
files a second time, and enumerations of two copies aren't equal.  The finder gives the modules that
pyfuser has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]


class _SameModule(Loader):
    """Loads a module by giving the one that pyfuser has under its own name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module, whose own spec import replaces after this."""
        module = import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to run."""
        module.__spec__ = self.spec


class _OtherNames(MetaPathFinder):
    """Finds the modules of a package in `sys.modules` that is pyfuser under another name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of such a module; None for all others."""
        package, _, rest = fullname.partition(".")
        if not rest or package == _PACKAGE:
            return None
        if sys.modules.get(package) is not sys.modules.get(_PACKAGE):
            return None
        return ModuleSpec(fullname, _SameModule(f"{_PACKAGE}.{rest}"))


def find_modules_under_other_names() -> None:
    """Makes imports under another name give pyfuser's own modules."""
    if not any(isinstance(finder, _OtherNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OtherNames())
