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
    ArgumentTypeError,
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
    MatmulBufferingLoopLevel,
    MatmulCircularBufferingStrategy,
    MatmulTileRasterizationOrder,
    MatmulTilingStrategy,
    MmaMacroArch,
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
from .frontend.matmul_params import (
    CircularBufferOptions,
    ClusterDims,
    GemmTile,
    MatmulParams,
    MatMulTileOptions,
    MmaMacro,
    MmaMacroEncode,
    SupportedVectorization,
)
from .frontend.params import (
    CompileParams,
    HeuristicParams,
    LaunchParams,
    PointwiseParams,
    ReductionParams,
)
from .frontend.profiler import (
    FusionProfile,
    KernelProfile,
    PythonProfiler,
    get_fusion_profile,
    reset_profiler,
)
from .frontend.tensor_view import TensorView
from .frontend.validation import (
    get_val_tolerances,
    validate_with_auto_inferred_outputs,
)
from .ir.domains import ParallelType, Statement, TensorDomain
from .ir.schedule import MemoryType
from .ir.vals import Val
from .nvfuser_direct_version import NvfuserVersion, __version__

if TYPE_CHECKING:
    from . import (
        benchmark_utils,
        idm,
        multidevice,
        nvf_cutlass,
        nvfuser_direct_version,
        pytorch_utils,
    )
    from .autotuning import autotune
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
    from .multidevice import execute_with_dtensors
    from .torch_compile.explain import explain

vars(ops).update(_operations.FUNCTIONS)
vars(schedule).update({function.__name__: function for function in _scheduling.FUNCTIONS})

# The interface's other modules, imported on first use.
_SUBMODULES = frozenset(
    (
        *("benchmark_utils", "idm", "multidevice", "nvf_cutlass"),
        *("nvfuser_direct_version", "pytorch_utils"),
    )
)

# Names that need the compiler are imported on first use.
_LATE = {
    "autotune": ".autotuning",
    "cached_spec_count": ".interface",
    "can_fuse_on_cpu": ".interface",
    "can_fuse_on_gpu": ".interface",
    "compiled_kernel_count": ".interface",
    "debug_kernel_code": ".interface",
    "execute_with_dtensors": ".multidevice",
    "explain": ".torch_compile.explain",
    "override_can_fuse_on_cpu": ".interface",
    "override_can_fuse_on_gpu": ".interface",
    "register_fusion": ".interface",
    "run_fusion": ".interface",
}


def __getattr__(name: str) -> Any:
    """The public names that load the compiler."""
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'pyfuser' has no attribute {name!r}")
    return getattr(import_module(module, __name__), name)


def version() -> NvfuserVersion:
    """The version of pyfuser; it compares with other versions by number."""
    return __version__


__all__ = [
    "ArgumentTypeError",
    "BroadcastOp",
    "CacheOp",
    "CircularBufferOptions",
    "ClusterDims",
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
    "FusionProfile",
    "GemmTile",
    "HeuristicParams",
    "IdMappingMode",
    "InputError",
    "InternalError",
    "IterDomain",
    "KernelExecutor",
    "KernelProfile",
    "LRUCache",
    "LaunchParams",
    "LoadStoreOpType",
    "LruFusionCache",
    "MatMulTileOptions",
    "MatmulBufferingLoopLevel",
    "MatmulCircularBufferingStrategy",
    "MatmulParams",
    "MatmulTileRasterizationOrder",
    "MatmulTilingStrategy",
    "MemoryType",
    "Merge",
    "MmaMacro",
    "MmaMacroArch",
    "MmaMacroEncode",
    "ParallelType",
    "PointwiseParams",
    "PyfuserError",
    "PythonProfiler",
    "ReductionParams",
    "ReshapeOp",
    "ScheduleError",
    "SchedulerType",
    "Split",
    "SqueezeOp",
    "Statement",
    "SupportedVectorization",
    "TensorDomain",
    "TensorView",
    "UnsupportedError",
    "Val",
    "__version__",
    "autotune",
    "benchmark_utils",
    "cached_spec_count",
    "can_fuse_on_cpu",
    "can_fuse_on_gpu",
    "compiled_kernel_count",
    "compute_tensor_descriptor",
    "debug_kernel_code",
    "define_scalar",
    "define_tensor",
    "execute_with_dtensors",
    "explain",
    "get_fusion_profile",
    "get_val_tolerances",
    "idm",
    "multidevice",
    "nvf_cutlass",
    "nvfuser_direct_version",
    "ops",
    "override_can_fuse_on_cpu",
    "override_can_fuse_on_gpu",
    "pytorch_utils",
    "register_fusion",
    "reset_profiler",
    "run_fusion",
    "schedule",
    "translate_fusion",
    "validate_with_auto_inferred_outputs",
    "version",
]
