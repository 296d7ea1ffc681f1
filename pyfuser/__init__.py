"""pyfuser: a fusion compiler for PyTorch.

The public names, those of the nvfuser_direct interface, so that `import pyfuser as nvfuser_direct`
runs its programs.  Importing defines fusions only: the compiler and the devices load when something
is first run.  `pyfuser.ops` and `pyfuser.schedule` are packages of the compiler, and also hold the
interface's functions of these names, which act on the active fusion.
"""

from . import ops, schedule
from .dtypes import DataType
from .errors import (
    CompilationError,
    DefinitionError,
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

vars(ops).update(_operations.FUNCTIONS)
vars(schedule).update({function.__name__: function for function in _scheduling.FUNCTIONS})

__version__ = "0.1.0"


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
    "compute_tensor_descriptor",
    "define_scalar",
    "define_tensor",
    "get_val_tolerances",
    "ops",
    "schedule",
    "translate_fusion",
    "validate_with_auto_inferred_outputs",
    "version",
]
