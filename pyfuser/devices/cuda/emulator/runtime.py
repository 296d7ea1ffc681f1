"""CUDA on the CPU, as a runtime: CPU tensors, kernels for `sm_90`, the SIMT harness as the GPU.

Everything up to the launch is as on a GPU: target, generated text, plans.  Outputs
and scratch memory are filled with NaN before kernels write them.  `emulated()` makes it run
CPU tensors; `pytest --emulate` does so for a whole run.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ....dtypes import DataType
from ....errors import CompilationError, UnsupportedError, expected
from ....ir.kernel import ScalarParameter, TensorParameter
from ....target.target import Target
from ...runtime import LaunchWriter, ObjectCache, Runtime
from ...switches import register_runtime
from ...tensor_memory import EmptyStrided, RequireMemory, poisoned, require_memory
from ..alignment import misaligned
from ..codegen import Counters, CudaSource, Geometry, Launch, Parameter
from ..device_helpers import with_device_helpers
from ..launches import FusedKernelCUDA
from ..target import CudaTarget
from .caches import cache_sectors
from .cost import seconds
from .counters import Profile
from .harness import Module, SimtError, compile_and_load

SM_90 = CudaTarget("sm_90")

_ASSERTION = re.compile(r"assertion failed")
_NOTHING = torch.empty(1, dtype=torch.uint8)


class EmulatedKernel(FusedKernelCUDA):
    """A kernel of the harness: it is given tensors, to know which memory may be accessed."""

    def __init__(
        self,
        code: CudaSource,
        module: Module,
        seed: int = 0,
        target: CudaTarget = SM_90,
        profile: Profile | None = None,
    ) -> None:
        launchers = [partial(self._run, n) for n in range(len(code.launches))]
        super().__init__(code, launchers, partial(torch.zeros, dtype=torch.int32))
        self.module, self.seed, self.profile = module, seed, profile
        self.target, self.limits = target, target.limits
        self._is_misaligned = [is_misaligned(launch) for launch in code.launches]

    def tensor_argument(self, writer: LaunchWriter, tensor: TensorParameter) -> str:
        """The tensor itself."""
        return writer.tensor(tensor)

    def scratch_argument(self, tensor: str, address: str) -> str:
        """The tensor itself."""
        return tensor

    def seed_argument(self, tensor: str) -> str:
        """The tensor itself, or null."""
        return tensor or "0"

    def _run(self, number: int, *given: Any) -> bool | None:
        """True if an assertion of the kernel failed: it refused the call."""
        grid, block, shared_bytes, arguments = given[:3], given[3:6], given[6], given[7:]
        if 0 in grid or 0 in block:
            return None
        launch = self.code.launches[number]
        function = launch.function
        geometry = Geometry(grid, block, shared_bytes, launch.goes_on_along_z)
        geometry = geometry.within(self.limits, launch.subject())
        passed = [
            _as_passed(parameter, argument)
            for parameter, argument in zip(launch.parameters, arguments, strict=True)
        ]
        scratch = [
            argument
            for parameter, argument in zip(launch.parameters, passed, strict=True)
            if parameter in self.kernel.scratch or isinstance(parameter, Counters)
        ]
        code, module = self.code, self.module
        if self._is_misaligned[number](passed):
            code, module = self._for_any_address
        counts = None
        if self.profile is not None:
            counts = self.profile.counts(code.text, function, geometry)
        try:
            module.launch(
                function,
                geometry.grid,
                block,
                shared_bytes,
                passed,
                seed=self.seed,
                counts=counts,
                scratch=scratch,
                most_blocks=self.profile.most_blocks if self.profile else 0,
                cache_sectors=cache_sectors(geometry, self.target) if counts is not None else 0,
            )
        except SimtError as error:
            if _ASSERTION.search(str(error)):
                return True
            raise
        is_sample = self.profile is not None and self.profile.most_blocks
        for parameter, argument in zip(launch.parameters, passed, strict=True):
            if isinstance(parameter, Counters) and argument.any() and not is_sample:
                raise SimtError(
                    f"{function}: expected counters of 0 after a launch, got {argument}"
                )
        return None

    @functools.cached_property
    def _for_any_address(self) -> tuple[CudaSource, Module]:
        """The kernel of launches whose vectors aren't aligned."""
        code = self.code.for_any_address
        return code, _loaded(code, self.profile)


