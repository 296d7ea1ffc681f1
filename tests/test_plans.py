"""Plans: one for all sizes of a structure; a plan recognises its own calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, compiled_kernel_count
from pyfuser.errors import InputError
from pyfuser.executor import Executor
from pyfuser.plans.library_calls import with_strides
from pyfuser.torch_compile import compiled_graph
from pyfuser.torch_compile.compiled_graph import CompiledGraph

pytestmark = pytest.mark.usefixtures("poison")


def executor_of(fd: FusionDefinition) -> Executor:
    return fd.fec.engine.executor


def normalised() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        row = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        total = fd.ops.sum(fd.ops.exp(x), [1], keepdim=True)
        fd.add_output(fd.ops.mul(fd.ops.div(fd.ops.exp(x), total), row))
    return fd


@pytest.mark.cpu
def test_a_thousand_sizes_share_a_plan() -> None:
    """All have the same place in the second cache of any processor."""
    fd = normalised()
    fd.execute([torch.ones(40, 48), torch.ones(48)])
    count, plans = compiled_kernel_count(), executor_of(fd).plans
    for rows in range(33, 1033):
        x, row = torch.randn(rows, 48), torch.randn(48)
        (y,) = fd.execute([x, row])
        assert y.shape == (rows, 48) and y.stride() == (48, 1)
        if rows % 100 == 0:
            torch.testing.assert_close(y, torch.softmax(x, 1) * row)
    assert compiled_kernel_count() == count
    assert executor_of(fd).plans == plans


def test_strides_of_empty_outputs_are_torchs() -> None:
    fd = normalised()
    for shape in ((0, 5), (5, 0), (0, 0), (1, 1), (7, 1)):
        x, row = torch.randn(shape), torch.randn(shape[1])
        (y,) = fd.execute([x, row])
        expected = torch.softmax(x, 1) * row
        assert (y.shape, y.stride()) == (expected.shape, expected.stride())


def test_other_structures_get_plans_of_their_own() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=False, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, 2.0), [1]))
    base = torch.randn(48, 48)
    given = [
        base,
        base.t(),
        base[::2],
        base[:, ::2],
        base[:1].expand(48, 48),
        base[:0],
        base[:, :1],
    ]
    for _ in range(2):
        for x in given:
            torch.testing.assert_close(fd.execute([x])[0], (x * 2).sum(1))
    plans = executor_of(fd).plans
    assert len(plans) == len(given)
    assert sum(plan.fits([base.t()]) for plan in plans) == 1


def test_a_call_that_does_not_fit_is_an_error_every_time() -> None:
    fd = normalised()
    x, row = torch.randn(40, 64), torch.randn(64)
    fd.execute([x, row])
    plans = executor_of(fd).plans
    wrong = [
        [x, torch.randn(63)],
        [x.double(), row],
        [x[0], row],
        [x, 3.0],
        [x],
        [x, row, row],
        [x, None],
        [x, torch.randn(64).to_sparse()],
    ]
    for inputs in wrong:
        for _ in range(2):
            with pytest.raises(InputError):
                fd.execute(inputs)
    assert executor_of(fd).plans == plans
    torch.testing.assert_close(fd.execute([x, row])[0], torch.softmax(x, 1) * row)


def test_numbers_that_are_only_data_are_no_condition() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        seed = fd.define_scalar(dtype=DataType.Int)
        rate = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.mul(fd.ops.add(x, seed), rate))
    x = torch.arange(50)
    for number in range(20):
        (y,) = fd.execute([x, number, number / 2])
        torch.testing.assert_close(y, (x + number) * (number / 2), check_dtype=False)
    assert len(executor_of(fd).plans) == 1


def test_a_size_that_is_given_as_a_number() -> None:
    with FusionDefinition() as fd:
        size = fd.define_scalar(dtype=DataType.Int)
        value = fd.define_scalar(dtype=DataType.Double)
        doubled = fd.ops.mul(size, 2)
        fd.add_output(fd.ops.full([size, doubled], value, DataType.Float))
    for n in (3, 40, 41, 500, 0, 1):
        (y,) = fd.execute([n, 0.5])
        assert torch.equal(y, torch.full((n, 2 * n), 0.5))
    assert len(executor_of(fd).plans) < 6


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[CompiledGraph]:
    """The graphs that are compiled from now on."""
    found: list[CompiledGraph] = []

    class Noted(CompiledGraph):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(compiled_graph, "CompiledGraph", Noted)
    torch._dynamo.reset()
    return found


def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(x.transpose(0, 1) @ y, -1)
    return (weights * x.shape[0] + weights.amax(-1, keepdim=True)).relu()


def shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[1:] * 2 + y[:-1].exp()).sum(0) * x.shape[0]


@pytest.mark.parametrize("function", [attention, shifted])
def test_a_graph_is_written_once_for_its_sizes(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    graphs: list[CompiledGraph],
    request: pytest.FixtureRequest,
) -> None:
    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    compiled(torch.randn(7, 12), torch.randn(7, 12))
    count = compiled_kernel_count()
    for rows, columns in ((3, 4), (50, 9), (8, 33), (129, 64)):
        x, y = torch.randn(rows, columns), torch.randn(rows, columns)
        torch.testing.assert_close(compiled(x, y), function(x, y), rtol=1e-4, atol=1e-5)
    (graph,) = graphs
    most = 2  # an axis of one element may be a separate layout
    if function is attention and request.config.getoption("--emulate"):
        most = 3  # threads hold a row in their vectors: of four elements up to 12, of one, and more
    assert len(graph.functions) <= most
    assert compiled_kernel_count() - count <= len(graph.functions) - 1


def test_a_size_that_a_scalar_computes_is_compared_at_each_call() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1] * rank, contiguity=True) for rank in (2, 1))
        last = fd.ops.add(fd.define_scalar(None, dtype=DataType.Int), 1)
        part = fd.ops.slice(x, [0, 0], [fd.ops.size(x, 0), last])
        fd.add_output(fd.ops.add(part, y))
    a, b = torch.randn(3, 8), torch.randn(5)
    torch.testing.assert_close(fd.execute([a, b, 4])[0], a[:, :5] + b)
    with pytest.raises(InputError, match="to be equal"):
        fd.execute([a, b, 5])


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((4, 3), (0, 2)),
        ((4, 3), (1, 4)),
        ((1, 3), (7, 1)),
        ((0, 3), (0, 1)),
        ((2, 1, 3), (0, 0, 5)),
    ],
)
def test_strides_of_the_metadata(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Of repeated elements, one is copied; where single elements' strides differ, none is."""
    tensor = torch.randn(1 if stride[0] == 0 else shape[0], *shape[1:]).expand(shape)
    made = with_strides(tensor, stride)
    assert made.stride() == stride
    assert torch.equal(made, tensor)
    assert (made.data_ptr() == tensor.data_ptr()) == (shape[0] == 1 or not made.numel())
