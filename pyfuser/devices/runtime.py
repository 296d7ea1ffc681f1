"""Runtime: what running kernels on one torch.device needs, and the seam to the plans that do it.

A runtime makes memory, turns a target's code into kernels, and each kernel writes the statements of
its own launch into a plan (`LaunchWriter` is what it writes with): the plan writer knows no calling
convention.  Two GPUs are two runtimes of, perhaps, one target.  A subclass that misses a method
can't be made, and mypy says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch

from ..ir.kernel import Kernel, ScalarParameter, TensorParameter
from ..ir.scalars import IntExpr
from ..target.target import Code, Target
from .tensor_memory import EmptyStrided, RequireMemory


class LaunchWriter(Protocol):
    """Where a kernel writes its launch: statements of a plan, and the texts of its operands.

    Names are those of the plan; those that `name` makes are the launch's own.
    """

    def line(self, text: str) -> None:
        """Adds a statement."""

    def name(self, name: str) -> str:
        """A name that no other launch has."""

    def constant(self, name: str, value: object) -> str:
        """The name of a value that never changes."""

    def size(self, expr: IntExpr) -> str:
        """The text of a size, a stride, or what follows from them."""

    def address(self, tensor: TensorParameter) -> str:
        """The text of the address of a tensor's first element."""

    def scalar(self, parameter: ScalarParameter) -> str:
        """The text of a scalar as a Python int or float of the parameter's dtype."""

    def tensor(self, tensor: TensorParameter) -> str:
        """An expression of a tensor, for who wants more than its address."""

    def scratch(self, size: str) -> tuple[str, str]:
        """(tensor, address) of so many bytes that live until the launch is done.

        None and 0 where `size` is 0.
        """

    def call(self, text: str) -> None:
        """Adds the call whose value is true where the kernel refuses the call's tensors."""


class LoadedKernel(ABC):
    """A kernel that can be launched; `code` is the text it was made from."""

    code: Code

    @property
    def kernel(self) -> Kernel:
        """What its text was made from."""
        return self.code.kernel

    @abstractmethod
    def write_launch(self, writer: LaunchWriter) -> None:
        """Writes the statements that launch it."""


class ObjectCache(Protocol):
    """Where machine code is kept between processes: DiskCache, or a dictionary in a test."""

    def __contains__(self, key: str) -> bool:
        """True where `load` has something to look at; it may still turn out not to be whole."""

    def load(self, key: str) -> bytes | None:
        """What was stored under `key`, or None."""

    def store(self, key: str, payload: bytes) -> None:
        """Keeps it; never raises."""


class Runtime(ABC):
    """One torch.device that runs kernels."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where its tensors are, with an index where the type has several."""

    @property
    @abstractmethod
    def target(self) -> Target:
        """What to compile for."""

    @property
    @abstractmethod
    def empty_strided(self) -> EmptyStrided:
        """Makes tensors: outputs, and uninitialised memory for one call."""

    @property
    @abstractmethod
    def require_memory(self) -> RequireMemory:
        """Raises InputError for a tensor with less memory than it needs."""

    @abstractmethod
    def keep_objects_in(self, cache: ObjectCache | None) -> None:
        """Where machine code is kept between processes."""

    @abstractmethod
    def compile_ahead(self, code: Any) -> None:
        """Begins with what `compile` will soon be asked for, beside the caller; or does nothing."""

    @abstractmethod
    def compile(self, code: Any) -> Any:
        """Machine code, in this process; the caller shares it between equal texts.
        CompilationError where the text doesn't compile."""

    @abstractmethod
    def load(self, code: Any, binary: Any) -> LoadedKernel:
        """A kernel of a code and the machine code of its text."""
