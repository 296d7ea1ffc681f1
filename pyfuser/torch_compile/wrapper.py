"""The compiled graph: one straight-line Python function that a call runs from top to bottom.

Written once for a graph and a set of kernels: launches of kernels with their arguments, library
calls by resolved overloads (matrix products into pooled memory), views only if a library call or an
output needs one, `del` after the last use, updates of inputs in place where that is safe.  Sizes
that never change are numbers in the text; values that depend on others are arithmetic in it.  Such
a function begins with the conditions under which its kernels were chosen: if they don't hold, it
returns None before any side effect.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..analysis.size_conditions import SizeConditions
from ..devices.runtime import Runtime
from ..devices.switches import switched_off
from ..dtypes import fits_64_bits
from ..executor import Resolved
from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr
from ..ir.vals import Val
from ..plans.clock import clock_for
from ..plans.library_calls import LibraryCalls, writes_into_memory
from ..plans.program_writer import PlanValue, ProgramWriter
from ..plans.text import Sizes, Writer, condition_texts, is_number, span_text, tuple_text
from .control_flow import CONTROL_FLOW, is_control_flow
from .fusion_nodes import is_dense
from .graph import TracedGraph
from .in_place import updates_in_place
from .mutating_calls import MutatingCall, mutating_call, operand_texts
from .result_memory import is_detached, owners_of_results
from .saved_layouts import is_saved
from .sizes import Size, size_of, size_text
from .steps import Step, last_reads
from .views import is_getitem, tensor_of, viewed

aten = torch.ops.aten


def require_64_bits(number: int) -> None:
    """Raises for a number that kernels can't take; the message is torch's."""
    if not fits_64_bits(number):
        raise OverflowError("int too big to convert")


_RESERVED = frozenset(
    """alias_of args by_torch call convert_number device empty evaluate_scalar math refused
    require_memory run slot switched_off torch view_of with_strides""".split()  # noqa: SIM905
) | frozenset(keyword.kwlist)
# (the names of `Writer` constants without a prefix)


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
        self.library = LibraryCalls(self.writer)
        self.sizes = Sizes(self.writer, {})
        self.symbols: dict[sympy.Symbol, str] = {}
        self.known: dict[Size, str] = {}
        self.checked: set[str] = set()
        self.names = {node: _name(node) for node in traced.graph.nodes}
        self.tensors: set[Node] = set()
        self.owned: dict[Node, list[str]] = {}
        self.counter = 0
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
                free = {n for n in step.reads if last[n] == number} & self.owned.keys()
                free -= {*self.traced.placeholders, *self.in_place, *self.returned}
                self._write_mutating_call(step, call, call.read_once(step.node, views) & free)
            else:
                self._write_library_call(step)
            dead = [n for n in (*step.makes, *step.reads) if last[n] == number]
            self._delete([n for n in dict.fromkeys(dead) if n not in self.returned])
        self._write_results()
        return self.writer.build("call(args)", "graph")

    # -- arguments and results

    def _write_arguments(self) -> None:
        for node, value in self.traced.attributes.items():
            self.writer.constant(self.names[node], value)
            self.tensors.add(node)
        arguments = self.traced.placeholders
        if not arguments:
            return
        used = self.returned.union(last_reads(self.traced.steps))
        names = [self.names[n] if n in used else "_" for n in arguments]
        self.writer.line(f"{', '.join(names)}, = args")
        self._write_symbols()
        for node in arguments:
            self._own(node)
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
            self.symbols[symbol] = self.sizes.symbols[str(symbol)] = name
        self.writer.require(condition_texts(self.conditions, self._expr_text))

    def _expr_text(self, expr: IntExpr) -> str:
        """The text of an expression over the graph's symbols."""
        opaque = self.traced.sizes.opaque
        for symbol in expr.symbols:
            if symbol.name not in self.sizes.symbols:
                text = size_text(opaque[symbol.name], self.symbols)
                self.sizes.symbols[symbol.name] = self.writer.number(text)
        return self.sizes.text(expr)

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
                shape, stride = map(self._texts, (views[node].shape, views[node].stride))
                need = (name, span_text(shape, stride, bytes_each), bytes_each)
                needs.setdefault(value.device, []).append(need)
        for device, of_device in needs.items():
            self.writer.memory_check(self.traced.runtimes[device], of_device, "by_torch(args)")

    def _write_results(self) -> None:
        """Returns the results, as different objects: by these, autograd tells them apart.

        What the caller changes in one is changed in all that are in the same memory.  Autograd has
        to know, so they count their changes together.
        """
        owners = owners_of_results(self.traced)
        returned: dict[str, Any] = {}
        texts: list[str] = []
        for number, result in enumerate(self.traced.outputs):
            for_backward = is_saved(self.traced.graph_module, number)
            text = self._result(result, owners, for_backward)
            is_tensor = isinstance(result, Node) and result in self.traced.views
            if returned.setdefault(text, result) is not result and is_tensor:
                text = self._alias_text(result, owners)
            texts.append(text)
        self.writer.line(f"return ({''.join(f'{text}, ' for text in texts)})")

    def _result(self, result: Any, owners: Mapping[Node, Node], for_backward: bool) -> str:
        """The text of a result.

        What the backward reads may be a view of an argument. That mustn't change until then, so
        autograd has to see a view.

        A view of an argument is made by the graph's own operations if sizes are symbolic: autograd
        then has no other record of them than the tensor itself, and derives the gradient of a view
        by sizes and strides differently if elements overlap.
        """
        views = self.traced.views
        if not isinstance(result, Node) or result not in views:
            return self._argument(result)
        base = views.base(result)
        if base.op == "placeholder":
            if not self.traced.sizes.is_static:
                return self._replayed(result)
            is_alias = for_backward and not views[result].is_whole(views[base])
        else:
            is_alias = result is not owners[base]
        return self._alias_text(result, owners) if is_alias else self._argument(result)

    def _alias_text(self, result: Node, owners: Mapping[Node, Node]) -> str:
        """An expression for a result in the memory of another, whose changes it counts."""
        text = self._view_text(result, owners[self.traced.views.base(result)])
        return f"{text}.detach()" if is_detached(result, self.traced.views) else text

    def _replayed(self, node: Node) -> str:
        """An expression for a view, by the operations that lead from its base to it."""
        if node is self.traced.views.base(node):
            return self._argument(node)
        if node.target is aten.copy_.default:  # the memory that was written to
            assert isinstance(node.args[0], Node)
            return self._replayed(node.args[0])
        call, pick = node, ""
        if is_getitem(node):
            assert isinstance(node.args[0], Node)
            call, pick = node.args[0], f"[{node.args[1]}]"
        source = viewed(call)
        if source is None:
            return self._argument(node)
        target = self.writer.constant(self._fresh("f_view"), call.target)
        rest = [*map(self._argument, call.args[1:])]
        rest += [f"{name}={self._argument(given)}" for name, given in call.kwargs.items()]
        return f"{target}({', '.join([self._replayed(source), *rest])}){pick}"

    # -- names, tensors, addresses

    def _own(self, node: Node) -> None:
        """Notes that a node's memory exists, under its name."""
        if node in self.tensors:
            return
        self.tensors.add(node)
        self.owned[node] = [self.names[node]]

    def _delete(self, nodes: Sequence[Node]) -> None:
        names = [name for node in nodes for name in self.owned.pop(node, ())]
        if names:
            self.writer.line(f"del {', '.join(names)}")

    def _tensor(self, node: Node) -> str:
        """The name of a node as a tensor; a view becomes one on first use."""
        if node in self.tensors:
            return self.names[node]
        view = self.traced.views[node]
        if view.is_whole(self.traced.views[view.base]):
            return self._tensor(view.base)
        self.writer.line(f"{self.names[node]} = {self._described(node)}")
        self.tensors.add(node)
        self.owned.setdefault(view.base, []).append(self.names[node])
        return self.names[node]

    def _described(self, node: Node) -> str:
        """An expression for a node as a tensor; its base exists."""
        view = self.traced.views[node]
        if node in self.tensors or view.is_whole(self.traced.views[view.base]):
            return self._tensor(node)
        return self._view_text(node)

    def _view_text(self, node: Node, owner: Node | None = None) -> str:
        """An expression for a new tensor in the memory of the node's base.

        It counts its changes with those of `owner`, another view of that memory.
        """
        view = self.traced.views[node]
        of = owner or view.base
        shape, stride = self._sizes(view.shape), self._sizes(view.stride)
        offset = self._size(view.offset - self.traced.views[of].offset)
        return self.library.view(self._tensor(of), shape, stride, offset, owner is not None)

    def _pointer(self, node: Node) -> str:
        """The address of a node's first element, without a tensor for it."""
        view = self.traced.views[node]
        address = f"{self._tensor(view.base)}.data_ptr()"
        if view.offset == 0:
            return address
        value = tensor_of(node)
        assert value is not None
        offset = self._size(view.offset)
        width = value.element_size()
        text = str(int(offset) * width) if is_number(offset) else f"{offset} * {width}"
        return f"{address} + {text}"

    def _fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}_{self.counter}"

    def _size(self, size: Size) -> str:
        """The text of a size: a number, or the name of one."""
        if isinstance(size, (int, float)):
            return repr(size)
        found = self.known.get(size)
        if found is None:
            if size.is_integer:
                found = self._expr_text(self.traced.sizes.expr(size))
            else:
                found = self.writer.number(size_text(size, self.symbols))
            self.known[size] = found
        return found

    def _number(self, scalar: Size) -> str:
        """The text of a number for a kernel; torch's error if it has more than 64 bits."""
        text = self._size(scalar)
        if not isinstance(scalar, (int, float)) and scalar.is_integer and text not in self.checked:
            self.checked.add(text)
            self.writer.constants["require_64_bits"] = require_64_bits
            self.writer.line(f"require_64_bits({text})")
        return text

    def _texts(self, sizes: tuple[Size, ...]) -> list[str]:
        return [self._size(size) for size in sizes]

    def _sizes(self, sizes: tuple[Size, ...]) -> str:
        return tuple_text(self._texts(sizes))

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
            local[value] = PlanValue.of(self._number(scalar))
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
            fusion.symbols(self._size),
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
        return PlanValue(
            lambda: self._tensor(node), lambda: self._pointer(node), lambda: self._described(node)
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
                made = self.library.copied(made, self._sizes(self.traced.views[node].stride))
            elif value in taken or value in inputs:  # results must not share memory
                made = f"{made}.clone()"
            taken.add(value)
            if made != name:
                self.writer.line(f"{name} = {made}")
            self._own(node)

    # -- library calls

    def _write_library_call(self, step: Step) -> None:
        node, name = step.node, self.names[step.node]
        meta = tensor_of(node)
        runtime = self._memory_for(meta) if writes_into_memory(node.target) else None
        if meta is not None and runtime is not None:
            view = self.traced.views[node]
            shape, stride = self._sizes(view.shape), self._sizes(view.stride)
            self.library.allocate(runtime, name, shape, stride, meta.dtype)
            self.library.call_into(name, node.target, self._arguments(node))
            self._own(node)
            return
        self.library.call(name, self._library_function(node), self._arguments(node))
        self._own(node)
        if meta is not None:
            self._check_metadata(node)
        self._write_picks(node)

    def _write_mutating_call(self, step: Step, call: MutatingCall, dead: Set[Node]) -> None:
        """Calls an op on copies of the tensors that it changes, or on those that nobody reads."""
        node = step.node
        values, others = call.picks(node)
        names = [self.names[values[i]] if i in values else self._fresh("base") for i in call.places]
        for i, base in enumerate(call.bases):
            given = self._tensor(base)
            is_input = i in values and self.in_place.get(values[i]) is base
            if not is_input and base not in dead:
                given = f"{self.library.function(aten.clone.default)}({given})"
            self.writer.line(f"{names[i]} = {given}")
        arguments = operand_texts(call, names, self._argument, self.library)
        self.library.call(self.names[node], call.op, arguments)
        for pick in (*values.values(), node):
            self._own(pick)
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
            if is_getitem(user) and user not in self.tensors and user.users:
                if self.traced.views.base(user) is not user:
                    continue
                self.writer.line(f"{self.names[user]} = {self.names[node]}[{user.args[1]}]")
                self._take_pick(user)
        if isinstance(node.meta.get("val"), (list, tuple)):
            self.writer.line(f"del {self.names[node]}")
            self.owned.pop(node, None)

    def _take_pick(self, pick: Node) -> None:
        self._own(pick)
        if tensor_of(pick) is not None:
            self._check_metadata(pick)

    def _check_metadata(self, node: Node) -> None:
        """Kernels and views rely on the metadata's strides and dtype; a call may return others."""
        view, meta, name = self.traced.views[node], tensor_of(node), self.names[node]
        assert meta is not None
        self.library.require_dtype(name, meta.dtype)
        if len(view.shape) >= 2:
            self.library.require_strides(name, self._sizes(view.stride))

    def _write_update(self, step: Step) -> None:
        target, value = step.node.args[0], step.node.args[1]
        assert isinstance(target, Node) and isinstance(value, Node)
        if self.in_place.get(self.traced.views.base(value)) is not target:
            self.writer.line(f"{self._tensor(target)}.copy_({self._argument(value)})")

    # -- arguments of calls

    def _arguments(self, node: Node) -> list[str]:
        return [
            *map(self._argument, node.args),
            *(f"{name}={self._argument(given)}" for name, given in node.kwargs.items()),
        ]

    def _argument(self, argument: Any) -> str:
        if isinstance(argument, Node):
            value = argument.meta.get("val")
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
                return self._size(size_of(value))
            if argument in self.traced.views:
                return self._tensor(argument)
            return self.names[argument]
        if isinstance(argument, (list, tuple)):
            inside = "".join(f"{self._argument(entry)}, " for entry in argument)
            return f"[{inside}]" if isinstance(argument, list) else f"({inside})"
        if isinstance(argument, (torch.SymInt, torch.SymFloat)):
            return self._size(size_of(argument))
        is_plain = argument is None or isinstance(argument, (bool, int, str))
        if is_plain or (isinstance(argument, float) and math.isfinite(argument)):
            return repr(argument)
        return self.writer.constant(self._fresh("constant"), argument)


def _gets_memory(node: Node) -> bool:
    """True for an argument whose storage the graph itself resizes, as FSDP does."""
    return any("resize_storage_bytes_" in str(user.target) for user in node.users)


def _name(node: Node) -> str:
    """A node's name, or another one if Python or the wrapper uses it."""
    name = str(node.name)
    is_taken = name in _RESERVED or name[:1] == "f" or (name[:1] in "ns" and name[1:].isdigit())
    return f"{name}_value" if is_taken else name
