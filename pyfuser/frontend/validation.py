"""Validation: compares a fusion's outputs with references, up to rounding errors.

Without references, the eager evaluator computes them in float64.  The tolerance of an output grows
with the number of elements that are reduced on the way to it; the tables are those of the
nvfuser_direct interface, so programs that rely on `get_val_tolerances` see the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..dtypes import COMPLEX, FLOATING, REDUCED_FLOATING, DataType, to_torch
from ..errors import InputError, PyfuserError, expected
from ..ir.exprs import IndexedWrite, LibraryOp, ScanOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops.binding import Binding, bind
from ..ops.evaluator import evaluate
from ..ops.library_ops import LIBRARY_OPS
from ..ops.table import SCANS
from .fusion import Fusion as InterfaceFusion

# Largest error of a sum of 4, 8, 16, ... random floats, and in half precision.
_SUM_FLOAT = (
    1.68222e-06, 2.23704e-06, 2.95788e-06, 4.4778e-06, 6.75395e-06, 8.57934e-06, 1.30594e-05,
    2.19122e-05, 3.3451e-05, 5.78476e-05, 0.000108292, 0.00012207, 0.000136882, 0.000248561,
    0.000407594, 0.000500901, 0.000923019, 0.00156909, 0.00223107, 0.00343043,
)  # fmt: skip
_SUM_HALF = (
    0.00390625, 0.0078125, 0.0078125, 0.0155334, 0.0156269, 0.0312042, 0.0312548, 0.0619979,
    0.0625103, 0.124686, 0.12501, 0.24945, 0.250049, 0.498946, 0.500071, 0.985087, 1.00006,
    1.99234, 2.00032, 3.99073,
)  # fmt: skip


class ValidationError(PyfuserError, AssertionError):
    """An output differs from its reference by more than rounding errors explain."""


def tolerances(dtype: DataType, reduction_size: int) -> tuple[float, float]:
    """(absolute, relative) tolerance for a reduction of this many elements; (0, 0) for integers."""
    if dtype not in (*FLOATING, *COMPLEX):
        return 0.0, 0.0
    is_half = dtype in REDUCED_FLOATING
    table = _SUM_HALF if is_half else _SUM_FLOAT
    if reduction_size <= 1:
        return table[0], table[1]
    entry = next((i for i in range(len(table)) if 4 << i >= reduction_size), len(table))
    absolute = table[entry + 1] if entry + 1 < len(table) else 2 * table[-1]
    if is_half and dtype is not DataType.Half:
        absolute *= 10
    return absolute, absolute * 0.01


def reduction_sizes(fusion: Fusion, binding: Binding) -> dict[Val, int]:
    """For each tensor, the most elements that are reduced into one on the way to it."""
    sizes: dict[Val, int] = {}
    for expr in fusion.exprs:
        before = max((sizes.get(value, 1) for value in expr.inputs), default=1)
        summed = LIBRARY_OPS[expr.op].sums(expr) if isinstance(expr, LibraryOp) else ()
        for output in expr.tensor_outputs:
            factor = prod(max(binding.size(size), 1) for size in summed)
            if isinstance(expr, ScanOp) and not SCANS[expr.op].is_exact:
                factor *= binding.size(expr.scanned.size)
            if isinstance(expr, IndexedWrite) and expr.how in ("sum", "prod"):
                factor *= prod(binding.size(expr.value.axes[d].size) for d in expr.scattered)
            if expr.accumulates:
                for axis in output.domain.root_or_logical:
                    factor *= binding.size(axis.extent) if axis.is_reduction else 1
            sizes[output] = before * factor
    return sizes


def output_tolerances(fusion: Fusion, inputs: Sequence[Any]) -> list[tuple[float, float]]:
    """(absolute, relative) tolerances of the visible outputs."""
    sizes = reduction_sizes(fusion, bind(fusion, inputs))
    return [
        tolerances(output.dtype, sizes.get(output, 1))
        for output in fusion.outputs
        if output not in fusion.hidden_outputs
    ]


def coarsest_dtypes(fusion: Fusion) -> dict[Val, DataType]:
    """For each computed tensor, the dtype whose rounding dominates its error.

    This is its own dtype, or a half-precision dtype to which a value on the way to it was rounded:
    there, a difference in the last place of a float can become one in the last place of a half.
    """
    coarsest: dict[Val, DataType] = {}
    for expr in fusion.exprs:
        before = [coarsest[value] for value in expr.inputs if value in coarsest]
        if isinstance(expr, LibraryOp):  # the library may round what it makes of its operands
            before += [tensor.dtype for tensor in expr.tensor_inputs]
        reduced = [dtype for dtype in before if dtype in REDUCED_FLOATING]
        for output in expr.tensor_outputs:
            own = output.dtype
            is_finer = own in (DataType.Double, DataType.Float, DataType.Half) and reduced
            coarsest[output] = max(reduced, key=REDUCED_FLOATING.index) if is_finer else own
    return coarsest


def kept(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the inputs, to compute references after the fusion has updated inputs in place."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]


def validate(
    fusion: Fusion,
    inputs: Sequence[Any],
    outputs: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor] | None = None,
) -> None:
    """Raises ValidationError if an output differs from its reference.

    `references` default to the evaluator's, in float64; `inputs` are the values before the call.
    """
    is_inferred = references is None
    if references is None:
        if len(inputs) < len(fusion.inputs) and fusion.random_state:
            hint = "give the definition rng_seed and rng_offset, or call fd.validate"
            raise InputError(expected("validate", "references for random numbers", "none", hint))
        references = evaluate(fusion, kept(inputs), torch.float64, keep_rounding=True)
    if len(outputs) != len(references):
        raise InputError(expected("validate", f"{len(outputs)} references", len(references)))
    visible = [v for v in fusion.outputs if v not in fusion.hidden_outputs]
    sizes = reduction_sizes(fusion, bind(fusion, inputs))
    coarsest = coarsest_dtypes(fusion)
    bounds = [_bounds(coarsest.get(v, v.dtype), sizes.get(v, 1)) for v in visible]
    for i, (value, output, reference) in enumerate(zip(visible, outputs, references, strict=True)):
        if is_inferred and value in fusion.aliases:
            continue
        _compare(i, value, output, reference, bounds[i])


def _bounds(dtype: DataType, reduction_size: int) -> tuple[float, float]:
    """`tolerances`, and of a large value what rounding explains.

    The tables are for sums near 0.  n positive floats added one after the other differ from their
    sum by about sqrt(n) / 6 times its last place, and the result is rounded.
    """
    absolute, relative = tolerances(dtype, reduction_size)
    if dtype in (*FLOATING, *COMPLEX):
        float_error = torch.finfo(torch.float32).eps * math.sqrt(reduction_size)
        relative = max(relative, torch.finfo(to_torch(dtype)).eps + float_error)
    return absolute, relative


def _compare(
    index: int,
    value: Val,
    output: torch.Tensor,
    reference: torch.Tensor,
    bounds: tuple[float, float],
) -> None:
    assert isinstance(value, TensorView)
    if output.shape != reference.shape:
        what = f"output {index} of shape {tuple(reference.shape)}"
        raise ValidationError(expected("validate", what, tuple(output.shape)))
    if not (output.is_floating_point() or output.is_complex()):
        if not torch.equal(output, reference.to(output.dtype)):
            raise ValidationError(expected("validate", f"output {index} equal", "other elements"))
        return
    absolute, relative = bounds
    wide = torch.complex128 if output.is_complex() else torch.float64
    a, b = output.to(wide), reference.to(wide)
    if not torch.allclose(a, b, rtol=relative, atol=absolute, equal_nan=True):
        worst = (a - b).abs().max().item()
        what = f"output {index} within {absolute} + {relative} * |reference|"
        raise ValidationError(expected("validate", what, f"a difference of {worst}"))


def get_val_tolerances(fusion: InterfaceFusion, args: Sequence[Any]) -> list[tuple[float, float]]:
    """The interface's name for `output_tolerances`."""
    return output_tolerances(fusion.definition, args)


def validate_with_auto_inferred_outputs(
    fusion: InterfaceFusion, fusion_outputs: Sequence[torch.Tensor], args: Sequence[Any]
) -> None:
    """Compares outputs with what the eager evaluator computes for these inputs."""
    validate(fusion.definition, args, fusion_outputs)
