"""Executors of the interface: automatic (`FusionExecutorCache`) and by hand (`KernelExecutor`).

Both are thin: they check what the interface checks and pass lists of inputs to the engine
(`pyfuser.interface`). The engine is imported when something is first run, so defining a fusion
loads no device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError, ScheduleError, expected
from ..ir.exprs import LibraryOp
from ..ir.vals import PythonNumber
from ..ops.binding import bind_extents
from ..ops.metadata import device_of
from ..ops.random_state import with_any_random_state
from .device_mesh import Sharding, sharding_of
from .enums import SchedulerType
from .fusion import Fusion, require_fusion
from .options import applied, check_products, schedulers_of
from .params import (
    CompileParams,
    LaunchParams,
    check_compile_params,
    check_launch_params,
    most_registers,
    require_extents,
)
from .tensor_view import TensorView

if TYPE_CHECKING:
    from ..interface import CompiledFusion, ManualKernel

Run = Callable[[Sequence[Any]], list[torch.Tensor]]


def flattened(inputs: Sequence[Any]) -> list[torch.Tensor | PythonNumber]:
    """The inputs with nested lists and tuples unpacked."""
    flat: list[torch.Tensor | PythonNumber] = []
    for value in inputs:
        if isinstance(value, (list, tuple)):
            flat += flattened(value)
        else:
            flat.append(value)
    return flat


def all_inputs(fusion: Fusion, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs of the definition: these, and any state of a random generator."""
    return with_any_random_state(fusion.definition, flattened(inputs))


def require_list(inputs: object, operation: str = "execute", form: str = "") -> None:
    """Raises InputError if something other than a list of inputs is given.

    The inputs are iterated more than once, so an iterator won't do.  The hint shows the `form` of
    the right call, with {} for the inputs; by default that of a method of FusionDefinition.
    """
    if isinstance(inputs, (list, tuple)):
        return
    write = f"write {form or f'fd.{operation}({{}})'}"
    hint = write.format("[x, y]")
    if isinstance(inputs, torch.Tensor):
        hint = write.format("[x]")
    elif isinstance(inputs, Collection) and not isinstance(inputs, (Mapping, Set, str, bytes)):
        return
    elif isinstance(inputs, Iterable):
        hint = write.format("list(...)")
    kind = f"an object of type {type(inputs).__name__}"
    got = "a tensor" if isinstance(inputs, torch.Tensor) else kind
    raise InputError(expected(operation, "a list of inputs", got, hint))


def is_nested(inputs: Sequence[Any]) -> bool:
    """True if an input is itself a list or tuple of inputs."""
    return any(isinstance(value, (list, tuple)) for value in inputs)


