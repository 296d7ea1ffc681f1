"""Writes out the attention layers of a Dynamo graph, without torch's copies.

torch's function wants the sequence first, copies what `batch_first` transposes, packs queries, keys
and values anew after their product, and, unless told otherwise, makes weights that nobody reads.
Written out, the products read the input as it lies, and attention reads the products in place.

    Before:  y = x.transpose(1, 0); r = multi_head_attention_forward(y, y, y, ...)[0]
             z = r.transpose(1, 0).contiguous()
    After:   q, k, v = linear(x, w, b).chunk(3, -1)                           [batch, length, width]
             z = linear(joined(scaled_dot_product_attention(heads(q), heads(k), heads(v))), ...)

Layers with additional keys (`bias_k`, `add_zero_attn`, static ones), without a batch, or whose
weights are read stay.  If the layer hasn't been told that the weights aren't needed, it also stays
with a mask, which decides what a query without any key gets, and with gradients, which attention
computes from rounded logarithms of sums: measured, with scores in the hundreds, to a tenth of the
precision.

In inference, torch has one operation for a whole layer of an encoder, which no kernel could be
joined with: without a mask, it is written out, too.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional

from .dynamo_graphs import graphs_in

_ENCODER: Any = torch._transformer_encoder_layer_fwd
# The arguments before its masks, by the names that `multi_head_attention_forward` has for them.
_ENCODER_ARGUMENTS = (
    *("rows", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias"),
    *("out_proj_weight", "out_proj_bias", "use_gelu", "norm_first", "eps"),
    *("norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2"),
    *("weight_1", "bias_1", "weight_2", "bias_2"),
)
_WITHOUT_MASK = {
    **dict.fromkeys(("training", "use_separate_proj_weight", "is_causal"), False),
    **dict.fromkeys(("attn_mask", "key_padding_mask")),
}
_CONTIGUOUS: dict[str, Any] = {"memory_format": torch.contiguous_format}


def write_out_attention_layers(graph_module: GraphModule) -> None:
    """Changes the layers of a Dynamo graph, and of the graphs in it."""
    for module in graphs_in(graph_module):
        found = module.graph.find_nodes
        attentions = found(op="call_function", target=functional.multi_head_attention_forward)
        changed = [_write_out_attention(module.graph, layer) for layer in attentions]
        encoders = found(op="call_function", target=_ENCODER)
        changed += [_write_out_encoder(module.graph, layer) for layer in encoders]
        if any(changed):
            module.recompile()


@cache
def _signature() -> inspect.Signature:
    return inspect.signature(functional.multi_head_attention_forward)


def _write_out_attention(graph: Graph, layer: Node) -> bool:
    """Replaces an attention; False if it is one of those that stay."""
    given = _signature().bind(*layer.args, **layer.kwargs)
    given.apply_defaults()
    arguments = given.arguments
    operands = [arguments[name] for name in ("query", "key", "value")]
    masks = [m for m in (arguments["attn_mask"], arguments["key_padding_mask"]) if m is not None]
    if any(_value(node) is None for node in (*operands, *masks)):
        return False
    if not _is_usual(layer, arguments) or not all(map(_is_batched, operands)):
        return False
    batch_first = all(map(_is_transposed, operands))
    if batch_first:
        operands = [operand.args[0] for operand in operands]
    with graph.inserting_before(layer):
        result = _Writer(graph, arguments, batch_first).attention(*operands)
    for output in list(layer.users):
        _replace(graph, output, result, batch_first)
    graph.erase_node(layer)
    return True


def _write_out_encoder(graph: Graph, layer: Node) -> bool:
    """Replaces a layer of an encoder; False if it has a mask."""
    if layer.kwargs or len(layer.args) < len(_ENCODER_ARGUMENTS):
        return False
    count = len(_ENCODER_ARGUMENTS)
    arguments = _WITHOUT_MASK | dict(zip(_ENCODER_ARGUMENTS, layer.args, strict=False))
    rows: Any = arguments["rows"]
    if any(mask is not None for mask in layer.args[count:]) or _value(rows) is None:
        return False
    if not _is_batched(rows) or _known(rows).is_nested:
        return False
    with graph.inserting_before(layer):
        result = _Writer(graph, arguments, batch_first=True).encoder_layer(rows)
    result.meta = dict(layer.meta)  # the next layer reads it
    layer.replace_all_uses_with(result)
    graph.erase_node(layer)
    return True


def _replace(graph: Graph, output: Node, result: Node, batch_first: bool) -> None:
    """Replaces a layer's result, in whose memory the length comes first.

    A kernel that reads a copy in that order reads what is copied.
    """
    if batch_first:
        for reader in list(output.users):
            if _is_transposed(reader) and all(map(_is_contiguous, reader.users)):
                result.meta = dict(reader.meta)
                reader.replace_all_uses_with(result)
                graph.erase_node(reader)
        with graph.inserting_before(output):
            transposed = graph.call_function(torch.transpose, (result, 0, 1))
            result = graph.call_function(torch.clone, (transposed,), _CONTIGUOUS)
    result.meta = dict(output.meta)
    output.replace_all_uses_with(result)
    graph.erase_node(output)


def _is_usual(layer: Node, arguments: dict[str, Any]) -> bool:
    """True if a layer of a known width has no additional keys, and nobody reads its weights."""
    if not isinstance(arguments["embed_dim_to_check"], int):
        return False
    unusual = ("bias_k", "bias_v", "static_k", "static_v")
    if any(arguments[name] is not None for name in unusual) or arguments["add_zero_attn"]:
        return False
    if not all(user.target is operator.getitem and user.args[1] == 0 for user in layer.users):
        return False
    masks = arguments["attn_mask"], arguments["key_padding_mask"]
    is_random = arguments["training"] and arguments["dropout_p"] != 0
    is_free = masks == (None, None) and not is_random and not torch.is_grad_enabled()
    return is_free or not arguments["need_weights"]


def _value(argument: Any) -> torch.Tensor | None:
    """What Dynamo knows of a tensor; None for another argument."""
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _known(node: Node) -> torch.Tensor:
    value = _value(node)
    assert value is not None
    return value


def _is_batched(operand: Node) -> bool:
    """True for a tensor of three axes that isn't empty."""
    shape = _known(operand).shape
    return len(shape) == 3 and not any(isinstance(size, int) and size == 0 for size in shape)


