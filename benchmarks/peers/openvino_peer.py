"""OpenVINO's CPU runtime: forward passes in float32, on the inputs' memory."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from .peer import Call, Work
from .torch_peers import module_of

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # its reports fork a process
import openvino  # noqa: E402


def openvino_model(work: Work) -> Call | None:
    """The function, converted by OpenVINO from torch's own trace of it."""
    floats = [each for each in work.inputs if each.is_floating_point()]
    # It drops dropout, so what is random would not be the same function.
    is_other = work.gradients is not None or work.case.is_random
    if is_other or any(each.dtype is not torch.float32 for each in floats):
        return None
    shapes = [list(each.shape) for each in work.inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random functions differ when they are traced again
        model = openvino.convert_model(
            module_of(work), example_input=tuple(work.inputs), input=shapes
        )
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.compile_model(model, "CPU", settings)
    arrays = [each.numpy() for each in work.inputs]
    request = compiled.create_infer_request()
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)


def tensors(outputs: Any) -> Sequence[torch.Tensor]:
    """The outputs in order."""
    return [torch.from_numpy(outputs[place].copy()) for place in range(len(outputs))]
