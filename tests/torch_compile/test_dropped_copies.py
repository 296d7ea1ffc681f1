"""Copies that a graph doesn't need are dropped: their views are then views of the original, which
may begin at another place of its storage, another one in each call.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("poison")

COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": torch.clone,
    "two clones": lambda x: x.clone().clone(),
    "conversion": lambda x: x.to(x.dtype, copy=True),
    "detach": torch.detach,
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: x[1:, 2:],
    "part": lambda x: x.split([2, 5], 1)[1],
    "row": lambda x: x.unbind(0)[3].unsqueeze(0),
    "diagonal": lambda x: x.diagonal().unsqueeze(0),
    "flat": lambda x: x.view(-1)[3:30].view(9, 3),
    "place of the storage": lambda x: x.as_strided((3, 4), (7, 1), 2),
}


def placed(start: int) -> Tensor:
    """A 6 x 7 matrix that begins at this element of its storage."""
    return torch.randn(60)[start : start + 42].view(6, 7)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("copy", COPIES)
def test_views_of_a_dropped_copy_show_the_original(copy: str, view: str) -> None:
    if (copy, view) == ("detach", "place of the storage"):
        pytest.skip("a view of the input's own storage")

    def product(x: Tensor) -> Tensor:
        part = VIEWS[view](COPIES[copy](x))
        return part @ part.t() + part.sum()

    compiled = torch.compile(product, backend="pyfuser")
    for start in (1, 4, 0):
        x = placed(start)
        torch.testing.assert_close(compiled(x), product(x))
