"""Calls that torch refuses because of their operands' values, and the checks of a refusal.

`CASES` has each as a function of tensors and as a definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

from pyfuser import FusionDefinition
from pyfuser.dtypes import from_torch
from pyfuser.ir.fusion import Fusion

Inputs = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A function of tensors, the same as a definition, and inputs one of which has bad values.

    inputs   for a size n: good ones; the first element of the `spoiled` one may be replaced
    bad      for a size n: values that torch refuses in place of any of its elements
    """

    name: str
    call: Callable[..., torch.Tensor]
    define: Callable[..., Any] | None
    inputs: Callable[[int], Inputs]
    spoiled: int
    bad: Callable[[int], Sequence[float]]

    def spoil(self, n: int, place: int, value: float) -> Inputs:
        """Inputs with one element that is refused."""
        inputs = self.inputs(n)
        inputs[self.spoiled] = inputs[self.spoiled].clone()
        inputs[self.spoiled].view(-1)[place] = value
        return inputs


def index(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randint(1, 9, shape)


def out_of_range(n: int) -> tuple[int, ...]:
    return (n, -1, 2**62, -(2**62))


def out_of_wrapped_range(n: int) -> tuple[int, ...]:
    return (n, -n - 1, 2**62, -(2**62))


def no_probability(n: int) -> tuple[float, ...]:
    return (1.25, -0.5, float("nan"), float("inf"))


CASES = [
    Case(
        "embedding",
        lambda w, i: functional.embedding(i, w) * 2.0,
        lambda o, w, i: o.mul(o.embedding_fwd(i, w), 2.0),
        lambda n: [torch.randn(n, 33), index(n, 3, 7)],
        1,
        out_of_range,
    ),
    Case(
        "index_select",
        lambda x, i: x.index_select(1, i) * 2.0,
        lambda o, x, i: o.mul(o.index_select(x, i, 1), 2.0),
        lambda n: [torch.randn(5, n), index(n, 37)],
        1,
        out_of_range,
    ),
    Case(
        "gather",
        lambda x, i: x.gather(1, i) * 2.0,
        lambda o, x, i: o.mul(o.gather(x, i, 1), 2.0),
        lambda n: [torch.randn(5, n), index(n, 5, 37)],
        1,
        out_of_range,
    ),
    Case(
        "gather of log_softmax",
        lambda x, i: -x.log_softmax(1).gather(1, i),
        None,
        lambda n: [torch.randn(37, n), index(n, 37, 1)],
        1,
        out_of_range,
    ),
    Case(
        "index",
        lambda x, i: x[:, i] * 2.0,
        lambda o, x, i: o.mul(o.index(x, i, 1), 2.0),
        lambda n: [torch.randn(5, n, 3), index(n, 37)],
        1,
        out_of_wrapped_range,
    ),
    Case(
        "index of rows",
        lambda x, i: x[i] + x[i].sum(-1, keepdim=True),
        lambda o, x, i: o.add(o.index(x, i, 0), o.sum(o.index(x, i, 0), [-1], True)),
        lambda n: [torch.randn(n, 65), index(n, 37)],
        1,
        out_of_wrapped_range,
    ),
    Case(
        "cross_entropy",
        lambda x, y: functional.cross_entropy(x, y),
        None,
        lambda n: [torch.randn(37, n), index(n, 37)],
        1,
        out_of_range,
    ),
    Case(
        "cross_entropy of images",
        lambda x, y: functional.cross_entropy(x, y, reduction="none", label_smoothing=0.1),
        None,
        lambda n: [torch.randn(3, n, 7, 5), index(n, 3, 7, 5)],
        1,
        out_of_range,
    ),
    Case(
        "nll_loss",
        lambda x, y: functional.nll_loss(x, y, ignore_index=-1),
        None,
        lambda n: [torch.randn(37, n), index(n, 37) - 1],
        1,
        lambda n: (n, -2, -100),
    ),
    Case(
        "scatter",
        lambda x, i: x.scatter(1, i, 2.0) * 3,
        None,
        lambda n: [torch.randn(37, n), index(n, 37, 1)],
        1,
        out_of_range,
    ),
    Case(
        "one_hot",
        lambda x, table: functional.one_hot(x, table.shape[0]) * 2,
        None,
        lambda n: [index(n, 3, 7), torch.randn(n)],
        0,
        out_of_range,
    ),
    Case(
        "binary_cross_entropy",
        lambda x, y: functional.binary_cross_entropy(x, y),
        None,
        lambda n: [torch.rand(n, 7), torch.rand(n, 7)],
        0,
        no_probability,
    ),
    Case(
        "binary_cross_entropy of its target",
        lambda x, y: functional.binary_cross_entropy(x, y),
        None,
        lambda n: [torch.rand(n, 7), torch.rand(n, 7)],
        1,
        no_probability,
    ),
    *(
        Case(
            name,
            call,
            define,
            lambda n: [numbers(n, 7), numbers(n, 7)],
            1,
            lambda n: (0,),
        )
        for name, call, define in (
            (
                "div",
                lambda a, b: torch.div(a, b, rounding_mode="trunc") + 1,
                lambda o, a, b: o.add(o.div(a, b), 1),
            ),
            ("floor_divide", lambda a, b: a // b + 1, None),
            ("remainder", lambda a, b: a % b, lambda o, a, b: o.remainder(a, b)),
            ("fmod", lambda a, b: torch.fmod(a, b), lambda o, a, b: o.fmod(a, b)),
            (
                "sum of remainders",
                lambda a, b: (a % b).sum(1),
                lambda o, a, b: o.sum(o.remainder(a, b), [1]),
            ),
        )
    ),
]
IDS = [case.name for case in CASES]
DEFINED = [case for case in CASES if case.define is not None]


def fused(define: Callable[..., Any], inputs: Inputs) -> Callable[..., torch.Tensor]:
    """A definition with open sizes as a function of its inputs."""
    with FusionDefinition() as fd:
        values = [
            fd.define_tensor([-1] * x.dim(), dtype=from_torch(x.dtype), contiguity=True)
            for x in inputs
        ]
        fd.add_output(define(fd.ops, *values))
    return lambda *given: fd.execute(list(given))[0]


def fused_graph(define: Callable[..., Any], inputs: Inputs) -> Fusion:
    with FusionDefinition() as fd:
        fd.add_output(define(fd.ops, *(fd.from_pytorch(x) for x in inputs)))
    graph: Fusion = fd.fusion.definition
    return graph


def compiled(call: Callable[..., Any], dynamic: bool = False) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(call, backend="pyfuser", dynamic=dynamic)


def eagers_error(call: Callable[..., Any], inputs: Inputs) -> Exception:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        call(*inputs)
    return caught.value


def require_refusal(call: Callable[..., Any], inputs: Inputs, like: Exception) -> None:
    """The call raises eager's error, and leaves its inputs unchanged."""
    before = [x.clone() for x in inputs]
    with pytest.raises(type(like)) as caught:
        call(*inputs)
    assert type(caught.value) is type(like)
    assert str(caught.value).startswith(str(like))
    assert ": expected " in str(caught.value)
    assert ", got " in str(caught.value)
    for x, y in zip(inputs, before, strict=True):
        assert torch.equal(x.nan_to_num(7), y.nan_to_num(7))


def places(case: Case, n: int) -> list[int]:
    """The first element, the last (in the tail of a vector), and two in between."""
    count = case.inputs(n)[case.spoiled].numel()
    return sorted({0, 7 % count, count // 2, count - 1})


def require_case(case: Case, call: Callable[..., Any], noticed: list[Fusion], n: int) -> None:
    for place in places(case, n):
        for value in case.bad(n):
            inputs = case.spoil(n, place, value)
            error = eagers_error(case.call, inputs)
            known = len(noticed)
            require_refusal(call, inputs, error)
            assert len(noticed) == known + 1
        good = case.inputs(n)
        torch.testing.assert_close(call(*good), case.call(*good))
    assert noticed
