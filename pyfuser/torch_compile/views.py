"""Views in a traced graph: which nodes share memory, and the layout of each.

A view is a base node (a placeholder, or a node that allocates memory), sizes, strides and an offset
in elements from the base's first element.  All of this comes from the metadata that tracing left in
the graph, so a view costs nothing at run time until it is needed as a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node

from .op_facts import facts
from .sizes import MOST_OF_SHORT_ROW, Size, hint, size_of, sizes_of

aten = torch.ops.aten

# In the metadata of a node that replaced equal ones: the storages of their results.
_STORAGES = "pyfuser_storages"


@dataclass(frozen=True, slots=True)
class View:
    """Sizes, strides and offset, in elements, of a node in the memory of `base`."""

    base: Node
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size

    def is_whole(self, base: View) -> bool:
        """True if it has exactly the layout of its base."""
        return self.offset == 0 and self.shape == base.shape and self.stride == base.stride


def tensor_of(node: Node) -> torch.Tensor | None:
    """The metadata of a node that is a dense tensor; None for anything else."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value
    return None


def bytes_of(node: Node) -> int:
    """Bytes of a node's tensors; unknown sizes count with their values in tracing."""
    value = node.meta.get("val")
    entries: Sequence[object] = value if isinstance(value, (list, tuple)) else (value,)
    tensors = (entry for entry in entries if isinstance(entry, torch.Tensor))
    return sum(prod(hint(n, 1) for n in each.shape) * each.element_size() for each in tensors)


def elements_of(node: Node) -> int:
    """How many elements a node's tensor has; 0 if it has none or several tensors."""
    value = node.meta.get("val")
    return bytes_of(node) // value.element_size() if isinstance(value, torch.Tensor) else 0


def note_storages(kept: Node, gone: Node) -> None:
    """Notes that the metadata of views of `gone`, which `kept` replaces, has its storages, and
    where `gone` begins in each.

    The storages are kept, because another one could get the address of one that is freed.
    """
    value = gone.meta.get("val")
    entries: Sequence[object] = value if isinstance(value, (list, tuple)) else (value,)
    found = tuple(
        (entry.untyped_storage(), entry.storage_offset())
        for entry in entries
        if isinstance(entry, torch.Tensor) and entry.layout is torch.strided
    )
    kept.meta[_STORAGES] = (*_noted(kept), *_noted(gone), *found)


def note_storage_of(source: Node, view: Node) -> None:
    """Notes that the metadata of a view of `source` may have the storage of what `source` replaced.

    What was replaced began where `source` does in its own.
    """
    value, own = tensor_of(view), tensor_of(source)
    if value is not None and own is not None and not _has_storage_of(view, source):
        noted = (value.untyped_storage(), own.storage_offset())
        source.meta[_STORAGES] = (*_noted(source), noted)


def _noted(node: Node) -> tuple[tuple[torch.UntypedStorage, int | torch.SymInt], ...]:
    found: tuple[tuple[torch.UntypedStorage, int | torch.SymInt], ...]
    found = node.meta.get(_STORAGES, ())
    return found


def is_view(node: Node) -> bool:
    """True for a node that is only a view of the memory of its first argument."""
    source = viewed(node)
    if source is None:
        return False
    value, other = tensor_of(node), tensor_of(source)
    if value is None or other is None or value.dtype != other.dtype:
        return False
    if value.is_neg() or value.is_conj() or value.is_complex():
        return False
    return _has_storage_of(node, source) and not _counts_from_storage(node)


def _has_storage_of(node: Node, source: Node) -> bool:
    """True if two nodes have one storage in their metadata."""
    return _begin_in_storage(node, source) is not None


def _begin_in_storage(node: Node, source: Node) -> int | torch.SymInt | None:
    """Where `source` begins in the storage that a node has in its metadata; None if it has another.

    That may be the storage of a node that `source` has replaced, where it began elsewhere.
    """
    value, other = tensor_of(node), tensor_of(source)
    if value is None or other is None:
        return None
    storage = value.untyped_storage()._cdata
    known = ((other.untyped_storage(), other.storage_offset()), *_noted(source))
    return next((begin for each, begin in known if each._cdata == storage), None)


def _counts_from_storage(node: Node) -> bool:
    """True for `as_strided` of an argument with an offset from the beginning of its storage.

    An argument may begin at another place of its storage in each call.
    """
    if not _has_storage_offset(node):
        return False
    while (source := viewed(node)) is not None:
        node = source
    return node.op == "placeholder"


def _has_storage_offset(node: Node) -> bool:
    """True for `as_strided` from a place of the storage."""
    if node.target is not aten.as_strided.default:
        return False
    offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
    return offset is not None


def shows_storage(node: Node) -> bool:
    """True if a view of a node's memory depends on where the node begins in its storage."""
    return any(
        _has_storage_offset(user) or (shares_memory(user) and shows_storage(user))
        for user in node.users
    )


