"""Pointwise fusions of tensors whose memory runs across each other, in tiles."""

from __future__ import annotations

import itertools

import pytest
import torch

from pyfuser import DataType, FusionDefinition


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("permuted", list(itertools.permutations(range(3))), ids=str)
def test_axes_of_one_element_anywhere(place: int, permuted: tuple[int, ...]) -> None:
    """A tile's rows and columns are merged axes; an axis that broadcasts belongs to neither."""
    shape = [48, 64]
    shape.insert(place, 1)
    wide = shape.copy()
    wide[place] = 7
    x = torch.randn([shape[p] for p in permuted]).permute([permuted.index(k) for k in range(3)])
    for y in (torch.randn(shape), torch.randn(wide), None):
        with FusionDefinition() as fd:
            given = fd.from_pytorch(x)
            added = fd.ops.exp(given) if y is None else fd.ops.add(given, fd.from_pytorch(y))
            fd.add_output(added)
        (result,) = fd.execute([x] if y is None else [x, y])
        torch.testing.assert_close(result, x.exp() if y is None else x + y)


@pytest.mark.parametrize("rows", [17, 16, 33])
def test_a_transposed_input_with_another_output(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One square of it is read in two loops, of which neither comes before the other."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    x, y = torch.randn(33, rows).t(), torch.randn(rows, 33)
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1], contiguity=True)
        b = fd.define_tensor([-1, -1], contiguity=True, stride_order=[0, 1])
        fd.add_output(fd.ops.mul(a, b))
        fd.add_output(fd.ops.broadcast_in_dim(b, [2, rows, 33], [1, 2]))
    product, wide = fd.execute([y, x])
    assert torch.equal(product, y * x) and torch.equal(wide, x.expand(2, rows, 33))


@pytest.mark.parametrize("shape", [(2, 16, 7, 9), (3, 33, 8, 16), (1, 64, 56, 56), (2, 5, 1, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_over_several_axes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """From channels-last and back: two axes are one range of memory in both orders."""
    x = torch.randn(shape).to(dtype)
    for function in (
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: (x.to(memory_format=torch.channels_last) * 2).contiguous(),
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
    ):
        torch._dynamo.reset()
        result = torch.compile(function, backend="pyfuser")(x)
        assert torch.equal(result, function(x)) and result.stride() == function(x).stride()


@pytest.mark.parametrize("rows", [16, 17, 33, 64, 65])
@pytest.mark.parametrize("columns", [64, 701, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_few_rows_of_any_length(rows: int, columns: int, dtype: torch.dtype) -> None:
    """A task that has all rows takes them by the cache line."""
    x = torch.randn(rows, columns).mul(9).to(dtype)
    y = torch.randn(columns, rows).mul(9).to(dtype)
    torch._dynamo.reset()
    result = torch.compile(lambda x, y: x + y.t(), backend="pyfuser", dynamic=False)(x, y)
    assert torch.equal(result, x + y.t())


@pytest.mark.parametrize("rows", [1, 9, 64])
def test_a_transposed_input_that_is_read_at_two_places(rows: int) -> None:
    """The tile holds what is read at the element's own place; a window reads the input itself."""
    x = torch.randn(130, rows).t()
    with FusionDefinition() as fd:
        given = fd.define_tensor([-1, -1], contiguity=[False, False], dtype=DataType.Float)
        length, width = fd.ops.size(given, 0), fd.ops.size(given, 1)
        part = [fd.ops.minimum(1, length), fd.ops.minimum(130, width)]
        first = fd.ops.slice(given, [0, 0], part)
        fd.add_output(fd.ops.clamp(fd.ops.abs(fd.ops.sum(given, [0])), 0.0, 10.0))
        fd.add_output(fd.ops.pad(first, [0, 0, 0, fd.ops.sub(length, part[0])], given))
    fd.validate([x])
