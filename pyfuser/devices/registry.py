"""Finds the runtime of a torch.device, and the target of a name.

A device is a subpackage of `pyfuser.devices` named like its torch device type.  Its module
`runtime` has `runtime(device)`, the runtime of one such device; it is imported when a tensor of
that type is first seen, so no device needs another one's libraries.  `targets` are found by names
that don't need a device: `cpu`, `sm_90`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

import torch

from ..errors import InputError, UnsupportedError, expected
from ..locks import ForkSafeLock
from ..target.target import Target
from .runtime import Runtime

RuntimeOf = Callable[[torch.device], Runtime]

_runtimes: dict[torch.device, Runtime] = {}
_registered: dict[str, RuntimeOf] = {}
_lock = ForkSafeLock()


def runtime_of(device: torch.device) -> Runtime:
    """The runtime of one device (index included).  UnsupportedError if there is none."""
    found = _runtimes.get(device)
    if found is None:
        with _lock:
            found = _runtimes.get(device) or _make(device)
            _runtimes[device] = found
    return found


def register_runtime(device_type: str, runtime: RuntimeOf | None) -> None:
    """Makes another runtime run the tensors of a device type; None restores the default.

    Plans that are kept must be dropped: see `switches.register_runtime`.
    """
    with _lock:
        if runtime is None:
            _registered.pop(device_type, None)
        else:
            _registered[device_type] = runtime
        for device in [d for d in _runtimes if d.type == device_type]:
            del _runtimes[device]


def _make(device: torch.device) -> Runtime:
    registered = _registered.get(device.type)
    if registered is not None:
        return registered(device)
    folder = f"{__package__}.{device.type}"
    try:
        module = import_module(f"{folder}.runtime")
    except ModuleNotFoundError as error:
        # Either there is no such folder, or a package that it needs isn't installed.
        is_known = not (error.name or "").startswith(folder)
        got = str(error) if is_known else f"{device.type} tensors"
        raise UnsupportedError(expected("device", "a device that has kernels", got)) from error
    find: RuntimeOf = module.runtime
    return find(device)


def has_runtime(device_type: str) -> bool:
    """True if tensors of a type can exist and kernels run on them."""
    if any(device.type == device_type for device in list(_runtimes)):
        return True
    try:
        runtime_of(torch.empty(0, device=device_type).device)
    except (UnsupportedError, RuntimeError, AssertionError, ImportError):  # torch's errors vary
        return False
    return True


def target_of(name: str) -> Target:
    """The target of a name: `cpu` is this processor, `sm_90` an NVIDIA architecture.

    InputError for any other name.
    """
    for folder in pkgutil.iter_modules(import_module(str(__package__)).__path__):
        if folder.ispkg:
            find: Callable[[str], Target | None]
            find = import_module(f"{__package__}.{folder.name}.targets").target_of
            found = find(name)
            if found is not None:
                return found
    raise InputError(expected("target", "cpu or an NVIDIA architecture such as sm_90", name))


def target_for(device: torch.device) -> Target:
    """The target of a device's runtime; without one, the target for that kind of device.

    UnsupportedError if there are no kernels for such devices.
    """
    try:
        return runtime_of(device).target
    except UnsupportedError:
        try:
            module = import_module(f"{__package__}.{device.type}.targets")
        except ModuleNotFoundError:
            raise UnsupportedError(expected("device", "one with kernels", device)) from None
        found: Target = module.default_target()
        return found
