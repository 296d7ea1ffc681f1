"""Random networks of images, trained for a step: results, gradients and statistics are as precise
as eager's, and have its strides.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.programs.networks import Network
from tests.support.compiled import strict as strict
from tests.support.long_cases import first

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.cpu]


def trained(
    network: Network, images: Tensor, dtype: torch.dtype, is_compiled: bool
) -> list[Tensor]:
    """What a step makes: results, gradients, statistics."""
    module: nn.Module = copy.deepcopy(network).to(dtype)
    given = images.to(dtype, copy=True).requires_grad_()
    dynamic = True if network.has_symbols else None
    call = torch.compile(module, backend="pyfuser", dynamic=dynamic) if is_compiled else module
    results = call(given)
    torch.manual_seed(1)
    total = sum((result * torch.randn(result.shape).to(dtype)).sum() for result in results)
    assert isinstance(total, Tensor)
    total.backward()
    gradients = [each.grad for each in (given, *module.parameters())]
    statistics = [each for each in module.buffers() if each.is_floating_point()]
    return [each.detach() for each in (*results, *gradients, *statistics) if each is not None]


def check(seed: int) -> None:
    """Compares a network with eager in float64."""
    torch.manual_seed(seed)
    network = Network(seed)
    images = network.images()
    torch._dynamo.reset()
    want = trained(network, images, torch.float64, False)
    eager = trained(network, images, torch.float32, False)
    got = trained(network, images, torch.float32, True)
    assert len(got) == len(want) == len(eager)
    for number, (found, exact, plain) in enumerate(zip(got, want, eager, strict=True)):
        scale = exact.abs().max().item() + 1e-3
        error, usual = ((each - exact).abs().max().item() / scale for each in (found, plain))
        assert error <= max(20 * usual, 3e-5), f"{network}, result {number}"
        assert (found.shape, found.dtype) == (plain.shape, plain.dtype)
        pairs = zip(found.shape, found.stride(), plain.stride(), strict=True)
        assert all(size == 1 or own == other for size, own, other in pairs), f"{network}, {number}"


@pytest.mark.parametrize("seed", first(8, range(200)))
def test_random_networks(seed: int) -> None:
    check(seed)
