"""`compat`: every name of the nvfuser_direct interface, and what it does here.

Looks each name up in pyfuser, so the page can't say that a name is there which isn't.  `NOTES` has
the names that do less than in nvFuser, or nothing; `docs/compat.md` is this page as Markdown.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from ..frontend.definition import FusionDefinition
from ..frontend.options import DISABLE, ENABLE
from ..ops.scaled_products import DEVICE_ONLY

_BLACKWELL = "UnsupportedError: needs the block-scaled matrix instructions of sm_100"
_STORED = "stored, compared and printed; no scheduler of pyfuser reads it"

# Where the names are, and the names.
GROUPS: dict[str, str] = {
    "pyfuser": """
        FusionDefinition LruFusionCache execute_with_dtensors version __version__
        DataType ParallelType CommunicatorBackend SchedulerType LoadStoreOpType MemoryType CacheOp
        IdMappingMode MatmulTilingStrategy MatmulBufferingLoopLevel MatmulCircularBufferingStrategy
        MatmulTileRasterizationOrder MmaMacroArch Statement Val Expr IterDomain TensorDomain
        TensorView Split Merge BroadcastOp ReshapeOp SqueezeOp Fusion FusionGuard
        FusionExecutorCache KernelExecutor LRUCache LaunchParams CompileParams HeuristicParams
        PointwiseParams ReductionParams MatmulParams GemmTile MatMulTileOptions
        CircularBufferOptions SupportedVectorization ClusterDims MmaMacroEncode MmaMacro
        PythonProfiler FusionProfile KernelProfile get_fusion_profile reset_profiler define_tensor
        define_scalar translate_fusion compute_tensor_descriptor
        validate_with_auto_inferred_outputs get_val_tolerances""",
    "FusionDefinition": """
        ops sched fusion define_tensor from_pytorch define_scalar define_vector add_output
        validate_definition execute manual_execute repro_script_for last_repro_script validate
        manual_validate""",
    "ops": """
        acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 erf erfc erfinv erfcinv lgamma log
        log10 log1p log2 reciprocal rsqrt sigmoid sin sinh sqrt tan tanh ceil floor frac relu round
        silu trunc set segment_set abs real imag neg signbit sign logical_not bitwise_not isfinite
        isinf isnan isneginf isposinf isreal rand_like randn_like
        add sub mul div mod fmod remainder pow minimum maximum truediv atan2 nextafter eq ne lt le
        gt ge logical_and logical_or bitwise_and bitwise_or bitwise_xor bitwise_left_shift
        bitwise_right_shift logical_right_shift gcd complex lerp where clamp threshold addcmul
        sum prod max min var var_mean welford cumsum cumprod cummin cummax cast triu
        matmul linear grouped_mm scaled_mm cutlass_nvfp4_grouped_mm
        broadcast broadcast_in_dim expand reshape permute squeeze slice size shape stride_order
        index_select select gather take_along_axis scatter pad cat embedding_fwd
        preprocess_grouped_matmul_input_sf full iota topk argsort sdpfa_fwd sdpfa_bwd
        nv_block_quantize nv_grouped_block_quantize uniform normal""",
    "schedule": """
        bounded_transform_backward transform_like parallelize_like inline_most inline_at
        can_schedule find_compatible_schedulers compute_heuristics schedule warp_specialize""",
    "TensorView": """
        ndim size shape dtype is_symbolic is_tensor definition uses has_root domain
        get_logical_domain get_loop_domain get_root_domain axis cache_after cache_before
        set_memory_type split inner_split outer_split merge reorder swizzle swizzle1d rfactor
        set_allocation_domain set_device_mesh""",
    "IterDomain": "is_reduction extent parallelize",
    "Expr": "input output",
    "Split": "outer inner",
    "Merge": "outer inner",
    "Fusion": "inputs outputs vals add_input add_output print_math print_kernel",
    "FusionExecutorCache": """
        execute is_compiled fusion get_cuda_kernel get_scheduled_ir get_most_recent_scheduled_ir
        get_output_shardings""",
    "KernelExecutor": "compile run is_compiled is_programmatic_dependent_launch_enabled",
    "LRUCache": "cache_compile stats num_fusions",
    "pytorch_utils": """
        torch_dtype_to_nvfuser_dtype python_scalar_to_nvfuser_dtype retry_on_oom_or_skip_test
        get_device_properties DEVICE_PROPERTIES""",
    "nvfuser_direct_version": "Version NvfuserVersion __version__",
    "benchmark_utils": "Timer CuptiProfiler CuptiTimer FusionProfileTimer demangle_kernel_name",
    "idm": "IdModel ValGraph DisjointValSets",
    "multidevice": """
        Communicator DeviceMesh Sharding MultiDeviceExecutorParams MultiDeviceExecutor
        shard_tensor""",
    "nvf_cutlass": """
        mxfp8_scaled_mm nvfp4_scaled_mm nvfp4_scaled_mm_blockscale grouped_mm
        nvfp4_scaled_grouped_mm""",
}

NOTES: dict[str, str] = {
    **{f"nvf_cutlass.{name}": _BLACKWELL for name in GROUPS["nvf_cutlass"].split()},
    "ops.slice": "strides may be other than 1; a view of its input only for whole rows of sizes "
    "that the definition gives",
    "ops.cat": "prints as pads, each into the one before",
    "ops.var": "also of Half and BFloat16",
    "benchmark_utils.CuptiProfiler": "UnsupportedError without an NVIDIA GPU",
    "benchmark_utils.CuptiTimer": "UnsupportedError without an NVIDIA GPU",
    "multidevice.MultiDeviceExecutor": "for tensors that are whole on every device",
    "pyfuser.execute_with_dtensors": "for replicated DTensors",
    "pyfuser.MatmulParams": _STORED,
    "pyfuser.LaunchParams": "those of HeuristicParams are followed; constraints are checked",
    "pyfuser.CompileParams": "`index_type` and `device` are checked; `maxrregcount` bounds a CUDA "
    "kernel's registers, `enable_ptxas_verbose` prints them and its spills; `enable_magic_zero` "
    "and `include_paths` have no effect",
    "pyfuser.CacheOp": "in the loads of CUDA kernels; without effect on the CPU",
    "pyfuser.ReductionParams": "vector width, unrolling and splits over the grid are followed",
    "pyfuser.PointwiseParams": "vector width and unrolling are followed",
    "schedule.warp_specialize": "UnsupportedError: needs asynchronous copies and barriers (sm_90)",
    "TensorView.swizzle1d": "UnsupportedError: it rotates the tiles of several devices",
    "FusionExecutorCache.get_cuda_kernel": "LLVM IR for tensors on the CPU",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the interface, where it is, and what it does here."""

    group: str
    name: str
    state: str


