"""The library's part of a model's call, the floor of every compiler that keeps the library.

A call of the model -> the products, convolutions and attentions that eager runs in it, as a
function that runs just these again, on the same tensors, without autograd and without the model.
Everything else of a call is *removable*: elementwise work, reductions, copies, dispatch, guards and
Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_LIBRARY = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution",
    "convolution_backward", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)  # fmt: skip

LibraryCall = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[LibraryCall] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function.overloadpacket.__name__ in _LIBRARY:
            self.calls.append((function, args, dict(kwargs or {})))
        return function(*args, **(kwargs or {}))


def library_calls(call: Callable[[], object]) -> list[LibraryCall]:
    """The library calls of a call of eager's, backward included; they keep their operands alive."""
    with _Recorder() as recorder:
        call()
    return recorder.calls


def replay(calls: list[LibraryCall]) -> Callable[[], None]:
    """A function that runs these calls one after the other, and drops each result."""

    def run() -> None:
        with torch.no_grad():
            for function, args, kwargs in calls:
                function(*args, **kwargs)

    return run
