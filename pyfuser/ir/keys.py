"""What two fusions share when they are the same: as definitions, or in everything kernels see.

`definition_key` is for users: values are numbered as they appear, so that a definition and the one
that its text gives are equal.  `structure_key` is for kernels: two fusions with one of these run
the same machine code on the same inputs.  In it values keep their numbers: what makes a structure
twice, such as the layers of a model, numbers it alike.
"""

from __future__ import annotations

from .domains import history
from .fusion import Fusion
from .text import translate
from .vals import Scalar, TensorView, Val


def definition_key(fusion: Fusion) -> str:
    """A text that two fusions share when they are the same definition."""
    return translate(fusion, canonical=True)


def structure_key(fusion: Fusion) -> str:
    """Text that two fusions share exactly when they compute the same thing.

    The definition as people read it, and what it leaves out: how tensors lie in memory, where
    reshaped axes come from, dtypes of constants, which outputs are written over inputs.
    """
    values = list(fusion.inputs)
    for expr in fusion.exprs:
        values += [*expr.inputs, *expr.outputs]
    parts = [str(fusion)]
    parts += [f"{a} == {b}" for a, b in fusion.equal_extents]
    parts += [_hidden_facts(value) for value in dict.fromkeys(values)]
    parts += [f"{output.name} over {target.name}" for output, target in fusion.aliases.items()]
    parts += sorted(f"{target.name} may be overwritten" for target in fusion.overwritten)
    parts += [
        f"{position} hidden"
        for position, output in enumerate(fusion.outputs)
        if output in fusion.hidden_outputs
    ]
    return "\n".join(parts)


def _hidden_facts(value: Val) -> str:
    """What identifies a value and isn't printed with it."""
    if not isinstance(value, TensorView):
        constant = value.constant if isinstance(value, Scalar) else None
        return f"{value} {value.dtype} {constant!r}"
    domain = value.domain
    transforms = [str(e) for e in history(domain.logical, domain.root_or_logical)]
    memory = f"{domain.allocated} {domain.contiguity} {value.is_cpu_scalar}"
    return f"T{value.name} {domain.root_or_logical} {transforms} {domain.logical} {memory}"
