"""torch.compile computes scans in kernels, and so their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyfuser.torch_compile.explain import explain

pytestmark = pytest.mark.usefixtures("poison")

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "rows": lambda x: torch.cumsum(x * 2, 1).sin(),
    "columns": lambda x: torch.cumsum(x.exp(), 0) + x,
    "exclusive": lambda x: torch.cumsum(x, -1) - x,
    "product": lambda x: torch.cumprod(1 + x * 0.01, 1),
    "normalised": lambda x: x.cumsum(1) / x.abs().sum(1, keepdim=True),
    "of a mask": lambda x: (x > 0).cumsum(1) * x,
    "in float64": lambda x: x.cumsum(0, dtype=torch.float64),
    "flipped": lambda x: x.flip(1).cumsum(1).flip(1),
    "of a scan": lambda x: x.cumsum(1).cumsum(1) * 0.1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(5, 67), (33, 3)])
def test_scans_and_their_gradients(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    function = FUNCTIONS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).requires_grad_()
    got = torch.compile(function, backend="pyfuser")(x)
    want = function(x)
    torch.testing.assert_close(got, want)
    weights = torch.linspace(-1, 1, got.numel()).reshape(got.shape).to(got.dtype)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (got, want)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.int32, None), (torch.bool, None), (torch.uint8, torch.int32),
        (torch.float32, torch.int32), (torch.int64, torch.bfloat16), (torch.float16, None),
        (torch.int32, torch.uint8),
    ],
)  # fmt: skip
def test_scans_convert_their_operand_first(source: torch.dtype, target: torch.dtype | None) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 1, dtype=target)

    x = (torch.randn(4, 50, generator=torch.Generator().manual_seed(3)) * 3).to(source)
    got, want = torch.compile(function, backend="pyfuser")(x), function(x)
    torch.testing.assert_close(got, want)


def test_a_scan_is_in_the_kernel_of_what_surrounds_it() -> None:
    report = explain(lambda x: torch.cumsum(x * 2, 1) + 1, torch.randn(6, 50))
    (region,) = report.graphs[0].regions
    assert [kernel.scheduler for kernel in region.kernels] == ["greedy"]