def shares_memory(node: Node) -> bool:
    """True for a view of the first argument's memory of any kind: `is_view`, or what torch makes.

    torch makes views of another dtype, of complex numbers and of their parts.
    """
    source = viewed(node)
    if source is None:
        return False
    return not facts(node).may_view or _has_storage_of(node, source)


def is_updated(node: Node) -> bool:
    """True if an input, or the base of a view, is written to in the end."""
    base = base_of(node)
    return any(user.target is aten.copy_.default and user.args[0] is base for user in base.users)


def base_of(node: Node) -> Node:
    """What a view, or a view of a view, shares its memory with; other nodes unchanged."""
    while shares_memory(node) and (source := viewed(node)) is not None:
        node = source
    return node


def leaves_graph(node: Node) -> bool:
    """True if a node's memory is visible outside the graph: it, or a view of it, is a result."""
    return any(
        user.op == "output" or (shares_memory(user) and leaves_graph(user)) for user in node.users
    )


def is_view_list(node: Node) -> bool:
    """True for `split` and similar ops, whose results are views of their first argument."""
    if not isinstance(node.meta.get("val"), (list, tuple)) or viewed(node) is None:
        return False
    return all(is_view(user) for user in node.users)


def viewed(node: Node) -> Node | None:
    """The node of which a node may be a view, judging only by its op."""
    if node.op != "call_function" or not node.args:
        return None
    source = node.args[0]
    if not isinstance(source, Node):
        return None
    if is_getitem(node):
        # split and similar ops return several views of one tensor
        return viewed(source) if _returns_views(source) else None
    return source if _returns_views(node) else None


def is_in_steps(node: Node) -> bool:
    """True for a view, or a list of views, of elements a few places apart, where none are between
    those of the viewed tensor."""
    source = viewed(node)
    base = None if source is None else tensor_of(source)
    value = node.meta.get("val")
    each = value[0] if isinstance(value, (list, tuple)) and value else value
    if base is None or not isinstance(each, torch.Tensor):
        return False
    return _step(base) == 1 and 1 < _step(each) <= MOST_OF_SHORT_ROW


def _step(value: torch.Tensor) -> int:
    """The least known stride of an axis with more than one element; 0 if there is none."""
    moving = [
        stride
        for size, stride in zip(value.shape, value.stride(), strict=True)
        if isinstance(stride, int) and not (isinstance(size, int) and size == 1)
    ]
    return min(moving, default=0)


def is_getitem(node: Node) -> bool:
    """True for the nodes that select one of several results."""
    return getattr(node.target, "__name__", "") == "getitem" and node.op == "call_function"


def runs(node: Node) -> bool:
    """False for nodes that the wrapper doesn't run: picks, and arithmetic on sizes."""
    if is_getitem(node) or is_view_list(node):
        return False
    value = node.meta.get("val")
    return not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))


def _returns_views(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if facts(node).may_view:
        return True
    schema = node.target._schema
    return not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)


def returns_only_views(node: Node) -> bool:
    """True for an op, or a pick of its results, that never allocates memory for a result."""
    call = node.args[0] if is_getitem(node) else node
    if not isinstance(call, Node) or not _returns_views(call) or facts(call).may_view:
        return False
    assert isinstance(call.target, torch._ops.OpOverload)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = call.target.name()  # type: ignore[no-untyped-call]
    return not has_kernel(name, "CompositeImplicitAutograd")  # as `to` has


class Views:
    """The view of every tensor node of a graph."""

    def __init__(self, nodes: list[Node]) -> None:
        self._views: dict[Node, View] = {}
        self._sources: dict[Node, Node] = {}  # of views that torch makes
        for node in nodes:
            value = tensor_of(node)
            if value is None:
                continue
            if node.target is aten.copy_.default:  # the memory that was written to, not new memory
                target = node.args[0]
                assert isinstance(target, Node)
                self._views[node] = self._views[target]
                continue
            base, offset = node, size_of(0)
            source = viewed(node)
            if is_view(node):
                assert source is not None
                begin = _begin_in_storage(node, source)
                assert begin is not None
                base = self._views[source].base
                offset = self._views[source].offset + size_of(value.storage_offset() - begin)
            elif source is not None and shares_memory(node):
                self._sources[node] = source
            self._views[node] = View(base, sizes_of(value.shape), sizes_of(value.stride()), offset)

    def __getitem__(self, node: Node) -> View:
        return self._views[node]

    def __contains__(self, node: Node) -> bool:
        return node in self._views

    def base(self, node: Node) -> Node:
        """The node whose memory this one views; itself if it isn't a view."""
        view = self._views.get(node)
        return node if view is None else view.base

    def memory(self, node: Node) -> list[Node]:
        """The nodes whose memory a node may have: its base, and what that is torch's view of."""
        found = [self.base(node)]
        while (source := self._sources.get(found[-1])) is not None:
            found.append(self.base(source))
        return found
