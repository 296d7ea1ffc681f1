"""Runtime: what running kernels on one torch.device requires, and its interface to plans.

A runtime allocates memory and turns a target's code into kernels; each kernel writes the statements
of its own launch into a plan through a `LaunchWriter`, so the plan writer knows no calling
convention.  Two GPUs are two runtimes, possibly of one target.  A subclass with a missing method
can't be instantiated, and mypy reports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch

from ..errors import InternalError, expected
from ..ir.kernel import Kernel, ScalarParameter, TensorParameter
from ..ir.scalars import IntExpr
from ..target.target import Code, Target
from .tensor_memory import EmptyStrided, RequireMemory


class LaunchWriter(Protocol):
    """Writes a kernel's launch into a plan: its statements, and the texts of their operands.

    Names belong to the plan; those that `name` makes belong to the launch.
    """

    def line(self, text: str) -> None:
        """Adds a statement."""

    def name(self, name: str) -> str:
        """A name that no other launch has."""

    def constant(self, name: str, value: object) -> str:
        """The name of a value that never changes."""

    def size(self, expr: IntExpr) -> str:
        """The text of a size, a stride, or an expression of them."""

    def address(self, tensor: TensorParameter) -> str:
        """The text of the address of a tensor's first element."""

    def scalar(self, parameter: ScalarParameter) -> str:
        """The text of a scalar as a Python int or float of the parameter's dtype."""

    def number_in_memory(self, parameter: ScalarParameter) -> str:
        """An expression for the tensor that holds a scalar; empty if the host knows its number."""

    def tensor(self, tensor: TensorParameter) -> str:
        """An expression for a tensor, for launches that need more than its address."""

    def scratch(self, size: str) -> tuple[str, str]:
        """(tensor, address) of this many bytes, which live until the launch is done.

        None and 0 if `size` is 0.
        """

    def call(self, text: str) -> None:
        """Adds the call whose value is true if the kernel refuses the call's tensors."""


@dataclass(frozen=True, slots=True)
class LaunchCode:
    """What the launch function of a kernel is made from: a text, and the names of its functions."""

    text: str
    functions: tuple[str, ...]


class LoadedKernel(ABC):
    """A kernel that can be launched; `code` is the text it was made from."""

    code: Code

    @property
    def kernel(self) -> Kernel:
        """The IR from which its text was made; on a CPU without its statements."""
        return self.code.kernel

    def shared_bytes(self, sizes: Mapping[str, int]) -> int:
        """The most bytes of shared memory that a block of one of its launches has; 0 if none."""
        return 0

    def launch_code(self) -> tuple[object, LaunchCode] | None:
        """(the function that its launches call, what that is made from); None if there is none, or
        if they need more of the kernel than this function.
        """
        return None

    @abstractmethod
    def write_launch(self, writer: LaunchWriter) -> None:
        """Writes the statements that launch it."""


class ObjectCache(Protocol):
    """Where machine code is kept between processes: DiskCache, or a dictionary in a test."""

    def __contains__(self, key: str) -> bool:
        """True if there is an entry for `load`; the entry may still turn out to be corrupt."""

    def load(self, key: str) -> bytes | None:
        """What was stored under `key`, or None."""

    def store(self, key: str, payload: bytes) -> None:
        """Stores it; never raises."""


class Runtime(ABC):
    """One torch.device that runs kernels."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of its tensors, with an index if the type has several."""

    @property
    @abstractmethod
    def target(self) -> Target:
        """The target to compile for."""

    @property
    @abstractmethod
    def empty_strided(self) -> EmptyStrided:
        """Allocates tensors: outputs, and uninitialised memory for one call."""

    @property
    @abstractmethod
    def require_memory(self) -> RequireMemory:
        """Raises InputError for a tensor with less memory than it needs."""

    @property
    def library_functions(self) -> Mapping[Any, Callable[..., Any]]:
        """What compiled graphs call instead of an overload of torch's; arguments and results are
        the same.
        """
        return {}

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until everything launched so far has run."""

    def cost(self, call: Callable[[], object], calls: int = 1) -> float:
        """What a call costs: seconds, the mean over so many calls in a row."""
        self.synchronize()
        started = perf_counter()
        for _ in range(calls):
            call()
        self.synchronize()
        return (perf_counter() - started) / calls

    @property
    def has_exact_costs(self) -> bool:
        """True if `cost` is a prediction, which is the same each time."""
        return False

    @abstractmethod
    def keep_objects_in(self, cache: ObjectCache | None) -> None:
        """Sets where machine code is kept between processes."""

    @abstractmethod
    def compile_ahead(self, code: Any) -> None:
        """Begins a coming `compile` concurrently with the caller, or does nothing."""

    @abstractmethod
    def compile(self, code: Any) -> Any:
        """Compiles code in this process; the caller shares the result between equal texts.
        CompilationError if the text doesn't compile.
        """

    def launch_function(self, binary: Any) -> object:
        """The function that launches call whose kernel has this machine code (`launch_code`)."""
        raise InternalError(expected("launch function", "a kernel with one", self))

    @abstractmethod
    def load(self, code: Any, binary: Any) -> LoadedKernel:
        """A kernel from a code and the machine code of its text."""
