"""The graphs that Dynamo hands over: what wraps them, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.utils import GmWrapper
from torch.fx import GraphModule


def unwrapped(graph_module: torch.nn.Module) -> Any:
    """The graph itself, a GraphModule; it is wrapped if its inputs are lists."""
    return graph_module.gm if isinstance(graph_module, GmWrapper) else graph_module


def graphs_in(graph_module: torch.nn.Module) -> Iterator[GraphModule]:
    """The graph, and those in it: bodies of loops, branches, checkpointed regions."""
    return (each for each in graph_module.modules() if isinstance(each, GraphModule))
