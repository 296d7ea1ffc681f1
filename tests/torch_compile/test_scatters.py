"""torch.compile computes scatters in kernels, and so gradients of reads, and writes over inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyfuser.torch_compile.explain import explain

pytestmark = pytest.mark.usefixtures("poison")


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Multiples of 1/4, whose sums have no rounding error."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, shape, generator=generator) / 4).to(dtype)


def places(size: int, *shape: int, lowest: int = 0) -> Tensor:
    """Random positions, several of which are equal."""
    return torch.randint(lowest, size, shape, generator=torch.Generator().manual_seed(5))


def distinct(size: int, count: int) -> Tensor:
    """Different positions."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(6))[:count]


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "index_add": (
        lambda x, i, v: x.index_add(0, i, v.sin()) * 2,
        (numbers(9, 40), places(9, 50), numbers(50, 40)),
    ),
    "index_add of columns": (
        lambda x, i, v: x.index_add(1, i, v.sin(), alpha=2),
        (numbers(40, 9), places(9, 50), numbers(40, 50)),
    ),
    "index_copy": (
        lambda x, i, v: (x * 2).index_copy(0, i, v.abs()),
        (numbers(9, 40), distinct(9, 4), numbers(4, 40)),
    ),
    "index_put": (
        lambda x, i, v: x.index_put((i,), v * 2, accumulate=True) + 1,
        (numbers(9, 40), places(9, 50, lowest=-9), numbers(50, 40)),
    ),
    "index_put of a row": (
        lambda x, i, v: x.exp().index_put((i,), v * 2),
        (numbers(9, 40), distinct(9, 4), numbers(40)),
    ),
    "scatter": (
        lambda x, i, v: x.exp().scatter(0, i, v.sin()) - 1,
        (numbers(9, 4), distinct(9, 8)[:, None].repeat(1, 4), numbers(8, 4)),
    ),
    "scatter of a number": (
        lambda x, i: x.exp().scatter(1, i, 3.0) - 1, (numbers(4, 9), places(9, 4, 5)),
    ),
    "scatter_add": (
        lambda x, i, v: x.neg().scatter_add(1, i, v.sin()) - 1,
        (numbers(4, 9), places(9, 4, 50), numbers(4, 50)),
    ),
    "scatter_reduce": (
        lambda x, i, v: x.neg().scatter_reduce(0, i, v.abs(), "amax") - 1,
        (numbers(9, 4), places(9, 50, 4), numbers(50, 4)),
    ),
    "scatter of a longer source": (
        lambda x, i, v: x.neg().scatter_add(0, i, v.abs()) - 1,
        (numbers(9, 4), places(9, 5, 4), numbers(7, 4)),
    ),
    "index_put at points": (
        lambda x, i, j, v: (x * 2).index_put((i, j), v.sin(), accumulate=True) + 1,
        (numbers(9, 5), places(9, 30, lowest=-9), places(5, 30, lowest=-5), numbers(30)),
    ),
    "index_put at different points": (
        lambda x, p, v: (x * 2).index_put((p // 5, p % 5 - 5), v.sin()) + 1,
        (numbers(9, 5), distinct(45, 30), numbers(30)),
    ),
    "index_put of rows at points": (
        lambda x, i, j, v: (x * 2).index_put((i, j), v, accumulate=True) + 1,
        (numbers(9, 5, 7), places(9, 4, 1), places(5, 3), numbers(4, 3, 7)),
    ),
    "index_put at points of a row": (
        lambda x, i, v: (x * 2).index_put((i, torch.tensor(-2)), v, accumulate=True) + 1,
        (numbers(9, 5, 7), places(9, 4).int(), numbers(7)),
    ),
    "index_put at points of matrices": (
        lambda x, i, j, k, v: x.neg().index_put((i, j, k), v, accumulate=True),
        (numbers(3, 4, 5), places(3, 50), places(4, 50), places(5, 50, lowest=-5), numbers(50)),
    ),
    "index_put at no points": (
        lambda x, i, v: (x * 2).index_put((i, i), v, accumulate=True) + 1,
        (numbers(9, 5), places(5, 0), numbers(0)),
    ),
    "a scatter after a scatter": (
        lambda x, i, v: x.index_add(0, i, v).index_add(0, i, v * 2) + x,
        (numbers(9, 40), places(9, 5), numbers(5, 40)),
    ),
}  # fmt: skip


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, backend="pyfuser")
    return made


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scatters(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    function, given = FUNCTIONS[name]
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in given]
    rounding = {"rtol": 3e-2, "atol": 6e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(compiled(function)(*inputs), function(*inputs), **rounding)


def _assigned(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x[i] = v.sin()
    return x.sum(0)


def _cached(cache: Tensor, i: Tensor, v: Tensor) -> Tensor:
    cache.index_copy_(2, i, v * 2)
    return cache.mean(2)


def _added(x: Tensor, i: Tensor, v: Tensor) -> None:
    x[:, i] += v
    x.index_add_(1, i, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (_assigned, (numbers(9, 40), distinct(9, 4), numbers(4, 40))),
        (_cached, (numbers(2, 3, 50, 8), distinct(50, 5), numbers(2, 3, 5, 8))),
        (_added, (numbers(6, 50), distinct(50, 7), numbers(6, 7))),
    ],
)
def test_inputs_are_written_in_place(
    function: Callable[..., Any],
    inputs: tuple[Tensor, ...],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The elements that the index names are written, and the input isn't copied."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    given = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    wanted, made = ([x.clone() for x in given] for _ in range(2))
    want, got = function(*wanted), compiled(function)(*made)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(made[0], wanted[0], rtol=2e-2, atol=2e-2)
    if function is not _added:
        source = explain(function, *[x.clone() for x in given]).graphs[0].source
        assert "copy_" not in source


def test_a_value_that_is_read_from_the_input_is_computed_before() -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        x[i] = x.flip(0)[i] * 2
        return x + 1

    x, i = numbers(9, 40), distinct(9, 6)
    wanted, made = x.clone(), x.clone()
    assert torch.equal(compiled(function)(made, i), function(wanted, i))
    assert torch.equal(made, wanted)


@pytest.mark.parametrize("padding", [None, 3])
def test_the_gradient_of_an_embedding(padding: int | None) -> None:
    """It is summed up by the kernel that computes the gradients of the rows."""

    def loss(weight: Tensor, index: Tensor) -> Tensor:
        rows = functional.embedding(index, weight, padding_idx=padding)
        return (functional.gelu(rows) * rows).sum()

    weight = numbers(20, 32).requires_grad_()
    index = places(20, 6, 15)
    (want,) = torch.autograd.grad(loss(weight, index), weight)
    (got,) = torch.autograd.grad(compiled(loss)(weight, index), weight)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_an_embedding_and_its_norm_have_no_library_calls() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(30, 64), nn.LayerNorm(64)

        def forward(self, index: Tensor) -> Tensor:
            return self.norm(self.embed(index)).sin().sum()

    report = explain(Model(), places(30, 4, 16))
    assert all(not graph.library_calls for graph in report.graphs)


def test_a_wrong_index_raises_torchs_error() -> None:
    def function(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        return x.index_put((i,), v.sin(), accumulate=True) * 2

    x, v = numbers(9, 40), numbers(2, 40)
    run = compiled(function)
    run(x, torch.tensor([0, -9]), v)
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 9"):
        run(x, torch.tensor([0, 9]), v)


@pytest.mark.parametrize(("i", "j"), [(9, 0), (-10, 0), (0, 5), (0, -6)])
def test_a_wrong_point_raises_torchs_error(i: int, j: int) -> None:
    def function(x: Tensor, i: Tensor, j: Tensor, v: Tensor) -> Tensor:
        return x.index_put((i, j), v.sin(), accumulate=True) * 2

    x, v, run = numbers(9, 5), numbers(2), compiled(function)
    run(x, torch.tensor([0, -9]), torch.tensor([4, -5]), v)
    for call in (function, run):
        index, dim, size = (i, 0, 9) if i else (j, 1, 5)
        message = f"index {index} is out of bounds for dimension {dim} with size {size}"
        with pytest.raises(IndexError, match=message):
            call(x, torch.tensor([0, i]), torch.tensor([0, j]), v)


def _set_points(x: Tensor, i: Tensor, j: Tensor, v: Tensor) -> Tensor:
    x[i, j] = v * 2
    return x + 1


def _add_points(x: Tensor, i: Tensor, j: Tensor, v: Tensor) -> Tensor:
    x[:, i, j] += v
    return x + 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", ["dense", "transposed", "strided"])
def test_points_of_inputs_are_updated(layout: str, dynamic: bool) -> None:
    """Base and values in every layout; the other elements stay."""
    points = distinct(45, 30)
    i, j = points // 5, points % 5 - 5
    for function, shape in ((_set_points, (9, 5, 6)), (_add_points, (6, 9, 5))):
        run = torch.compile(function, backend="pyfuser", dynamic=dynamic)
        for count in (30, 7):
            x = numbers(*shape)
            if layout == "transposed":
                x = numbers(shape[2], shape[1], shape[0]).permute(2, 1, 0)
            if layout == "strided":
                x = numbers(*shape[:-1], 2 * shape[-1])[..., ::2]
            v = numbers(count, 6) if function is _set_points else numbers(6, count)
            wanted, made = x.clone(), x.clone()
            want = function(wanted, i[:count], j[:count], v)
            torch.testing.assert_close(run(made, i[:count], j[:count], v), want)
            torch.testing.assert_close(made, wanted)


def test_the_gradient_of_points_is_summed_up_by_a_kernel() -> None:
    i, j = places(20, 40), places(6, 40, lowest=-6)
    x = numbers(20, 6, 16).requires_grad_()

    def function(x: Tensor) -> Tensor:
        return (x * 2)[i, j].sin().sum()

    (want,) = torch.autograd.grad(function(x), x)
    (got,) = torch.autograd.grad(compiled(function)(x), x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    backward = explain(function, x).graphs[1]
    assert not backward.library_calls
    assert "greedy" in [kernel.scheduler for r in backward.regions for kernel in r.kernels]


def test_sizes_may_change() -> None:
    function, run = FUNCTIONS["index_add"][0], compiled(FUNCTIONS["index_add"][0])
    for count in (50, 7, 1, 33, 20):
        inputs = numbers(9, 40), places(9, count), numbers(count, 40)
        torch.testing.assert_close(run(*inputs), function(*inputs))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, v: x.sin().index_put((i,), v),
        lambda x, i, v: x.sin().index_add(0, i, v),
    ],
)
def test_values_of_another_dtype_are_refused_as_in_eager(function: Any) -> None:
    given = torch.randn(5, 3), torch.tensor([0, 1]), torch.ones(2, 3, dtype=torch.int64)
    messages = []
    for run in (function, torch.compile(function, backend="pyfuser")):
        with pytest.raises(RuntimeError) as refused:
            run(*given)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda base, index, x: base.scatter_add(0, index, x),
        lambda base, index, x: base.index_add(0, index, x * 2, alpha=0.5),
        lambda base, index, x: base.index_put((index,), x * 1, accumulate=True),
        lambda base, index, x: functional.one_hot(index, 7).to(x.dtype).t() @ x + base,
    ],
)
def test_sums_of_many_half_precision_values_are_rounded_once(function, dtype):
    """Added one by one in half precision, ones stop to count at 256 and 2048."""
    base, index = torch.zeros(7).to(dtype), torch.arange(28000) % 7
    got = torch.compile(function, backend="pyfuser")(base, index, torch.ones(28000).to(dtype))
    torch.testing.assert_close(got, torch.full((7,), 4000.0).to(dtype), rtol=0, atol=0)


