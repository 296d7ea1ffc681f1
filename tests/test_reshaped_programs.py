"""Reshapes between axes and their parts: heads of attention, groups, windows.

Kernels read and write along memory on both sides, also where the definition's sizes are symbolic
and only a call says where an axis begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import InputError
from pyfuser.frontend.executors import stage_texts
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

Shape = tuple[int, ...]
Program = Callable[[FusionDefinition, Callable[..., Any], Shape], Any]


def heads(fd: FusionDefinition, x: Any, sizes: Shape) -> Any:
    """[b, s, h * d] -> [b, h, s, d]"""
    b, h, s, d = sizes
    return fd.ops.permute(fd.ops.reshape(x, [b, s, h, d]), [0, 2, 1, 3])


def merged(fd: FusionDefinition, x: Any, sizes: Shape) -> Any:
    """[b, h, s, d] -> [b, s, h * d]"""
    b, h, s, d = sizes
    return fd.ops.reshape(fd.ops.permute(x, [0, 2, 1, 3]), [b, s, h * d])


def row(fd: FusionDefinition, x: Any, shape: Shape) -> Any:
    return fd.ops.broadcast_in_dim(x, list(shape), [len(shape) - 1])


def biased_heads(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    b, h, s, d = sizes
    x, bias = of(b, s, h * d), of(h * d)
    return heads(fd, fd.ops.add(x, row(fd, bias, (b, s, h * d))), sizes)


def scaled_heads(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    b, h, s, d = sizes
    return heads(fd, fd.ops.mul(of(b, s, h * d), 0.5), sizes)


def keys(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    """Transposed, too."""
    b, h, s, d = sizes
    x = fd.ops.mul(of(b, s, h * d), 0.5)
    return fd.ops.permute(fd.ops.reshape(x, [b, s, h, d]), [0, 2, 3, 1])


def part_of_heads(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    b, h, s, d = sizes
    x = of(b, s, 3 * h * d)
    return heads(fd, fd.ops.slice(x, [0, 0, h * d], [b, s, 2 * h * d]), sizes)


def rotated_heads(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    b, h, s, d = sizes
    x, half = heads(fd, of(b, s, h * d), sizes), d // 2
    parts = [
        fd.ops.neg(fd.ops.slice(x, [0, 0, 0, half], [b, h, s, d])),
        fd.ops.slice(x, [0, 0, 0, 0], [b, h, s, half]),
    ]
    return fd.ops.add(fd.ops.mul(x, 2.0), fd.ops.cat(parts, 3))


def merged_heads(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    b, h, s, d = sizes
    return fd.ops.add(merged(fd, of(b, h, s, d), sizes), of(b, s, h * d))


def normalised_heads(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    b, h, s, d = sizes
    x = merged(fd, of(b, h, s, d), sizes)
    largest = fd.ops.max(x, [2], keepdim=True)
    return fd.ops.mul(fd.ops.sub(x, largest), row(fd, of(h * d), (b, s, h * d)))


def sums_of_groups(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    b, h, s, d = sizes
    return fd.ops.sum(fd.ops.reshape(of(b, s, h * d), [b, s, h, d]), [3])


def flat(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    b, h, s, d = sizes
    x = fd.ops.add(of(b, h, s, d), row(fd, of(d), sizes))
    return fd.ops.neg(fd.ops.reshape(x, [b * h * s * d]))


def across(fd: FusionDefinition, of: Callable[..., Any], sizes: Shape) -> Any:
    """No axis of the one shape begins where one of the other does."""
    b, h, s, d = sizes
    x = fd.ops.permute(of(b * h, s * d), [1, 0])
    return fd.ops.neg(fd.ops.reshape(x, [s, b, h * d]))


PROGRAMS: list[Program] = [
    biased_heads,
    scaled_heads,
    keys,
    part_of_heads,
    rotated_heads,
    merged_heads,
    normalised_heads,
    sums_of_groups,
    flat,
    across,
]


def defined(
    program: Program, sizes: Shape, is_static: bool, contiguity: bool = True
) -> tuple[FusionDefinition, list[Shape]]:
    """The program, and the shapes of its inputs."""
    shapes: list[Shape] = []
    fd = FusionDefinition()

    def of(*shape: int) -> Any:
        shapes.append(shape)
        given = list(shape) if is_static else [-1] * len(shape)
        return fd.define_tensor(shape=given, contiguity=contiguity)

    with fd:
        fd.add_output(program(fd, of, sizes))
    return fd, shapes


@pytest.mark.parametrize(
    ("program", "is_static", "sizes"),
    pairwise(
        PROGRAMS,
        [pytest.param(True, id="static"), pytest.param(False, id="symbolic")],
        [(2, 3, 5, 8), (2, 4, 33, 32), (1, 2, 7, 2), (3, 1, 16, 64)],
    ),
)
def test_a_program(program: Program, is_static: bool, sizes: Shape) -> None:
    """Contiguous inputs, parts of longer rows, and transposed ones."""
    fd, shapes = defined(program, sizes, is_static)
    contiguous = [torch.randn(shape) for shape in shapes]
    fd.validate(contiguous)
    fd, _ = defined(program, sizes, is_static, contiguity=False)
    apart = [torch.randn(*s[:-1], s[-1] + 3)[..., : s[-1]] for s in shapes]
    turned = [torch.randn(s[::-1]).permute(*reversed(range(len(s)))) for s in shapes]
    for inputs in (apart, turned, contiguous):
        fd.validate(inputs)


@pytest.mark.parametrize("is_static", [True, False], ids=["static", "symbolic"])
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p is not across])
def test_vectors_of_a_program(program: Program, is_static: bool) -> None:
    """One kernel, and no index in it divides the number of a lane."""
    fd, shapes = defined(program, (8, 8, 256, 64), is_static)
    texts = stage_texts(fd.fusion, [torch.empty(shape) for shape in shapes])
    assert texts["kernel"].count("kernel kernel(") == 1
    assert not re.findall(r"threadIdx\.x\) (?://|%)", texts["kernel"])


def test_sizes_of_which_a_reshape_has_other_groups() -> None:
    """One definition; each call is as its sizes say, also if axes begin elsewhere."""
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1, -1], True), fd.define_tensor([-1], True)
        shape = fd.ops.shape(x)
        made = fd.ops.add(x, fd.ops.broadcast_in_dim(y, shape, [2]))
        fd.add_output(fd.ops.permute(fd.ops.reshape(made, [4, 6, 2, 8]), [0, 2, 1, 3]))
    for sizes in (
        (4, 6, 16),
        (4, 12, 8),
        (24, 2, 8),
        (2, 12, 16),
        (4, 1, 96),
        (3, 8, 16),
        (1, 3, 128),
    ):
        fd.validate([torch.randn(sizes), torch.randn(sizes[-1])])
    for sizes in ((4, 6, 15), (5, 6, 16), (0, 6, 16)):
        with pytest.raises(InputError, match="expected the sizes"):
            fd.execute([torch.randn(sizes), torch.randn(sizes[-1])])


def test_an_input_that_is_updated_is_read_before() -> None:
    """A view of it would show the new values."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], True)
        turned = fd.ops.permute(fd.ops.reshape(x, [4, 2, 3]), [0, 2, 1])
        total = fd.ops.sum(turned, [0], keepdim=True)
        fd.add_output(fd.ops.sub(turned, total))
        fd.add_output(fd.ops.reshape(fd.ops.exp(fd.ops.reshape(x, [24])), [4, 6]), x)
    x = torch.randn(4, 6)
    old, (made,) = x.clone(), fd.execute([x])
    turned = old.view(4, 2, 3).permute(0, 2, 1)
    torch.testing.assert_close(made, turned - turned.sum(0, keepdim=True))
    torch.testing.assert_close(x, old.exp())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (2, 5, 24)).to(dtype)
    with FusionDefinition() as fd:
        given = fd.from_pytorch(x)
        fd.add_output(heads(fd, given, (2, 3, 5, 8)))
        fd.add_output(heads(fd, fd.ops.bitwise_and(given, given), (2, 3, 5, 8)))
    for made in fd.execute([x]):
        assert torch.equal(made, x.view(2, 5, 3, 8).transpose(1, 2))


