"""Calls of custom ops that change their operands, in a functional graph.

AOTAutograd records such a call as `auto_functionalized_v2(op, ..., _all_bases=[x, ...])`, which
returns op's results and then new values of the tensors that op changes.  An operand can be a view
of such a base.  torch copies every base, through its dispatcher; the wrapper calls op itself, on a
copy, or on the tensor if nobody else will read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ..plans.library_calls import LibraryCalls
from .traced_layouts import is_dense
from .views import Views, is_getitem, tensor_of

_FUNCTIONALIZED = getattr(getattr(torch.ops, "higher_order", None), "auto_functionalized_v2", None)


@dataclass(frozen=True, slots=True)
class ChangedOperand:
    """An operand that op changes: a base, or a slice or another view of it.

    slice      dimension, start and end
    strided    sizes, strides, and the offset from the beginning of the base's storage
    """

    base: int
    slice: tuple[Any, Any, Any] | None = None
    strided: tuple[Any, Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class MutatingCall:
    """A call of `op` by names of operands; `results` is how many op returns.

    Operands among `changed` can be lists.
    """

    op: OpOverload
    bases: list[Node]
    changed: Mapping[str, Any]
    others: Mapping[str, Any]
    results: int

    @property
    def places(self) -> range:
        """The numbers of the bases."""
        return range(len(self.bases))

    def picks(self, node: Node) -> tuple[dict[int, Node], list[Node]]:
        """The readers of new values, by the number of the base, and those of op's results."""
        first = max(self.results, 1)  # an op without results returns None
        values: dict[int, Node] = {}
        results = []
        for pick in node.users:
            number = pick.args[1]
            assert isinstance(number, int)
            if number >= first:
                values[number - first] = pick
            else:
                results.append(pick)
        return values, results

    def read_once(self, node: Node, views: Views) -> set[Node]:
        """The bases whose memory the call reads through no other operand."""
        memories = [memory for n in node.all_input_nodes for memory in views.memory(n)]
        whole = (base for base in self.bases if views.base(base) is base)
        return {each for each in whole if memories.count(each) == self.bases.count(each) == 1}

    def gives(self, node: Node, value: Node, base: Node, views: Views) -> bool:
        """True if `value` is the new value of this base, which may be written over."""
        number = next((i for i, pick in self.picks(node)[0].items() if pick is value), None)
        return (
            number is not None
            and self.bases[number] is base
            and base in self.read_once(node, views)
        )


def mutating_call(node: Node) -> MutatingCall | None:
    """The call that a node records; None if it is no such node, or one for torch."""
    if node.target is not _FUNCTIONALIZED or not all(map(is_getitem, node.users)):
        return None
    op, rest = node.args[0], dict(node.kwargs)
    bases = rest.pop("_all_bases", None)
    if len(node.args) > 1 or not isinstance(op, OpOverload) or not isinstance(bases, (list, tuple)):
        return None
    if not bases or not all(map(_is_copied_whole, bases)):
        return None
    changed: dict[str, Any] = {}
    for argument in op._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            if argument.is_out:
                return None
            changed[argument.name] = _changed(f"_{argument.name}", rest)
    if any(name.startswith("_") for name in rest):  # something that is unknown here
        return None
    return MutatingCall(op, [*bases], changed, rest, len(op._schema.returns))


def _is_copied_whole(base: Any) -> bool:
    value = tensor_of(base) if isinstance(base, Node) else None
    return value is not None and is_dense(value)


def _changed(prefix: str, rest: dict[str, Any]) -> Any:
    """An operand as the call describes it; takes the description out of `rest`."""
    if f"{prefix}_length" in rest:
        length = rest.pop(f"{prefix}_length")
        if length is None:
            return None
        return [_changed(f"{prefix}_{number}", rest) for number in range(length)]
    base = rest.pop(f"{prefix}_base_index")
    if base is None:
        return None
    rest.pop(f"{prefix}_alias", None)
    return ChangedOperand(
        base,
        _taken(rest, prefix, "slice_dim", "slice_start", "slice_end"),
        _taken(rest, prefix, "size", "stride", "storage_offset"),
    )


def _taken(rest: dict[str, Any], prefix: str, *names: str) -> Any:
    found = [f"{prefix}_{name}" for name in names]
    return tuple(map(rest.pop, found)) if found[0] in rest else None


def operand_texts(
    call: MutatingCall,
    names: Sequence[str],
    argument: Callable[[Any], str],
    library: LibraryCalls,
) -> list[str]:
    """The operands of op, by name; `names` are those of the bases that it may change."""

    def text(operand: Any) -> str:
        if not isinstance(operand, ChangedOperand):
            is_list = isinstance(operand, list)
            return f"[{', '.join(map(text, operand))}]" if is_list else "None"
        name = names[operand.base]
        if operand.slice is not None:
            slicing = library.function(torch.ops.aten.slice.Tensor)
            return f"{slicing}({', '.join([name, *map(argument, operand.slice)])})"
        if operand.strided is not None:
            shape, stride, offset = map(argument, operand.strided)
            base = tensor_of(call.bases[operand.base])
            assert base is not None
            begin = argument(base.storage_offset())
            return library.view(name, shape, stride, f"{offset} - {begin}")
        return name

    changed = [f"{name}={text(operand)}" for name, operand in call.changed.items()]
    return changed + [f"{name}={argument(operand)}" for name, operand in call.others.items()]
