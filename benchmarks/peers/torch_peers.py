"""The contestants that are part of torch, and pyfuser: eager, torch.compile, TorchScript."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..cases import definition
from .peer import Call, Work


def eager(work: Work) -> Call:
    """Plain torch."""
    return work.call_of(work.case.reference)


def pyfuser(work: Work) -> Call:
    """torch.compile(function, backend="pyfuser")"""
    return work.call_of(torch.compile(work.case.reference, backend="pyfuser", dynamic=False))


def pyfuser_definition(work: Work) -> Call | None:
    """FusionDefinition, where the case has one."""
    if work.case.define is None or work.gradients is not None:
        return None
    inputs = work.inputs
    fd = definition(work.case, inputs)
    return lambda: fd.execute(inputs)


def inductor(work: Work) -> Call:
    """torch.compile(function)"""
    return work.call_of(torch.compile(work.case.reference, dynamic=False))


def inductor_max_autotune(work: Work) -> Call:
    """torch.compile(function, mode="max-autotune")"""
    compiled = torch.compile(work.case.reference, dynamic=False, mode="max-autotune")
    return work.call_of(compiled)


def torchscript(work: Work) -> Call | None:
    """The original fuser: a traced function whose pointwise groups g++ compiles.

    Its kernels have no half precision.
    """
    if work.gradients is not None or any(_is_narrow(each) for each in work.inputs):
        return None
    with _original_fuser(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        traced = torch.jit.trace(_Function(work.case.reference), work.inputs, check_trace=False)
        traced(*work.inputs)  # the first call fuses

    def call() -> Any:
        with torch.no_grad():
            return traced(*work.inputs)

    return call


class _Function(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The function."""
        return self._function(*inputs)


def module_of(work: Work) -> torch.nn.Module:
    """The function as a module, for compilers that take only these."""
    return _Function(work.case.reference)


def _is_narrow(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() < 4


@contextmanager
def _original_fuser() -> Iterator[None]:
    """The functions that are first called in here are fused by it, in later calls too."""
    _set_original_fuser(True)
    try:
        yield
    finally:
        _set_original_fuser(False)


def _set_original_fuser(on: bool) -> None:
    settings: Any = torch._C
    settings._jit_set_profiling_executor(not on)
    settings._jit_set_profiling_mode(not on)
    settings._jit_set_texpr_fuser_enabled(not on)
    settings._jit_override_can_fuse_on_cpu(on)
    settings._jit_override_can_fuse_on_cpu_legacy(on)
