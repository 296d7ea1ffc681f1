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

from pyfuser import FusionDefinition
from tests.support import model_definitions as models

pytestmark = pytest.mark.cpu

POINTWISE, TRANSPOSE, RESIZE, REDUCTION = "pointwise", "transpose", "resize", "reduction"
INNER, OUTER, BOTH = "inner_persistent", "outer_persistent", "inner_outer_persistent"
GREEDY, LIBRARY, VIEW = "greedy", "expr_eval", "no_op"


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


MATRIX, VECTOR = numbers(256, 512), numbers(512)
IMAGE = numbers(4, 64, 14, 14)
CHANNELS_LAST = IMAGE.to(memory_format=torch.channels_last)
CHANNELS = (numbers(64), numbers(64) * 2)
STATISTICS = (IMAGE.mean((0, 2, 3)), IMAGE.var((0, 2, 3)).rsqrt())
OF_GROUPS = (numbers(4, 8) / 10, numbers(4, 8).abs() + 1)
SCORES = numbers(2, 4, 64, 64)
LOWER = torch.ones(64, 64, dtype=torch.bool).tril()

TABLE: dict[str, Row] = {
    "softmax": Row(models.define_softmax, lambda x: x.softmax(1), [MATRIX], [INNER]),
    "softmax of columns": Row(
        models.define_softmax_of_columns, lambda x: x.softmax(0), [MATRIX], [OUTER]
    ),
    "softmax backward": Row(
        models.define_softmax_backward,
        lambda y, dy: y * dy - y * (y * dy).sum(1, True),
        [MATRIX.softmax(1), MATRIX * 2],
        [INNER],
    ),
    "layer norm": Row(
        models.define_layer_norm, models.torch_layer_norm, [MATRIX, VECTOR, VECTOR + 1], [INNER]
    ),
    "layer norm backward": Row(
        models.define_layer_norm_backward,
        models.torch_layer_norm_backward,
        [MATRIX, MATRIX * 2, numbers(256, 1), numbers(256, 1).abs(), VECTOR],
        [BOTH],
    ),
    "rms norm": Row(
        models.define_rms_norm,
        lambda x, w: functional.rms_norm(x, w.shape, w, 1e-5),
        [MATRIX, VECTOR],
        [INNER],
    ),
    "rms norm backward": Row(
        models.define_rms_norm_backward,
        models.torch_rms_norm_backward,
        [MATRIX, MATRIX * 2, numbers(256, 1).abs(), VECTOR],
        [BOTH],
    ),
    "instance norm": Row(
        models.define_instance_norm, models.torch_instance_norm, [IMAGE, *CHANNELS], [INNER]
    ),
    "instance norm, channels last": Row(
        models.define_instance_norm, models.torch_instance_norm, [CHANNELS_LAST, *CHANNELS], [OUTER]
    ),
    "batch norm": Row(
        models.define_batch_norm, models.torch_batch_norm, [IMAGE, *CHANNELS], [INNER]
    ),
    "batch norm, channels last": Row(
        models.define_batch_norm, models.torch_batch_norm, [CHANNELS_LAST, *CHANNELS], [OUTER]
    ),
    "batch norm backward": Row(
        models.define_batch_norm_backward,
        models.torch_batch_norm_backward,
        [IMAGE * 2, IMAGE, *STATISTICS, CHANNELS[0]],
        [INNER],
    ),
    "batch norm backward, channels last": Row(
        models.define_batch_norm_backward,
        models.torch_batch_norm_backward,
        [CHANNELS_LAST * 2, CHANNELS_LAST, *STATISTICS, CHANNELS[0]],
        [OUTER],
    ),
    "group norm": Row(
        models.define_group_norm,
        lambda x, w, b: functional.group_norm(x, 8, w, b),
        [IMAGE, *CHANNELS],
        [INNER, VIEW],
    ),
    "group norm, channels last": Row(
        models.define_group_norm,
        lambda x, w, b: functional.group_norm(x, 8, w, b),
        [CHANNELS_LAST, *CHANNELS],
        [OUTER, VIEW],
    ),
    "group norm backward": Row(
        models.define_group_norm_backward,
        models.torch_group_norm_backward,
        [IMAGE * 2, IMAGE, *OF_GROUPS, CHANNELS[0]],
        [INNER, REDUCTION, VIEW, VIEW, VIEW],  # the sums are over axes that cross
    ),
    "group norm backward, channels last": Row(
        models.define_group_norm_backward,
        models.torch_group_norm_backward,
        [CHANNELS_LAST * 2, CHANNELS_LAST, *OF_GROUPS, CHANNELS[0]],
        [OUTER, REDUCTION, VIEW, VIEW, VIEW],
    ),
    "rotary embedding": Row(
        models.define_rope,
        models.torch_rope,
        [numbers(4, 8, 128, 64), numbers(128, 64), numbers(128, 64) * 2],
        [RESIZE],
    ),
    "rotary embedding backward": Row(
        models.define_rope_backward,
        models.torch_rope_backward,
        [numbers(4, 8, 128, 64), numbers(128, 64), numbers(128, 64) * 2],
        [RESIZE],
    ),
    "cross entropy": Row(
        models.define_cross_entropy,
        models.torch_cross_entropy,
        [MATRIX, indices(512, 256)],
        [INNER],
    ),
    "cross entropy backward": Row(
        models.define_cross_entropy_backward,
        models.torch_cross_entropy_backward,
        [MATRIX, indices(512, 256), numbers(256)],
        [INNER],
    ),
    "cross entropy backward with a scatter": Row(
        models.define_cross_entropy_scattered,
        models.torch_cross_entropy_backward,
        [MATRIX, indices(512, 256), numbers(256)],
        [POINTWISE, GREEDY, INNER],
    ),
    "attention with an added mask and new random numbers": Row(
        models.define_attention_dropout,
        lambda s, m: (s * 0.125 + m).softmax(-1),
        [SCORES, numbers(2, 1, 64, 64)],
        [INNER],
    ),
    "attention's softmax backward": Row(
        models.define_attention_backward,
        models.torch_attention_backward,
        [SCORES * 2, SCORES.softmax(-1), SCORES > -1],
        [INNER],
    ),
    "attention's softmax": Row(
        models.define_attention, models.torch_attention, [SCORES, LOWER, SCORES > -1], [INNER]
    ),
    "dropout, residual and norm": Row(
        models.define_dropout_norm,
        models.torch_dropout_norm,
        [MATRIX, MATRIX * 2, MATRIX > -1, VECTOR, VECTOR + 1],
        [INNER],
    ),
    "embedding and norm": Row(
        models.define_embedding_norm,
        models.torch_embedding_norm,
        [indices(1000, 256), numbers(1000, 512), VECTOR, VECTOR + 1],
        [INNER],
    ),
    "swiglu": Row(
        models.define_swiglu, lambda g, u: functional.silu(g) * u, [MATRIX, MATRIX * 2], [POINTWISE]
    ),
    "bias and gelu": Row(
        models.define_bias_gelu, lambda x, b: functional.gelu(x + b), [MATRIX, VECTOR], [POINTWISE]
    ),
    "bias and relu backward": Row(
        models.define_bias_relu_backward,
        models.torch_bias_relu_backward,
        [MATRIX, MATRIX + 1],
        [REDUCTION],
    ),
    "gradient of a bias": Row(
        models.define_bias_gradient, lambda dy: (dy * 2).sum(0), [MATRIX], [REDUCTION]
    ),
    "transpose": Row(models.define_transpose, lambda x: x.exp().t(), [MATRIX], [TRANSPOSE]),
    "parts that are joined again": Row(
        models.define_qkv, lambda x: x * -0.5, [MATRIX], [POINTWISE]
    ),
    "scan": Row(models.define_running_share, lambda x: x.exp().cumsum(1) / 2, [MATRIX], [GREEDY]),
    "embedding backward": Row(
        models.define_embedding_backward,
        models.torch_embedding_backward,
        [MATRIX, indices(1000, 256)],
        [POINTWISE, GREEDY],
    ),
    "linear, bias and gelu": Row(
        models.define_linear_gelu,
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
