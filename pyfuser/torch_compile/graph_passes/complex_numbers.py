"""Computes with the real and imaginary parts of complex tensors, as tensors of real numbers.

Kernels have no complex numbers, so each operation on them would be a call of torch.  Most are a few
operations on their parts, which are views of a complex tensor's memory, two numbers apart.

    Before:  a = view_as_complex(x);  b = mul(a, w);  y = view_as_real(b)
    After:   v = view_as_real(w);  re, im = x[..., 0], x[..., 1];  c, d = v[..., 0], v[..., 1]
             y = stack([re * c - im * d, re * d + im * c], -1)

What other operations read stays complex: they get a view of the stacked parts.  Where that, and
the views of the parts, would be no fewer calls than before, nothing is changed: a product of two
Fourier transforms is one call.

Infinities: torch multiplies a complex and a real number as two complex ones, so that the imaginary
part of (inf + i) * 2 is nan, by inf * 0. Here it's 2.

It runs before the passes that look for what kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from ...ir.disjoint_sets import DisjointSets
from ..sizes import sizes_of
from ..traced_layouts import is_dense
from ..views import is_updated, leaves_graph, note_storages, shares_memory, tensor_of
from .metadata import call_traced, set_metadata
from .reshapes import with_sizes_and_strides

aten = torch.ops.aten

Part = Any  # a node, a number, or None for nothing
Parts = tuple[Part, Part]  # the real and the imaginary part

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def compute_in_parts(graph: Graph) -> None:
    """Replaces the operations on complex numbers, where that makes fewer calls."""
    chosen = _chosen(graph)
    if chosen:
        _Rewriter(graph, chosen).run()


# -- which operations

_VIEWS = {
    *(aten.expand.default, aten.permute.default, aten.transpose.int, aten.t.default),
    *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    *(aten.slice.Tensor, aten.select.int, aten.alias.default, aten.detach.default),
}
# Of one complex tensor: applied to each part.
_ON_EACH = {
    *_VIEWS,
    *(aten.flip.default, aten.clone.default, aten.neg.default),
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.dim),
}
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_CONJUGATES = {aten._conj.default, aten._conj_physical.default, aten.conj_physical.default}
# Calls that torch makes without computing anything.
_FREE = {
    *_VIEWS,
    *(aten.view.default, aten._unsafe_view.default),
    *(aten._conj.default, aten.view_as_complex.default),
}


def _chosen(graph: Graph) -> dict[Node, None]:
    """The nodes that are replaced: sets of those that read the same complex numbers.

    A call that computes something counts as much as two for views of parts, or of stacked parts.
    """
    able = dict.fromkeys(node for node in graph.nodes if _is_able(node))
    while unable := _of_no_use(able):
        for node in unable:
            del able[node]
    sets: DisjointSets[Node] = DisjointSets()
    sources: dict[Node, None] = {}
    for node in able:
        for operand in filter(_is_complex, node.all_input_nodes):
            sets.join(operand, node)
            if operand not in able:
                sources[operand] = None
    stored = _stored(able)
    saved: dict[Node, int] = {}  # by a set's representative
    for node in able:
        root = sets.find(node)
        calls = 2 * (node.target not in _FREE) - (node in stored)
        saved[root] = saved.get(root, 0) + calls
    for source in sources:
        saved[sets.find(source)] -= 1
    return {node: None for node in able if saved[sets.find(node)] > 0}


def _of_no_use(able: dict[Node, None]) -> list[Node]:
    """Views of the parts of what isn't computed with parts, and what would have to be stored in a
    layout with gaps."""
    stored = _stored(able)
    return [
        node
        for node in able
        if (node.target is aten.view_as_real.default and node.args[0] not in able)
        or (node in stored and not is_dense(node.meta["val"]))
    ]


def _stored(able: dict[Node, None]) -> set[Node]:
    """The computed nodes that others read, too, or a view of which they read."""
    read: set[Node] = set()
    for node in reversed(able):
        if _is_complex(node) and any(
            user not in able or (user in read and user.target in _FREE) for user in node.users
        ):
            read.add(node)
    return {node for node in read if node.target not in _FREE}


def _is_complex(node: Any) -> bool:
    value = tensor_of(node) if isinstance(node, Node) else None
    return value is not None and value.is_complex()


def _is_able(node: Node) -> bool:
    """True if the operation, with these operands, can be computed with parts."""
    value = tensor_of(node)
    if node.op != "call_function" or value is None:
        return False
    if value.is_complex() and value.dtype not in _REAL:
        return False
    complexes = [each for each in node.all_input_nodes if _is_complex(each)]
    if any(not _has_parts(each) for each in complexes):
        return False
    if node.target in _CONJUGATES and isinstance(node.args[0], complex):
        return True
    if node.target in _ON_EACH | _RESHAPES | _CONJUGATES:
        return bool(complexes) and not node.kwargs.get("dtype")
    if node.target is aten.new_zeros.default:
        return value.is_complex() and bool(complexes)
    if node.target is aten.view_as_real.default and complexes and complexes[0].target in _FREE:
        return all(_is_half(user) for user in node.users)  # a view of a view shares its memory
    if node.target is aten.abs.default and any(user.target in _COMPARISONS for user in node.users):
        return False  # the other number may be rounded otherwise
    rule = _RULES.get(node.target)
    return rule is not None and bool(complexes or value.is_complex()) and _fits(node)


def _is_half(node: Node) -> bool:
    """True for a part of `view_as_real`; a result has to keep its strides, and its memory."""
    if node.target is not aten.select.int or leaves_graph(node):
        return False
    return node.args[1] in (-1, node.meta["val"].dim()) and _has_known_views(node)


def _has_known_views(node: Node) -> bool:
    """True if all views of a node can be made of a tensor in another layout."""
    views = [user for user in node.users if shares_memory(user)]
    return all(each.target in _FREE | _RESHAPES and _has_known_views(each) for each in views)


def _view_again(nodes: Iterable[Node]) -> None:
    """Those of some nodes that are views get the layout of what they view now."""
    for node in nodes:
        if node.target in _FREE | _RESHAPES:
            if node.target in _RESHAPES:
                node.target = aten.reshape.default
            set_metadata(node, node.target, node.args)
            _view_again(node.users)


def _has_parts(node: Node) -> bool:
    """True if the parts of a complex tensor can be viewed."""
    value = tensor_of(node)
    return value is not None and value.dtype in _REAL and not is_updated(node)


def _viewed_by_torch(node: Node) -> Node:
    while node.target in _FREE and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _fits(node: Node) -> bool:
    """True for operands of which parts make the result's parts, in its shape and type."""
    value = tensor_of(node)
    assert value is not None
    most = _ARGUMENTS.get(node.target, 2)  # further ones are factors
    if node.kwargs or len(node.args) > most or any(isinstance(a, (list, tuple)) for a in node.args):
        return False
    tensors = [each for n in node.all_input_nodes if (each := tensor_of(n)) is not None]
    real = _REAL.get(value.dtype, value.dtype)
    parts = [each for each in tensors if each.is_complex() or node.target is aten.complex.default]
    if node.target in _OF_COMPLEX and any(
        not each.is_complex() and each.dtype != torch.bool for each in tensors
    ):
        return False
    if node.target in _BY_REAL and (_is_complex(node.args[1]) or isinstance(node.args[1], complex)):
        return False
    if node.target in _AS_THEY_ARE and any(
        sizes_of(each.shape) != sizes_of(value.shape) for each in parts
    ):
        return False
    of_parts = [_REAL.get(each.dtype, each.dtype) for each in tensors if each.dim()]
    return all(each == real or each == torch.bool for each in of_parts) and bool(of_parts)


