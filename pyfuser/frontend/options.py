"""The names of the interface's enable and disable options, and what those that act here do.

pyfuser has its own options (`pyfuser.options`).  A program that sets an option of the interface
runs unchanged; an option without a counterpart here has no effect.  A misspelt one is an error, as
in the interface.  NVFUSER_ENABLE and NVFUSER_DISABLE have options of all executions, with commas
between them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from .. import options
from ..errors import ArgumentTypeError, DefinitionError, UnsupportedError, expected
from ..ir.exprs import Expr, LibraryOp
from .profiler import PythonProfiler

# What an option does here; "" if nothing.
ENABLE: Mapping[str, str] = {
    **dict.fromkeys((
        "cutlass_scheduler", "fuse_matmul", "fuse_multiple_matmuls", "id_model_extra_validation",
        "io_to_lower_precision", "kernel_db", "kernel_debug", "kernel_lineinfo",
        "memory_promotion", "reuse_zeroed_memory", "static_fusion_count", "wait_debugger",
        "warn_register_spill", "tma_pointwise", "tma_inner_persistent", "tma_reduction",
        "ws_normalization", "host_ir_lowering", "host_ir_jit", "insert_resharding_after",
        "fast_math", "p2p_protocol", "p2p_transport", "multicast_protocol",
    ), ""),
    "kernel_profile": "profiles the execution for get_fusion_profile()",
}  # fmt: skip
DISABLE: Mapping[str, str] = {
    **dict.fromkeys((
        "compile_to_sass", "contig_indexing", "expr_simplify", "fma",
        "grouped_grid_welford_outer_opt", "index_hoist", "magic_zero", "nvtx",
        "predicate_elimination", "python_inline_definitions", "kernel_reuse",
        "var_name_remapping", "welford_vectorization",
        "reuse_mismatched_type_registers", "multidevice", "infer_contiguity",
    ), ""),
    "fallback": "an error instead of running through torch, as PYFUSER_STRICT=1",
    "matmul_expr_eval": "an error for matmul and linear, of which torch computes all",
    "greedy_scheduler": "torch runs scans and scatters, as PYFUSER_DISABLE_SCHEDULERS=greedy",
    "resize_scheduler": "slices, pads and cats are the pointwise scheduler's",
    "nvrtc_caching": "no disk cache for what is compiled, as PYFUSER_DISABLE_CACHE=1",
    "parallel_compile": "no second process that compiles ahead, as PYFUSER_COMPILER_PROCESS=0",
}  # fmt: skip

_VARIABLES = {
    "fallback": {"PYFUSER_STRICT": "1"},
    "nvrtc_caching": {"PYFUSER_DISABLE_CACHE": "1"},
    "parallel_compile": {"PYFUSER_COMPILER_PROCESS": "0"},
}

_SCHEDULERS = {"greedy_scheduler": "greedy", "resize_scheduler": "resize"}

_PRODUCTS = ("matmul", "linear")


@functools.cache
def environment() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The options that the process's environment enables and disables, without their arguments."""
    texts = (os.environ.get(name, "") for name in ("NVFUSER_ENABLE", "NVFUSER_DISABLE"))
    bare = (re.sub(r"\([^)]*\)", "", text) for text in texts)
    enable, disable = (tuple(filter(None, map(str.strip, each.split(",")))) for each in bare)
    return enable, disable


def check_products(exprs: Iterable[Expr], disable: Sequence[str]) -> None:
    """UnsupportedError for a product if the library may not compute it, as no kernel does."""
    if "matmul_expr_eval" in (*environment()[1], *disable):
        for expr in exprs:
            if isinstance(expr, LibraryOp) and expr.op in _PRODUCTS:
                what = "Can not find a scheduler to schedule fusion segment"
                raise UnsupportedError(f"{what}: {expr.op} without matmul_expr_eval")


def check_options(enable: Sequence[str], disable: Sequence[str]) -> None:
    """Raises DefinitionError for an option that the interface doesn't have."""
    for kind, given, known in (("enable", enable, ENABLE), ("disable", disable, DISABLE)):
        if isinstance(given, str):
            operation = "execute(): incompatible function arguments"
            hint = f"the argument `_{kind}_options`"
            raise ArgumentTypeError(expected(operation, "a list of options", repr(given), hint))
        for option in given:
            if option not in known:
                raise DefinitionError(f"Unrecognized {kind}_option: {option}")


def schedulers_of(disable: Sequence[str]) -> frozenset[str]:
    """The schedulers that these options switch off."""
    return frozenset(name for option, name in _SCHEDULERS.items() if option in disable)


@contextmanager
def applied(enable: Sequence[str], disable: Sequence[str]) -> Iterator[None]:
    """Applies the options that act while an execution runs, and those of the environment."""
    enable, disable = (*environment()[0], *enable), (*environment()[1], *disable)
    check_options(enable, disable)
    variables: dict[str, str] = {}
    for option in disable:
        variables |= _VARIABLES.get(option, {})
    variables |= options.with_disabled_schedulers(schedulers_of(disable))
    with ExitStack() as stack:
        stack.enter_context(options.overridden(variables))
        if "kernel_profile" in enable:
            stack.enter_context(PythonProfiler())
        yield
