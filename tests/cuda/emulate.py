"""Runs a fusion's generated CUDA C++ on the CPU: ScheduledFusion + inputs -> output tensors.

Lowers and prints the kernel, binds the sizes, fills outputs and scratch with values that no test
expects, and launches all phases in the SIMT harness, once for each order of threads and blocks.
The answers of all orders must have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyfuser.devices.cuda.codegen import Counters, CudaSource, Parameter, generate
from pyfuser.devices.cuda.device_helpers import with_device_helpers
from pyfuser.devices.cuda.emulator.counters import Profile
from pyfuser.devices.cuda.emulator.harness import Module, compile_and_load
from pyfuser.devices.cuda.emulator.runtime import is_misaligned
from pyfuser.dtypes import to_torch
from pyfuser.ir.kernel import Buffer, Kernel, ScalarParameter
from pyfuser.ir.scalar_queries import evaluate
from pyfuser.ir.scalars import Symbol
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ir.vals import TensorView
from pyfuser.lower.lowering import lower
from pyfuser.ops.binding import Input, bind
from tests.support.targets import SM_90

SEEDS = (0, 1)


def cuda_kernel(scheduled: ScheduledFusion, name: str = "kernel") -> Kernel:
    """The kernel of a schedule for a device with hardware threads."""
    return lower(scheduled, SM_90, name)


def garbage(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of NaN, or of the largest number, which a kernel must overwrite and never read."""
    elements = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if 0 in shape:
        elements = 0
    if dtype.is_floating_point:
        fill: float | bool = math.nan
    else:
        fill = True if dtype is torch.bool else torch.iinfo(dtype).max
    return torch.full((max(elements, 1),), fill, dtype=dtype).as_strided(shape, strides)


def run_emulated(
    scheduled: ScheduledFusion,
    inputs: Sequence[Input],
    seeds: Sequence[int] = SEEDS,
    profile: Profile | None = None,
    edited: Callable[[str], str] = str,
) -> list[torch.Tensor]:
    """The fusion's outputs, the same in each order of threads; SimtError for illegal CUDA.

    `profile` is told of each launch.  `edited` changes the text, with its prelude.
    """
    kernel = cuda_kernel(scheduled)
    source = generate(kernel)

    def module_of(source: CudaSource) -> Module:
        text = edited(with_device_helpers(source.text))
        return compile_and_load(text, profile is not None)

    results = [_run(scheduled, kernel, source, module_of, inputs, seed, profile) for seed in seeds]
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert torch.equal(_bits(first), _bits(second)), "the order of threads matters"
    return results[0]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def _run(
    scheduled: ScheduledFusion,
    kernel: Kernel,
    source: CudaSource,
    module_of: Callable[[CudaSource], Module],
    inputs: Sequence[Input],
    seed: int,
    profile: Profile | None,
) -> list[torch.Tensor]:
    fusion = scheduled.fusion
    binding = bind(fusion, inputs)
    tensors = {
        f"T{value.name}": given
        for value, given in zip(fusion.inputs, inputs, strict=True)
        if isinstance(value, TensorView) and isinstance(given, torch.Tensor)
    }
    numbers = dict(binding.sizes)
    for parameter in kernel.tensors:
        if not parameter.is_output:
            given = tensors[parameter.buffer.name]
            for exprs, values in (
                (parameter.sizes, given.shape),
                (parameter.strides, given.stride()),
            ):
                for expr, value in zip(exprs, values, strict=True):
                    if isinstance(expr, Symbol):
                        numbers.setdefault(expr.name, value)
    for parameter in kernel.tensors:
        if parameter.is_output:
            shape = [evaluate(size, numbers) for size in parameter.sizes]
            strides = [evaluate(stride, numbers) for stride in parameter.strides]
            dtype = to_torch(parameter.buffer.dtype)
            tensors[parameter.buffer.name] = garbage(shape, strides, dtype)
    for buffer in kernel.scratch:
        size = evaluate(buffer.size, numbers)
        tensors[buffer.name] = garbage([size], [1], to_torch(buffer.dtype))
    scalars = {f"s{scalar.name}": number for scalar, number in binding.scalars.items()}

    def argument(parameter: Parameter) -> Any:
        match parameter:
            case Buffer():
                return tensors[parameter.name]
            case Symbol():
                return numbers[parameter.name]
            case ScalarParameter():
                return scalars[parameter.name]
            case Counters(count=count):
                return torch.zeros(evaluate(count, numbers), dtype=torch.int32)

    for launch in source.launches:
        geometry = launch.geometry(numbers)
        if geometry is not None:
            arguments = [argument(parameter) for parameter in launch.parameters]
            needed = source.for_any_address if is_misaligned(launch)(arguments) else source
            counts = profile and profile.counts(needed.text, launch.function, geometry)
            module_of(needed).launch(
                launch.function,
                geometry.grid,
                geometry.block,
                geometry.shared_bytes,
                arguments,
                seed=seed,
                counts=counts,
                scratch=[tensors[each.name] for each in kernel.scratch],
            )
            for parameter, given_ in zip(launch.parameters, arguments, strict=True):
                assert not (isinstance(parameter, Counters) and given_.any()), "a counter isn't 0"
    hidden = fusion.hidden_outputs
    return [tensors[f"T{value.name}"] for value in fusion.outputs if value not in hidden]