class FusionExecutorCache:
    """Schedules, compiles and runs a fusion; caches kernels by what they depend on."""

    def __init__(self, fusion: Fusion, fusion_id: int = 0, auto_schedule: bool = True) -> None:
        require_fusion("FusionExecutorCache", fusion)
        self._fusion, self.fusion_id, self.auto_schedule = fusion, fusion_id, auto_schedule
        self._engines: dict[frozenset[str], CompiledFusion] = {}
        self._latest: CompiledFusion | None = None

    @property
    def engine(self) -> CompiledFusion:
        """The compiled fusion; made on first use."""
        return self.engine_without(())

    def engine_without(self, disable: Sequence[str]) -> CompiledFusion:
        """The compiled fusion for these options: its plans use none of the disabled schedulers."""
        schedulers = schedulers_of(disable)
        found = self._engines.get(schedulers)
        if found is None:
            from ..interface import CompiledFusion
            from ..preseg.allocation_orders import with_inherited_orders

            made = CompiledFusion(with_inherited_orders(self._fusion.definition))
            found = self._engines.setdefault(schedulers, made)
            self._fusion.is_executed = True
        self._latest = found
        return found

    def fusion(self) -> Fusion:
        """The definition."""
        return self._fusion

    def execute(
        self,
        inputs: Sequence[Any],
        *,
        device: object = None,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Runs the fusion: the outputs, without those that only update an input."""
        require_list(inputs, "execute", "execute({})")
        check_device(device)
        check_products(self._fusion.graph.exprs, _disable_options)
        with applied(_enable_options, _disable_options):
            return self.engine_without(_disable_options).execute(flattened(inputs))

    def is_compiled(self, inputs: Sequence[Any], device: object = 0) -> bool:
        """True if a call with these inputs would compile nothing."""
        flat = all_inputs(self._fusion, inputs)
        return any(plan.fits(flat) for plan in self.engine.executor.plans)

    def get_output_shardings(self) -> list[Sharding]:
        """How the outputs lie on their meshes; empty if no tensor has one."""
        graph = self._fusion.graph
        return [
            sharding_of(output, graph.meshes[output], graph.user_schedule[output].loop)
            for output in graph.outputs
            if output in graph.meshes and isinstance(output, TensorView)
        ]

    def get_most_recent_scheduled_ir(self, tensor_transforms: bool = False) -> str:
        """The schedules of the last execution, as text.  InputError before the first one."""
        plans = () if self._latest is None else self._latest.executor.plans
        if not plans:
            message = expected("get_most_recent_scheduled_ir", "an execution", "none")
            raise InputError(f"{message}; call execute first")
        return self.get_scheduled_ir(list(plans[0].example), tensor_transforms)

    def get_scheduled_ir(
        self, inputs: Sequence[Any], tensor_transforms: bool = False, device: object = 0
    ) -> str:
        """The schedules that these inputs get, as text.

        With `tensor_transforms` also how the loops of each tensor were made out of its axes.
        """
        texts = stage_texts(self._fusion, inputs)
        shown = ("scheduled", *(("transforms",) if tensor_transforms else ()))
        return "\n".join(texts[stage] for stage in shown if stage in texts)

    def get_cuda_kernel(
        self, inputs: Sequence[Any], intrinsic_code: bool = False, device: object = 0
    ) -> str:
        """The code generated for these inputs: CUDA C++ on a GPU, LLVM IR on a CPU.

        With `intrinsic_code` after the functions that every CUDA kernel may call.
        """
        texts = stage_texts(self._fusion, inputs)
        prelude = ""
        if intrinsic_code:
            from ..devices.registry import target_for

            prelude = target_for(device_of(flattened(inputs))).prelude
        return prelude + (texts.get("cuda") or texts.get("llvm", ""))


def stage_texts(fusion: Fusion, inputs: Sequence[Any]) -> dict[str, str]:
    """Every stage of the automatic compilation for these inputs, as text, by name."""
    from ..analysis.layouts import input_layouts
    from ..compiler import stages
    from ..devices.registry import target_for
    from ..ir.schedule import ScheduledFusion
    from ..trace import Texts

    class _Texts(Texts):
        """Also the transformations of each tensor's axes."""

        def stage(self, name: str, value: object) -> None:
            super().stage(name, value)
            if isinstance(value, ScheduledFusion):
                super().stage("transforms", value.transforms())

    flat = all_inputs(fusion, inputs)
    target = target_for(device_of(flat))
    layouts = input_layouts(fusion.definition, flat)
    sizes = bind_extents(fusion.definition, flat)
    return stages(fusion.definition, sizes, layouts, target, _Texts())


def check_device(device: object) -> None:
    """Raises InputError for anything but a device of torch."""
    if device is None or isinstance(device, int):
        return
    try:
        torch.device(str(device))
    except RuntimeError:
        raise InputError(expected("execute", "a device of torch's", device)) from None


def _check_parameters(
    inputs: Sequence[Any], constraints: LaunchParams | None, compile_params: CompileParams | None
) -> None:
    """What can be checked before there is a kernel."""
    if constraints is not None:
        check_launch_params("launch", constraints)
    if compile_params is not None:
        check_compile_params(compile_params, inputs)


class KernelExecutor:
    """Compiles a fusion as its user scheduled it, into one kernel, and runs it."""

    def __init__(
        self, fusion_id: int = 0, concrete_id: int = 0, runtime_id: int = 0, group_id: int = 0
    ) -> None:
        self.fusion_id, self.concrete_id = fusion_id, concrete_id
        self.runtime_id, self.group_id = runtime_id, group_id
        self._kernel: ManualKernel | None = None
        self._fusion: Fusion | None = None
        self._given: tuple[LaunchParams | None, CompileParams | None] = None, None
        self._registers: int | None = None

    def compile(
        self,
        fusion: Fusion,
        args: Sequence[Any] = (),
        launch_constraints: LaunchParams | None = None,
        compile_params: CompileParams | None = None,
        scheduler_type: SchedulerType = SchedulerType.none,
    ) -> None:
        """Compiles the schedule of the fusion.  ScheduleError if it is illegal.

        If the fusion has inputs and `args` isn't given, the first `run` compiles, with these
        constraints and parameters.  After an error, nothing is compiled.
        """
        require_fusion("compile", fusion)
        require_list(args, "compile", "compile(fusion, {})")
        is_library = any(isinstance(expr, LibraryOp) for expr in fusion.graph.exprs)
        if is_library or not fusion.graph.outputs:
            raise ScheduleError("KernelExecutor does not support the Fusion provided.")
        self._fusion = self._kernel = None
        self._given = launch_constraints, compile_params
        if len(args) or not fusion.inputs():
            self._kernel = self._built(fusion, args, *self._given)
        else:
            _check_parameters((), *self._given)
        self._fusion = fusion

    def _built(
        self,
        fusion: Fusion,
        args: Sequence[Any],
        constraints: LaunchParams | None,
        compile_params: CompileParams | None,
    ) -> ManualKernel:
        """The kernel, which is checked to be as the constraints and parameters say."""
        from ..interface import ManualKernel

        inputs = flattened(args)
        _check_parameters(inputs, constraints, compile_params)
        kernel, registers = self._kernel, most_registers(compile_params or CompileParams())
        if kernel is None or (compile_params and self._registers != registers):
            scheduled, self._registers = fusion.user_schedule, registers
            if registers is not None:
                scheduled = replace(scheduled, most_registers=registers)
            kernel = ManualKernel(scheduled, inputs)
        if constraints is not None and constraints != LaunchParams():
            require_extents(constraints, kernel.launches(inputs))
        if compile_params is not None and compile_params.enable_ptxas_verbose:
            print(kernel.report(inputs), end="")
        return kernel

    def run(
        self,
        args: Sequence[Any],
        launch_constraints: LaunchParams | None = None,
        compile_params: CompileParams | None = None,
    ) -> list[torch.Tensor]:
        """Runs the kernel; it must have been compiled.

        ScheduleError if its launch has other extents than the constraints.
        """
        if self._fusion is None:
            raise ScheduleError(expected("run", "a compiled kernel", "none; call compile first"))
        require_list(args, "run", "run({})")
        constraints, params = launch_constraints, compile_params
        if self._kernel is None:
            constraints = self._given[0] if constraints is None else constraints
            params = self._given[1] if params is None else params
        if self._kernel is None or constraints is not None or params is not None:
            self._kernel = self._built(self._fusion, args, constraints, params)
        return self._kernel.run(flattened(args))

    def is_compiled(self) -> bool:
        """True once `compile` was called."""
        return self._fusion is not None

    def is_programmatic_dependent_launch_enabled(self) -> bool:
        """False: a kernel doesn't overlap the end of the previous one."""
        return False
