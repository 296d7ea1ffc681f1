"""Products, convolutions and attention of half precision in float32, where the library has no
instructions for it (devices/library_dtypes.py).

    Before:  c = mm(gelu(x), t(w))             # bfloat16
    After:   c = _to_copy(mm(_to_copy(gelu(x), float32), t(_to_copy(w, float32))), bfloat16)

The conversions are parts of the kernels around the call, which compute in float32 anyway; only a
weight is converted by itself.  The sums are rounded once, as the library's are, so no result is
less exact.

Measured on a Zen 3, two threads, part of the time with the conversions as calls of their own:
products of 32 and 256 rows 0.39 and 0.20 (bfloat16), 0.52 and 0.22 (float16), batches of 256x256
0.07 and 0.09; gradients of attention 0.2 and 0.1, attention itself 1.0 and 0.3 to 0.6; 3x3
convolutions 0.03, channels-last 0.12.  The library multiplies a few rows by a matrix that lies
transposed as fast as memory allows: up to 8, with a matrix of 4096x4096, it takes 0.3 to 0.9 of
the time of converting and multiplying; if the matrix doesn't lie so, 14 to 60 times of it.

Its place: before copies that are no longer needed are dropped, and before a product takes its bias
(linear.py), which belongs to the kernel that rounds the product.
"""

from __future__ import annotations

from math import prod

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ...devices.library_dtypes import is_faster_in_float32, is_read_once
from ..aten import refusal
from ..sizes import hints
from ..traced_layouts import is_dense
from ..views import elements_of, is_getitem, is_updated, tensor_of
from .attention import ATTENTION
from .metadata import call_traced, item_of
from .reshapes import RESHAPES

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
WIDENED = (
    *_PRODUCTS,
    aten.matmul.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    ATTENTION,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)
# The library computes fewer multiplications in less time than a call takes.
_FEWEST_MULTIPLICATIONS = 1 << 13
# Views of all elements, which are views of the converted elements as well.
_VIEWS = (
    *RESHAPES,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
)


def widen_half_products(graph: Graph) -> None:
    """Replaces the library's calls in half precision that take less time in float32."""
    converted: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.target in WIDENED and _is_wanted(node):
            _widen(graph, node, converted)


def _is_wanted(node: Node) -> bool:
    dtype = dtype_of(node)
    if dtype is None or not is_faster_in_float32(dtype) or refusal(node) is None:
        return False
    operands = [value for each in node.all_input_nodes if (value := tensor_of(each)) is not None]
    if any(value.device.type != "cpu" or value.is_neg() for value in operands):
        return False
    if node.target not in _PRODUCTS:
        return True
    left, right = operands[-2:]
    *batch, rows, inner = hints(left.shape)
    (columns,) = hints(right.shape[-1:])
    if prod(batch) * rows * inner * columns < _FEWEST_MULTIPLICATIONS:
        return False
    return batch != [] or not is_read_once(rows, hints((left.stride(-1), right.stride(-2))))


def dtype_of(node: Node) -> torch.dtype | None:
    """The dtype of a call's first result."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        value = next((each for each in value if each is not None), None)
    return value.dtype if isinstance(value, torch.Tensor) else None


def _widen(graph: Graph, node: Node, converted: dict[Node, Node]) -> None:
    """Replaces a call, unless its results would lie in another order in memory."""
    dtype = dtype_of(node)

    def wide(operand: Node) -> Node:
        return _wide(graph, operand, converted) if dtype_of(operand) == dtype else operand

    with graph.inserting_before(node):
        arguments, keywords = map_arg((node.args, node.kwargs), wide)
        call = call_traced(graph, node.target, *arguments, **keywords)
        results = [user for user in node.users if is_getitem(user)] or [node]
        items = [_item(graph, call, result) for result in results]
    if not all(map(_lies_as, items, results)):
        for item in dict.fromkeys((*items, call)):
            graph.erase_node(item)
        return
    for found, result in zip(items, results, strict=True):
        with graph.inserting_before(result):
            if dtype_of(result) == dtype:
                found = call_traced(graph, aten._to_copy.default, found, dtype=dtype)
                found.meta = dict(result.meta)  # its views have the storage of this metadata
        result.replace_all_uses_with(found)
        graph.erase_node(result)
    if results != [node]:
        graph.erase_node(node)


def _item(graph: Graph, call: Node, result: Node) -> Node:
    """The same result of another call."""
    if not is_getitem(result):
        return call
    number = result.args[1]
    assert isinstance(number, int)
    return item_of(graph, call, number)


def _lies_as(found: Node, result: Node) -> bool:
    value, known = tensor_of(found), tensor_of(result)
    assert value is not None and known is not None
    return hints(value.stride()) == hints(known.stride())


def _wide(graph: Graph, operand: Node, converted: dict[Node, Node]) -> Node:
    """A node with an operand in float32, of what was rounded to half precision if it was."""
    if operand in converted:
        return converted[operand]
    source = operand.args[0] if operand.op == "call_function" and operand.args else None
    if isinstance(source, Node) and _is_rounding(operand, source):
        found = source
    elif isinstance(source, Node) and _is_view_of_all(operand, source):
        wide = _wide(graph, source, converted)
        found = call_traced(graph, operand.target, wide, *operand.args[1:], **operand.kwargs)
    else:
        found = call_traced(graph, aten._to_copy.default, operand, dtype=torch.float32)
    if not is_updated(operand):
        converted[operand] = found
    return found


def _is_rounding(operand: Node, source: Node) -> bool:
    """True for what was rounded from float32, and lies as that does."""
    if operand.target is not aten._to_copy.default or is_updated(source):
        return False
    value, known = tensor_of(operand), tensor_of(source)
    if value is None or known is None or known.dtype != torch.float32:
        return False
    same = value.device == known.device and hints(value.stride()) == hints(known.stride())
    return same and not known.is_neg()


def _is_view_of_all(operand: Node, source: Node) -> bool:
    """True for views that need no more elements converted, whatever these are views of."""
    value = tensor_of(source)
    if operand.target not in _VIEWS or value is None or value.is_neg() or not is_dense(value):
        return False
    return elements_of(source) <= elements_of(operand)