# -- what the parts of results are


class _Rewriter:
    """Makes the parts of the chosen nodes, in the order of the graph."""

    def __init__(self, graph: Graph, chosen: dict[Node, None]) -> None:
        self.graph = graph
        self.chosen = chosen
        self.stored = _stored(chosen)
        self.parts: dict[Node, Parts] = {}
        self.stacked: dict[Node, Node] = {}

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node not in self.chosen:
                continue
            with self.graph.inserting_before(node):
                if not _is_complex(node):
                    self._replace_real(node)
                    continue
                self.parts[node] = self._made(node)
                if node in self.stored:
                    whole = self._whole(node)
                    self.parts[whole] = self.parts[node]
                    self._replace(node, whole, self._reads_whole)

    def _replace(
        self, old: Node, new: Node, where: Callable[[Node], bool] = lambda _: True
    ) -> None:
        """Readers that `where` is true of read the new node; some may be views of it."""
        old.replace_all_uses_with(new, where)
        note_storages(new, old)

    def _reads_whole(self, user: Node) -> bool:
        """True for what isn't replaced, and for views, which others may read."""
        return user not in self.chosen or user.target in _FREE

    def call(self, op: Any, *arguments: Any, **keywords: Any) -> Node:
        return call_traced(self.graph, op, *arguments, **keywords)

    def of(self, operand: Any) -> Parts:
        """The parts of an operand; a real one has no imaginary part."""
        if isinstance(operand, complex):
            return (operand.real or None, operand.imag) if operand.imag else (operand.real, None)
        if not _is_complex(operand):
            return operand, None
        if operand not in self.parts:
            self.parts[operand] = self._viewed(operand)
        return self.parts[operand]

    def _viewed(self, node: Node) -> Parts:
        """Of a complex tensor in memory, the parts as views of it."""
        if node.meta["val"].is_conj():
            is_view = node.target is aten._conj.default
            re, im = self.of(node.args[0] if is_view else self.call(aten._conj.default, node))
            return re, self.neg(im)
        # A gradient that a backward gets may be a conjugate in one call and not in another.
        given = _viewed_by_torch(node)
        is_gradient = given.op == "placeholder" and str(given.target).startswith("tangents")
        stored = self.call(aten.resolve_conj.default, node) if is_gradient else node
        return self.halves(self.call(aten.view_as_real.default, stored))

    def halves(self, pairs: Node) -> Parts:
        """The first and the second of each two numbers along the last axis."""
        last = pairs.meta["val"].dim() - 1
        real, imaginary = (self.call(aten.select.int, pairs, last, i) for i in (0, 1))
        return real, imaginary

    def _made(self, node: Node) -> Parts:
        first = node.args[0]
        if node.target in _CONJUGATES:
            re, im = self.of(first)
            return re, self.neg(im)
        if node.target in _ON_EACH | _RESHAPES:
            op = aten.reshape.default if node.target in _RESHAPES else node.target
            return self.on_each(op, *node.args, **node.kwargs)
        if node.target is aten.new_zeros.default:
            part = self.call(node.target, self.of(first)[0], *node.args[1:])
            return part, part
        return self.complete(_RULES[node.target](self, *node.args))

    def on_each(self, op: Any, *operands: Any, **keywords: Any) -> Parts:
        """An operation on the real parts, and one on the imaginary ones; the rest is for both."""
        parts = [self.of(each) if _is_complex(each) else (each, each) for each in operands]
        real, imaginary = zip(*parts, strict=True)
        return self.call(op, *real, **keywords), self.call(op, *imaginary, **keywords)

    def _whole(self, node: Node) -> Node:
        """A complex tensor in memory, with the strides of the node's metadata.

        A result may be changed in place, so it is no view that autograd knows of.
        """
        viewed = self.call(aten.view_as_complex.default, self._stacked(node))
        return self.call(aten.detach.default, viewed) if leaves_graph(node) else viewed

    def _stacked(self, node: Node) -> Node:
        """The parts in one tensor, the same one for the complex result and for what views it."""
        if node not in self.stacked:
            self.stacked[node] = self._stack(node)
        return self.stacked[node]

    def _stack(self, node: Node) -> Node:
        value = tensor_of(node)
        assert value is not None
        last = value.dim()
        columns = [self.call(aten.unsqueeze.default, part, last) for part in self.parts[node]]
        stacked = self.call(aten.cat.default, columns, last)
        of = stacked.meta["val"]
        strides = [*(step * 2 for step in value.stride()), 1]
        stacked.meta["val"] = with_sizes_and_strides(of, list(of.shape), strides)
        return stacked

    def _replace_real(self, node: Node) -> None:
        if node.target is aten.view_as_real.default:
            source = node.args[0]
            assert isinstance(source, Node)
            self.of(source)
            for user in list(node.users):
                if _is_half(user):
                    part = self.parts[source][int(user.args[2])]  # type: ignore[arg-type]
                    readers = list(user.users)
                    self._replace(user, part)
                    _view_again(readers)
            if any(user.users or user.op == "output" for user in node.users):
                self._replace(node, self._stacked(source))
            return
        made: Node = _RULES[node.target](self, *node.args)
        made.meta["val"] = node.meta["val"]
        self._replace(node, made)

    # -- arithmetic, without the parts that aren't there

    def mul(self, a: Part, b: Part) -> Part:
        if a is None or b is None:
            return None
        if isinstance(a, Node):
            return self.call(aten.mul.Tensor, a, b)
        return self.call(aten.mul.Tensor, b, a) if isinstance(b, Node) else a * b

    def add(self, a: Part, b: Part) -> Part:
        if a is None or b is None:
            return b if a is None else a
        if isinstance(a, Node):
            return self.call(aten.add.Tensor, a, b)
        return self.call(aten.add.Tensor, b, a) if isinstance(b, Node) else a + b

    def neg(self, a: Part) -> Part:
        if a is None:
            return None
        return self.call(aten.neg.default, a) if isinstance(a, Node) else -a

    def sub(self, a: Part, b: Part) -> Part:
        if isinstance(a, Node) and isinstance(b, Node):
            return self.call(aten.sub.Tensor, a, b)
        return self.add(a, self.neg(b))

    def complete(self, parts: Parts) -> Parts:
        """The parts as tensors."""
        (tensor, *_) = (part for part in parts if isinstance(part, Node))
        real, imaginary = (
            part if isinstance(part, Node) else self.call(aten.full_like.default, tensor, part or 0)
            for part in parts
        )
        return real, imaginary


