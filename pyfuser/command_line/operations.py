"""`ops`: prints the op table, the source of builders, code generators and tests.

Turns `pyfuser.ops.table` into tables for a terminal, or into Markdown for the documents.
"""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..ops.dtype_rules import DtypeRule
from ..ops.op import Op
from ..ops.table import OPS, REDUCTIONS, markdown_table


def run(markdown: bool) -> int:
    """Prints the table; as Markdown where asked for."""
    if markdown:
        print(markdown_table(), end="")
        return 0
    console = Console()
    console.print(pointwise_table())
    console.print(rule_table())
    console.print(reduction_table())
    return 0


def pointwise_table() -> Table:
    """Every pointwise op: its meaning, dtype rule, spelling and accuracy in ulp."""
    table = Table(title=f"{len(OPS)} pointwise ops", box=box.SIMPLE_HEAD)
    for heading in ("op", "n", "meaning", "dtypes", "computed by", "ulp32", "ulp64"):
        numeric = heading.startswith(("ulp", "n"))
        table.add_column(heading, justify="right" if numeric else "left")
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
    """What the names in the column `dtypes` mean."""
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


def _rule_name(rule: DtypeRule) -> str:
    return rule.name.lower().replace("_", " ")


def _computed_by(op: Op) -> str:
    if not op.in_kernels:
        return "torch (fallback)"
    if op.definition is not None:
        return "other rows"
    return next(spelling for spelling in str(op.llvm).split("|") if spelling != "-")
