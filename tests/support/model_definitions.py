"""Functions of real models as definitions, each beside the same function of torch.

`define_x(ops, *inputs)` adds the operations and gives the outputs; `torch_x(*inputs)` is the
reference. Sizes are those of the table in `tests/test_table_of_definitions.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pyfuser import DataType

FLOAT = DataType.Float

# -- pieces of definitions


def row(o: Any, x: Any, rank: int, dim: int = -1) -> Any:
    """A vector as a tensor of a rank, along one dimension."""
    return o.broadcast(x, [d != dim % rank for d in range(rank)])


def moments(o: Any, x: Any, dims: list[int], eps: float) -> tuple[Any, Any]:
    """(mean, 1 / deviation), with the dimensions kept."""
    variance, mean = o.var_mean(x, dims, 0, True)
    return mean, o.rsqrt(o.add(variance, eps))


def softmax(o: Any, x: Any, dim: int) -> Any:
    """Of exponentials that don't overflow."""
    shifted = o.exp(o.sub(x, o.max(x, [dim], True)))
    return o.div(shifted, o.sum(shifted, [dim], True))


def define_softmax(o: Any, x: Any) -> Any:
    return softmax(o, x, 1)


def define_softmax_of_columns(o: Any, x: Any) -> Any:
    return softmax(o, x, 0)


def define_softmax_backward(o: Any, y: Any, dy: Any) -> Any:
    product = o.mul(y, dy)
    return o.sub(product, o.mul(y, o.sum(product, [1], True)))


def define_layer_norm(o: Any, x: Any, weight: Any, bias: Any) -> Any:
    mean, scale = moments(o, x, [1], 1e-5)
    normal = o.mul(o.sub(x, mean), scale)
    return o.add(o.mul(normal, row(o, weight, 2)), row(o, bias, 2)), mean, scale


def torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return torch.native_layer_norm(x, bias.shape, weight, bias, 1e-5)


def define_layer_norm_backward(o: Any, dy: Any, x: Any, mean: Any, scale: Any, weight: Any) -> Any:
    normal = o.mul(o.sub(x, mean), scale)
    scaled = o.mul(dy, row(o, weight, 2))
    average = o.mul(o.sum(scaled, [1], True), 1 / 512)
    along = o.mul(o.sum(o.mul(scaled, normal), [1], True), 1 / 512)
    dx = o.mul(o.sub(o.sub(scaled, average), o.mul(normal, along)), scale)
    return dx, o.sum(o.mul(dy, normal), [0]), o.sum(dy, [0])


def torch_layer_norm_backward(
    dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor
) -> Any:
    normal = (x - mean) * scale
    scaled = dy * weight
    average, along = scaled.mean(1, True), (scaled * normal).mean(1, True)
    return (scaled - average - normal * along) * scale, (dy * normal).sum(0), dy.sum(0)


def define_rms_norm(o: Any, x: Any, weight: Any) -> Any:
    squares = o.mul(o.sum(o.mul(x, x), [1], True), 1 / 512)
    return o.mul(o.mul(x, o.rsqrt(o.add(squares, 1e-5))), row(o, weight, 2))


def define_rms_norm_backward(o: Any, dy: Any, x: Any, scale: Any, weight: Any) -> Any:
    normal, scaled = o.mul(x, scale), o.mul(dy, row(o, weight, 2))
    along = o.mul(o.sum(o.mul(scaled, normal), [1], True), 1 / 512)
    dx = o.mul(o.sub(scaled, o.mul(normal, along)), scale)
    return dx, o.sum(o.mul(dy, normal), [0])


