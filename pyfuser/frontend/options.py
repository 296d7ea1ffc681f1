"""The names of the interface's enable and disable options: known ones are accepted.

pyfuser has its own options (`pyfuser.options`). A program that sets an option of the interface runs
unchanged, and a misspelt option is an error, as in the interface.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import DefinitionError

ENABLE = frozenset((
    "cutlass_scheduler", "fuse_matmul", "fuse_multiple_matmuls", "id_model_extra_validation",
    "io_to_lower_precision", "kernel_db", "kernel_debug", "kernel_lineinfo", "kernel_profile",
    "memory_promotion", "reuse_zeroed_memory", "static_fusion_count", "wait_debugger",
    "warn_register_spill", "tma_pointwise", "tma_inner_persistent", "tma_reduction",
    "ws_normalization", "host_ir_lowering", "host_ir_jit", "insert_resharding_after",
    "fast_math", "p2p_protocol", "p2p_transport", "multicast_protocol",
))  # fmt: skip
DISABLE = frozenset((
    "compile_to_sass", "contig_indexing", "expr_simplify", "fallback", "fma",
    "greedy_scheduler", "grouped_grid_welford_outer_opt", "index_hoist", "magic_zero",
    "matmul_expr_eval", "nvrtc_caching", "nvtx", "parallel_compile", "predicate_elimination",
    "python_inline_definitions", "kernel_reuse", "var_name_remapping", "welford_vectorization",
    "resize_scheduler", "reuse_mismatched_type_registers", "multidevice", "infer_contiguity",
))  # fmt: skip


def check_options(enable: Sequence[str], disable: Sequence[str]) -> None:
    """Raises DefinitionError for an option that the interface doesn't have."""
    for kind, given, known in (("enable", enable, ENABLE), ("disable", disable, DISABLE)):
        for option in given:
            if option not in known:
                raise DefinitionError(f"Unrecognized {kind}_option: {option}")
