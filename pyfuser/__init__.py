"""pyfuser: a fusion compiler for PyTorch.

The public names are those of the nvfuser_direct interface, so `import pyfuser as nvfuser_direct`
runs its programs.  They load when they are first used, and the compiler and the devices when
something is first run; under torch.compile the front end isn't loaded.  `pyfuser.ops` and
`pyfuser.schedule` are packages of the compiler, and also contain the interface's functions of these
names, which act on the active fusion.
"""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import ops, schedule
from .collection import no_collection
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
from .nvfuser_direct_version import NvfuserVersion, __version__
from .other_names import find_modules_under_other_names

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
    from .ir.domains import ParallelType, Statement, TensorDomain
    from .ir.schedule import MemoryType
    from .ir.vals import Val
    from .multidevice import execute_with_dtensors
    from .torch_compile.explain import explain

# The interface's other modules, imported on first use.
_SUBMODULES = frozenset(
    (
        *("_C_DIRECT", "benchmark_utils", "idm", "memory", "multidevice", "nvf_cutlass"),
        *("nvfuser_direct_version", "pytorch_utils"),
    )
)

# The names that are imported on first use, by module.  Under torch.compile, nothing uses them.
_LATE_NAMES = {
    ".autotuning": ("autotune",),
    ".frontend.define": ("compute_tensor_descriptor", "define_scalar", "define_tensor"),
    ".frontend.definition": ("FusionDefinition", "translate_fusion"),
    ".frontend.enums": (
        "CacheOp",
        "CommunicatorBackend",
        "IdMappingMode",
        "LoadStoreOpType",
        "MatmulBufferingLoopLevel",
        "MatmulCircularBufferingStrategy",
        "MatmulTileRasterizationOrder",
        "MatmulTilingStrategy",
        "MmaMacroArch",
        "SchedulerType",
    ),
    ".frontend.executors": ("FusionExecutorCache", "KernelExecutor"),
    ".frontend.fusion": ("Fusion",),
    ".frontend.fusion_cache": ("LRUCache", "LruFusionCache"),
    ".frontend.guard": ("FusionGuard",),
    ".frontend.handles": (
        "BroadcastOp",
        "Expr",
        "IterDomain",
        "Merge",
        "ReshapeOp",
        "Split",
        "SqueezeOp",
    ),
    ".frontend.matmul_params": (
        "CircularBufferOptions",
        "ClusterDims",
        "GemmTile",
        "MatmulParams",
        "MatMulTileOptions",
        "MmaMacro",
        "MmaMacroEncode",
        "SupportedVectorization",
    ),
    ".frontend.params": (
        "CompileParams",
        "HeuristicParams",
        "LaunchParams",
        "PointwiseParams",
        "ReductionParams",
    ),
    ".frontend.profiler": (
        "FusionProfile",
        "KernelProfile",
        "PythonProfiler",
        "get_fusion_profile",
        "reset_profiler",
    ),
    ".frontend.tensor_view": ("TensorView",),
    ".frontend.validation": ("get_val_tolerances", "validate_with_auto_inferred_outputs"),
    ".interface": (
        "cached_spec_count",
        "can_fuse_on_cpu",
        "can_fuse_on_gpu",
        "compiled_kernel_count",
        "debug_kernel_code",
        "override_can_fuse_on_cpu",
        "override_can_fuse_on_gpu",
        "register_fusion",
        "run_fusion",
    ),
    ".ir.domains": ("ParallelType", "Statement", "TensorDomain"),
    ".ir.schedule": ("MemoryType",),
    ".ir.vals": ("Val",),
    ".multidevice": ("execute_with_dtensors",),
    ".torch_compile.explain": ("explain",),
}
_LATE = {name: module for module, names in _LATE_NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The public names that load the front end or the compiler."""
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'pyfuser' has no attribute {name!r}")
    with no_collection():
        found = globals()[name] = getattr(import_module(module, __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _add_late_functions(package: ModuleType, module: str) -> None:
    """Gives a package of the compiler the interface's functions of its name, on first use."""
    own = {each.name for each in iter_modules(package.__path__)}

    def load() -> None:
        with no_collection():
            vars(package).update(import_module(module, __name__).FUNCTIONS)
        vars(package).pop("__getattr__", None)
        vars(package).pop("__dir__", None)

    def get(name: str) -> Any:
        if name not in own and not name.startswith("_"):
            load()
            if name in vars(package):
                return vars(package)[name]
        raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")

    def names() -> list[str]:
        load()
        return sorted(vars(package))

    vars(package).update(__getattr__=get, __dir__=names)


find_modules_under_other_names()
_add_late_functions(ops, ".frontend.ops")
_add_late_functions(schedule, ".frontend.schedule")


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
