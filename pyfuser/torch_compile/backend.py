"""`torch.compile(model, backend="pyfuser")`: the backend that torch finds by its entry point.

Dynamo passes a graph.  AOTAutograd makes it functional, differentiates it, applies pyfuser's choice
of decompositions, and cuts it into forward and backward; each of them becomes a `CompiledGraph`.
torch's configuration is left unchanged; cached_graphs.py, keys_of_graphs.py and torch_digest.py say
what they replace in torch to keep graphs on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ..collection import no_collection

with no_collection():  # some hundred modules load
    import torch
    from torch._dynamo import disable
    from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback
    from torch._dynamo.utils import flatten_graph_inputs
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch.fx import GraphModule

    from .. import fallback
    from ..errors import InputError, PyfuserError, UnsupportedError, expected
    from . import quick_calls
    from .aot_metadata import forget_dangling_views, metadata
    from .aten import check_classes, decompositions
    from .attention_layers import write_out_attention_layers
    from .cached_graphs import CachedGraph, cached, may_cache, serializable
    from .compiled_graph import (
        Call,
        compile_graph,
        compile_in_background,
        undisturbed,
    )
    from .dynamo_graphs import unwrapped
    from .input_aliases import note_input_aliases
    from .overlapping_inputs import all_inputs, asking_for_overlaps, updated_inputs
    from .overlapping_results import distinct_gradients
    from .rematerialisation import partition_joint_graph
    from .result_memory import note_bases
    from .upsampling import keep_upsampling_whole

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class BackendOptions:
    """The options of `torch.compile(..., backend="pyfuser", options={...})`.

    async_compile      calls run through torch while kernels compile in a thread, so that no call
                       waits for them
    rematerialise      the backward recomputes cheap results instead of keeping them (min-cut)
    autotune           the kernels of each graph are measured while it compiles (docs/tuning.md)
    fused_random       kernels make their random numbers: dropout is faster and keeps no mask, but
                       its numbers aren't eager's
    """

    async_compile: bool = False
    rematerialise: bool = True
    autotune: bool = False
    fused_random: bool = False

    @staticmethod
    def of(options: Mapping[str, Any] | None) -> BackendOptions:
        """InputError for an unknown option, or a value of the wrong type."""
        known = {field.name for field in fields(BackendOptions)}
        for name, value in (options or {}).items():
            if name not in known:
                what = f"an option among {', '.join(sorted(known))}"
                raise InputError(expected('torch.compile(backend="pyfuser")', what, name))
            if not isinstance(value, bool):
                raise InputError(expected(f"options[{name!r}]", "True or False", repr(value)))
        return BackendOptions(**(options or {}))


def backend(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles one Dynamo graph.

    `mode` may be any name that torch.compile documents; they all mean the same here, because
    heuristics choose schedules and calls have little overhead in any mode.  Raises InputError for
    an unknown mode or option.
    """
    if mode is not None and mode not in MODES:
        raise InputError(
            expected('torch.compile(backend="pyfuser")', f"a mode among {', '.join(MODES)}", mode)
        )
    chosen = BackendOptions.of(options)
    return compile_with(graph_module, example_inputs, chosen)


Compiler = Callable[[GraphModule], Call]

_untraced: Any = disable  # Dynamo doesn't trace such a function or its callees


class _Compilers:
    """What AOTAutograd calls with the graphs that it makes of one Dynamo graph.

    compiler    for each graph; None for pyfuser's
    keeps       True if compiled graphs are kept on disk
    inferring   the compiled graph of an inference whose calls are plain, once it is there
    updated     the inputs that the graph updates; None if AOTAutograd gave it others
    """

    def __init__(
        self, compiler: Compiler | None, options: BackendOptions, keeps: bool, count: int
    ) -> None:
        compile_now = partial(compile_graph, tunes=options.autotune)
        in_background = partial(compile_in_background, tunes=options.autotune)
        self._compiler = in_background if options.async_compile else compiler or compile_now
        self.keeps, self._count = keeps, count
        self.inferring: tuple[Call, quick_calls.PlainCall] | None = None
        self.updated: frozenset[int] | None = frozenset()

    def forward(self, traced: GraphModule, inputs: Sequence[Any]) -> Call:
        """Of a graph without a backward, too."""
        note_input_aliases(traced)
        note_bases(traced)
        forget_dangling_views()
        _backward_may_run_again()
        self.updated = updated_inputs(metadata(), self._count)
        made = self._compiled(traced)
        if isinstance(made, CachedGraph):
            made.compiled()
        return made

    def inference(self, traced: GraphModule, inputs: Sequence[Any]) -> Call:
        """A graph without gradients."""
        made = self.forward(traced, inputs)
        plain = quick_calls.plain_call(metadata())
        if plain is not None:
            self.inferring = made, plain
        if isinstance(made, CachedGraph):
            made.plain = plain
        return made

    def backward(self, traced: GraphModule, inputs: Sequence[Any]) -> Call:
        """Dynamo must trace neither the compiler nor its result: the backward may be compiled, and
        is run, while another function is being traced.
        """
        made: Call = _untraced(_untraced(self._compiled)(traced))
        return made

    def _compiled(self, traced: GraphModule) -> Call:
        if self.keeps:
            return CachedGraph(traced, self.updated)
        return undisturbed(self._compiler, traced)