def entries() -> Iterator[Entry]:
    """Every name, looked up now."""
    for group, names in GROUPS.items():
        for name in names.split():
            yield Entry(group, name, _state(group, name))


def _state(group: str, name: str) -> str:
    if not hasattr(_owner(group), name):
        return "missing"
    if group == "ops" and name in DEVICE_ONLY:
        return _BLACKWELL
    return NOTES.get(f"{group}.{name}", "works")


def _owner(group: str) -> object:
    package = importlib.import_module("pyfuser")
    if group == "FusionDefinition":
        with FusionDefinition() as definition:
            return definition
    if group == "FusionExecutorCache":
        return package.FusionExecutorCache
    return package if group == "pyfuser" else getattr(package, group)


def run(markdown: bool) -> int:
    """Prints the page."""
    if markdown:
        print(as_markdown(), end="")
        return 0
    table = Table("name", "here", title="the nvfuser_direct interface")
    for entry in entries():
        table.add_row(f"{entry.group}.{entry.name}", entry.state)
    Console().print(table)
    return 0


def as_markdown() -> str:
    """The page `docs/compat.md`."""
    lines = [
        "# The nvfuser_direct interface, name by name",
        "",
        "This page is made by `python -m pyfuser compat --markdown`, which looks every name up.",
        "`import pyfuser as nvfuser_direct` runs programs that use what works. If they also import",
        "its modules (`from nvfuser_direct.pytorch_utils import ...`), start with",
        '`import sys, pyfuser; sys.modules["nvfuser_direct"] = pyfuser`.',
        "",
    ]
    for group, names in GROUPS.items():
        found = [entry for entry in entries() if entry.group == group]
        lines += [f"## {group}", ""]
        working = [f"`{entry.name}`" for entry in found if entry.state == "works"]
        if working:
            lines += [f"{len(working)} of {len(names.split())} work as in nvFuser:", ""]
            lines += [*_wrapped(working), ""]
        other = [entry for entry in found if entry.state != "works"]
        if other:
            lines += ["| name | here |", "|---|---|"]
            lines += [f"| `{entry.name}` | {entry.state} |" for entry in other]
            lines.append("")
    lines += ["## Options", "", "| option | here |", "|---|---|"]
    for kind, table in (("enable", ENABLE), ("disable", DISABLE)):
        lines += [
            f"| {kind} `{name}` | {effect or 'accepted, no effect'} |"
            for name, effect in table.items()
        ]
    return "\n".join(lines) + "\n"


def _wrapped(words: list[str], width: int = 110) -> list[str]:
    lines, line = [], ""
    for word in words:
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]
