"""Complex numbers: kernels compute with their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyfuser import explain
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

Function = Callable[..., Any]


def complexes(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def reals(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def rotated(x: Tensor, w: Tensor) -> Tensor:
    """A rotary embedding as Llama's authors wrote it."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * w).flatten(3)


def rotated_by_angles(x: Tensor, angle: Tensor) -> Tensor:
    return rotated(x, torch.polar(torch.ones_like(angle), angle))


def gated(x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x)
    return torch.fft.irfft(spectrum * spectrum.abs().sigmoid(), n=x.shape[-1])


def convolved(x: Tensor, kernel: Tensor) -> Tensor:
    length = 2 * x.shape[-1]
    product = torch.fft.rfft(x, n=length) * torch.fft.rfft(kernel, n=length)
    return torch.fft.irfft(product, n=length)[..., : x.shape[-1]] * x


def layers(z: Tensor, w: Tensor) -> Tensor:
    return ((z * w + 1j * z - 2) * z.conj()).sum(0)


def several(z: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return z.angle().cos() * z.abs(), z * x, (z * 2j).conj(), (z * z).real, (z * z + x).imag


def transposed(z: Tensor, w: Tensor) -> Tensor:
    return (z.t() * w.t() + z.t()).permute(1, 0).contiguous() * 2


def written(z: Tensor, w: Tensor) -> Tensor:
    y = z * w
    y[1:] = y[:-1] * 1j + w[:1]
    y[:, 0].mul_(2)
    return y * z


def of_library_calls(z: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("ij,kj->ik", z * w + z, w * 2 - z).abs()


def normalised(z: Tensor) -> Tensor:
    return z / (z.abs().square().mean(-1, keepdim=True) + 1).sqrt() + z.sgn()


def chosen(z: Tensor, x: Tensor) -> Tensor:
    return torch.where(x > 0, z * z + x, z * 3).abs()


def viewed_parts(z: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Views of a part that is no longer two numbers apart, beside views of what it is made of."""
    y = z * z.conj() + z
    made = torch.complex(x, x + 1)
    return y.real[..., :2] * 2, y.imag.t().reshape(-1).exp(), made.real.view(-1) + x.view(-1), x[1:]


CASES: dict[str, tuple[Function, list[Callable[[], Tensor]]]] = {
    "rotated": (rotated, [lambda: reals(2, 5, 3, 8), lambda: complexes(5, 1, 4)]),
    "rotated by angles": (rotated_by_angles, [lambda: reals(2, 5, 3, 8), lambda: reals(5, 1, 4)]),
    "gated": (gated, [lambda: reals(4, 17)]),
    "convolved": (convolved, [lambda: reals(4, 3, 16), lambda: reals(3, 16)]),
    "layers": (layers, [lambda: complexes(3, 5), lambda: complexes(3, 1)]),
    "layers of nothing": (layers, [lambda: complexes(0, 5), lambda: complexes(1, 5)]),
    "one number": (lambda z: (z * z + z).abs() * z, [lambda: complexes()]),
    "several results": (several, [lambda: complexes(3, 5), lambda: reals(5)]),
    "transposed": (transposed, [lambda: complexes(3, 5), lambda: complexes(3, 5)]),
    "conjugate inputs": (layers, [lambda: complexes(3, 5).conj(), lambda: complexes(5).conj()]),
    "with gaps": (layers, [lambda: complexes(3, 10)[:, ::2], lambda: complexes(5)]),
    "written": (written, [lambda: complexes(4, 5), lambda: complexes(4, 5)]),
    "of library calls": (of_library_calls, [lambda: complexes(3, 8), lambda: complexes(3, 8)]),
    "normalised": (normalised, [lambda: complexes(3, 7)]),
    "viewed parts": (viewed_parts, [lambda: complexes(3, 5), lambda: reals(3, 5)]),
    "chosen": (chosen, [lambda: complexes(3, 5), lambda: reals(3, 5)]),
    "of other types": (
        lambda z, a, b, c: (z * a + b).abs() * (z * c).imag,
        [
            *(lambda: complexes(3, 8), lambda: torch.arange(8)),
            *(lambda: torch.randn(8).half(), lambda: torch.tensor(2.5, dtype=torch.float64)),
        ],
    ),
    "doubles": (layers, [lambda: complexes(3, 4, dtype=torch.complex128), lambda: complexes(4)]),
}


def results(function: Function, inputs: list[Tensor]) -> list[Tensor]:
    """Those of a function, and gradients."""
    given = [each.detach().requires_grad_(each.requires_grad) for each in inputs]
    made = function(*given)
    outputs = list(made) if isinstance(made, tuple) else [made]
    total = torch.stack([(y.abs() if y.is_complex() else y.sin()).sum() for y in outputs]).sum()
    leaves = [each for each in given if each.requires_grad]
    return [*outputs, *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize(
    ("name", "dynamic"), pairwise([pytest.param(n, id=n) for n in CASES], [False, True], strength=1)
)
def test_results_and_gradients(name: str, dynamic: bool) -> None:
    function, makers = CASES[name]
    inputs = [make() for make in makers]
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for got, wanted in zip(results(compiled, inputs), results(function, inputs), strict=True):
        assert got.is_conj() == wanted.is_conj()
        assert got.stride() == wanted.stride() or not got.is_complex()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_results_share_memory_as_in_eager() -> None:
    def function(z: Tensor) -> tuple[Tensor, ...]:
        y = z * z + z
        return y, torch.view_as_real(y), y.real, y[1:].t(), y.conj()

    z = torch.randn(3, 4, dtype=torch.complex64)
    made, expected = torch.compile(function, backend="pyfuser")(z), function(z)
    for results in (made, expected):
        results[0].mul_(2)
    torch.testing.assert_close(made, expected)


def test_an_input_is_updated_in_place() -> None:
    def function(z: Tensor) -> Tensor:
        return z.mul_(2j).add_(1).abs() + (z * z).real

    ours, eagers = (torch.randn(3, 4, dtype=torch.complex64) for _ in range(2))
    eagers.copy_(ours)
    compiled = torch.compile(function, backend="pyfuser")
    torch.testing.assert_close(compiled(ours), function(eagers))
    torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize(
    ("function", "shapes", "outside"),
    [
        (rotated_by_angles, [(2, 5, 3, 8), (5, 1, 4)], {"view"}),
        (gated, [(4, 16)], {"_fft_r2c", "view_as_real", "view_as_complex", "_fft_c2r"}),
    ],
)
def test_no_call_computes_with_complex_numbers(
    function: Function, shapes: list[tuple[int, ...]], outside: set[str]
) -> None:
    (graph,) = explain(function, *map(torch.randn, shapes)).graphs
    assert len(graph.regions) == 1
    assert {op.removeprefix("aten::").split(".")[0] for op, _ in graph.outside} <= outside


def test_one_product_stays_one_call() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    (graph,) = explain(lambda z: z * z, z).graphs
    assert not graph.regions