@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize(
    ("shape", "new"),
    [
        ((9, 9), [3, -1, 9]),
        ((9, 9), [9, 3, -1]),
        ((9, 9), [3, -1, 3, 3]),
        ((12, 5), [4, -1, 5]),
        ((6, 4, 10), [2, -1, 4, 10]),
        ((6, 4, 10), [5, -1, 6]),
        ((6, 4, 10), [6, 4, -1, 2]),
    ],
)
def test_a_size_that_follows_from_the_others(
    shape: Shape, new: list[int], is_flipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * len(shape), contiguity=True)
        moved = fd.ops.flip(x, dims=[0]) if is_flipped else fd.ops.neg(x)
        fd.add_output(fd.ops.reshape(moved, new))
        fd.add_output(fd.ops.exp(x))
    for rows in (shape[0], 2 * shape[0]):
        given = torch.randn(rows, *shape[1:])
        found, beside = fd.execute([given])
        assert torch.equal(found, (given.flip(0) if is_flipped else -given).reshape(new))
        torch.testing.assert_close(beside, given.exp())


@pytest.mark.parametrize("is_cat", [False, True], ids=["slice", "cat"])
def test_multiples_of_a_computed_size_that_another_tensor_tells(is_cat: bool) -> None:
    """A size that is computed equals a constant, and a reshape's result is twice as long."""
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1, 1], contiguity=[True, None]) for _ in range(1 + is_cat)]
        x = fd.ops.cat(inputs, 0) if is_cat else fd.ops.slice(inputs[0], [1, 0], [4, 1])
        product = fd.ops.mul(x, fd.ops.full([3, 1], 2.0, DataType.Float))
        twice = fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [2, -1, -1])
        reshaped = fd.ops.reshape(fd.ops.squeeze(twice, [2]), [-1])
        fd.add_output(product)
        fd.add_output(fd.ops.broadcast(reshaped, [False, True]))
    given = [torch.randn(1, 1), torch.randn(2, 1)] if is_cat else [torch.randn(4, 1)]
    read = torch.cat(given) if is_cat else given[0][1:]
    first, second = fd.execute(given)
    assert torch.equal(first, read * 2)
    assert torch.equal(second, read.repeat(2, 1))
