"""Blocks of models through torch.compile(backend="pyfuser"), against eager in float64.

Outputs, gradients of parameters and of inputs, and buffers are as close to float64 as eager's own
are: at most 4 times its error (in parts of each tensor's greatest value), give or take a few
roundings.  Training and inference, static and dynamic shapes, float32, bfloat16 and autocast.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.compiled import BACKEND, Result, assert_as_close_as_eager, in_float64
from tests.support.compiled import strict as strict
from tests.support.long_cases import long
from tests.torch_compile.model_blocks import BLOCKS, Block

# Sizes of batch and length (or half an image's side); blocks see the second only where shapes move.
SIZES = ((2, 12), (3, 16))
# Those that take longest; test_training has them all.
LONG_DYNAMIC = ("vit", "unet", "bert", "gpt2_sdpa")
HALVES = [block for block in BLOCKS if block.name in ("gpt2", "llama", "bert", "resnet", "unet")]


def built(block: Block, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return block.build().to(dtype).train()


def inputs_of(block: Block, size: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(sum(size))
    made = block.inputs(*size)
    return tuple(each.to(dtype) if each.is_floating_point() else each for each in made)


def step(module: nn.Module, call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Result:
    """One training step: output, gradients of parameters and inputs, and the buffers afterwards."""
    leaves = [
        each.detach().clone().requires_grad_() if each.is_floating_point() else each
        for each in inputs
    ]
    module.zero_grad(set_to_none=True)
    output = call(*leaves)
    torch.manual_seed(7)
    direction = torch.rand(output.shape, dtype=torch.float64).add(0.5).to(output.dtype)
    (output * direction).sum().backward()
    found = {"output": output.detach()}
    for number, leaf in enumerate(leaves):
        if leaf.grad is not None:
            found[f"gradient of input {number}"] = leaf.grad
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad
    return found | {name: buffer.clone() for name, buffer in module.named_buffers()}


def check_steps(
    block: Block,
    dtype: torch.dtype,
    sizes: tuple[tuple[int, int], ...],
    context: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    **options: object,
) -> None:
    """Two steps at each size (buffers move on), compiled once, against eager and float64."""
    eager = built(block, dtype)
    ours = copy.deepcopy(eager)
    exact, _ = in_float64(eager)
    compiled = torch.compile(ours, backend=BACKEND, fullgraph=not block.breaks_graph, **options)

    def in_context(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*inputs: Tensor) -> Tensor:
            with context():
                return call(*inputs)

        return run

    for size in sizes:
        for _ in range(2):
            inputs = inputs_of(block, size, dtype)
            _, doubles = in_float64(eager, inputs)
            assert_as_close_as_eager(
                step(ours, in_context(compiled), inputs),
                step(eager, in_context(eager), inputs),
                step(exact, exact, doubles),
            )


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_training(block: Block) -> None:
    check_steps(block, torch.float32, SIZES[:1])


@pytest.mark.parametrize(
    "block",
    [long(block) if block.name in LONG_DYNAMIC else block for block in BLOCKS],
    ids=lambda block: block.name,
)
def test_training_with_dynamic_shapes(block: Block) -> None:
    check_steps(block, torch.float32, SIZES, dynamic=True)


@pytest.mark.parametrize("block", [*HALVES[:3], *map(long, HALVES[3:])], ids=lambda b: b.name)
def test_training_in_bfloat16(block: Block) -> None:
    check_steps(block, torch.bfloat16, SIZES[:1])


@pytest.mark.parametrize("block", [*map(long, HALVES[:3]), *HALVES[3:]], ids=lambda b: b.name)
def test_training_under_autocast(block: Block) -> None:
    check_steps(
        block,
        torch.float32,
        SIZES[:1],
        context=lambda: torch.autocast("cpu", torch.bfloat16),
    )


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_inference(block: Block) -> None:
    module = built(block).eval()
    inputs = inputs_of(block, SIZES[0], torch.float32)
    exact, doubles = in_float64(module, inputs)
    compiled = torch.compile(module, backend=BACKEND)
    with torch.no_grad():
        for _ in range(2):
            output = compiled(*inputs)
            assert_as_close_as_eager(
                {"output": output}, {"output": module(*inputs)}, {"output": exact(*doubles)}
            )
    assert not output.requires_grad


def test_a_wrong_gradient_would_be_seen() -> None:
    block = BLOCKS[0]
    module = built(block)
    inputs = inputs_of(block, SIZES[0], torch.float32)
    exact, doubles = in_float64(module, inputs)
    eager, reference = step(module, module, inputs), step(exact, exact, doubles)
    for name, tensor in eager.items():
        wrong = {**eager, name: tensor * 1.0001}
        with pytest.raises(AssertionError, match="error"):
            assert_as_close_as_eager(wrong, eager, reference)
