"""numexpr, for the pointwise functions that one of its expressions computes (float32)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numexpr
import numpy as np
import torch

from .peer import Call, Work

# Case -> the expression of its inputs a, b, c; numexpr has no erf.
_EXPRESSIONS = {
    "add": "a + b",
    "broadcast add (outer)": "a + b",
    "mul chain": "a * b * a * b * a * b",
    "bias + GELU (tanh)": "half * (a + b) * (one + tanh(slope * ((a + b)"
    " + cubic * (a + b) * (a + b) * (a + b))))",
    "SiLU * mul": "a / (one + exp(-a)) * b",
    "scale + bias + ReLU": "where(a * b + c > zero, a * b + c, zero)",
    "transposed add": "a + b",
    "sum over columns": "sum(a, 1)",
    "sum over rows": "sum(a, 0)",
    "sum over all": "sum(a)",
}
# A constant in an expression would make it float64.
_CONSTANTS = {
    name: np.float32(value)
    for name, value in (
        ("zero", 0.0),
        ("half", 0.5),
        ("one", 1.0),
        ("slope", (2 / math.pi) ** 0.5),
        ("cubic", 0.044715),
    )
}


def numexpr_function(work: Work) -> Call | None:
    """The expression of a case; None if it has none."""
    expression = _EXPRESSIONS.get(work.case.name)
    if expression is None or work.gradients is not None:
        return None
    if any(each.dtype is not torch.float32 for each in work.inputs):
        return None
    numexpr.set_num_threads(torch.get_num_threads())
    arrays = [each.numpy() for each in work.inputs]
    if work.case.name == "transposed add":
        arrays[1] = arrays[1].T
    operands = dict(zip("abc", arrays, strict=False)) | _CONSTANTS
    return lambda: numexpr.evaluate(expression, local_dict=operands, global_dict={})


def tensors(outputs: Any) -> Sequence[torch.Tensor]:
    """The array as a tensor."""
    return [torch.as_tensor(outputs)]
