"""Scatters whose values are rows: blocks of threads in rows of their own, in any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyfuser.devices.cuda.emulator.runtime import emulated
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = requires_host_compiler

ROWS = 7  # that values are added to
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gradient of an embedding": lambda x, index: torch.ops.aten.embedding_dense_backward(
        x * 2, index, ROWS, -1, False
    ),
    "index_add": lambda x, index: x.new_zeros(ROWS, x.shape[1]).index_add(0, index, x - 1),
    "index_add of an inner axis": lambda x, index: x.new_zeros(2, ROWS, x.shape[1]).index_add(
        1, index, torch.stack((x, x * 2))
    ),
    "index_put": lambda x, index: x.new_ones(ROWS, x.shape[1]).index_put(
        (index,), x + 1, accumulate=True
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    torch.manual_seed(0)
    for count, columns in ((50, 128), (37, 300), (5, 1031), (20, 40)):
        x = torch.randint(-3, 3, (count, columns)).to(dtype)
        index = torch.randint(0, ROWS, (count,))
        torch._dynamo.reset()
        with emulated() as runtime:
            compiled = torch.compile(FUNCTIONS[name], backend="pyfuser", dynamic=False)
            found = compiled(x, index)
        assert torch.equal(found, FUNCTIONS[name](x, index))  # all sums are exact
        texts = [each.code.text for each in runtime.kernels]
        scatters = [text for text in texts if "atomic_combine(" in text]
        assert scatters and all(("blockIdx_y" in text) == (columns >= 128) for text in scatters)
