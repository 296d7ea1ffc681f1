"""Translation: a row of the tables from aten overloads to expressions of a fusion.

A family (pointwise.py, reductions.py, ...) is a dict from overload to `Translation`.  `build` gets
the call and then the overload's arguments in the order of its schema, with defaults filled in.

Invariant: `build` translates everything that `check` accepts, unless a shape inside the region
prevents it; then it raises NotTranslated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from torch._ops import OpOverload
from torch.fx import Node

from .region_builder import Result

Cost = Literal["cheap", "heavy", "reduction", "product", "view", "read"]
Build = Callable[..., Result]
Check = Callable[..., str | None]


@dataclass(frozen=True, slots=True)
class Translation:
    """How one overload is translated.

    build   (call, *arguments) -> the value, or a tuple of values for an overload with several
    cost    a "product" may be the library's, depending on its sizes, so its result is always saved
    check   (node, *arguments) -> why this node can't be translated, or None
    keeps_values   every element of the result is an element of an operand, or 0
    exact   the positions of the arguments that are read rounded, as in torch (`Call.exact`)
    """

    build: Build
    cost: Cost = "cheap"
    check: Check | None = None
    keeps_values: bool = False
    exact: tuple[int, ...] = ()


Table = dict[OpOverload, Translation]


@lru_cache(maxsize=1024)
def _parameters(overload: OpOverload) -> tuple[tuple[str, Any], ...]:
    schema = overload._schema.arguments
    return tuple((argument.name, argument.default_value) for argument in schema)


def arguments(node: Node) -> list[Any]:
    """The arguments of a node in the order of the overload's schema, with defaults filled in."""
    assert isinstance(node.target, OpOverload)
    parameters = _parameters(node.target)
    found = list(node.args)
    for name, default in parameters[len(found) :]:
        found.append(node.kwargs.get(name, default))
    return found