def _product(w: _Rewriter, a: Any, b: Any) -> Parts:
    (ar, ai), (br, bi) = w.of(a), w.of(b)
    return w.sub(w.mul(ar, br), w.mul(ai, bi)), w.add(w.mul(ar, bi), w.mul(ai, br))


def _sum(w: _Rewriter, a: Any, b: Any) -> Parts:
    (ar, ai), (br, bi) = w.of(a), w.of(b)
    return w.add(ar, br), w.add(ai, bi)


def _difference(w: _Rewriter, a: Any, b: Any) -> Parts:
    (ar, ai), (br, bi) = w.of(a), w.of(b)
    return w.sub(ar, br), w.sub(ai, bi)


def _absolute(w: _Rewriter, a: Any) -> Node:
    return w.call(aten.hypot.default, *w.of(a))


def _sign(w: _Rewriter, a: Any) -> Parts:
    """A number divided by its absolute value; 0 for 0."""
    re, im = w.of(a)
    size = w.call(aten.hypot.default, re, im)
    is_zero = w.call(aten.eq.Scalar, size, 0)
    divisor = w.call(aten.masked_fill.Scalar, size, is_zero, 1)
    return w.call(aten.div.Tensor, re, divisor), w.call(aten.div.Tensor, im, divisor)


def _angle(w: _Rewriter, a: Any) -> Node:
    re, im = w.of(a)
    return w.call(aten.atan2.default, im, re)