def _is_transposed(node: Node) -> bool:
    """True for the transpose of the first two axes."""
    is_method = node.op == "call_method" and node.target == "transpose" and not node.kwargs
    return is_method and node.args[1:] in ((0, 1), (1, 0))


def _is_contiguous(node: Node) -> bool:
    is_method = node.op == "call_method" and node.target == "contiguous"
    return is_method and len(node.args) == 1 and not node.kwargs


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the calls of a layer; its rows are [batch, length, width], or the length is first."""

    graph: Graph
    arguments: dict[str, Any]
    batch_first: bool

    def encoder_layer(self, rows: Node) -> Node:
        """Attention and two linear layers, each with a norm, and added to what it reads."""
        if self.arguments["norm_first"]:
            normed = self._norm(rows, 1)
            rows = self._call(operator.add, rows, self.attention(normed, normed, normed))
            return self._call(operator.add, rows, self._linear_layers(self._norm(rows, 2)))
        added = self._call(operator.add, rows, self.attention(rows, rows, rows))
        rows = self._norm(added, 1)
        return self._norm(self._call(operator.add, rows, self._linear_layers(rows)), 2)

    def _norm(self, rows: Node, number: int) -> Node:
        weight, bias = (self.arguments[f"norm_{name}_{number}"] for name in ("weight", "bias"))
        width = (self.arguments["embed_dim_to_check"],)
        return self._call(functional.layer_norm, rows, width, weight, bias, self.arguments["eps"])

    def _linear_layers(self, rows: Node) -> Node:
        activation = functional.gelu if self.arguments["use_gelu"] else functional.relu
        first, second = (
            (self.arguments[f"weight_{number}"], self.arguments[f"bias_{number}"])
            for number in (1, 2)
        )
        hidden = self._call(activation, self._call(functional.linear, rows, *first))
        return self._call(functional.linear, hidden, *second)

    def attention(self, query: Node, key: Node, value: Node) -> Node:
        """The result of an attention."""
        heads = [self._heads(rows) for rows in self._projections(query, key, value)]
        mask, is_causal = self._mask()
        dropout = self.arguments["dropout_p"] if self.arguments["training"] else 0.0
        attention = functional.scaled_dot_product_attention
        found = self._call(attention, *heads, mask, dropout, is_causal)
        back = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        joined = self._call(torch.flatten, self._call(torch.permute, found, back), -2)
        weight, bias = self.arguments["out_proj_weight"], self.arguments["out_proj_bias"]
        return self._call(functional.linear, joined, weight, bias)

    def _heads(self, rows: Node) -> Node:
        """[batch, heads, length, width] of rows."""
        split = self._call(torch.unflatten, rows, -1, (self.arguments["num_heads"], -1))
        order = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        return self._call(torch.permute, split, order)

    def _projections(self, query: Node, key: Node, value: Node) -> list[Node]:
        """Queries, keys and values; those that have the same source are one product."""
        weight, bias = self.arguments["in_proj_weight"], self.arguments["in_proj_bias"]
        sources = [query, key, value]
        if self.arguments["use_separate_proj_weight"]:
            weights = [self.arguments[f"{name}_proj_weight"] for name in ("q", "k", "v")]
            biases = [None] * 3 if bias is None else self._parts(torch.chunk, bias, 3)
            products = zip(sources, weights, biases, strict=True)
            return [self._call(functional.linear, *each) for each in products]
        counts = [len(list(group)) for _, group in groupby(sources)]
        if len(counts) == 1:
            packed = self._call(functional.linear, query, weight, bias)
            return self._parts(torch.chunk, packed, 3, dim=-1)
        sizes = [count * self.arguments["embed_dim_to_check"] for count in counts]
        weights = self._parts(torch.split, weight, sizes)
        biases = [None] * len(sizes) if bias is None else self._parts(torch.split, bias, sizes)
        found: list[Node] = []
        for count, of_weight, of_bias in zip(counts, weights, biases, strict=True):
            packed = self._call(functional.linear, sources[len(found)], of_weight, of_bias)
            found += [packed] if count == 1 else self._parts(torch.chunk, packed, count, dim=-1)
        return found

    def _mask(self) -> tuple[Node | None, bool]:
        """What is added to the scores, and whether the mask is known to be causal."""
        mask, padding = self.arguments["attn_mask"], self.arguments["key_padding_mask"]
        if self.arguments["is_causal"] and padding is None:
            return None, True
        if mask is not None:
            is_for_heads = _known(mask).dim() == 3
            mask = self._added(mask)
            if is_for_heads:
                mask = self._call(torch.unflatten, mask, 0, (-1, self.arguments["num_heads"]))
        if padding is None:
            return mask, False
        padding = self._added(padding)
        for _ in range(2):
            padding = self._call(torch.unsqueeze, padding, 1)
        return padding if mask is None else self._call(operator.add, mask, padding), False

    def _added(self, mask: Node) -> Node:
        """A mask as numbers to be added: -inf where one of booleans is true."""
        if _known(mask).dtype is not torch.bool:
            return mask
        dtype = _known(self.arguments["query"]).dtype
        zeros = self._call(torch.zeros_like, mask, dtype=dtype)
        return self._call(torch.masked_fill, zeros, mask, float("-inf"))

    def _parts(self, split: Any, node: Node, sizes: int | list[int], **keywords: Any) -> list[Node]:
        """The results of `split`, so many or of these sizes."""
        parts = self._call(split, node, sizes, **keywords)
        count = sizes if isinstance(sizes, int) else len(sizes)
        return [self._call(operator.getitem, parts, number) for number in range(count)]

    def _call(self, function: Any, *arguments: Any, **keywords: Any) -> Node:
        node: Node = self.graph.call_function(function, arguments, keywords)
        return node
