"""Results that share memory: as in eager, the caller may change any of them in place.

AOTAutograd makes views again from the result that is their base.  Graph passes may compute in
another shape, of which all results are then views.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Results = tuple[Tensor, ...]


def real() -> Tensor:
    return torch.randn(4, 6, requires_grad=True)


def complex_() -> Tensor:
    return torch.randn(4, 6, dtype=torch.complex64, requires_grad=True)


VIEWS: dict[str, Callable[[Tensor], Results]] = {
    "part of it, flat": lambda y: (y.view(-1)[12:], y),
    "one of its rows": lambda y: (y.view(2, -1)[1], y),
    "transposed": lambda y: (y.view(2, 12).t(), y),
    "only views": lambda y: (y.view(2, -1)[1], y.diagonal()),
    "detached": lambda y: (y.view(-1).detach()[3:], y),
    "as it is": lambda y: (y.view_as(y), y, y.unsqueeze(0)),
}
OTHER_TYPES: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Results]]] = {
    "bits": (real, lambda y: (y, y.view(torch.int32))),
    "halves": (real, lambda y: (y.view(torch.int16), y)),
    "pairs": (real, lambda y: (y, torch.view_as_complex(y.view(4, 3, 2)))),
    "conjugate": (complex_, lambda y: (y, y.conj())),
    "conjugate first": (complex_, lambda y: (y.conj(), y)),
    "as real": (complex_, lambda y: (y, torch.view_as_real(y))),
    "parts": (complex_, lambda y: (y.real, y, y.imag)),
    "saved beside its conjugate": (complex_, lambda y: (y * y.conj(), y.abs())),
}


def require_eagers(function: Callable[[Tensor], Results], x: Tensor, dynamic: bool) -> None:
    """Also after each of the results was changed, where eager allows it; and the gradient."""
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for changed in (None, 0, 1):
        states = []
        for each in (function, compiled):
            results = each(x)
            if changed is not None:
                results[changed].mul_(2)
            used = [torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in results]
            loss = sum(y.sin().sum() for y in used if y.requires_grad)
            assert isinstance(loss, Tensor)
            states.append((*results, *torch.autograd.grad(loss, x)))
        for ours, eagers in zip(states[1], states[0], strict=True):
            assert ours.is_conj() == eagers.is_conj()
            torch.testing.assert_close(ours, eagers, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
def test_views(views: Callable[[Tensor], Results], dynamic: bool) -> None:
    weight = torch.randn(6, 6)
    require_eagers(lambda x: views(x * 2), real(), dynamic)
    require_eagers(lambda x: views(F.linear(x, weight) + 1), real(), dynamic)


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_views_of_another_type(name: str) -> None:
    make, views = OTHER_TYPES[name]
    require_eagers(lambda x: views(x * 2), make(), dynamic=False)
