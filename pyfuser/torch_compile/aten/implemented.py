"""The dtypes for which torch implements an operation, found by asking it.

Eager refuses a softmax of integers.  Kernels would compute something, and so would decompositions,
because torch's metadata functions accept more than its kernels do.  Such a call stays whole and is
torch's, which raises its error.  All floating-point types that kernels take are implemented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

_FLOATING = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_known: dict[tuple[Any, ...], bool] = {}


def is_implemented(
    target: OpOverload, args: Sequence[Any], keywords: Mapping[str, Any] | None = None
) -> bool:
    """False if torch says so of these dtypes; operands are tensors or nodes with metadata."""
    keywords = keywords or {}
    if all(map(_is_floating, (*args, *keywords.values()))):
        return True
    if torch.Tag.nondeterministic_seeded in target.tags:
        return True  # asking would draw from the caller's generator
    given = tree_map(_metadata, (tuple(args), dict(keywords)))
    key = (target, *map(_kind, tree_leaves(given)))
    found = _known.get(key)
    if found is None:
        found = _known[key] = _accepts(target, *given)
    return found


def _metadata(value: Any) -> Any:
    return value.meta.get("val") if isinstance(value, Node) else value


def _is_floating(value: Any) -> bool:
    """True unless it is, or contains, a tensor of another type."""
    value = _metadata(value)
    if isinstance(value, torch.Tensor):
        return value.dtype in _FLOATING
    return not isinstance(value, (list, tuple)) or all(map(_is_floating, value))


def _kind(value: Any) -> object:
    """What decides about an argument: of tensors, the dtype and the number of dimensions."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.device.type
    return (type(value), value) if isinstance(value, (bool, int, str)) else type(value)


def _accepts(target: OpOverload, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Runs the operation on a few elements."""
    with _disable_current_modes():
        try:
            target(*tree_map(_few, args), **tree_map(_few, keywords))
        except NotImplementedError:
            return False
        except Exception as error:  # of sizes that don't go together, for example
            return "not support" not in str(error) and "not implemented" not in str(error)
    return True


def _few(value: Any) -> Any:
    """A tensor of at most two elements along each axis, or a small number for one that isn't."""
    if isinstance(value, torch.Tensor):
        sizes = [2 if isinstance(n, torch.SymInt) else min(n, 2) for n in value.shape]
        return torch.ones(sizes, dtype=value.dtype)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return 1
    return value
