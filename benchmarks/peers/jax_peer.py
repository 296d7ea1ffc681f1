"""JAX: the functions of jax_functions.py, compiled by XLA for the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .jax_functions import FUNCTIONS
from .peer import Call, Work


def jax_function(work: Work) -> Call | None:
    """The function, or the function and its gradients; None for a case that JAX doesn't have."""
    function = FUNCTIONS.get(work.case.name)
    if function is None or not all(each.is_contiguous() for each in work.inputs):
        return None
    inputs = [_array(each) for each in work.inputs]
    if work.gradients is None:
        compiled = jax.jit(function)
        return lambda: jax.block_until_ready(compiled(*inputs))
    places = [place for place, each in enumerate(work.inputs) if each.requires_grad]
    gradients = [_array(each) for each in work.gradients]

    def both(inputs: list[Any], gradients: list[Any]) -> Any:
        def of_wanted(*wanted: Any) -> Any:
            given = list(inputs)
            for place, value in zip(places, wanted, strict=True):
                given[place] = value
            return function(*given)

        outputs, pullback = jax.vjp(of_wanted, *(inputs[place] for place in places))
        several = isinstance(outputs, tuple)
        given = tuple(gradients) if several else gradients[0]
        return *(outputs if several else (outputs,)), *pullback(given)

    compiled_both = jax.jit(both)
    return lambda: jax.block_until_ready(compiled_both(inputs, gradients))


def tensors(outputs: Any) -> Sequence[torch.Tensor]:
    """JAX's arrays as tensors."""
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    return [torch.from_dlpack(jnp.asarray(each)) for each in arrays]


def _array(tensor: torch.Tensor) -> Any:
    plain = tensor.detach()
    if plain.dtype is torch.int64:
        plain = plain.int()  # JAX's integers have 32 bits
    return jnp.from_dlpack(plain.contiguous())
