"""Small fusions for the tests of passes, and what these look at."""

from __future__ import annotations

from pyfuser.dtypes import DataType
from pyfuser.ir.fusion import Fusion, plain_domain
from pyfuser.ir.scalars import Integer
from pyfuser.ir.vals import TensorView


def names(fusion: Fusion) -> list[str]:
    return [expr.name for expr in fusion.exprs]


def outputs_of(fusion: Fusion, *outputs: TensorView) -> Fusion:
    for output in outputs:
        fusion.add_output(output)
    return fusion


def with_empty_axis(fusion: Fusion) -> TensorView:
    axes = [fusion.ids.new(fusion.new_extent()), fusion.ids.new(Integer.of(0))]
    made = fusion.new_tensor(plain_domain(axes), DataType.Float)
    fusion.add_input(made)
    return made
