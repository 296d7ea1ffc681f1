"""pyfuser: a fusion compiler for PyTorch.

The public names are those of the nvfuser_direct interface, so `import pyfuser as nvfuser_direct`
runs its programs.  Importing only allows fusions to be defined: the compiler and the devices load
when something is first run.  `pyfuser.ops` and `pyfuser.schedule` are packages of the compiler, and
also contain the interface's functions of these names, which act on the active fusion.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import ops, schedule
from .dtypes import DataType
from .errors import (
    CompilationError,
    DefinitionError,
    DeviceError,
    InputError,
    InternalError,
    PyfuserError,
    ScheduleError,
    UnsupportedError,
)
from .frontend import ops as _operations
from .frontend import schedule as _scheduling
from .frontend.define import compute_tensor_descriptor, define_scalar, define_tensor
from .frontend.definition import FusionDefinition, translate_fusion
from .frontend.enums import (
    CacheOp,
    CommunicatorBackend,
    IdMappingMode,
    LoadStoreOpType,
    SchedulerType,
)
from .frontend.executors import FusionExecutorCache, KernelExecutor
from .frontend.fusion import Fusion
from .frontend.fusion_cache import LRUCache, LruFusionCache
from .frontend.guard import FusionGuard
from .frontend.handles import (
    BroadcastOp,
    Expr,
    IterDomain,
    Merge,
    ReshapeOp,
    Split,
    SqueezeOp,
)
from .frontend.params import (
    CompileParams,
    HeuristicParams,
    LaunchParams,
    PointwiseParams,
    ReductionParams,
)
from .frontend.tensor_view import TensorView
from .frontend.validation import (
    get_val_tolerances,
    validate_with_auto_inferred_outputs,
)
from .ir.domains import ParallelType, TensorDomain
from .ir.schedule import MemoryType
from .ir.vals import Val

if TYPE_CHECKING:
    from .interface import (
        cached_spec_count,
        can_fuse_on_cpu,
        can_fuse_on_gpu,
        compiled_kernel_count,
        debug_kernel_code,
        override_can_fuse_on_cpu,
        override_can_fuse_on_gpu,
        register_fusion,
        run_fusion,
    )
    from .torch_compile.explain import explain

vars(ops).update(_operations.FUNCTIONS)
vars(schedule).update({function.__name__: function for function in _scheduling.FUNCTIONS})

__version__ = "0.1.0"


# Names that need the compiler are imported on first use.
_LATE = {
    "cached_spec_count": ".interface",
    "can_fuse_on_cpu": ".interface",
    "can_fuse_on_gpu": ".interface",
    "compiled_kernel_count": ".interface",
    "debug_kernel_code": ".interface",
    "explain": ".torch_compile.explain",
    "override_can_fuse_on_cpu": ".interface",
    "override_can_fuse_on_gpu": ".interface",
    "register_fusion": ".interface",
    "run_fusion": ".interface",
}


def __getattr__(name: str) -> Any:
    """The public names that load the compiler."""
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'pyfuser' has no attribute {name!r}")
    return getattr(import_module(module, __name__), name)


def version() -> str:
    """The version of pyfuser."""
    return __version__


__all__ = [
    "BroadcastOp",
    "CacheOp",
    "CommunicatorBackend",
    "CompilationError",
    "CompileParams",
    "DataType",
    "DefinitionError",
    "DeviceError",
    "Expr",
    "Fusion",
    "FusionDefinition",
    "FusionExecutorCache",
    "FusionGuard",
    "HeuristicParams",
    "IdMappingMode",
    "InputError",
    "InternalError",
    "IterDomain",
    "KernelExecutor",
    "LRUCache",
    "LaunchParams",
    "LoadStoreOpType",
    "LruFusionCache",
    "MemoryType",
    "Merge",
    "ParallelType",
    "PointwiseParams",
    "PyfuserError",
    "ReductionParams",
    "ReshapeOp",
    "ScheduleError",
    "SchedulerType",
    "Split",
    "SqueezeOp",
    "TensorDomain",
    "TensorView",
    "UnsupportedError",
    "Val",
    "cached_spec_count",
    "can_fuse_on_cpu",
    "can_fuse_on_gpu",
    "compiled_kernel_count",
    "compute_tensor_descriptor",
    "debug_kernel_code",
    "define_scalar",
    "define_tensor",
    "explain",
    "get_val_tolerances",
    "ops",
    "override_can_fuse_on_cpu",
    "override_can_fuse_on_gpu",
    "register_fusion",
    "run_fusion",
    "schedule",
    "translate_fusion",
    "validate_with_auto_inferred_outputs",
    "version",
]
