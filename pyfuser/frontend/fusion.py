"""The interface's Fusion: a definition, its user schedule, and equality by definition.

It wraps the IR's Fusion (`graph`), because the interface's methods `inputs()` and `outputs()` are
attributes there.  Tensors of the graph are the front end's TensorViews, which carry the scheduling
methods and act on `graph.user_schedule`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..errors import DefinitionError, expected
from ..ir import fusion as ir
from ..ir import vals
from ..ir.keys import definition_key
from ..ir.schedule import ScheduledFusion
from ..ir.vals import Val
from ..ops.pointwise import require_equal
from .handles import Scalar
from .tensor_view import TensorView

if TYPE_CHECKING:
    from .device_mesh import DeviceMesh
    from .params import CompileParams


class DefinedFusion(ir.Fusion):
    """An IR Fusion whose tensors are handles that the user can schedule."""

    tensor_type = TensorView
    scalar_type = Scalar

    def __init__(self) -> None:
        super().__init__()
        self._user_schedule: ScheduledFusion | None = None
        self._unscheduled: ir.Fusion | None = None
        self.meshes: dict[vals.TensorView, DeviceMesh] = {}
        """The devices that have tensors, as `set_device_mesh` says."""

    @property
    def user_schedule(self) -> ScheduledFusion:
        """The schedule that the scheduling methods of the tensors build."""
        if self._user_schedule is None:
            self._user_schedule = ScheduledFusion(self)
        return self._user_schedule

    def adopt_schedule(self, scheduled: ScheduledFusion) -> None:
        """Makes a scheduler's schedule, over a copy of the fusion, the schedule that runs."""
        self.keep_definition()
        self._user_schedule = scheduled

    def keep_definition(self) -> None:
        """Called before the first cache or rfactor, which rewrite this graph."""
        if self._unscheduled is None:
            self._unscheduled, _ = self.clone()

    @property
    def definition(self) -> ir.Fusion:
        """The fusion before the user's schedule rewrote it."""
        return self if self._unscheduled is None else self._unscheduled

    @property
    def has_user_schedule(self) -> bool:
        """True once the user has scheduled something."""
        return self._user_schedule is not None


class Fusion:
    """A graph of operations.  Two are equal if their definitions are the same."""

    def __init__(self) -> None:
        self.graph = DefinedFusion()
        self.is_executed = False

    def require_open(self, operation: str) -> None:
        """DefinitionError once the fusion was executed: its kernels wouldn't see a change."""
        if self.is_executed:
            hint = "the fusion was executed already, define a new one"
            raise DefinitionError(
                expected(operation, "a fusion that can change", "a fixed one", hint)
            )

    @property
    def user_schedule(self) -> ScheduledFusion:
        """The schedule that the scheduling methods build."""
        return self.graph.user_schedule

    @property
    def definition(self) -> ir.Fusion:
        """The fusion before the user's schedule rewrote it."""
        return self.graph.definition

    def inputs(self) -> list[Val]:
        """The inputs, in order."""
        return self.graph.given_inputs

    def outputs(self) -> list[Val]:
        """The outputs, in order."""
        return list(self.graph.outputs)

    def vals(self) -> list[Val]:
        """Every value: inputs, then what expressions read and define."""
        found = dict.fromkeys(self.graph.given_inputs)
        for expr in self.graph.exprs:
            found.update(dict.fromkeys((*expr.inputs, *expr.outputs)))
        return list(found)

    def add_input(self, value: Val) -> None:
        """Declares the next input."""
        self.require_open("add_input")
        self.graph.add_input(value)

    def add_output(self, value: Val, alias_input: Val | None = None) -> None:
        """Declares an output; with `alias_input` it updates that input and isn't returned."""
        self.require_open("add_output")
        self.graph.add_output(value, alias_input)
        if isinstance(value, TensorView) and isinstance(alias_input, TensorView):
            for axis, updated in zip(value.axes, alias_input.axes, strict=True):
                require_equal(self.graph, "add_output", updated.size, axis.size)

    def print_math(self, from_outputs_only: bool = True) -> str:
        """The expressions as text (with `from_outputs_only`, those that the outputs need)."""
        return self.graph.math_text(from_outputs_only)

    def print_kernel(self, compile_params: CompileParams | None = None) -> str:
        """The kernel of the user's schedule as text.

        It is for the device of the parameters, or else for torch's default device.
        """
        from ..devices.registry import target_for
        from ..lower.lowering import lower
        from .params import CompileParams, check_compile_params, device_of_params, most_registers

        params = CompileParams() if compile_params is None else compile_params
        check_compile_params(params, (), "print_kernel")
        device = device_of_params(params, "print_kernel") or torch.get_default_device()
        scheduled = replace(self.graph.user_schedule, most_registers=most_registers(params))
        return str(lower(scheduled, target_for(device)))

    def __str__(self) -> str:
        return self.print_math(False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fusion):
            return NotImplemented
        return definition_key(self.definition) == definition_key(other.definition)

    def __hash__(self) -> int:
        return hash(definition_key(self.definition))


def require_fusion(operation: str, given: object) -> None:
    """DefinitionError if something else, such as a FusionDefinition, is given for a Fusion."""
    if not isinstance(given, Fusion):
        hint = "pass its `fusion`" if hasattr(given, "fusion") else ""
        got = f"an object of type {type(given).__name__}"
        raise DefinitionError(expected(operation, "a Fusion", got, hint))
