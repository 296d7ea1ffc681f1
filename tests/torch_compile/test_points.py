"""torch.compile reads at points, `x[i, j]`, in kernels, for any layout and any order of slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyfuser.torch_compile.explain import explain
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Any]


def places(size: int, *shape: int) -> Tensor:
    """Random positions, also counted from the end."""
    return torch.randint(-size, size, shape, generator=torch.Generator().manual_seed(len(shape)))


READS: dict[str, Function] = {
    "the first two": lambda x, i, j, k: x[i, j].sin() * 2,
    "the last two": lambda x, i, j, k: x[:, j, k] * 2,
    "all": lambda x, i, j, k: (x + 1)[i, j, k].sin(),
    "the first and the last": lambda x, i, j, k: x[i, :, k].sin() * 4,
    "of what was computed": lambda x, i, j, k: x.exp()[i, :, k].sin() * 2,
    "a row of points": lambda x, i, j, k: x[i, torch.tensor(-1)].exp(),
    "one point": lambda x, i, j, k: x[torch.tensor(3), torch.tensor(-1)].exp(),
    "int32": lambda x, i, j, k: x[i.int(), j].neg(),
    "of a transposed tensor": lambda x, i, j, k: x.transpose(0, 2)[k, j].sin(),
    "of a transposed tensor, apart": lambda x, i, j, k: x.transpose(0, 1)[j, :, k].sin(),
    "of slices": lambda x, i, j, k: x[1:8, :, 2:][i % 5, :, k % 3].exp(),
    "of steps": lambda x, i, j, k: x[::2, :, ::3][i % 5, j].exp(),
    "of an expanded tensor": lambda x, i, j, k: x[:1].expand(9, 5, 7)[i, j] + 1,
    "transposed indices": lambda x, i, j, k: x[i.expand(4, 3).t(), :, k.t()] + 1,
}


@pytest.mark.parametrize(
    ("name", "dtype"), pairwise(READS, [torch.bfloat16, torch.float32], strength=1)
)
def test_reads(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    function = READS[name]
    x = torch.randn(9, 5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    given = (x, places(9, 4, 1), places(5, 3), places(7, 4, 3))
    wanted = function(*given)
    got = torch.compile(function, backend="pyfuser")(*given)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    outside = [op for graph in explain(function, *given).graphs for op, _ in graph.outside]
    assert not any("index" in op for op in outside)


@pytest.mark.parametrize("name", ["the first two", "the last two", "the first and the last"])
def test_gradients(name: str) -> None:
    x = torch.randn(9, 5, 7, dtype=torch.float64, requires_grad=True)
    indices = (places(9, 4, 1), places(5, 3), places(7, 4, 3))
    function = READS[name]
    (wanted,) = torch.autograd.grad(function(x, *indices).sum(), x)
    made = torch.compile(function, backend="pyfuser")(x, *indices)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), x)[0], wanted)


@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 0), (1, 7), (11, 1)])
def test_sizes(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    index = torch.zeros(4 if x.numel() else 0, dtype=torch.int64)

    def read(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x[i, j] * 2

    got = torch.compile(read, backend="pyfuser")(x, index, index - 1)
    torch.testing.assert_close(got, read(x, index, index - 1))


def test_changing_sizes() -> None:
    made = torch.compile(READS["the first two"], backend="pyfuser", dynamic=True)
    for size in (9, 4, 12):
        x = torch.randn(size, 5, 7)
        given = (x, places(size, 4, 1), places(5, 3), places(7, 4, 3))
        torch.testing.assert_close(made(*given), READS["the first two"](*given))


@pytest.mark.parametrize("wrong", [9, -10])
def test_an_index_out_of_range(wrong: int) -> None:
    x, j = torch.randn(9, 5), torch.tensor([0, 1])

    def read(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x[i, j] * 2

    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension 0"):
        torch.compile(read, backend="pyfuser")(x, torch.tensor([0, wrong]), j)


@pytest.mark.parametrize(("rows", "by_torch"), [(4096, 0), (3, 1)])
def test_a_lone_read_is_a_kernel_unless_it_is_small(rows: int, by_torch: int) -> None:
    """torch finds the place of each element of `x[i]` by itself; it copies an embedding's rows."""
    x, i = torch.randn(50, 8), places(50, rows)
    (graph,) = explain(lambda x, i: x[i], x, i).graphs
    assert len(graph.library_calls) == by_torch
    torch._dynamo.reset()
    assert torch.equal(torch.compile(lambda x, i: x[i], backend="pyfuser")(x, i), x[i])
    (graph,) = explain(lambda x, i: torch.nn.functional.embedding(i, x), x, i.abs() % 50).graphs
    assert len(graph.library_calls) == 1


@pytest.mark.parametrize(
    ("counts", "outside"), [((2, 1), []), ((1, 2), ["aten::repeat"]), ((2, 3, 1), [])], ids=str
)
def test_kernels_repeat_rows_and_torch_the_elements_of_rows(
    counts: tuple[int, ...], outside: list[str]
) -> None:
    x = torch.randn(64, 256)

    def repeat(x: Tensor) -> Tensor:
        return x.repeat(counts).cumsum(-1)

    (graph,) = explain(repeat, x).graphs
    assert [op for op, _ in graph.outside] == outside
    torch._dynamo.reset()
    assert torch.equal(torch.compile(repeat, backend="pyfuser")(x), repeat(x))


def test_a_weight_that_is_repeated_for_many_rows_is_part_of_their_kernel() -> None:
    """The reason not to, reads of one element after the other, is a small part of reading rows."""
    x, weight, bias = torch.randn(512, 64, 32), torch.randn(64), torch.randn(64)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.instance_norm(x, weight=weight, bias=bias)

    (graph,) = explain(norm, x, weight, bias).graphs
    assert "aten::repeat" not in [op for op, _ in graph.outside]
    torch._dynamo.reset()
    got = torch.compile(norm, backend="pyfuser")(x, weight, bias)
    torch.testing.assert_close(got, norm(x, weight, bias))
