"""Parts of a computed tensor that are reshaped, as attention splits a product into heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.profiling import Recorder, recording
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

from .calls import flat

HEAD = 8


def heads(x: Tensor) -> Tensor:
    """[batch, length, width] as [batch, heads, length, head]."""
    return x.reshape(x.shape[0], x.shape[1], -1, HEAD).transpose(1, 2)


def in_three(x: Tensor) -> list[Tensor]:
    return [heads(part).contiguous() for part in (x * 1.5).chunk(3, -1)]


def of_a_norm(x: Tensor) -> list[Tensor]:
    normed = functional.layer_norm(x, x.shape[-1:])
    return [heads(part).contiguous() for part in normed.chunk(3, -1)]


def with_a_norm_of_each(x: Tensor) -> list[Tensor]:
    query, key, value = (heads(part) for part in x.tanh().chunk(3, -1))
    return [functional.normalize(query, dim=-1), functional.normalize(key, dim=-1), value.exp()]


def multiplied(x: Tensor) -> Tensor:
    query, key, value = (heads(part) for part in x.softmax(-1).chunk(3, -1))
    return query * key + value


def of_other_times(x: Tensor) -> Tensor:
    y = x.exp()
    later = y[:, 1:].reshape(x.shape[0], x.shape[1] - 1, x.shape[2] // HEAD, HEAD)
    earlier = y[:, :-1].reshape(x.shape[0], x.shape[1] - 1, x.shape[2] // HEAD, HEAD)
    return (later - earlier).sum(-1)


def in_steps(x: Tensor) -> Tensor:
    return heads(x.sin()[:, ::2]).contiguous()


PARTED = [in_three, of_a_norm, with_a_norm_of_each, multiplied, of_other_times, in_steps]


def of_one_part_and_the_rest(x: Tensor) -> list[Tensor]:
    part, rest = functional.silu(x).split([2 * HEAD, x.shape[-1] - 2 * HEAD], -1)
    return [heads(part) * 2, rest]


def of_parts_and_the_whole(x: Tensor) -> list[Tensor]:
    y = x.sigmoid()
    return [y, *(heads(part).contiguous() for part in y.chunk(3, -1))]


def rotated(x: Tensor) -> list[Tensor]:
    def rotate(part: Tensor) -> Tensor:
        a, b = part.chunk(2, -1)
        return part * 2 + torch.cat((-b, a), -1)

    query, key, value = (heads(part) for part in (x + 1).chunk(3, -1))
    return [rotate(query), rotate(key), value.contiguous()]


STORED = [of_one_part_and_the_rest, of_parts_and_the_whole, rotated]


def given(length: int = 5) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, length, 6 * HEAD)


def kernels(function: Callable[..., Any], x: Tensor) -> list[tuple[int, int]]:
    """Bytes that each kernel of a compiled function reads and writes."""
    recorder = Recorder()
    with recording(recorder):
        torch.compile(function, backend=BACKEND, dynamic=False)(x)
    return [(part.read, part.written) for each in recorder.calls for part in each.parts]


def strides(x: Tensor) -> list[int]:
    """Those of the axes along which there is more than one element."""
    pairs = zip(x.shape, x.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


@pytest.mark.parametrize(
    ("function", "length", "dtype"),
    pairwise([*PARTED, *STORED], [5, 1, 64], [torch.float32, torch.bfloat16], count=13),
)
def test_results_and_layouts_are_eager_s(
    function: Callable[..., Any], length: int, dtype: torch.dtype
) -> None:
    x = given(length).to(dtype)
    compiled = torch.compile(function, backend=BACKEND, dynamic=False)
    results = (flat(compiled(x)), flat(function(x)), flat(function(x.double())))
    for found, eager, exact in zip(*results, strict=True):
        assert found.dtype == eager.dtype and strides(found) == strides(eager)
        error, allowed = (
            (each.double() - exact).abs().amax() if exact.numel() else torch.zeros(())
            for each in (found, eager)
        )
        assert error <= 2 * allowed + 1e-6


@pytest.mark.parametrize("function", PARTED)
def test_gradients(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, backend=BACKEND)
    for length in (5, 3, 7):  # the second call compiles for any length
        x = given(length).double().requires_grad_()
        found, expected = (
            torch.autograd.grad(sum(each.square().sum() for each in flat(f(x))), x)
            for f in (compiled, function)
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.cpu
def test_nothing_is_stored_before_the_heads() -> None:
    third = given().nbytes // 3
    assert [written for _, written in kernels(in_three, given())] == [third] * 3


@pytest.mark.cpu
@pytest.mark.parametrize("function", [of_one_part_and_the_rest, of_parts_and_the_whole])
def test_what_is_stored_is_not_computed_again(function: Callable[..., Any]) -> None:
    whole = given().nbytes
    assert kernels(function, given())[0] == (whole, whole)
