"""The interface's helpers for PyTorch: dtypes, devices, tests that may run out of memory."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from .dtypes import DataType, from_torch

P = ParamSpec("P")
R = TypeVar("R")

_PYTHON_TYPES: dict[type, DataType] = {
    complex: DataType.ComplexDouble,
    float: DataType.Double,
    int: DataType.Int,
    bool: DataType.Bool,
}


def torch_dtype_to_nvfuser_dtype(dtype: torch.dtype | type) -> DataType:
    """The DataType of a dtype of torch's or of a Python number type.  KeyError for any other."""
    if isinstance(dtype, type):
        return _PYTHON_TYPES[dtype]
    if dtype is getattr(torch, "float4_e2m1fn_x2", None):  # torch 2.8; no kernel has it
        return DataType.Float4_e2m1fn_x2
    try:
        return from_torch(dtype)
    except Exception:
        raise KeyError(dtype) from None


def python_scalar_to_nvfuser_dtype(scalar: complex | type) -> DataType:
    """The DataType of a Python number, or of its type.  KeyError for anything else."""
    return _PYTHON_TYPES[scalar if isinstance(scalar, type) else type(scalar)]


def retry_on_oom_or_skip_test(function: Callable[P, R]) -> Callable[P, R]:
    """Calls a test again, with the caches empty, if the device ran out of memory; then skips it."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            _empty_caches()
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            import pytest

            pytest.skip(f"{function.__name__}: {error}")

    return wrapped


def _empty_caches() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def get_device_properties() -> dict[str, Any]:
    """What torch knows about the current GPU; empty without one.  Bandwidth in bytes per second."""
    if not torch.cuda.is_available():
        return {}
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    properties: dict[str, Any] = {
        "gpu_name": found.name,
        "gpu_compute_capability_major": found.major,
        "gpu_compute_capability_minor": found.minor,
        "gpu_gmem_bytes": found.total_memory,
        "gpu_sm_count": found.multi_processor_count,
    }
    clock, bus = (getattr(found, name, None) for name in ("memory_clock_rate", "memory_bus_width"))
    if clock and bus:  # kHz, bits; two transfers a cycle
        properties["gpu_peak_bandwidth_bps"] = 2 * clock * 1000 * bus // 8
    return properties


def __getattr__(name: str) -> Any:
    """DEVICE_PROPERTIES, read when it is first used: importing must not touch a GPU."""
    if name != "DEVICE_PROPERTIES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = get_device_properties() or None
    return found