def torch_rms_norm_backward(dy: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> Any:
    normal, scaled = x * scale, dy * weight
    along = (scaled * normal).mean(1, True)
    return (scaled - normal * along) * scale, (dy * normal).sum(0)


def define_instance_norm(o: Any, x: Any, weight: Any, bias: Any) -> Any:
    mean, scale = moments(o, x, [2, 3], 1e-5)
    normal = o.mul(o.sub(x, mean), scale)
    return o.add(o.mul(normal, row(o, weight, 4, 1)), row(o, bias, 4, 1))


def torch_instance_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return functional.instance_norm(x, None, None, weight, bias)


def define_batch_norm(o: Any, x: Any, weight: Any, bias: Any) -> Any:
    """In channels-first order: the statistics of a channel are those of an axis in the middle."""
    mean, scale = moments(o, x, [0, 2, 3], 1e-5)
    normal = o.mul(o.sub(x, mean), scale)
    return o.add(o.mul(normal, row(o, weight, 4, 1)), row(o, bias, 4, 1))


def torch_batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return functional.batch_norm(x, None, None, weight, bias, True)


def define_batch_norm_backward(o: Any, dy: Any, x: Any, mean: Any, scale: Any, weight: Any) -> Any:
    """Statistics and gradients of a channel, which is an axis in the middle."""
    count = 4 * 14 * 14
    wide_mean, wide_scale, wide_weight = (row(o, each, 4, 1) for each in (mean, scale, weight))
    normal = o.mul(o.sub(x, wide_mean), wide_scale)
    of_bias, of_weight = (o.sum(each, [0, 2, 3]) for each in (dy, o.mul(dy, normal)))
    across, along = (row(o, o.mul(each, 1 / count), 4, 1) for each in (of_bias, of_weight))
    rest = o.sub(o.sub(dy, across), o.mul(normal, along))
    return o.mul(rest, o.mul(wide_weight, wide_scale)), of_weight, of_bias


def torch_batch_norm_backward(
    dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor
) -> Any:
    return torch.ops.aten.native_batch_norm_backward(
        dy, x, weight, None, None, mean, scale, True, 1e-5, [True] * 3
    )


def define_group_norm(o: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Of a tensor [n, c, h, w], with the groups split off the channels until the end."""
    parts = o.reshape(x, [4, 8, 8, 14, 14])
    mean, scale = moments(o, parts, [2, 3, 4], 1e-5)
    normal = o.mul(o.sub(parts, mean), scale)
    flags = [True, False, False, True, True]
    wide = [o.broadcast(o.reshape(each, [8, 8]), flags) for each in (weight, bias)]
    return o.reshape(o.add(o.mul(normal, wide[0]), wide[1]), [4, 64, 14, 14])


def define_group_norm_backward(o: Any, dy: Any, x: Any, mean: Any, scale: Any, weight: Any) -> Any:
    """With the groups split off the channels until the end, as in the definition above."""
    shape, flags = [4, 8, 8, 14, 14], [True, False, False, True, True]
    grad, parts = o.reshape(dy, shape), o.reshape(x, shape)
    of_groups = [False, False, True, True, True]
    wide_mean, wide_scale = (o.broadcast(each, of_groups) for each in (mean, scale))
    normal = o.mul(o.sub(parts, wide_mean), wide_scale)
    scaled = o.mul(grad, o.broadcast(o.reshape(weight, [8, 8]), flags))
    across, along = (
        o.mul(o.sum(each, [2, 3, 4], True), 1 / (8 * 14 * 14))
        for each in (scaled, o.mul(scaled, normal))
    )
    dx = o.mul(o.sub(o.sub(scaled, across), o.mul(normal, along)), wide_scale)
    of_weight, of_bias = (o.sum(each, [0, 3, 4]) for each in (o.mul(grad, normal), grad))
    return o.reshape(dx, [4, 64, 14, 14]), o.reshape(of_weight, [64]), o.reshape(of_bias, [64])


def torch_group_norm_backward(
    dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor
) -> Any:
    backward = torch.ops.aten.native_group_norm_backward
    dense = dy.contiguous(), x.contiguous()
    return backward(*dense, mean, scale, weight, 4, 64, 14 * 14, 8, [True] * 3)


def define_rope(o: Any, x: Any, cosine: Any, sine: Any) -> Any:
    sizes = [4, 8, 128, 64]
    first = o.slice(x, [0] * 4, [*sizes[:3], 32])
    second = o.slice(x, [0, 0, 0, 32], sizes)
    turned = o.cat([o.neg(second), first], 3)
    wide = [o.broadcast(each, [True, True, False, False]) for each in (cosine, sine)]
    return o.add(o.mul(x, wide[0]), o.mul(turned, wide[1]))


def torch_rope(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def define_rope_backward(o: Any, dy: Any, cosine: Any, sine: Any) -> Any:
    """The gradient of the rotated part is rotated back: halves with the other sign."""
    sizes = [4, 8, 128, 64]
    wide = [o.broadcast(each, [True, True, False, False]) for each in (cosine, sine)]
    scaled = o.mul(dy, wide[1])
    first = o.slice(scaled, [0] * 4, [*sizes[:3], 32])
    second = o.slice(scaled, [0, 0, 0, 32], sizes)
    return o.add(o.mul(dy, wide[0]), o.cat([second, o.neg(first)], 3))


def torch_rope_backward(dy: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = (dy * sine).chunk(2, -1)
    return dy * cosine + torch.cat([second, -first], -1)


def define_cross_entropy(o: Any, x: Any, target: Any) -> Any:
    """The loss of each row: its logits are read once."""
    largest = o.max(x, [1], True)
    shifted = o.sub(x, largest)
    total = o.log(o.sum(o.exp(shifted), [1], True))
    column = o.broadcast(target, [False, True])
    return o.squeeze(o.sub(total, o.gather(shifted, column, 1)), [1])


def torch_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(x, target, reduction="none")


def define_cross_entropy_backward(o: Any, x: Any, target: Any, dy: Any) -> Any:
    """The softmax of the logits, less 1 where the target is, times the loss's gradient."""
    position = o.broadcast(o.iota(512, 0, 1, DataType.Int), [True, False])
    is_target = o.eq(position, o.broadcast(target, [False, True]))
    off = o.sub(softmax(o, x, 1), o.cast(is_target, FLOAT))
    return o.mul(off, o.broadcast(dy, [False, True]))


def torch_cross_entropy_backward(x: Tensor, target: Tensor, dy: Tensor) -> Tensor:
    return (x.softmax(1) - functional.one_hot(target, 512)) * dy[:, None]


def define_cross_entropy_scattered(o: Any, x: Any, target: Any, dy: Any) -> Any:
    """The gradient as a framework traces it: of the logarithm, whose gradient is scattered."""
    column, wide = o.broadcast(target, [False, True]), o.broadcast(dy, [False, True])
    zeros = o.full([256, 512], 0.0, FLOAT)
    scattered = o.scatter(zeros, column, o.neg(wide), 1)
    total = o.sum(scattered, [1], True)
    return o.sub(scattered, o.mul(softmax(o, x, 1), total))


def define_attention_dropout(o: Any, scores: Any, mask: Any) -> Any:
    """Scores with a mask that is added, their softmax, and dropout with new random numbers."""
    masked = o.add(o.mul(scores, 0.125), mask)
    keep = o.cast(o.lt(o.uniform(0.0, 1.0, [2, 4, 64, 64], dtype=FLOAT), 2.0), FLOAT)
    return o.mul(softmax(o, masked, 3), keep)


def define_attention_backward(o: Any, dy: Any, weights: Any, keep: Any) -> Any:
    """Through the dropout, the softmax and the scale to the scores."""
    kept = o.mul(o.mul(dy, o.cast(keep, FLOAT)), 1 / 0.9)
    product = o.mul(kept, weights)
    return o.mul(o.sub(product, o.mul(weights, o.sum(product, [3], True))), 0.125)


def torch_attention_backward(dy: Tensor, weights: Tensor, keep: Tensor) -> Tensor:
    product = dy * keep / 0.9 * weights
    return (product - weights * product.sum(3, True)) * 0.125


def define_attention(o: Any, scores: Any, mask: Any, keep: Any) -> Any:
    """Scores that are scaled and masked, their softmax, and dropout by a mask."""
    wide = o.broadcast(mask, [True, True, False, False])
    masked = o.where(wide, o.mul(scores, 0.125), float("-inf"))
    return o.mul(o.mul(softmax(o, masked, 3), o.cast(keep, FLOAT)), 1 / 0.9)


def torch_attention(scores: Tensor, mask: Tensor, keep: Tensor) -> Tensor:
    return (scores * 0.125).masked_fill(~mask, float("-inf")).softmax(-1) * keep / 0.9


def define_dropout_norm(o: Any, x: Any, residual: Any, keep: Any, weight: Any, bias: Any) -> Any:
    dropped = o.mul(o.mul(x, o.cast(keep, FLOAT)), 1 / 0.9)
    joined = o.add(dropped, residual)
    mean, scale = moments(o, joined, [1], 1e-5)
    normal = o.mul(o.sub(joined, mean), scale)
    return joined, o.add(o.mul(normal, row(o, weight, 2)), row(o, bias, 2))


def torch_dropout_norm(
    x: Tensor, residual: Tensor, keep: Tensor, weight: Tensor, bias: Tensor
) -> Any:
    joined = x * keep / 0.9 + residual
    return joined, functional.layer_norm(joined, bias.shape, weight, bias)


def define_embedding_norm(o: Any, index: Any, table: Any, weight: Any, bias: Any) -> Any:
    rows = o.embedding_fwd(index, table)
    mean, scale = moments(o, rows, [1], 1e-5)
    normal = o.mul(o.sub(rows, mean), scale)
    return o.add(o.mul(normal, row(o, weight, 2)), row(o, bias, 2))


def torch_embedding_norm(index: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(table[index], bias.shape, weight, bias)


def define_swiglu(o: Any, gate: Any, up: Any) -> Any:
    return o.mul(o.mul(gate, o.sigmoid(gate)), up)


def define_bias_gelu(o: Any, x: Any, bias: Any) -> Any:
    total = o.add(x, row(o, bias, 2))
    return o.mul(o.mul(total, 0.5), o.add(o.erf(o.mul(total, 0.5**0.5)), 1.0))


def define_bias_relu_backward(o: Any, dy: Any, y: Any) -> Any:
    """The gradients of the activation's input and of the bias, in one pass."""
    dx = o.where(o.gt(y, 0.0), dy, 0.0)
    return dx, o.sum(dx, [0])


def torch_bias_relu_backward(dy: Tensor, y: Tensor) -> Any:
    dx = torch.where(y > 0, dy, 0.0)
    return dx, dx.sum(0)


def define_bias_gradient(o: Any, dy: Any) -> Any:
    return o.sum(o.mul(dy, 2.0), [0])


def define_transpose(o: Any, x: Any) -> Any:
    return o.permute(o.exp(x), [1, 0])


def define_qkv(o: Any, x: Any) -> Any:
    """Three parts of a projection, each scaled, and side by side again: one pass over it."""
    parts = [o.slice(x, [0, start], [256, start + 128]) for start in (0, 128, 256, 384)]
    return o.cat([o.mul(o.neg(part), 0.5) for part in parts], 1)


def define_running_share(o: Any, x: Any) -> Any:
    return o.mul(o.cumsum(o.exp(x), 1), 0.5)


def define_embedding_backward(o: Any, dy: Any, index: Any) -> Any:
    """The kernel that fills the zeros, and the one that computes and adds the gradients."""
    zeros = o.full([1000, 512], 0.0, FLOAT)
    return o.index_put(zeros, index, o.mul(dy, 2.0), 0, "sum")


def torch_embedding_backward(dy: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(1000, 512, dtype=dy.dtype).index_add(0, index, dy * 2)


def define_linear_gelu(o: Any, x: Any, weight: Any, bias: Any) -> Any:
    return define_bias_gelu(o, o.linear(x, weight), bias)
