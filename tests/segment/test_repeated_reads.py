"""Small tensors that reductions of few elements read again and again, copied in another order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyfuser import FusionDefinition
from pyfuser.analysis.layouts import dense_layout
from pyfuser.compiler import prepare, rough_sizes, segmented
from pyfuser.target.target import Target
from tests.support.compiled import strict as strict
from tests.support.fences import fenced
from tests.support.long_cases import pairwise
from tests.support.targets import PRETENDED, SM_90

Function = Callable[[Tensor, Tensor], Tensor]


def _pairs(function: str = "sub") -> FusionDefinition:
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        rows = fd.ops.broadcast(a, [False, True, False])
        columns = fd.ops.broadcast(b, [True, False, False])
        products = getattr(fd.ops, function)(rows, columns)
        fd.add_output(fd.ops.exp(fd.ops.sum(products, [2])))
    return fd


def _schedulers(
    fd: FusionDefinition, sizes: tuple[int, ...], target: Target = PRETENDED
) -> list[str]:
    prepared = prepare(fd.fusion.definition)
    names = {f"i{n}": size for n, size in enumerate(sizes)}
    rough = rough_sizes(prepared, names, target)
    layouts = [dense_layout(tensor.ndim) for tensor in prepared.input_tensors]
    found = segmented(fd.fusion.definition, prepared, layouts, rough, names)
    return [segment.scheduler for segment in found.segmented.segments]


@pytest.mark.parametrize(
    ("sizes", "target", "expected"),
    [
        ((512, 3, 256, 3), PRETENDED, ["transpose", "reduction"]),
        ((512, 32, 256, 32), PRETENDED, ["transpose", "reduction"]),
        ((512, 64, 256, 64), PRETENDED, ["transpose", "reduction"]),
        ((512, 200, 256, 200), PRETENDED, ["transpose", "reduction"]),
        ((512, 300, 256, 300), PRETENDED, ["reduction"]),
        ((512, 16, 16, 16), PRETENDED, ["transpose", "reduction"]),
        ((2048, 16, 3, 16), PRETENDED, ["reduction"]),
        ((512, 3, 256, 3), SM_90, ["reduction", "pointwise"]),
    ],
)
def test_what_few_elements_are_reduced_of_is_copied(
    sizes: tuple[int, ...], target: Target, expected: list[str]
) -> None:
    """Unless the elements are many, or the results few."""
    assert _schedulers(_pairs(), sizes, target) == expected


def test_a_tensor_that_is_read_once_is_not_copied() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        y = fd.define_tensor(shape=[-1, -1], contiguity=True)
        both = fd.ops.mul(x, fd.ops.broadcast(y, [True, False, False]))
        fd.add_output(fd.ops.sum(both, [2]))
    assert _schedulers(fd, (512, 256, 3, 256, 3)) == ["reduction"]


FUNCTIONS: dict[str, Function] = {
    "distances": lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1).sqrt(),
    "largest products": lambda a, b: (a[None] * b[:, None]).amax(-1),
    "of one operand": lambda a, b: torch.exp(-(a[:, None] - a[None]).abs().sum(-1)),
    "products of columns": lambda a, b: (a.t()[:, :, None] + b.t()[:, None]).prod(0),
    "read again": lambda a, b: (
        ((a[:, None] - b[None]) ** 2).sum(-1, keepdim=True) * (a[:, None] - b[None])
    ),
    "forces": lambda a, b: (((a[:, None] - b) ** 2).sum(-1) ** -1.5)[..., None].mul(b[None]).sum(1),
    "of a scan": lambda a, b: (a.cumsum(0)[:, None] * b.flip(0)[None]).var(-1),
    "transposed": lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1).t().contiguous(),
}


@pytest.mark.parametrize(
    ("name", "rows", "columns", "length", "dtype", "later"),
    pairwise(
        FUNCTIONS,
        [pytest.param(70, 90, 101), pytest.param(257, 131, 3), pytest.param(300, 1031, 17)],
        [torch.bfloat16, torch.float32],
        ["exchanged", "fewer rows"],
        count=12,
    ),
)
def test_results_are_those_of_eager(
    name: str, rows: int, columns: int, length: int, dtype: torch.dtype, later: str
) -> None:
    """The sizes of the second call are dynamic."""
    function = FUNCTIONS[name]
    a, b = torch.randn(rows, length).to(dtype), torch.randn(columns, length).to(dtype)
    compiled = torch.compile(function, backend="pyfuser")
    for x, y in ((a, b), (b, a) if later == "exchanged" else (a[1:], b.t().contiguous().t())):
        x, y = fenced(x), fenced(y)  # a read beyond the last column once moved out of its loop
        exact = function(x.double(), y.double())
        got, expected = compiled(x, y), function(x, y)
        assert got.stride() == expected.stride()
        bound = (expected.double() - exact).abs().max() * 4 + 1e-5
        assert (got.double() - exact).abs().max() <= bound