def is_misaligned(launch: Launch) -> Callable[[Sequence[Any]], bool]:
    """Arguments of the harness -> whether they need the kernel for any address."""
    if not launch.alignments:
        return lambda _: False
    ask = misaligned(launch.alignments, launch.parameters, torch.Tensor.data_ptr)
    return lambda arguments: bool(ask(*arguments))


def _loaded(code: CudaSource, profile: Profile | None) -> Module:
    """The module of a text; one text is compiled once."""
    return compile_and_load(with_device_helpers(code.text), profile is not None)


def _as_passed(parameter: Parameter, argument: Any) -> Any:
    """The argument as the harness takes it: numbers of 16 bits as their bytes."""
    if argument is None:
        return _NOTHING
    match parameter:
        case ScalarParameter(dtype=DataType.Half):
            return struct.pack("<e", argument)
        case ScalarParameter(dtype=DataType.BFloat16):
            return struct.pack("<H", argument)
        case _:
            return argument


class EmulatedRuntime(Runtime):
    """CPU tensors, run by CUDA kernels; their launches are counted if there is a profile."""

    def __init__(self, target: CudaTarget = SM_90, profile: Profile | None = None) -> None:
        self._target, self.profile = target, profile
        self.kernels: list[EmulatedKernel] = []

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def target(self) -> Target:
        is_demanded = torch.are_deterministic_algorithms_enabled()
        return self._target.made_deterministic(is_demanded)

    @property
    def empty_strided(self) -> EmptyStrided:
        """Filled with NaN, or with ones if the dtype has no NaN; not for a sample of blocks, which
        touches little of its tensors.
        """
        is_sample = self.profile is not None and self.profile.most_blocks
        filled = (lambda tensor: tensor) if is_sample else poisoned
        return lambda shape, stride, dtype: filled(torch.empty_strided(shape, stride, dtype=dtype))

    @property
    def require_memory(self) -> RequireMemory:
        return require_memory

    def synchronize(self) -> None:
        """Does nothing: a launch returns when the kernel has run."""

    def cost(self, call: Callable[[], object], calls: int = 1) -> float:
        """Predicted seconds, from its launches' counts.  UnsupportedError without a profile."""
        if self.profile is None:
            what = "an emulated GPU that counts, `emulated(target, Profile())`"
            raise UnsupportedError(expected("autotune", what, "one without a profile"))
        launches = self.profile.launches_of(call)
        return sum(seconds(launch, self._target) for launch in launches)

    @property
    def has_exact_costs(self) -> bool:
        """Counts don't change."""
        return True

    def keep_objects_in(self, cache: ObjectCache | None) -> None:
        """Does nothing: the harness has its own cache."""

    def compile_ahead(self, code: Any) -> None:
        """Does nothing: compiling takes long here, and both cores are busy with tests."""

    def compile(self, code: Any) -> Module:
        """A shared object; one text is compiled once."""
        try:
            return _loaded(code, self.profile)
        except SimtError as error:
            raise CompilationError(str(error)) from error

    def load(self, code: Any, binary: Any) -> EmulatedKernel:
        """The kernel; it is noted in `kernels`."""
        kernel = EmulatedKernel(code, binary, target=self._target, profile=self.profile)
        self.kernels.append(kernel)
        return kernel


@contextmanager
def emulated(
    target: CudaTarget = SM_90, profile: Profile | None = None
) -> Iterator[EmulatedRuntime]:
    """While it lasts, CPU tensors are run by CUDA kernels."""
    found = EmulatedRuntime(target, profile)
    register_runtime("cpu", lambda _: found)
    try:
        yield found
    finally:
        register_runtime("cpu", None)
