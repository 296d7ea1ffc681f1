"""Arguments for every aten overload that has a translation: `arguments(overload, tensor, n)`.

`tensor(*sizes)` makes a random tensor of the dtype under test; `n` is a size that may differ from
call to call, so that tests can ask whether a structure depends on it.  Pointwise overloads get
theirs from their schemas, the others are listed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from pyfuser.torch_compile.aten.checked import ops

Make = Callable[..., torch.Tensor]
Sample = tuple[tuple[Any, ...], dict[str, Any]]

aten, prims = torch.ops.aten, torch.ops.prims

# Numbers for scalar arguments of pointwise overloads, by name; others are 2.
_NUMBERS: dict[str, Any] = {
    "min": -1, "max": 1, "min_val": -1.0, "max_val": 1.0, "threshold": 1, "lambd": 0.5,
    "negative_slope": 0.1, "beta": 2.0, "weight": 0.3, "eps": 1e-3, "rounding_mode": "floor",
    "approximate": "tanh", "self_is_result": False, "is_result": False, "decimals": 1,
    "nan": 1.0, "posinf": 2.0, "neginf": -2.0, "input_scale": 1.5, "scale": 1.25, "alpha": 2,
}  # fmt: skip

_FILLED = {"dtype": torch.float32, "device": torch.device("cpu")}


def _index(high: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, high, sizes)


def _mask(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes) > 0.5


def _statistics(t: Make, *sizes: int) -> torch.Tensor:
    return t(*sizes).abs() + 0.5


def _layer_norm_backward(t: Make, n: int) -> Sample:
    mean, rstd = t(n, 1), _statistics(t, n, 1)
    return (t(n, 6), t(n, 6), [6], mean, rstd, t(6), t(6), [True, True, True]), {}


def _batch_norm_backward(t: Make, n: int) -> Sample:
    saved = (t(3), _statistics(t, 3), t(3), _statistics(t, 3))
    return (t(n, 3, 4), t(n, 3, 4), t(3), *saved, True, 1e-5, [True, True, True]), {}


def _group_norm_backward(t: Make, n: int) -> Sample:
    saved = (t(n, 2), _statistics(t, n, 2))
    return (t(n, 6, 5), t(n, 6, 5), *saved, t(6), n, 6, 5, 2, [True, True, True]), {}


def _running(t: Make, n: int) -> tuple[Any, ...]:
    return t(n, 3, 4), t(3), t(3), t(3), _statistics(t, 3)


SAMPLES: dict[OpOverload, Callable[[Make, int], Sample]] = {
    # choices and bounds
    aten.where.self: lambda t, n: ((_mask(n, 6), t(n, 6), t(6)), {}),
    aten.where.ScalarOther: lambda t, n: ((_mask(n, 6), t(n, 6), 0), {}),
    aten.where.ScalarSelf: lambda t, n: ((_mask(n, 6), 1, t(n, 6)), {}),
    aten.masked_fill.Scalar: lambda t, n: ((t(n, 6), _mask(n, 1), 1), {}),
    aten.masked_fill.Tensor: lambda t, n: ((t(n, 6), _mask(n, 6), t()), {}),
    aten.native_dropout_backward.default: lambda t, n: ((t(n, 6), _mask(n, 6), 1.25), {}),
    aten.log_sigmoid_backward.default: lambda t, n: (
        (t(n, 6), (x := t(n, 6)), (-x.abs()).exp()), {}),
    aten.logit.default: lambda t, n: ((t(n, 6).abs() / 8, 1e-3), {}),
    # reductions
    aten.sum.default: lambda t, n: ((t(n, 6),), {}),
    aten.sum.dim_IntList: lambda t, n: ((t(n, 3, 4), [0, -1], True), {}),
    aten.mean.default: lambda t, n: ((t(n, 6),), {}),
    aten.mean.dim: lambda t, n: ((t(n, 6), [1]), {}),
    aten.prod.default: lambda t, n: ((t(n, 2),), {}),
    aten.prod.dim_int: lambda t, n: ((t(n, 4), 1, True), {}),
    aten.amax.default: lambda t, n: ((t(n, 6), [0]), {}),
    aten.mm.default: lambda t, n: ((t(1, 6), t(6, n)), {}),
    aten.bmm.default: lambda t, n: ((t(3, n, 6), t(3, 6, 1)), {}),
    aten.matmul.default: lambda t, n: ((t(2, 3, n, 6), t(2, 3, 6, 1)), {}),
    aten.mv.default: lambda t, n: ((t(n, 6), t(6)), {}),
    aten.dot.default: lambda t, n: ((t(n), t(n)), {}),
    aten.addmm.default: lambda t, n: ((t(n), t(1, 6), t(6, n)), {"beta": 3, "alpha": 2}),
    aten.baddbmm.default: lambda t, n: ((t(3, n, 6), t(3, n, 1), t(3, 1, 6)), {"alpha": 2}),
    aten.cumsum.default: lambda t, n: ((t(n, 6), 1), {}),
    aten.cumprod.default: lambda t, n: ((t(n, 6), 0), {}),
    aten.cummax.default: lambda t, n: ((t(n, 6), 1), {}),
    aten.cummin.default: lambda t, n: ((t(n, 6), 0), {}),
    ops.reversed_cumsum.default: lambda t, n: ((t(n, 6), 1), {}),
    ops.reversed_cumprod.default: lambda t, n: ((t(n, 6), 0), {}),
    aten.amin.default: lambda t, n: ((t(n, 6), [], True), {}),
    aten.max.default: lambda t, n: ((t(n, 6),), {}),
    aten.min.default: lambda t, n: ((t(n, 6),), {}),
    aten.any.default: lambda t, n: ((t(n, 6),), {}),
    aten.any.dim: lambda t, n: ((t(n, 6), 1), {}),
    aten.any.dims: lambda t, n: ((t(n, 6), [0, 1], True), {}),
    aten.all.default: lambda t, n: ((t(n, 6),), {}),
    aten.all.dim: lambda t, n: ((t(n, 6), 0, True), {}),
    aten.all.dims: lambda t, n: ((t(n, 6), [1]), {}),
    aten.var.correction: lambda t, n: ((t(n, 6), [1]), {"correction": 1}),
    aten.std.correction: lambda t, n: ((t(n, 6), None), {"correction": 0, "keepdim": True}),
    aten.var_mean.correction: lambda t, n: ((t(n, 6), [0]), {"correction": 0, "keepdim": True}),
    aten.std_mean.correction: lambda t, n: ((t(n, 6), [1]), {}),
    aten.logsumexp.default: lambda t, n: ((t(n, 6), [1]), {}),
    aten.linalg_vector_norm.default: lambda t, n: ((t(n, 6), 2, [1]), {}),
    aten.count_nonzero.default: lambda t, n: ((t(n, 6),), {}),
    aten.count_nonzero.dim_IntList: lambda t, n: ((t(n, 6), [0]), {}),
    aten._softmax.default: lambda t, n: ((t(n, 6), -1, False), {}),
    aten._safe_softmax.default: lambda t, n: (
        (t(n, 6).masked_fill(_mask(n, 1), -math.inf), -1), {}),
    aten._log_softmax.default: lambda t, n: ((t(n, 6), 0, False), {}),
    aten._softmax_backward_data.default: lambda t, n: (
        (t(n, 6), (x := t(n, 6)).softmax(1), 1, x.dtype), {}),
    aten._log_softmax_backward_data.default: lambda t, n: (
        (t(n, 6), (x := t(n, 6)).log_softmax(1), 1, x.dtype), {}),
    # normalisations
    aten.native_layer_norm.default: lambda t, n: ((t(n, 6), [6], t(6), t(6), 1e-5), {}),
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._fused_rms_norm.default: lambda t, n: ((t(n, 6), [6], t(6), 1e-5), {}),
    aten._fused_rms_norm_backward.default: lambda t, n: (
        (t(n, 6), t(n, 6), [6], _statistics(t, n, 1), t(6), [True, True]), {}),
    aten._native_batch_norm_legit_functional.default: lambda t, n: (
        (*_running(t, n), True, 0.1, 1e-5), {}),
    aten._native_batch_norm_legit_no_training.default: lambda t, n: (
        (*_running(t, n), 0.1, 1e-5), {}),
    aten._native_batch_norm_legit.no_stats: lambda t, n: (
        (*_running(t, n)[:3], True, 0.1, 1e-5), {}),
    aten.native_batch_norm.default: lambda t, n: (
        (*_running(t, n)[:3], None, None, True, 0.1, 1e-5), {}),
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_group_norm.default: lambda t, n: ((t(n, 6, 5), t(6), t(6), n, 6, 5, 2, 1e-5), {}),
    aten.native_group_norm_backward.default: _group_norm_backward,
    # shapes
    aten.permute.default: lambda t, n: ((t(n, 3, 4), [2, 0, 1]), {}),
    aten.transpose.int: lambda t, n: ((t(n, 3, 4), -1, 0), {}),
    aten.t.default: lambda t, n: ((t(n, 6),), {}),
    aten.unsqueeze.default: lambda t, n: ((t(n, 6), -1), {}),
    aten.squeeze.default: lambda t, n: ((t(1, n, 1),), {}),
    aten.squeeze.dim: lambda t, n: ((t(1, n, 1), -1), {}),
    aten.squeeze.dims: lambda t, n: ((t(1, n, 1), [0, 1]), {}),
    aten.expand.default: lambda t, n: ((t(n, 1), [3, n, 7]), {}),
    aten.repeat.default: lambda t, n: ((t(n, 1, 3), [2, 7, 4, 4]), {}),
    aten.view.default: lambda t, n: ((t(1, n, 6), [n, 1, 6]), {}),
    aten.reshape.default: lambda t, n: ((t(n, 1, 6), [n, 6]), {}),
    aten._unsafe_view.default: lambda t, n: ((t(n, 6), [n, 6, 1]), {}),
    aten._to_copy.default: lambda t, n: ((t(n, 6),), {"dtype": torch.bfloat16}),
    prims.convert_element_type.default: lambda t, n: ((t(n, 6), torch.float64), {}),
    aten.triu.default: lambda t, n: ((t(n, 6), 1), {}),
    aten.tril.default: lambda t, n: ((t(2, n, 6), -1), {}),
    aten.scatter.value: lambda t, n: ((t(n, 6), 1, _index(6, n, 1), 1), {}),
    aten.scatter.src: lambda t, n: ((t(n, 6), 0, _index(n, n, 6), t(n, 6) * 0 + 1), {}),
    aten.scatter_add.default: lambda t, n: ((t(n, 6), 1, _index(6, n, 9), t(n, 9)), {}),
    aten.scatter_reduce.two: lambda t, n: ((t(n, 6), 1, _index(6, n, 9), t(n, 9), "amax"), {}),
    aten.index_put.default: lambda t, n: ((t(n, 6), [None, _index(6, 9)], t(n, 9), True), {}),
    aten._unsafe_index_put.default: lambda t, n: ((t(n, 6), [_index(n, 9)], t(9, 6), True), {}),
    aten.index_add.default: lambda t, n: ((t(n, 6), 0, _index(n, 9), t(9, 6)), {"alpha": 2}),
    aten.index_copy.default: lambda t, n: ((t(6, n), 0, torch.tensor([4, 0]), t(2, n)), {}),
    aten.embedding_dense_backward.default: lambda t, n: (
        (t(n, 4, 6), _index(9, n, 4), 9, 2, False), {},
    ),
    aten.copy.default: lambda t, n: ((t(n, 6), torch.rand(6)), {}),
    aten.fill.Scalar: lambda t, n: ((t(n, 6), 1), {}),
    aten.fill.Tensor: lambda t, n: ((t(n, 6), torch.tensor(1.5)), {}),
    aten.full.default: lambda t, n: (([n, 6], 3.0), _FILLED),
    aten.full_like.default: lambda t, n: ((t(n, 6), 1), {}),
    aten.new_full.default: lambda t, n: ((t(2), [n, 6], 1), {}),
    aten.scalar_tensor.default: lambda t, n: ((0.1,), _FILLED),
    aten.zeros.default: lambda t, n: (([n, 1],), _FILLED),
    aten.ones.default: lambda t, n: (([n, 6],), _FILLED),
    aten.zeros_like.default: lambda t, n: ((t(n, 6),), {}),
    aten.ones_like.default: lambda t, n: ((t(n, 6),), {}),
    aten.new_zeros.default: lambda t, n: ((t(2), [n, 6]), {}),
    aten.new_ones.default: lambda t, n: ((t(2), [n]), {}),
    aten.arange.default: lambda t, n: ((n,), _FILLED),
    aten.arange.start: lambda t, n: ((1, n + 1), _FILLED),
    aten.arange.start_step: lambda t, n: ((0.5, n + 0.5, 1.0), _FILLED),
    prims.iota.default: lambda t, n: (
        (n,), {"start": 3, "step": 2, "dtype": torch.int64, "device": torch.device("cpu"),
               "requires_grad": False}),
    # reads
    aten.slice.Tensor: lambda t, n: ((t(n, 9), 1, 3, -1), {}),
    aten.select.int: lambda t, n: ((t(n, 9), 1, -2), {}),
    aten.cat.default: lambda t, n: (([t(n, 3), t(n, 1), t(n, 5)], 1), {}),
    aten.constant_pad_nd.default: lambda t, n: ((t(n, 6), [1, 2, 0, 3], 1), {}),
    aten.slice_scatter.default: lambda t, n: ((t(n, 9), t(n, 4), 1, 3, 7), {}),
    aten.select_scatter.default: lambda t, n: ((t(n, 9), t(n), 1, -3), {}),
    aten.gather.default: lambda t, n: ((t(n, 9), 1, _index(9, n, 4)), {}),
    aten.index_select.default: lambda t, n: ((t(n, 9), 1, _index(9, 4)), {}),
    aten.embedding.default: lambda t, n: ((t(9, 4), _index(9, n, 3)), {}),
    aten.index.Tensor: lambda t, n: ((t(n, 9), [None, _index(9, 2, 3) - 4]), {}),
    aten._unsafe_index.Tensor: lambda t, n: ((t(9, n), [_index(9, 4)]), {}),
    # elements in other places
    aten.flip.default: lambda t, n: ((t(n, 9, 5), [-1, 0]), {}),
    aten.roll.default: lambda t, n: ((t(n, 9, 5), [7, -1], [-1, 1]), {}),
    # ops that check their operands
    ops.checked_class.default: lambda t, n: ((_index(n, n, 6), n), {}),
    ops.checked_index.default: lambda t, n: ((_index(n, n, 6) - 1, n, 0), {}),
    ops.checked_target.default: lambda t, n: ((_index(n, n, 6) - 1, n, -1), {}),
    ops.checked_probability.default: lambda t, n: ((t(n, 6).abs().clamp(0, 1),), {}),
    ops.checked_target_probability.default: lambda t, n: ((t(n, 6).abs().clamp(0, 1),), {}),
    # random numbers
    ops.random.default: lambda t, n: ((torch.tensor(7), [n, 6], "uniform", _floating(t)), {}),
}  # fmt: skip


def _floating(tensor: Make) -> torch.dtype:
    dtype = tensor(1).dtype
    return dtype if dtype.is_floating_point else torch.float32


def arguments(overload: OpOverload, tensor: Make, n: int) -> Sample:
    """Arguments and keywords for one call of `overload`."""
    made = SAMPLES.get(overload)
    return _of_schema(overload, tensor, n) if made is None else made(tensor, n)


def _of_schema(overload: OpOverload, tensor: Make, n: int) -> Sample:
    """Tensors of [n, 6] and [6], and a number for each scalar."""
    given: list[Any] = []
    keywords: dict[str, Any] = {}
    for parameter in overload._schema.arguments:
        kind = str(parameter.type)
        value: Any
        if "Tensor" in kind:
            value = tensor(6) if len(given) == 2 else tensor(n, 6)
        elif parameter.name in ("memory_format", "dtype", "layout", "device", "pin_memory"):
            continue
        else:
            value = _NUMBERS.get(parameter.name, 2)
        if parameter.kwarg_only:
            keywords[parameter.name] = value
        else:
            given.append(value)
    return tuple(given), keywords
