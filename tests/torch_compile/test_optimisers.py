"""Optimiser steps over lists of tensors (`_foreach_*`), compiled, against eager and float64.

AdamW, SGD with momentum and Lion step several times on parameters of many shapes; parameters and
state must follow float64 as closely as eager's do.  The step changes its tensors in place, so the
parameters must stay the same tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from pyfuser.torch_compile.explain import explain
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

SHAPES = ((33, 17), (64,), (5, 3, 3, 3), (1,), (), (128, 48))
STEPS = 6


class Lion(torch.optim.Optimizer):
    """Lion: the sign of a blend of gradient and momentum, with decoupled weight decay."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Moves the parameters of each group by one step."""
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            gradients = [each.grad for each in parameters]
            momenta = [
                self.state[each].setdefault("momentum", torch.zeros_like(each))
                for each in parameters
            ]
            blend, keep = group["betas"]
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            moves = torch._foreach_lerp(gradients, momenta, blend)
            torch._foreach_sign_(moves)
            torch._foreach_add_(parameters, moves, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1 - keep)


Maker = Callable[[list[Tensor]], torch.optim.Optimizer]
OPTIMISERS: dict[str, Maker] = {
    "adamw": lambda given: torch.optim.AdamW(given, lr=1e-2, weight_decay=0.1, foreach=True),
    "asgd": lambda given: torch.optim.ASGD(given, lr=1e-2, foreach=True),
    "adamw_amsgrad": lambda given: torch.optim.AdamW(given, lr=1e-2, amsgrad=True, foreach=True),
    "sgd": lambda given: torch.optim.SGD(
        given, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True
    ),
    "lion": Lion,
}


def parameters(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in SHAPES]


def run(
    make: Maker, given: list[Tensor], compile_step: bool, learning_rates: tuple[float, ...] = ()
) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and state after `STEPS` steps on the same made-up gradients."""
    optimiser = make(given)
    step = torch.compile(optimiser.step, backend=BACKEND) if compile_step else optimiser.step
    torch.manual_seed(1)
    for number in range(STEPS):
        for each in given:
            each.grad = torch.randn(each.shape).to(each.dtype)
        if learning_rates:
            optimiser.param_groups[0]["lr"].fill_(learning_rates[number])
        step()
    state = [
        value
        for each in given
        for value in optimiser.state[each].values()
        if isinstance(value, Tensor)
    ]
    return [each.detach() for each in given], state


def assert_follows(got: list[Tensor], eager: list[Tensor], exact: list[Tensor]) -> None:
    assert len(got) == len(eager) == len(exact)
    for ours, other, reference in zip(got, eager, exact, strict=True):
        assert (ours.dtype, ours.shape) == (other.dtype, other.shape)
        scale = reference.abs().max().item()
        error, eagers = ((each.double() - reference).abs().max().item() for each in (ours, other))
        # A step rounds once at least, and eager's error may be nothing by chance.
        assert error <= 4 * (eagers + STEPS * torch.finfo(ours.dtype).eps * scale)


@pytest.mark.parametrize(
    ("name", "dtype"), pairwise(OPTIMISERS, [torch.float32, torch.float64], strength=1)
)
def test_steps_follow_eager(name: str, dtype: torch.dtype) -> None:
    given = parameters(dtype)
    before = copy.deepcopy(given)
    pointers = [each.data_ptr() for each in given]
    results = {}
    for kind, copies in {
        "ours": given,
        "eager": copy.deepcopy(given),
        "exact": [each.detach().double().requires_grad_() for each in given],
    }.items():
        results[kind] = run(OPTIMISERS[name], copies, compile_step=kind == "ours")
    for ours, eager, exact in zip(*results.values(), strict=True):
        assert_follows(ours, eager, exact)
    assert [each.data_ptr() for each in given] == pointers
    assert not any(torch.equal(old, new) for old, new in zip(before, given, strict=True))


def test_a_learning_rate_that_changes_is_read_at_every_step() -> None:
    def make(given: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(given, lr=torch.tensor(0.0), momentum=0.9, foreach=True)

    rates = tuple(0.01 / (1 + number) for number in range(STEPS))
    ours, _ = run(make, parameters(torch.float32), True, rates)
    eager, _ = run(make, parameters(torch.float32), False, rates)
    for got, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(got, other, rtol=1e-6, atol=1e-7)


def test_a_step_and_the_model_compile_together() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Linear(24, 3))
    other = copy.deepcopy(model)
    inputs, targets = torch.randn(40, 12), torch.randint(0, 3, (40,))
    losses = []
    for module, is_compiled in ((model, True), (other, False)):
        optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=True)
        call, step = module, optimiser.step
        if is_compiled:
            call = torch.compile(module, backend=BACKEND)
            step = torch.compile(step, backend=BACKEND)
        losses.append([])
        for _ in range(20):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(call(inputs), targets)
            loss.backward()
            step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < 0.8 * losses[0][0]


def adam_by_hand(p: Tensor, gradient: Tensor, mean: Tensor, square: Tensor) -> None:
    """A step in four lines; Dynamo writes `value=` with an operation of its own."""
    mean.lerp_(gradient, 0.1)
    square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    p.mul_(0.999).addcdiv_(mean, square.sqrt().add(1e-8), value=-0.1)


def test_a_step_by_hand_is_one_kernel() -> None:
    torch.manual_seed(0)
    given = [torch.randn(33, 17) for _ in range(3)] + [torch.rand(33, 17)]
    (graph,) = explain(adam_by_hand, *(each.clone() for each in given)).graphs
    assert [len(region.kernels) for region in graph.regions] == [1]
    results = {}
    for kind, step, dtype in (
        ("ours", torch.compile(adam_by_hand, backend=BACKEND), torch.float32),
        ("eager", adam_by_hand, torch.float32),
        ("exact", adam_by_hand, torch.float64),
    ):
        results[kind] = [each.to(dtype, copy=True) for each in given]
        for _ in range(STEPS):
            step(*results[kind])
    assert_follows(*results.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_arguments_that_the_op_of_one_tensor_takes_by_name_only(dtype: torch.dtype) -> None:
    """No kernel computes complex numbers: these are calls."""

    def program(xs: list[Tensor], ys: list[Tensor]) -> tuple[list[Tensor], ...]:
        return (
            torch._foreach_addcmul(xs, ys, ys, 0.5),
            torch._foreach_addcdiv(xs, ys, ys, [0.5, 2]),
            torch._foreach_norm(xs, 1, torch.float64 if dtype.is_floating_point else None),
        )

    xs, ys = ([torch.randn(shape, dtype=dtype) for shape in SHAPES[:2]] for _ in range(2))
    torch.testing.assert_close(torch.compile(program, backend=BACKEND)(xs, ys), program(xs, ys))