def _of_angle(w: _Rewriter, size: Any, angle: Any) -> Parts:
    cos, sin = (w.call(op, angle) for op in (aten.cos.default, aten.sin.default))
    return w.call(aten.mul.Tensor, size, cos), w.call(aten.mul.Tensor, size, sin)


def _on_each(op: Any) -> Callable[..., Parts]:
    return lambda w, *operands: w.on_each(op, *operands)


# The parts of a result, or a result that is real, from operands.
_RULES: dict[Any, Callable[..., Any]] = {
    aten.mul.Tensor: _product,
    aten.mul.Scalar: _product,
    aten.add.Tensor: _sum,
    aten.add.Scalar: _sum,
    aten.sub.Tensor: _difference,
    aten.sub.Scalar: _difference,
    aten.div.Tensor: _on_each(aten.div.Tensor),
    aten.div.Scalar: _on_each(aten.div.Tensor),
    aten.abs.default: _absolute,
    aten.sgn.default: _sign,
    aten.angle.default: _angle,
    aten.polar.default: _of_angle,
    aten.complex.default: lambda w, re, im: (re, im),
    aten.view_as_complex.default: lambda w, pairs: w.halves(pairs),
    aten.view_as_real.default: lambda w, a: None,
    aten.slice_scatter.default: _on_each(aten.slice_scatter.default),
    aten.copy.default: lambda w, a, source: w.of(source),
    aten.where.self: _on_each(aten.where.self),
}
_ARGUMENTS: dict[Any, int] = {aten.where.self: 3, aten.slice_scatter.default: 6}
# A part of an operand may be one of the result, so it must have its shape.
_AS_THEY_ARE = {
    *(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar),
    *(aten.where.self, aten.copy.default, aten.complex.default),
}
_OF_COMPLEX = {aten.where.self, aten.slice_scatter.default, aten.copy.default}
_BY_REAL = {aten.div.Tensor, aten.div.Scalar}
_COMPARISONS = {
    getattr(getattr(aten, name), kind)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("Tensor", "Scalar")
}
