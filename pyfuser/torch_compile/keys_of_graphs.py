"""Keys of AOTAutograd's cache, made without importing Inductor's code generators.

torch imports these for every key, to look for the sources of Triton kernels (0.1 s) and for passes
that are registered with them (0.6 s).  Graphs rarely have such kernels, and none of those passes
runs on pyfuser's graphs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import Any

try:
    from torch._inductor import codecache
except ImportError:  # this torch makes no such keys
    codecache = None  # type: ignore[assignment]

_GENERATOR = "torch._inductor.codegen.wrapper"
# What a key imports from it, and calls if there are Triton kernels.
_CALLED_FOR_TRITON = "user_defined_triton_kernel_transitive_closure_source_code"
_REGISTRATION = "init_backend_registration"

_leaves_out: ContextVar[bool] = ContextVar("_leaves_out", default=False)


@contextmanager
def without_code_generators() -> Iterator[None]:
    """While keys are made: what isn't imported yet is imported only if it is called."""
    _let_registration_be_left_out()
    token = _leaves_out.set(True)
    deferred = _DeferredModule(_GENERATOR)
    sys.modules.setdefault(_GENERATOR, deferred)
    try:
        yield
    finally:
        _leaves_out.reset(token)
        deferred.leave()


class _DeferredModule(ModuleType):
    """Stands in for a module until something else of it than the one function is needed."""

    def __getattr__(self, name: str) -> Any:
        if name == _CALLED_FOR_TRITON:
            return lambda *arguments: getattr(self._module(), name)(*arguments)
        if name.startswith("__"):  # the import system's questions
            raise AttributeError(name)
        return getattr(self._module(), name)

    def leave(self) -> None:
        """Makes room for the module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]

    def _module(self) -> ModuleType:
        self.leave()
        return importlib.import_module(self.__name__)


@cache
def _let_registration_be_left_out() -> None:
    """Puts a test in front of torch's registration of backends and their passes."""
    register: Callable[[], None] | None = getattr(codecache, _REGISTRATION, None)
    if register is None:
        return

    def register_for_inductor() -> None:
        if not _leaves_out.get():
            register()

    setattr(codecache, _REGISTRATION, register_for_inductor)
