"""What eager refuses for the dtypes of its operands is refused, not computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import TorchRuntimeError
from torch.nn import functional

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cross entropy": lambda x: functional.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
    "binary cross entropy": lambda x: functional.binary_cross_entropy(x, x),
    "huber": lambda x: functional.huber_loss(x, x),
    "smooth l1": lambda x: functional.smooth_l1_loss(x, x),
    "silu": functional.silu,
    "glu": functional.glu,
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "frac": torch.frac,
    "less true": lambda x: x - True,
    "relu": functional.relu,
    "floor": torch.floor,
    "hypot": lambda x: torch.hypot(x, x),
    "argmax": lambda x: x.argmax(1),
    "sum": lambda x: x.sum(0),
    "quotient": lambda x: x / 2,
    "exp": torch.exp,
    "larger": lambda x: torch.where(x > 1, x, 1),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_as_in_eager(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend=BACKEND, dynamic=dynamic)
    x = torch.arange(16).view(4, 4).to(dtype)
    try:
        expected = function(x)
    except Exception as error:  # NotImplementedError, RuntimeError, ...
        with pytest.raises((type(error), TorchRuntimeError)):
            compiled(x)
    else:
        torch.testing.assert_close(compiled(x), expected)


def test_no_random_numbers_are_drawn_by_asking() -> None:
    """A dropout's mask is drawn from a tensor of booleans."""
    for rewrites in (1, 2):
        x = torch.ones(5, rewrites, requires_grad=True)
        compiled = torch.compile(functional.dropout, backend=BACKEND, dynamic=False)
        torch.manual_seed(3)
        result = compiled(x, 0.5)
        result.sum().backward()
        after = torch.rand(())
        torch.manual_seed(3)
        torch.testing.assert_close(result, functional.dropout(x, 0.5))
        assert torch.equal(after, torch.rand(()))
