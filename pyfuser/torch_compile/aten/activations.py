"""Activations and their gradients, each as the formula that eager computes, in the held dtype.

They stay whole in the graph, so each is one node to trace; discontinuities (`x <= 0`) use exact
operands.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .decompositions import keep_scale
from .region_builder import Call
from .term import Term
from .translation import Build, Table, Translation

aten = torch.ops.aten

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def _zero(call: Call) -> Term:
    return call.constant(0)


def _gelu(call: Call, x: Any, approximate: str) -> Term:
    term = call.held(x, call.dtype)
    if approximate == "tanh":
        inner = _SQRT_2_OVER_PI * (term + _CUBIC * (term * term * term))
        return 0.5 * term * (1 + inner.op("tanh"))
    return term * 0.5 * (1 + (term * _SQRT_HALF).op("erf"))


def _gelu_backward(call: Call, grad: Any, x: Any, approximate: str) -> Term:
    slope, term = call.held(grad, call.dtype), call.held(x, call.dtype)
    if approximate == "tanh":
        square = term * term
        inner = _SQRT_2_OVER_PI * (term + _CUBIC * (square * term))
        tanh = inner.op("tanh")
        left = 0.5 * term
        bend = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * square)
        return slope * (0.5 * (1 + tanh) + left * ((1 - tanh * tanh) * bend))
    distribution = 0.5 * (1 + (term * _SQRT_HALF).op("erf"))
    density = (-0.5 * (term * term)).op("exp") * (1 / math.sqrt(2 * math.pi))
    return slope * (distribution + term * density)


def _silu_backward(call: Call, grad: Any, x: Any) -> Term:
    slope, term = call.held(grad, call.dtype), call.held(x, call.dtype)
    gate = term.op("sigmoid")
    return slope * gate * (1 + term * (1 - gate))


def _sigmoid_backward(call: Call, grad: Any, y: Any) -> Term:
    slope, term = call.held(grad, call.dtype), call.held(y, call.dtype)
    return slope * (1 - term) * term


def _tanh_backward(call: Call, grad: Any, y: Any) -> Term:
    slope, term = call.held(grad, call.dtype), call.held(y, call.dtype)
    return slope * (1 - term * term)


def _threshold(call: Call, x: Any, bound: Any, value: Any) -> Term:
    term = call.exact(x)
    return (term <= call.number(bound, call.dtype)).choose(call.number(value, call.dtype), term)


def _threshold_backward(call: Call, grad: Any, x: Any, bound: Any) -> Term:
    blocked = call.exact(x, call.dtype) <= call.number(bound, call.dtype)
    return blocked.choose(_zero(call), call.held(grad, call.dtype))


def _hardtanh(call: Call, x: Any, low: Any, high: Any) -> Term:
    bounds = [call.number(bound, call.dtype) for bound in (low, high)]
    return call.held(x, call.dtype).op("maximum", bounds[0]).op("minimum", bounds[1])


def _hardtanh_backward(call: Call, grad: Any, x: Any, low: Any, high: Any) -> Term:
    term = call.exact(x, call.dtype)
    outside = (term <= call.number(low, call.dtype)) | (term >= call.number(high, call.dtype))
    return outside.choose(_zero(call), call.held(grad, call.dtype))


def _relu6_of(term: Term) -> Term:
    return term.op("maximum", 0.0).op("minimum", 6.0)


def _hardswish(call: Call, x: Any) -> Term:
    term = call.held(x, call.dtype)
    return term * _relu6_of(term + 3) / 6


def _hardswish_backward(call: Call, grad: Any, x: Any) -> Term:
    slope, term = call.held(grad, call.dtype), call.exact(x, call.dtype)
    middle = slope * (term / 3 + 0.5)
    upper = (term < 3).choose(middle, slope)
    return (term <= -3).choose(_zero(call), upper)


def _hardsigmoid(call: Call, x: Any) -> Term:
    return _relu6_of(call.held(x, call.dtype) + 3) / 6


def _hardsigmoid_backward(call: Call, grad: Any, x: Any) -> Term:
    slope, term = call.held(grad, call.dtype), call.exact(x, call.dtype)
    inside = (term > -3) & (term < 3)
    return inside.choose(slope * (1.0 / 6.0), _zero(call))


def _leaky_relu(call: Call, x: Any, negative_slope: Any) -> Term:
    term = call.held(x, call.dtype)
    return (term > 0).choose(term, term * call.number(negative_slope, call.dtype))


def _leaky_relu_backward(call: Call, grad: Any, x: Any, slope: Any, is_result: bool) -> Term:
    gradient = call.held(grad, call.dtype)
    scaled = gradient * call.number(slope, call.dtype)
    return (call.exact(x, call.dtype) > 0).choose(gradient, scaled)


def _elu(call: Call, x: Any, alpha: Any, scale: Any, input_scale: Any) -> Term:
    term = call.held(x, call.dtype)
    alpha, scale, input_scale = _factors(call, alpha, scale, input_scale)
    lower = (term * input_scale).op("expm1") * (alpha * scale)
    return (term < 0).choose(lower, term * scale)


def _factors(call: Call, *numbers: Any) -> list[Any]:
    """Python's numbers, whose products are rounded once; those that change from call to call as
    terms.
    """
    known = (int, float, Term)
    return [n if isinstance(n, known) else call.number(n, call.dtype) for n in numbers]


def _elu_backward(
    call: Call, grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, y: Any
) -> Term:
    slope, term = call.held(grad, call.dtype), call.held(y, call.dtype)
    alpha, scale, input_scale = _factors(call, alpha, scale, input_scale)
    if is_result:
        lower = slope * input_scale * (term + alpha * scale)
    else:
        lower = slope * input_scale * (alpha * scale) * (term * input_scale).op("exp")
    return (call.exact(y, call.dtype) <= 0).choose(lower, slope * scale)


def _celu(call: Call, x: Any, alpha: Any) -> Term:
    (alpha,) = _factors(call, alpha)
    return _elu(call, x, alpha, 1.0, 1.0 / alpha)


# The constants of the paper, "Self-Normalizing Neural Networks".
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _selu(call: Call, x: Any) -> Term:
    return _elu(call, x, _SELU_ALPHA, _SELU_SCALE, 1)


def _softplus(call: Call, x: Any, beta: float, threshold: float) -> Term:
    term = call.held(x, call.dtype)
    scaled = term * beta
    return (scaled > threshold).choose(term, scaled.op("exp").op("log1p") / beta)


def _softplus_backward(call: Call, grad: Any, x: Any, beta: float, threshold: float) -> Term:
    slope, scaled = call.held(grad, call.dtype), call.held(x, call.dtype) * beta
    exponential = scaled.op("exp")
    return (scaled > threshold).choose(slope, slope * exponential / (exponential + 1))


def _mish(call: Call, x: Any) -> Term:
    term = call.held(x, call.dtype)
    return term * term.op("exp").op("log1p").op("tanh")


def _mish_backward(call: Call, grad: Any, x: Any) -> Term:
    slope, term = call.held(grad, call.dtype), call.held(x, call.dtype)
    gate = term.op("sigmoid")
    tanh = term.op("exp").op("log1p").op("tanh")
    return slope * (tanh + term * gate * (1 - tanh * tanh))


def _log_sigmoid_forward(call: Call, x: Any) -> tuple[Term, Term | None]:
    term = call.held(x, call.dtype)
    exponential = (-term.op("abs")).op("exp")
    result = term.op("minimum", 0.0) - exponential.op("log1p")
    buffer = call.meta[1]
    # Only the CPU keeps exp(-|x|) for the gradient; elsewhere the buffer has no elements.
    if tuple(buffer.shape) == tuple(call.meta[0].shape):
        return result, exponential
    raise call.refuse("a buffer of another shape than the input")


def _log_sigmoid_backward(call: Call, grad: Any, x: Any, buffer: Any) -> Term:
    slope, term = call.held(grad, call.dtype), call.exact(x, call.dtype)
    exponential = (-term.op("abs")).op("exp")
    fraction = exponential / (1 + exponential)
    negative = term < 0
    highest = negative.choose(call.constant(1), call.constant(0))
    sign = negative.choose(call.constant(1), call.constant(-1))
    return (highest - sign * fraction) * slope


def _hardshrink(call: Call, x: Any, bound: float) -> Term:
    term = call.exact(x)
    inside = (term >= -bound) & (term <= bound)
    return inside.choose(_zero(call), term)


def _shrink_backward(call: Call, grad: Any, x: Any, bound: float) -> Term:
    term = call.exact(x, call.dtype)
    inside = (term >= -bound) & (term <= bound)
    return inside.choose(_zero(call), call.held(grad, call.dtype))


def _softshrink(call: Call, x: Any, bound: float) -> Term:
    term = call.held(x)
    shrunk = (term > bound).choose(term - bound, (term < -bound).choose(term + bound, term * 0))
    return shrunk


def _prelu(call: Call, x: Any, weight: Any) -> Term:
    term = call.held(x, call.dtype)
    return (term > 0).choose(term, term * call.held(weight, call.dtype))


def _prelu_backward(call: Call, grad: Any, x: Any, weight: Any) -> tuple[Term, Term]:
    slope, term = call.held(grad, call.dtype), call.exact(x, call.dtype)
    positive = term > 0
    of_input = positive.choose(slope, slope * call.held(weight, call.dtype))
    return of_input, positive.choose(_zero(call), term * slope)


def _dropout_backward(call: Call, grad: Any, mask: Any, scale: Any) -> Term:
    """The gradient times eager's factor: 1 / keep, divided in the result's dtype."""
    keep = 0.0 if scale == 0 else 1.0 / scale
    kept = call.held(mask, call.dtype)
    return call.held(grad, call.dtype) * (kept * keep_scale(call.meta.dtype, keep))


def _relu6(call: Call, x: Any) -> Term:
    return _relu6_of(call.held(x, call.dtype))


def _floats(node: Any, *rest: Any) -> str | None:
    meta = node.meta["val"]
    first = meta[0] if isinstance(meta, (tuple, list)) else meta
    return None if first.dtype.is_floating_point else f"a result of {first.dtype}"


def _row(
    build: Build,
    is_heavy: bool = False,
    keeps_values: bool = False,
    exact: tuple[int, ...] = (),
) -> Translation:
    return Translation(build, "heavy" if is_heavy else "cheap", _floats, keeps_values, exact)


TRANSLATIONS: Table = {
    aten.gelu.default: _row(_gelu, True),
    aten.gelu_backward.default: _row(_gelu_backward, True),
    aten.silu_backward.default: _row(_silu_backward, True),
    aten.sigmoid_backward.default: _row(_sigmoid_backward),
    aten.tanh_backward.default: _row(_tanh_backward),
    aten.threshold.default: _row(_threshold, exact=(0,)),
    aten.threshold_backward.default: _row(_threshold_backward, keeps_values=True, exact=(1,)),
    aten.hardtanh.default: _row(_hardtanh),
    aten.hardtanh_backward.default: _row(_hardtanh_backward, keeps_values=True, exact=(1,)),
    aten.relu6.default: _row(_relu6),
    aten.hardswish.default: _row(_hardswish),
    aten.hardswish_backward.default: _row(_hardswish_backward, exact=(1,)),
    aten.hardsigmoid.default: _row(_hardsigmoid),
    aten.hardsigmoid_backward.default: _row(_hardsigmoid_backward, exact=(1,)),
    aten.leaky_relu.default: _row(_leaky_relu),
    aten.leaky_relu_backward.default: _row(_leaky_relu_backward, exact=(1,)),
    aten.elu.default: _row(_elu, True),
    aten.elu_backward.default: _row(_elu_backward, True, exact=(5,)),
    aten.celu.default: _row(_celu, True),
    aten.selu.default: _row(_selu, True),
    aten.softplus.default: _row(_softplus, True),
    aten.softplus_backward.default: _row(_softplus_backward, True),
    aten.mish.default: _row(_mish, True),
    aten.mish_backward.default: _row(_mish_backward, True),
    aten.log_sigmoid_forward.default: _row(_log_sigmoid_forward, True),
    aten.log_sigmoid_backward.default: _row(_log_sigmoid_backward, True, exact=(1,)),
    aten.hardshrink.default: _row(_hardshrink, keeps_values=True, exact=(0,)),
    aten.hardshrink_backward.default: _row(_shrink_backward, keeps_values=True, exact=(1,)),
    aten.softshrink.default: _row(_softshrink),
    aten.softshrink_backward.default: _row(_shrink_backward, keeps_values=True, exact=(1,)),
    aten._prelu_kernel.default: _row(_prelu),
    aten._prelu_kernel_backward.default: _row(_prelu_backward, exact=(1,)),
    aten.native_dropout_backward.default: _row(_dropout_backward),
}
