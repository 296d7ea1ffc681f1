"""FusionDefinition: the user's interface to define, run, print and check a fusion.

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(x, 2.0))
    (y,) = fd.execute([torch.randn(3, 4)])

The interface is nvfuser_direct's.  `execute` schedules automatically; `manual_execute` runs the
user's own schedule.  After the first call, `execute` only calls the engine.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from .. import reproducer
from ..dtypes import DataType, from_torch
from ..errors import ArgumentTypeError, DefinitionError, InputError, UnsupportedError, expected
from ..ir.text import translate
from ..ir.vals import PythonNumber, Scalar, Val
from ..locks import ForkSafeLock
from ..ops.random_state import with_random_state
from . import define, ops, schedule, validation
from .executors import (
    FusionExecutorCache,
    KernelExecutor,
    Run,
    check_device,
    flattened,
    is_nested,
    require_list,
)
from .fusion import Fusion
from .guard import FusionGuard
from .options import applied, check_options, check_products, environment
from .params import HeuristicParams, require_instance
from .profiler import FusionProfile, PythonProfiler
from .tensor_view import TensorView

if TYPE_CHECKING:
    from ..interface import CompiledFusion


def translate_fusion(fusion: Fusion) -> str:
    """The fusion as the Python that defines it."""
    return translate(fusion.definition)


class FusionDefinition:
    """Defines a fusion inside `with`, and runs it afterwards."""

    fec: FusionExecutorCache
    ke: KernelExecutor

    def __init__(self) -> None:
        self.ops: ModuleType = ops
        self.sched: ModuleType = schedule
        self._fusion: Fusion | None = None
        self._fusion_guard: FusionGuard | None = None
        self._preparing = ForkSafeLock()
        self._run: Run | None = None
        self._repro_inputs: list[Any] | None = None
        self._profile: FusionProfile | None = None
        self._has_options = any(environment())

    def __enter__(self) -> FusionDefinition:
        self._fusion = Fusion()
        self._fusion_guard = FusionGuard(self._fusion)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fusion_guard is not None:
            self._fusion_guard.release()
        self._fusion_guard = None
        if kind is not None:
            print(f"Exception occurred: {kind}\n{''.join(traceback.format_tb(trace))}")

    def __repr__(self) -> str:
        return translate_fusion(self.fusion)

    @property
    def fusion(self) -> Fusion:
        """The fusion that was defined.  DefinitionError before `with`."""
        found = self._defined()
        if found is None:
            hint = "use `with FusionDefinition() as fd: ...` to define a fusion"
            raise DefinitionError(expected("fusion", "a definition", "none", hint))
        return found

    def _defined(self) -> Fusion | None:
        found: Fusion | None = self.__dict__.get("_fusion")
        cache = self.__dict__.get("fec")  # another thread may just have passed it the fusion
        return found if found is not None or cache is None else cache.fusion()

    # -- defining

    def define_tensor(self, *args: object, **kwargs: object) -> TensorView:
        """An input tensor; see `pyfuser.define_tensor` for the three forms."""
        tensor = define.define_tensor(*args, **kwargs)
        self.fusion.add_input(tensor)
        return tensor

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> TensorView:
        """An input tensor with this one's dtype, rank, contiguity and order of strides.

        Sizes of 1 become broadcast axes; the others are symbolic unless `static_sizes`.
        """
        if not isinstance(tensor, torch.Tensor):
            raise DefinitionError(expected("from_pytorch", "a tensor", repr(tensor)))
        try:
            dtype = from_torch(tensor.dtype)
        except KeyError:
            what = "a dtype that fusions have"
            raise DefinitionError(expected("from_pytorch", what, tensor.dtype)) from None
        return self.define_tensor(
            sizes=list(tensor.shape),
            strides=list(tensor.stride()),
            dtype=dtype,
            static_sizes=static_sizes,
            is_cpu=tensor.is_cpu and tensor.dim() == 0,
        )

    def define_scalar(self, *args: Any, **kwargs: Any) -> Scalar:
        """A constant `(value, dtype=None)`, or an input scalar `(dtype=Double)`."""
        scalar = define.define_scalar(*args, **kwargs)
        if scalar.is_symbolic():
            self.fusion.add_input(scalar)
        return scalar

    def define_vector(self, size: int) -> list[Scalar]:
        """`size` input scalars of dtype Int."""
        return [self.define_scalar(None, DataType.Int) for _ in range(size)]

    def add_output(self, output: Val, alias_input: Val | None = None) -> None:
        """Declares an output; with `alias_input` it updates that input and isn't returned."""
        if not isinstance(output, TensorView):
            raise ArgumentTypeError(expected("add_output", "a tensor", repr(output)))
        self.fusion.add_output(output, alias_input)

    def validate_definition(self) -> tuple[bool, str | None]:
        """(True, None), or False and the error."""
        fusion = self._defined()
        if fusion is None:
            hint = "Use `with FusionDefinition() as fd: ...` to define a fusion."
            return False, f"Fusion does not exist! {hint}"
        if not fusion.graph.outputs:
            return False, "Fusion is empty!"
        return True, None

    # -- running

    def execute(
        self,
        inputs: Sequence[torch.Tensor | PythonNumber],
        *,
        device: object = None,
        save_repro_inputs: bool = False,
        profile: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Runs the fusion with automatic schedules; returns the outputs.

        `save_repro_inputs` keeps shapes and dtypes for `last_repro_script`.  `profile` keeps what
        each kernel did for `profile()`.
        """
        run = self._run
        has_options = bool(_enable_options or _disable_options or self._has_options)
        is_plain = device is None and not (save_repro_inputs or has_options)
        if profile:
            with PythonProfiler() as profiler:
                outputs = self.execute(
                    inputs,
                    device=device,
                    save_repro_inputs=save_repro_inputs,
                    _enable_options=_enable_options,
                    _disable_options=_disable_options,
                )
            self._profile = profiler.profile
            return outputs
        if run is None or not is_plain:
            require_list(inputs)
            run = self._prepare(device, _enable_options, _disable_options)
            if save_repro_inputs:
                self._repro_inputs = reproducer.descriptions(flattened(inputs))
        if has_options:
            engine = self.fec.engine_without(_disable_options)
            with applied(_enable_options, _disable_options):
                return engine.execute(flattened(inputs))
        try:
            return run(inputs)
        except (InputError, AttributeError, TypeError, ValueError):
            require_list(inputs)
            # Nested inputs are rare: callers that pass flat ones don't pay for the check.
            if not is_nested(inputs):
                raise
            return run(flattened(inputs))

    @property
    def engine(self) -> CompiledFusion:
        """The compiled fusion of `execute`; made at first use, after the interface's checks."""
        if "fec" not in self.__dict__:
            self._prepare(None, (), ())
        return self.fec.engine

    def _prepare(self, device: object, enable: Sequence[str], disable: Sequence[str]) -> Run:
        """Makes the executor once, after the interface's checks."""
        assert "ke" not in self.__dict__, (
            "KernelExecutor already exists! Use manual_execute() to execute the fusion."
        )
        check_options(enable, disable)
        check_device(device)
        with self._preparing:
            if "fec" not in self.__dict__:
                valid, message = self.validate_definition()
                if not valid:
                    raise UnsupportedError(message)
                self.fec = FusionExecutorCache(self.fusion)
                self.__dict__.pop("_fusion", None)
        check_products(self.fec.fusion().graph.exprs, disable)
        self._run = self.fec.engine.execute
        return self._run

    def manual_execute(
        self, inputs: Sequence[Any], heuristic_params: HeuristicParams | None = None
    ) -> list[torch.Tensor]:
        """Runs the fusion as one kernel, as the user scheduled it."""
        assert "fec" not in self.__dict__, (
            "FusionExecutorCache already exists! Use execute() to execute the fusion."
        )
        require_list(inputs, "manual_execute")
        params = HeuristicParams() if heuristic_params is None else heuristic_params
        require_instance("manual_execute", HeuristicParams, params)
        if "ke" not in self.__dict__:
            self.ke = KernelExecutor()
        if not self.ke.is_compiled():
            self.ke.compile(
                self.fusion, inputs, params.lparams, params.cparams, params.scheduler_type
            )
        self.fusion.is_executed = True
        return self.ke.run(inputs, params.lparams, params.cparams)

    # -- checking and reporting

    def validate(
        self,
        inputs: Sequence[Any],
        reference_outputs: Sequence[torch.Tensor] | None = None,
        device: object = None,
        **options: Any,
    ) -> list[torch.Tensor]:
        """Executes and compares with the references, or with the eager evaluator."""
        require_list(inputs, "validate")
        inputs = with_random_state(self.fusion.definition, flattened(inputs))
        kept = validation.kept(inputs)
        outputs = self.execute(inputs, device=device, **options)
        self._compare(kept, outputs, reference_outputs)
        return outputs

    def _compare(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[torch.Tensor],
        references: Sequence[torch.Tensor] | None,
    ) -> None:
        """Validates outputs; a script that repeats the comparison is left if they are wrong."""
        try:
            validation.validate(self.fusion.definition, inputs, outputs, references)
        except validation.ValidationError as error:
            described = reproducer.descriptions(inputs)
            path = reproducer.write(
                lambda: reproducer.script(repr(self), described, "validate"), error
            )
            if path is None:
                raise
            raise validation.ValidationError(f"{error}; {path} reproduces it") from None

    def manual_validate(
        self, inputs: Sequence[Any], reference_outputs: Sequence[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """`validate` with the user's schedule."""
        require_list(inputs, "manual_validate")
        inputs = with_random_state(self.fusion.definition, flattened(inputs))
        kept = validation.kept(inputs)
        outputs = self.manual_execute(inputs)
        self._compare(kept, outputs, reference_outputs)
        return outputs

    def profile(self) -> FusionProfile:
        """What the last `execute(..., profile=True)` did.  InputError if there is none."""
        if self._profile is None:
            hint = "call fd.execute(inputs, profile=True)"
            raise InputError(expected("profile", "a profiled execution", "none", hint))
        return self._profile

    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """A script that defines the fusion and runs it on inputs like these."""
        described = None if inputs is None else reproducer.descriptions(flattened(inputs))
        return reproducer.script(repr(self), described)

    def last_repro_script(self) -> str:
        """The script for the last `execute(..., save_repro_inputs=True)`."""
        assert self._repro_inputs is not None, (
            "fd.last_repro_script() cannot provide a repro because fd.execute(inputs, "
            "save_repro_inputs=True) was not executed!"
        )
        return reproducer.script(repr(self), self._repro_inputs)
