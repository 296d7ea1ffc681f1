"""Which kernels the definitions of real models' functions become, and their results.

A part of the library (`expr_eval`) and views (`no_op`) aren't kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser import DataType, FusionDefinition

pytestmark = pytest.mark.cpu

POINTWISE, TRANSPOSE, RESIZE, REDUCTION = "pointwise", "transpose", "resize", "reduction"
INNER, OUTER, BOTH = "inner_persistent", "outer_persistent", "inner_outer_persistent"
GREEDY, LIBRARY, VIEW = "greedy", "expr_eval", "no_op"

FLOAT, INT = DataType.Float, DataType.Int


@dataclass(frozen=True)
class Row:
    """A definition, the same function of torch, inputs, and the schedulers of the kernels."""

    define: Callable[..., Any]
    torch: Callable[..., Any]
    inputs: Sequence[Tensor]
    schedulers: Sequence[str]


def numbers(*shape: int) -> Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def indices(size: int, *shape: int) -> Tensor:
    """Numbers below `size`."""
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(1))


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


def define_batch_norm(o: Any, x: Any, weight: Any, bias: Any) -> Any:
    """In channels-first order: the statistics of a channel are those of an axis in the middle."""
    mean, scale = moments(o, x, [0, 2, 3], 1e-5)
    normal = o.mul(o.sub(x, mean), scale)
    return o.add(o.mul(normal, row(o, weight, 4, 1)), row(o, bias, 4, 1))


def torch_batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return functional.batch_norm(x, None, None, weight, bias, True)


def define_group_norm(o: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Of a tensor [n, c, h, w], with the groups split off the channels until the end."""
    parts = o.reshape(x, [4, 8, 8, 14, 14])
    mean, scale = moments(o, parts, [2, 3, 4], 1e-5)
    normal = o.mul(o.sub(parts, mean), scale)
    flags = [True, False, False, True, True]
    wide = [o.broadcast(o.reshape(each, [8, 8]), flags) for each in (weight, bias)]
    return o.reshape(o.add(o.mul(normal, wide[0]), wide[1]), [4, 64, 14, 14])


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


def define_cross_entropy(o: Any, x: Any, target: Any) -> Any:
    """The loss of each row: its logits are read once."""
    largest = o.max(x, [1], True)
    shifted = o.sub(x, largest)
    total = o.log(o.sum(o.exp(shifted), [1], True))
    column = o.broadcast(target, [False, True])
    return o.squeeze(o.sub(total, o.gather(shifted, column, 1)), [1])


def torch_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(x, target, reduction="none")


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


MATRIX, VECTOR = numbers(256, 512), numbers(512)
IMAGE = numbers(4, 64, 14, 14)
CHANNELS_LAST = IMAGE.to(memory_format=torch.channels_last)
CHANNELS = (numbers(64), numbers(64) * 2)
SCORES = numbers(2, 4, 64, 64)
LOWER = torch.ones(64, 64, dtype=torch.bool).tril()

TABLE: dict[str, Row] = {
    "softmax": Row(define_softmax, lambda x: x.softmax(1), [MATRIX], [INNER]),
    "softmax of columns": Row(define_softmax_of_columns, lambda x: x.softmax(0), [MATRIX], [OUTER]),
    "softmax backward": Row(
        define_softmax_backward,
        lambda y, dy: y * dy - y * (y * dy).sum(1, True),
        [MATRIX.softmax(1), MATRIX * 2],
        [INNER],
    ),
    "layer norm": Row(define_layer_norm, torch_layer_norm, [MATRIX, VECTOR, VECTOR + 1], [INNER]),
    "layer norm backward": Row(
        define_layer_norm_backward,
        torch_layer_norm_backward,
        [MATRIX, MATRIX * 2, numbers(256, 1), numbers(256, 1).abs(), VECTOR],
        [BOTH],
    ),
    "rms norm": Row(
        define_rms_norm,
        lambda x, w: functional.rms_norm(x, w.shape, w, 1e-5),
        [MATRIX, VECTOR],
        [INNER],
    ),
    "batch norm": Row(define_batch_norm, torch_batch_norm, [IMAGE, *CHANNELS], [INNER]),
    "batch norm, channels last": Row(
        define_batch_norm, torch_batch_norm, [CHANNELS_LAST, *CHANNELS], [OUTER]
    ),
    "group norm": Row(
        define_group_norm,
        lambda x, w, b: functional.group_norm(x, 8, w, b),
        [IMAGE, *CHANNELS],
        [INNER, VIEW],
    ),
    "group norm, channels last": Row(
        define_group_norm,
        lambda x, w, b: functional.group_norm(x, 8, w, b),
        [CHANNELS_LAST, *CHANNELS],
        [OUTER, VIEW],
    ),
    "rotary embedding": Row(
        define_rope,
        torch_rope,
        [numbers(4, 8, 128, 64), numbers(128, 64), numbers(128, 64) * 2],
        [RESIZE],
    ),
    "cross entropy": Row(
        define_cross_entropy, torch_cross_entropy, [MATRIX, indices(512, 256)], [INNER]
    ),
    "attention's softmax": Row(
        define_attention, torch_attention, [SCORES, LOWER, SCORES > -1], [INNER]
    ),
    "dropout, residual and norm": Row(
        define_dropout_norm,
        torch_dropout_norm,
        [MATRIX, MATRIX * 2, MATRIX > -1, VECTOR, VECTOR + 1],
        [INNER],
    ),
    "embedding and norm": Row(
        define_embedding_norm,
        torch_embedding_norm,
        [indices(1000, 256), numbers(1000, 512), VECTOR, VECTOR + 1],
        [INNER],
    ),
    "swiglu": Row(
        define_swiglu, lambda g, u: functional.silu(g) * u, [MATRIX, MATRIX * 2], [POINTWISE]
    ),
    "bias and gelu": Row(
        define_bias_gelu, lambda x, b: functional.gelu(x + b), [MATRIX, VECTOR], [POINTWISE]
    ),
    "gradient of a bias": Row(
        define_bias_gradient, lambda dy: (dy * 2).sum(0), [MATRIX], [REDUCTION]
    ),
    "transpose": Row(define_transpose, lambda x: x.exp().t(), [MATRIX], [TRANSPOSE]),
    "parts that are joined again": Row(define_qkv, lambda x: x * -0.5, [MATRIX], [POINTWISE]),
    "scan": Row(define_running_share, lambda x: x.exp().cumsum(1) / 2, [MATRIX], [GREEDY]),
    "embedding backward": Row(
        define_embedding_backward,
        torch_embedding_backward,
        [MATRIX, indices(1000, 256)],
        [POINTWISE, GREEDY],
    ),
    "linear, bias and gelu": Row(
        define_linear_gelu,
        lambda x, w, b: functional.gelu(x @ w.t() + b),
        [MATRIX, numbers(128, 512), numbers(128)],
        [LIBRARY, POINTWISE],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_kernels_and_results(name: str) -> None:
    row = TABLE[name]
    with FusionDefinition() as fd:
        handles = [fd.from_pytorch(x, static_sizes=True) for x in row.inputs]
        made = row.define(fd.ops, *handles)
        for output in made if isinstance(made, tuple) else (made,):
            fd.add_output(output)
    got = fd.execute(list(row.inputs))
    exact = [x.double() if x.is_floating_point() else x for x in row.inputs]
    want = row.torch(*exact)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-4)
    (program,) = fd.fec.engine.executor.programs.values()
    assert [part.segment.scheduler for part in program.parts] == list(row.schedulers)