def compile_with(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    options: BackendOptions,
    compiler: Compiler | None = None,
) -> Callable[..., Any]:
    """AOTAutograd with `compiler` for each of its graphs, or pyfuser's, whose graphs are cached."""
    opaque = _without_storage(example_inputs)
    if opaque is not None:
        what = "tensors with memory that kernels can read"
        fallback.warn(UnsupportedError(expected("torch.compile", what, opaque)), "a graph")
        return _without_compiling(graph_module)
    if any(isinstance(x, (list, tuple, dict)) for x in example_inputs):
        again = partial(compile_with, options=options, compiler=compiler)
        flattened: Callable[..., Any] = flatten_graph_inputs(graph_module, example_inputs, again)
        return flattened
    check_classes(graph_module)
    keep_upsampling_whole(graph_module)
    write_out_attention_layers(graph_module)
    # A cached graph is compiled later, without measuring.
    is_plain = not options.async_compile and not options.autotune
    has_gradients = _has_gradients(graph_module, example_inputs)
    inputs = all_inputs(graph_module, example_inputs)
    keeps = compiler is None and is_plain and may_cache(graph_module, inputs)
    compilers = _Compilers(compiler, options, keeps, len(inputs))
    try:
        compiled = _by_aot_autograd(graph_module, example_inputs, inputs, options, compilers)
    except _MEANT_FOR_DYNAMO:
        raise
    except Exception as error:
        untraceable = expected("torch.compile", "a graph that AOTAutograd can trace", _name(error))
        fallback.warn(UnsupportedError(untraceable), "a graph")
        return _without_compiling(graph_module)
    is_boxed = unwrapped(graph_module) is not graph_module  # a call has one list of arguments
    if not is_boxed:
        if compilers.inferring is not None:
            compiled = quick_calls.inference(compiled, *compilers.inferring)
        elif has_gradients:
            compiled = quick_calls.training(compiled)
    by_torch = _without_compiling(graph_module)
    asking = asking_for_overlaps(
        compiled, by_torch, inputs, len(example_inputs), compilers.updated, is_boxed=is_boxed
    )
    made: Callable[..., Any] = _untraced(asking)
    return made


def _by_aot_autograd(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    inputs: Sequence[Any],
    options: BackendOptions,
    compilers: _Compilers,
) -> Callable[..., Any]:
    """As torch._dynamo.backends.common.aot_autograd does it, without importing Inductor."""
    aot: Any = aot_module_simplified
    kept = serializable if compilers.keeps else lambda compiler: compiler
    keeping: AbstractContextManager[list[CachedGraph]] = nullcontext([])
    if compilers.keeps:
        keeping = cached(graph_module, inputs, options)
    with no_collection(), keeping as found, distinct_gradients(unwrapped(graph_module)):
        compiled: Callable[..., Any] = aot(
            graph_module,
            example_inputs,
            fw_compiler=kept(compilers.forward),
            bw_compiler=compilers.backward,
            inference_compiler=kept(compilers.inference),
            partition_fn=partition_joint_graph(options.rematerialise),
            decompositions=decompositions(options.fused_random),
            keep_inference_input_mutations=True,
        )
    for graph in found:
        compilers.updated = graph.updated
        if graph.plain is not None:
            compilers.inferring = graph, graph.plain
    return compiled


def _without_compiling(graph_module: torch.nn.Module) -> Callable[..., Any]:
    """A graph as torch runs it.  One whose inputs were lists gets all its arguments in a list."""
    forward: Callable[..., Any] = graph_module.forward
    if unwrapped(graph_module) is graph_module:
        return forward
    return lambda arguments: forward(*arguments)


# Dynamo reacts to these: it breaks the graph, or traces once more.
_MEANT_FOR_DYNAMO = (PyfuserError, TorchDynamoException, *exceptions_allowed_to_be_fallback)


def _name(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _has_gradients(graph_module: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """True if AOTAutograd will make a graph for the gradients."""
    if not torch.is_grad_enabled():
        return False
    given = (*example_inputs, *graph_module.parameters())
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in given)


def _backward_may_run_again() -> None:
    """Notes that the backward overwrites none of the tensors saved for it, while the forward is
    compiled.  AOTAutograd assumes that it does, and refuses `backward(retain_graph=True)`.
    """
    known = metadata()
    if known is not None:
        known.bw_donated_idxs = []


def _without_storage(example_inputs: Sequence[Any]) -> torch.layout | None:
    """The layout of a tensor that AOTAutograd can't trace because it has no memory of its own."""
    for example in example_inputs:
        if isinstance(example, torch.Tensor) and example.is_mkldnn:
            return example.layout
    return None


def _reset() -> None:
    """`torch.compile(...).reset()`: only kernels are cached, and they stay valid."""


backend.reset = _reset  # type: ignore[attr-defined]
__all__ = ["BackendOptions", "backend", "compile_with"]
