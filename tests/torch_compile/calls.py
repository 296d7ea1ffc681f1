"""Compiled calls against eager's: values, strides, `requires_grad` and shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.programs.check import sharing, strides
from tests.support.compiled import BACKEND


def flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def assert_same(got: Any, expected: Any) -> None:
    if not isinstance(expected, Tensor):
        assert got == expected
        return
    assert strides(got) == strides(expected)
    assert got.requires_grad == expected.requires_grad
    torch.testing.assert_close(got, expected, equal_nan=True)


def check(
    function: Callable[..., Any], make: Callable[[], Sequence[Any]], **options: Any
) -> list[Any]:
    """Three calls, each on its own inputs; returns the last call's outputs."""
    compiled = torch.compile(function, backend=BACKEND, fullgraph=True, **options)
    for seed in range(3):
        torch.manual_seed(seed)
        expected_inputs = make()
        torch.manual_seed(seed)
        inputs = make()
        expected, got = flat(function(*expected_inputs)), flat(compiled(*inputs))
        assert len(got) == len(expected)
        for ours, eager in zip([*got, *inputs], [*expected, *expected_inputs], strict=True):
            assert_same(ours, eager)
        assert sharing([*inputs, *got]) == sharing([*expected_inputs, *expected])
    return got
