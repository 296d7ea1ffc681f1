"""The compiled graph: one straight-line Python function that a call runs from top to bottom.

Written once for a graph and a set of kernels: launches of kernels with their arguments, library
calls by resolved overloads (matrix products into pooled memory), views only if a library call or an
output needs one, `del` after the last use, updates of inputs in place where that is safe.  Sizes
that never change are numbers in the text; values that depend on others are arithmetic in it.  Such
a function begins with the conditions under which its kernels were chosen: if they don't hold, it
returns None before any side effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch.fx import Node

from ..analysis.size_conditions import SizeConditions
from ..devices.runtime import Runtime
from ..devices.switches import switched_off
from ..executor import Resolved
from ..ir.fusion import Fusion
from ..ir.vals import Val
from ..plans.clock import clock_for
from ..plans.library_calls import writes_into_memory
from ..plans.program_writer import PlanValue, ProgramWriter
from ..plans.text import Writer, condition_texts, span_text
from .control_flow import CONTROL_FLOW, is_control_flow
from .graph import TracedGraph
from .graph_texts import GraphTexts
from .in_place import updates_in_place
from .mutating_calls import MutatingCall, mutating_call, operand_texts
from .returned_results import ResultsWriter
from .steps import Step, last_reads
from .traced_layouts import is_dense
from .views import is_getitem, tensor_of

aten = torch.ops.aten


class GraphWriter:
    """Writes the function `call(args)` of one graph."""

    def __init__(
        self,
        traced: TracedGraph,
        resolved: Sequence[Resolved],
        conditions: SizeConditions,
        by_torch: Callable[[list[Any]], Sequence[Any]],
    ) -> None:
        """`conditions` are the conditions on sizes under which `resolved` is valid.

        `by_torch` answers calls while fusing is switched off.
        """
        self.traced, self.resolved, self.by_torch = traced, resolved, by_torch
        self.conditions = conditions
        self.writer = Writer()
        self.texts = GraphTexts(traced, self.writer)
        self.names, self.library = self.texts.names, self.texts.library
        self.returned = {traced.views.base(node) for node in traced.results}
        self.in_place = updates_in_place(traced.steps, resolved, traced.views, traced.results)

    def write(self) -> tuple[str, Callable[..., Any]]:
        """(source, `call`)."""
        self.writer.constants |= {"math": math, "torch": torch}
        self.writer.constants["by_torch"] = self.by_torch
        types = dict.fromkeys(device.type for device in self.traced.runtimes)
        off = [self.writer.constant("switched_off", switched_off(each)) for each in types]
        self.writer.line(f"if {' or '.join(off)}: return by_torch(args)")
        self._write_arguments()
        steps, views = self.traced.steps, self.traced.views
        last = last_reads(steps)
        number_of_fusion = 0
        for number, step in enumerate(steps):
            if step.fusion is not None:
                self._write_fusion(step, number_of_fusion)
                number_of_fusion += 1
            elif step.is_update:
                self._write_update(step)
            elif (call := mutating_call(step.node)) is not None:
                free = {n for n in step.reads if last[n] == number} & self.texts.owned.keys()
                free -= {*self.traced.placeholders, *self.in_place, *self.returned}
                self._write_mutating_call(step, call, call.read_once(step.node, views) & free)
            else:
                self._write_library_call(step)
            dead = [n for n in (*step.makes, *step.reads) if last[n] == number]
            self.texts.delete([n for n in dict.fromkeys(dead) if n not in self.returned])
        ResultsWriter(self.texts).write()
        return self.writer.build("call(args)", "graph")

    # -- arguments

    def _write_arguments(self) -> None:
        for node, value in self.traced.attributes.items():
            self.writer.constant(self.names[node], value)
            self.texts.tensors.add(node)
        arguments = self.traced.placeholders
        if not arguments:
            return
        used = self.returned.union(last_reads(self.traced.steps))
        names = [self.names[n] if n in used else "_" for n in arguments]
        self.writer.line(f"{', '.join(names)}, = args")
        self._write_symbols()
        for node in arguments:
            self.texts.own(node)
        self._write_memory_check()
        self.writer.line("args.clear()")

    def _write_symbols(self) -> None:
        """Names the sizes of a call, and checks the conditions of decisions based on them."""
        traced = self.traced.sizes
        if traced.is_static:
            return
        for number, (symbol, source) in enumerate(traced.sources.items()):
            name = f"s{number}"
            self.writer.line(f"{name} = {source}")
            self.texts.name_symbol(symbol, name)
        self.writer.require(condition_texts(self.conditions, self.texts.expr))

    def _write_memory_check(self) -> None:
        """Checks the arguments that kernels read or write; torch checks those of library calls.

        It also computes the call if one of them isn't plain.
        """
        views = self.traced.views
        fusions = [step.fusion for step in self.traced.steps if step.fusion is not None]
        used = {views.base(node) for fusion in fusions for node in fusion.inputs}
        used |= {views.base(target) for target in self.in_place.values()}
        needs: dict[torch.device, list[tuple[str, str, int]]] = {}
        for node in self.traced.placeholders:
            value = tensor_of(node)
            if node in used and value is not None and not _gets_memory(node):
                bytes_each, name = value.element_size(), self.names[node]
                shape, stride = map(self.texts.each, (views[node].shape, views[node].stride))
                need = (name, span_text(shape, stride, bytes_each), bytes_each)
                needs.setdefault(value.device, []).append(need)
        for device, of_device in needs.items():
            self.writer.memory_check(self.traced.runtimes[device], of_device, "by_torch(args)")

    # -- fusion nodes

    def _write_fusion(self, step: Step, number: int) -> None:
        fusion = step.fusion
        assert fusion is not None
        resolved = self.resolved[number]
        definition = resolved.program.fusion
        local: dict[Val, PlanValue] = {}
        for value, node in zip(definition.inputs, fusion.inputs, strict=False):
            local[value] = self._plan_value(node)
        for value, scalar in zip(
            definition.inputs[len(fusion.inputs) :], fusion.scalars, strict=True
        ):
            local[value] = PlanValue.of(self.texts.number(scalar))
        outputs = zip(definition.outputs, fusion.outputs, strict=True)
        names = {value: self.names[node] for value, node in outputs}
        given = {
            definition.outputs[i]: self._plan_value(self.in_place[node])
            for i, node in enumerate(fusion.outputs)
            if node in self.in_place
        }

        program = ProgramWriter(
            self.writer,
            resolved.program,
            resolved.kernels,
            local,
            fusion.symbols(self.texts.size),
            prefix=f"f{number}_",
            given=given,
            names=names,
            gives_views=False,
        )
        program.write_scalars(fusion.executor.fusion)
        clock = clock_for(resolved.program, self.writer, prefix=f"f{number}_")
        program.write(clock)
        if clock is not None:
            clock.finish()
        self._take_outputs(step, definition, local)

    def _plan_value(self, node: Node) -> PlanValue:
        texts = self.texts
        return PlanValue(
            lambda: texts.tensor(node), lambda: texts.pointer(node), lambda: texts.described(node)
        )

    def _take_outputs(self, step: Step, definition: Fusion, local: Mapping[Val, PlanValue]) -> None:
        """Gives the outputs the layout promised by the graph's metadata, and the graph's names."""
        assert step.fusion is not None
        taken: set[Val] = set()
        inputs = set(definition.inputs)
        for value, node in zip(definition.outputs, step.fusion.outputs, strict=True):
            name, made, meta = self.names[node], local[value].tensor(), tensor_of(node)
            assert meta is not None
            if not is_dense(meta):
                made = self.library.copied(made, self.texts.shape(self.traced.views[node].stride))
            elif value in taken or value in inputs:  # results must not share memory
                made = f"{made}.clone()"
            taken.add(value)
            if made != name:
                self.writer.line(f"{name} = {made}")
            self.texts.own(node)

    # -- library calls

    def _write_library_call(self, step: Step) -> None:
        node, name = step.node, self.names[step.node]
        meta = tensor_of(node)
        runtime = self._memory_for(meta) if writes_into_memory(node.target) else None
        if meta is not None and runtime is not None:
            view = self.traced.views[node]
            shape, stride = self.texts.shape(view.shape), self.texts.shape(view.stride)
            self.library.allocate(runtime, name, shape, stride, meta.dtype)
            self.library.call_into(name, node.target, self.texts.arguments(node))
            self.texts.own(node)
            return
        self.library.call(name, self._library_function(node), self.texts.arguments(node))
        self.texts.own(node)
        if meta is not None:
            self._check_metadata(node)
        self._write_picks(node)

    def _write_mutating_call(self, step: Step, call: MutatingCall, dead: Set[Node]) -> None:
        """Calls an op on copies of the tensors that it changes, or on those that nobody reads."""
        node = step.node
        values, others = call.picks(node)
        names = [
            self.names[values[i]] if i in values else self.texts.fresh("base") for i in call.places
        ]
        for i, base in enumerate(call.bases):
            given = self.texts.tensor(base)
            is_input = i in values and self.in_place.get(values[i]) is base
            if not is_input and base not in dead:
                given = f"{self.library.function(aten.clone.default)}({given})"
            self.writer.line(f"{names[i]} = {given}")
        arguments = operand_texts(call, names, self.texts.argument, self.library)
        self.library.call(self.names[node], call.op, arguments)
        for pick in (*values.values(), node):
            self.texts.own(pick)
        if call.results == 1:
            for pick in others:
                self.writer.line(f"{self.names[pick]} = {self.names[node]}")
                self._take_pick(pick)
        elif call.results:
            self._write_picks(node)

    def _library_function(self, node: Node) -> Any:
        """What computes a node: torch's op, or a function of the runtime or for control flow."""
        if is_control_flow(node):
            return CONTROL_FLOW[node.target]
        meta = tensor_of(node)
        runtime = None if meta is None else self.traced.runtimes.get(meta.device)
        functions = {} if runtime is None else runtime.library_functions
        return functions.get(node.target, node.target)

    def _memory_for(self, meta: torch.Tensor | None) -> Runtime | None:
        """The runtime that allocates the memory of a result; None if torch does."""
        if meta is None or not is_dense(meta):
            return None
        return self.traced.runtimes.get(meta.device)

    def _write_picks(self, node: Node) -> None:
        """Names the results of a call that returns several."""
        for user in node.users:
            if is_getitem(user) and user not in self.texts.tensors and user.users:
                if self.traced.views.base(user) is not user:
                    continue
                self.writer.line(f"{self.names[user]} = {self.names[node]}[{user.args[1]}]")
                self._take_pick(user)
        if isinstance(node.meta.get("val"), (list, tuple)):
            self.writer.line(f"del {self.names[node]}")
            self.texts.owned.pop(node, None)

    def _take_pick(self, pick: Node) -> None:
        """Takes a result of a call, which may be several results in turn."""
        self.texts.own(pick)
        if tensor_of(pick) is not None:
            self._check_metadata(pick)
        else:
            self._write_picks(pick)

    def _check_metadata(self, node: Node) -> None:
        """Kernels and views rely on the metadata's strides and dtype; a call may return others."""
        view, meta, name = self.traced.views[node], tensor_of(node), self.names[node]
        assert meta is not None
        self.library.require_dtype(name, meta.dtype)
        if len(view.shape) >= 2:
            self.library.require_strides(name, self.texts.shape(view.stride))

    def _write_update(self, step: Step) -> None:
        target, value = step.node.args[0], step.node.args[1]
        assert isinstance(target, Node) and isinstance(value, Node)
        if self.in_place.get(self.traced.views.base(value)) is not target:
            self.writer.line(f"{self.texts.tensor(target)}.copy_({self.texts.argument(value)})")


def _gets_memory(node: Node) -> bool:
    """True for an argument whose storage the graph itself resizes, as FSDP does."""
    return any("resize_storage_bytes_" in str(user.target) for user in node.users)
