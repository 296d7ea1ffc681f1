"""Library operations in plans: the statements of one LibraryOp.

Products and top-k are written into the runtime's memory, by the overload that makes no copy
for these ranks: `mm`, `bmm`, `addmm` with a bias, for linear on any rank.  A permuted operand is
passed by its strides.  The other operations call the reference of their row
(pyfuser/ops/library_ops.py), and its results get the strides that the plan promises.  So do
operations in half precision that the processor has no instructions for, with operands in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..devices.library_dtypes import is_faster_in_float32, is_read_once
from ..dtypes import to_torch
from ..ir.exprs import LibraryOp
from ..ops.library_ops import LIBRARY_OPS, Results
from .library_calls import LibraryCalls

aten = torch.ops.aten

Texts = Mapping[str, str]
_Into = Callable[[LibraryCalls, LibraryOp, Texts, Sequence[str]], None]


def writes_into_memory(expr: LibraryOp) -> bool:
    """True if the results are written into memory that exists."""
    ranks = [tensor.ndim for tensor in expr.tensor_inputs]
    # torch has no product of a vector and batches that writes into memory of its shape.
    has_vector = expr.op == "matmul" and min(ranks) == 1 and max(ranks) > 2
    return expr.op in _INTO and not has_vector


def write_into(library: LibraryCalls, expr: LibraryOp, texts: Texts, names: Sequence[str]) -> None:
    """Writes the call that computes into the tensors `names`; `texts` are those of the inputs."""
    _INTO[expr.op](library, expr, texts, names)


def is_widened(expr: LibraryOp, device: torch.device) -> bool:
    """True if an operation that adds up products takes less time with operands in float32."""
    if device.type != "cpu" or not LIBRARY_OPS[expr.op].sums(expr):
        return False
    operands = expr.tensor_inputs[:2]
    is_of_vector = min(operand.ndim for operand in operands) == 1
    return not is_of_vector and is_faster_in_float32(to_torch(operands[0].dtype))


def call_text(library: LibraryCalls, expr: LibraryOp, texts: Texts, widened: bool = False) -> str:
    """An expression for the results: a tensor, or a tuple if there are several."""
    reference = LIBRARY_OPS[expr.op].reference
    if widened:
        dtypes = [to_torch(output.dtype) for output in expr.tensor_outputs]
        reference = partial(_in_float32, expr.op, dtypes)
    function = library.writer.constant(f"library_{expr.op}", reference)
    arguments = [f"{name}={text}" for name, text in texts.items()]
    arguments += [f"{name}={option!r}" for name, option in expr.options]
    return f"{function}({', '.join(arguments)})"


def _in_float32(op: str, dtypes: Sequence[torch.dtype], **arguments: Any) -> Results:
    """An operation whose operands are converted to float32, and its results to these dtypes."""
    reference = LIBRARY_OPS[op].reference
    if op in _SUMMED:
        left, right = arguments["arg1"], arguments["arg2"]
        rows, steps = left.shape[:-1].numel(), (left.stride(-1), right.stride(_SUMMED[op]))
        if right.dim() == 2 and is_read_once(rows, steps):
            return reference(**arguments)
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and is_faster_in_float32(value.dtype):
            arguments[name] = value.float()
    results = reference(**arguments)
    if isinstance(results, torch.Tensor):
        return results.to(dtypes[0])
    return tuple(each.to(dtype) for each, dtype in zip(results, dtypes, strict=True))


def _matmul(library: LibraryCalls, expr: LibraryOp, texts: Texts, names: Sequence[str]) -> None:
    a, b = expr.tensor_inputs
    first, second = texts["arg1"], texts["arg2"]
    target = aten.matmul.out
    match a.ndim, b.ndim:
        case 1, 1:
            target = aten.dot.out
        case 1, 2:
            target, first, second = aten.mv.out, f"{second}.t()", first
        case 2, 1:
            target = aten.mv.out
        case 2, 2:
            target = aten.mm.default
        case 3, 3 if a.axes[0].size is b.axes[0].size:
            target = aten.bmm.default
    library.call_into(names[0], target, [first, second])


def _linear(library: LibraryCalls, expr: LibraryOp, texts: Texts, names: Sequence[str]) -> None:
    """One product of matrices: the dimensions before the last are flattened into one."""
    a, weight = expr.tensor_inputs[:2]
    flat = ".flatten(0, -2)" if a.ndim > 2 else ""
    operands, out = [f"{texts['arg1']}{flat}", texts["arg2"]], names[0]
    plain, biased = aten.mm.default, aten.addmm.default
    match a.ndim, weight.ndim:
        case 1, 1:
            plain = aten.dot.out
        case 1, 2:
            plain, biased, operands = aten.mv.out, aten.addmv.out, operands[::-1]
        case _, 1:
            plain, out = aten.mv.out, out + (".flatten()" if flat else "")
        case _:
            operands[1], out = f"{operands[1]}.t()", out + flat
    if "bias" in texts:
        library.call_into(out, biased, [texts["bias"], *operands])
    else:
        library.call_into(out, plain, operands)


def _topk(library: LibraryCalls, expr: LibraryOp, texts: Texts, names: Sequence[str]) -> None:
    function = library.function(aten.topk.values)
    arguments = [*texts.values(), *(repr(option) for _, option in expr.options)]
    values, indices = names
    library.writer.line(f"{function}({', '.join(arguments)}, values={values}, indices={indices})")


# The dimension of the second operand that a product sums over.
_SUMMED = {"linear": -1, "matmul": -2}

_INTO: dict[str, _Into] = {
    "linear": _linear,
    "matmul": _matmul,
    "topk": _topk,
}
