"""The op table: every pointwise op, reduction and scan, one row each.

Builders, the eager evaluator, the code generators, the tests and the docs table are derived from
`OPS`, `REDUCTIONS` and `SCANS`; adding an op means adding a row (of `OPS`: in table_unary.py or
table_binary.py).
Invariant: a row's name is its key and the name that users call; the order is that of the docs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from pyfuser.dtypes import DataType, is_complex, to_torch
from pyfuser.ops import expansion, references
from pyfuser.ops.dtype_rules import OperandType, Resolution, resolve
from pyfuser.ops.op import Number, Op, Reduction, ScanRow
from pyfuser.ops.table_binary import BINARY, TERNARY
from pyfuser.ops.table_unary import CAST, UNARY

V = TypeVar("V")

OPS: dict[str, Op] = {op.name: op for op in (*UNARY, *BINARY, *TERNARY, CAST)}

REDUCTIONS: dict[str, Reduction] = {
    reduction.name: reduction
    for reduction in (
        Reduction(
            "sum", "add", lambda dtype: 0, references.sum_, True, "sum of the elements",
            repeated="mul", rounds=True,
        ),
        Reduction(
            "prod", "mul", lambda dtype: 1, references.prod, True,
            "product of the elements", repeated="pow", may_overflow=True,
        ),
        Reduction(
            "max", "maximum", lambda dtype: references.lowest(to_torch(dtype)), references.max_,
            False, "greatest element; NaN wins",
        ),
        Reduction(
            "min", "minimum", lambda dtype: references.highest(to_torch(dtype)), references.min_,
            False, "least element; NaN wins",
        ),
        Reduction(
            "nanmax", "fmax", lambda dtype: references.lowest(to_torch(dtype)), references.nanmax,
            False, "greatest element that isn't NaN; the lowest number if there is none",
        ),
        Reduction(
            "nanmin", "fmin", lambda dtype: references.highest(to_torch(dtype)), references.nanmin,
            False, "least element that isn't NaN; the highest number if there is none",
        ),
    )
}  # fmt: skip

SCANS: dict[str, ScanRow] = {
    scan.name: scan
    for scan in (
        ScanRow("cumsum", "sum", torch.cumsum, "sum", aten="cumsum"),
        ScanRow("cumprod", "prod", torch.cumprod, "product", aten="cumprod"),
        ScanRow("cummax", "max", references.cummax, "greatest element; NaN wins", is_exact=True),
        ScanRow("cummin", "min", references.cummin, "least element; NaN wins", is_exact=True),
    )
}


def expand(
    op: Op,
    operands: Sequence[V],
    resolution: Resolution,
    emit: Callable[[Op, tuple[V, ...], DataType, DataType], V],
    constant: Callable[[Number, DataType], V],
) -> V:
    """Computes `op` by primitive ops of the table only; see `pyfuser.ops.expansion.expand`."""
    return expansion.expand(OPS, op, operands, resolution, emit, constant)


def constant_result(op: Op, dtypes: Sequence[DataType]) -> Number | None:
    """The only result that an op has for operands of these dtypes, if its definition says so."""
    if op.definition is None or any(map(is_complex, dtypes)):
        return None
    resolution = resolve(op, [OperandType(dtype) for dtype in dtypes])
    operands: list[Number | None] = [None] * len(dtypes)
    return expand(op, operands, resolution, lambda *_: None, lambda number, _: number)


def refused(
    op: Op,
    operands: Sequence[V],
    resolution: Resolution,
    emit: Callable[[Op, tuple[V, ...], DataType, DataType], V],
    constant: Callable[[Number, DataType], V],
) -> V:
    """Where an op's check refuses the operands; see `pyfuser.ops.expansion.refused`."""
    return expansion.refused(OPS, op, operands, resolution, emit, constant)


def _spelling(op: Op) -> str:
    if not op.in_kernels:
        return "fallback"
    return "definition" if op.definition is not None else f"`{op.llvm}`"


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def markdown_table() -> str:
    """The op table as Markdown, for `python -m pyfuser ops` and the docs."""
    lines = [
        _row(
            "op",
            "operands",
            "meaning",
            "dtypes",
            "computed by",
            "ulp Float",
            "ulp Double",
        ),
        _row(*["---"] * 7),
    ]
    for op in OPS.values():
        lines.append(
            _row(
                f"`{op.name}`",
                op.arity,
                op.doc,
                op.rule.value,
                _spelling(op),
                op.ulp32,
                op.ulp64,
            )
        )
    lines += [
        "",
        _row("reduction", "meaning", "combined by", "dtypes"),
        _row(*["---"] * 4),
    ]
    for reduction in REDUCTIONS.values():
        widening = "integers and Bool in Int" if reduction.widens else "dtype kept"
        lines.append(_row(f"`{reduction.name}`", reduction.doc, f"`{reduction.combine}`", widening))
    lines += [
        "",
        _row("scan", "of each element and those before it", "combined by"),
        _row(*["---"] * 3),
    ]
    for scan in SCANS.values():
        combine = REDUCTIONS[scan.reduction].combine
        lines.append(_row(f"`{scan.name}`", scan.doc, f"`{combine}`"))
    return "\n".join(lines) + "\n"
