"""What the tests of library operations share: definitions of functions, compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ops.evaluator import evaluate
from tests.support.random_tensors import random_tensor

Define = Callable[..., Any]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "misaligned")


def defined(define: Define, inputs: list[Any], static: bool = False) -> FusionDefinition:
    """The definition of a function of a definition and the handles of its inputs."""
    with FusionDefinition() as fd:
        handles = [
            fd.define_scalar(dtype=DataType.Int)
            if isinstance(x, int)
            else fd.from_pytorch(x, static_sizes=static)
            for x in inputs
        ]
        outputs = define(fd, *handles)
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            fd.add_output(output)
    return fd


def check(
    define: Define,
    eager: Callable[..., Any],
    *inputs: Any,
    exact: bool = True,
    statics: tuple[bool, ...] = (False, True),
) -> str:
    """Compares a definition with eager and with the evaluator; the text of the last plan.

    `statics` says whether its sizes are numbers; by default both are tried.
    """
    wanted = eager(*inputs)
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    rounding = {"rtol": 0.0, "atol": 0.0} if exact else {}
    for static in statics:
        fd = defined(define, list(inputs), static)
        outputs = fd.execute(list(inputs))
        evaluated = evaluate(fd.fec.engine.executor.fusion, list(inputs))
        for got, want, reference in zip(outputs, wanted, evaluated, strict=True):
            torch.testing.assert_close(got, want, equal_nan=True, check_stride=False, **rounding)
            torch.testing.assert_close(got, reference, equal_nan=True, **rounding)
            assert got.stride() == reference.stride()
    source: str = fd.fec.engine.executor.plans[0].source
    return source


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Multiples of 1/4 between -2 and 2, whose products have no rounding error."""
    return random_tensor(shape, dtype, seed)


def distinct(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Different numbers in random order."""
    count = int(torch.tensor(shape).prod())
    generator = torch.Generator().manual_seed(count)
    return torch.randperm(count, generator=generator).reshape(shape).to(dtype)
