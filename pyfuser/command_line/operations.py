"""`ops`: lists the operations of a fusion: the op table and the functions beside it.

Turns `pyfuser.ops.table`, the source of builders, code generators and tests, into tables for a
terminal, or into Markdown for the documents.  The other functions (broadcast, var, matmul, uniform)
are the functions of `fd.ops` that don't come from a row of the table.  Names are never truncated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..frontend.ops import FUNCTIONS
from ..ops.dtype_rules import DtypeRule
from ..ops.op import Op
from ..ops.table import OPS, REDUCTIONS, markdown_table


def run(markdown: bool) -> int:
    """Prints the tables, as Markdown if requested."""
    if markdown:
        print(markdown_table(), end="")
        print("\n| function | meaning |\n|---|---|")
        for name, function in shape_functions().items():
            print(f"| `{name}` | {_signature(function)}: {inspect.getdoc(function)} |")
        return 0
    console = Console(emoji=False)
    console.print(pointwise_table())
    console.print(rule_table())
    console.print(reduction_table())
    console.print(function_table())
    return 0


def pointwise_table() -> Table:
    """Every pointwise op: its meaning, dtype rule, spelling and accuracy in ulp."""
    table = Table(title=f"{len(OPS)} pointwise ops", box=box.SIMPLE_HEAD)
    longest = max(map(len, OPS))
    for heading in ("op", "n", "meaning", "dtypes", "computed by", "ulp32", "ulp64"):
        numeric = heading.startswith(("ulp", "n"))
        width = longest if heading == "op" else None
        table.add_column(heading, justify="right" if numeric else "left", min_width=width)
    for op in OPS.values():
        table.add_row(
            f"[bold]{op.name}[/bold]",
            str(op.arity),
            escape(op.doc),
            _rule_name(op.rule),
            _computed_by(op),
            str(op.ulp32),
            str(op.ulp64),
        )
    return table


def rule_table() -> Table:
    """The meaning of the names in the column `dtypes`."""
    table = Table("dtypes", "meaning", title="dtype rules", box=box.SIMPLE_HEAD)
    for rule in dict.fromkeys(op.rule for op in OPS.values()):
        table.add_row(f"[bold]{_rule_name(rule)}[/bold]", rule.value)
    return table


def reduction_table() -> Table:
    """Every reduction: its meaning and the op that combines two partial results."""
    title = f"{len(REDUCTIONS)} reductions"
    table = Table("reduction", "meaning", "combined by", title=title, box=box.SIMPLE_HEAD)
    for reduction in REDUCTIONS.values():
        table.add_row(f"[bold]{reduction.name}[/bold]", escape(reduction.doc), reduction.combine)
    return table


def shape_functions() -> dict[str, Callable[..., Any]]:
    """The functions of `fd.ops` without a row: shapes, moments, products, orders, numbers."""
    rows = {*OPS, *REDUCTIONS}
    return {name: function for name, function in FUNCTIONS.items() if name not in rows}


def function_table() -> Table:
    """Every other function: its arguments and its meaning."""
    functions = shape_functions()
    table = Table(title=f"{len(functions)} other functions", box=box.SIMPLE_HEAD)
    table.add_column("function", min_width=max(map(len, functions)))
    table.add_column("arguments")
    table.add_column("meaning")
    for name, function in functions.items():
        doc = inspect.getdoc(function) or ""
        table.add_row(f"[bold]{name}[/bold]", escape(_signature(function)), escape(doc))
    return table


def _signature(function: Callable[..., Any]) -> str:
    return f"({', '.join(inspect.signature(function).parameters)})"


def _rule_name(rule: DtypeRule) -> str:
    return rule.name.lower().replace("_", " ")


def _computed_by(op: Op) -> str:
    if not op.in_kernels:
        return "torch (fallback)"
    if op.definition is not None:
        return "other rows"
    return next(spelling for spelling in str(op.llvm).split("|") if spelling != "-")
