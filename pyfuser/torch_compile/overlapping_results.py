"""Gradients of results whose elements overlap in memory, such as the windows of `unfold`.

AOTAutograd gives the gradient of a result the strides of the result, and copies the gradient of a
call to such memory.  If elements of the result share memory, those of the gradient would overwrite
each other.  (torch excludes expanded results from this rule, but no others.)  Gradients of graphs
with such results are in row-major order instead.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._functorch import config
from torch.fx import GraphModule, Node

from ..ir.strides import may_overlap
from .sizes import hints


def distinct_gradients(graph_module: GraphModule) -> AbstractContextManager[Any]:
    """While this context is entered, AOTAutograd gives each element of a gradient its memory."""
    (output,) = graph_module.graph.find_nodes(op="output")
    if not any(_overlaps(result) for result in output.all_input_nodes):
        return nullcontext()
    patched: AbstractContextManager[Any] = config.patch(guess_tangent_strides_as_outputs=False)
    return patched


def _overlaps(result: Node) -> bool:
    value = result.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return value.requires_grad and may_overlap(hints(value.shape), hints(value.stride()))