def test_a_gradient_of_many_half_precision_rows_is_rounded_once():
    weight = torch.randn(7, 3).bfloat16().requires_grad_()
    index = torch.arange(7000) % 7

    def loss(weight, index):
        return functional.embedding(index, weight).float().sum()

    torch.compile(loss, backend="pyfuser")(weight, index).backward()
    torch.testing.assert_close(weight.grad, torch.full((7, 3), 1000.0).bfloat16())


def test_a_sum_has_the_memory_of_the_zeros_that_nothing_else_reads():
    """An output, too; the zeros would be copied into memory of its own otherwise."""

    def gradient(rows, index):
        return torch.ops.aten.embedding_dense_backward(rows, index, 40, -1, False), rows * 2

    rows, index = torch.randn(300, 64), torch.arange(300) % 37
    compiled = torch.compile(gradient, backend="pyfuser")
    compiled(rows, index)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        got = compiled(rows, index)
    assert "aten::copy_" not in {event.name for event in profile.events()}
    torch.testing.assert_close(got, gradient(rows, index))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("dim", "index"), [(1, 32), (1, -33), (0, 4)])
def test_a_wrong_row_raises_torchs_error(dim: int, index: int, dynamic: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return x.select_scatter(x.select(dim, 0) * 2, dim, index) + 1

    run = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for rows, columns in ((5, 50), (6, 40), (7, 33)):
        x = numbers(rows, columns)
        assert torch.equal(run(x), function(x))
    for call in (function, run):
        with pytest.raises(IndexError, match=f"index {index} out of range for tensor of size"):
            call(numbers(4, 9))


@pytest.mark.filterwarnings("ignore:pyfuser")  # of graphs that torch runs instead
@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_another_size_are_refused(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYFUSER_STRICT")  # torch's own error comes from torch's own run
    functions = (
        lambda x, y: x.slice_scatter(y, 1, 2, 5) + 1,
        lambda x, y: x.slice_scatter(y, 1) + 1,
        lambda x, y: x.select_scatter(y.sum(1), 1, 2) + 1,
    )
    shapes = [
        ((9, 9), (9, 1)),
        ((9, 9), (9, 2)),
        ((9, 4), (9, 3)),
        ((9, 9), (1, 3)),
        ((9, 2), (9, 3)),
    ]
    for function, widths in zip(functions, (3, None, 3), strict=True):
        run = torch.compile(function, backend="pyfuser", dynamic=dynamic)
        for rows, columns in ((40, 50), (31, 7)):
            x, y = numbers(rows, columns), numbers(rows, widths or columns)
            assert torch.equal(run(x, y), function(x, y))
        for shape, part in shapes:
            x, y = numbers(*shape), numbers(*part)
            try:
                expected = function(x, y)
            except (IndexError, RuntimeError):
                with pytest.raises((IndexError, RuntimeError)):
                    run(x, y)
            else:
                assert torch.equal(run(x, y), expected)
