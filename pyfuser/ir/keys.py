"""Keys that two fusions share if they are equal: as definitions, or in everything kernels see.

`definition_key` is for users: values are numbered in order of appearance, so a definition equals
the one that its printed text makes.  `structure_key` is for kernels: two fusions with the same key
run the same machine code on the same inputs.  It keeps the values' numbers, because repeated
structures, such as the layers of a model, are numbered alike.
"""

from __future__ import annotations

from functools import lru_cache

from .domains import history, without_reductions
from .fusion import Fusion
from .text import translate
from .vals import Scalar, TensorView, Val


def definition_key(fusion: Fusion) -> str:
    """A text that two fusions have in common exactly if their definitions are equal."""
    outputs = (output for expr in fusion.exprs for output in expr.outputs)
    laid_out = [
        f"value {number} in memory {_memory_order(value)}"
        for number, value in enumerate(outputs)
        if isinstance(value, TensorView) and value.domain.allocation is not None
    ]
    return "\n".join((translate(fusion, canonical=True), *laid_out))


def _memory_order(tensor: TensorView) -> str:
    """The axes in memory order by their positions, and which are contiguous."""
    domain = tensor.domain
    positions = {axis: str(position) for position, axis in enumerate(domain.logical)}
    order = [positions.get(axis, str(axis)) for axis in domain.allocated]
    return f"{', '.join(order)} {domain.contiguity}"


@lru_cache(maxsize=256)
def kept_structure_key(fusion: Fusion) -> str:
    """The `structure_key` of a fusion that doesn't change any more."""
    return structure_key(fusion)


def structure_key(fusion: Fusion) -> str:
    """A text: two fusions that share it compute the same thing, with values of the same numbers.

    It is the printed definition together with facts that aren't printed: memory layouts of tensors,
    the origin of reshaped axes, dtypes of constants, which outputs are written over inputs, and
    sizes known to be equal, also those that only axes merged later have.
    """
    values = list(fusion.inputs)
    for expr in fusion.exprs:
        values += [*expr.inputs, *expr.outputs]
    parts = [str(fusion)]
    parts += [f"{a} == {b}" for a, b in fusion.equal_extents]
    parts += [f"{size} is {other}" for size, other in fusion.ids.equal.items()]
    parts += [_hidden_facts(value) for value in dict.fromkeys(values)]
    parts += [f"{output.name} over {target.name}" for output, target in fusion.aliases.items()]
    parts += [f"{value} of the generator" for value in fusion.random_state]
    parts += [f"{value.name} is {other.name}" for value, other in fusion.repeats.items()]
    parts += sorted(f"{target.name} may be overwritten" for target in fusion.overwritten)
    parts += [
        f"{position} hidden"
        for position, output in enumerate(fusion.outputs)
        if output in fusion.hidden_outputs
    ]
    return "\n".join(parts)


def _hidden_facts(value: Val) -> str:
    """The facts that identify a value and aren't printed with it."""
    if not isinstance(value, TensorView):
        constant = value.constant if isinstance(value, Scalar) else None
        return f"{value} {value.dtype} {constant!r}"
    domain = value.domain
    facts = f"T{value.name} {domain.logical} {domain.contiguity} {value.is_cpu_scalar}"
    if domain.root_or_logical != domain.logical:
        root = domain.root_or_logical
        facts += f" from {root} {[str(e) for e in history(domain.logical, root)]}"
    if domain.allocated != without_reductions(domain.logical):
        facts += f" in memory {domain.allocated}"
    return facts
