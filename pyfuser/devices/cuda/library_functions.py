"""What compiled graphs call instead of an overload of torch's, so that nothing waits for a GPU."""

from __future__ import annotations

from typing import Any

import torch

from ...ops.metadata import filled_in, is_cpu_scalar

aten = torch.ops.aten


def to_copy(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """aten._to_copy.  A number of the host is written by a kernel, as eager passes one to a kernel:
    the numbers of an optimiser's steps would each wait for all that was launched before.
    """
    device = options.get("device")
    is_converted = options.get("dtype") not in (None, tensor.dtype)
    if is_cpu_scalar(tensor) and device is not None and not is_converted:
        return filled_in(tensor, device)
    copied: torch.Tensor = aten._to_copy.default(tensor, **options)
    return copied


FUNCTIONS = {aten._to_copy.default: to_copy}
