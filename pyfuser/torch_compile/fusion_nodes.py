"""Fusion nodes: a region of the graph as a registered fusion, ready to be written into a wrapper.

`fusion_node` translates a region, gives its outputs the memory order that the graph's metadata
promises, and registers the result: regions with the same structure (the layers of a model) share
the fusion and its kernels.  `resolve` finds kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..analysis.size_conditions import SizeConditions
from ..errors import UnsupportedError, expected
from ..executor import Executor, Resolved
from ..interface import register_fusion, registered_fusion
from ..ir.fusion import Fusion
from ..ir.scalar_queries import evaluate
from ..ir.scalars import Symbol
from ..ir.vals import Scalar, TensorView
from ..ops.builders import stride_order
from ..ops.metadata import TensorMetadata
from ..plans.plan import stride_name
from .aten import build_region
from .partition import Region
from .sizes import GraphSizes, Size, hints, size_of, sizes_of
from .views import tensor_of

# Operations of which torch compares sizes only when they run, not in tracing.
_COMPARING = ("slice_scatter", "select_scatter")


@dataclass(frozen=True, slots=True)
class InputMetadata:
    """A region's input: sizes and strides that may be symbolic."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    def at(self, values: Mapping[Size, Any]) -> TensorMetadata:
        """The metadata for the sizes of a call."""
        shape = tuple(numbers(self.shape, values))
        return TensorMetadata(shape, tuple(numbers(self.stride, values)), self.dtype, self.device)


@dataclass(eq=False)
class FusionNode:
    """A region whose fusion is registered under `key`.

    `inputs` are in the order of the fusion's tensors, `scalars` the numbers that follow them;
    `outputs` are the graph's nodes in the order of the fusion's outputs.
    """

    region: Region
    key: int
    executor: Executor
    inputs: list[Node]
    metadata: list[InputMetadata]
    scalars: list[Size]

    @property
    def outputs(self) -> list[Node]:
        """The nodes that it computes for other nodes."""
        return self.region.outputs

    def start(self, values: Mapping[Size, Any]) -> None:
        """Begins compiling the kernels for these sizes."""
        self.executor.start(self.inputs_for(values))

    def resolve(
        self, sizes: GraphSizes, values: Mapping[Size, Any], noted: SizeConditions
    ) -> Resolved:
        """Program and kernels for the sizes that the graph was traced with.

        They are valid for all sizes with the same layout classes, on which alone they depend;
        `noted` gets the conditions for these.  So no call of a graph with changing sizes waits for
        a compiler again.
        """
        inputs = self.inputs_for(values)
        if sizes.is_static:
            return self.executor.resolve(inputs)
        layout_sizes = {
            name: noted.number(sizes.expr(size), numbers([size], values)[0])
            for name, size in self._named_sizes()
        }
        self._note_comparisons(layout_sizes)
        return self.executor.resolve(inputs, layout_sizes=layout_sizes)

    def _note_comparisons(self, sizes: Mapping[str, int]) -> None:
        """Notes the equalities of sizes that no guard of the graph implies."""
        fusion = self.executor.fusion
        for a, b in fusion.equal_extents:
            is_known = all(symbol.name in sizes for symbol in a.symbols | b.symbols)
            if is_known and fusion.required_by.get((a, b)) in _COMPARING:
                _ = evaluate(a, sizes) == evaluate(b, sizes)

    def symbols(self, text: Callable[[Size], str]) -> dict[str, str]:
        """The texts of the sizes and strides that the fusion's program reads, by name."""
        found: dict[str, str] = {}
        for name, size in self._named_sizes():
            found.setdefault(name, text(size))
        return found

    def _named_sizes(self) -> Iterator[tuple[str, Size]]:
        """The strides and sizes of the tensors, and the scalars that are sizes, such as where a
        slice ends, by their names in the fusion.
        """
        for value, entry in zip(self.executor.fusion.inputs, self.metadata, strict=False):
            assert isinstance(value, TensorView)
            for dim, (axis, size, stride) in enumerate(
                zip(value.axes, entry.shape, entry.stride, strict=True)
            ):
                yield stride_name(value, dim), stride
                if isinstance(axis.size, Symbol):
                    yield axis.size.name, size
        scalars = self.executor.fusion.inputs[len(self.inputs) :]
        for value, scalar in zip(scalars, self.scalars, strict=True):
            if isinstance(value, Scalar) and isinstance(value.extent, Symbol):
                yield value.extent.name, scalar

    def inputs_for(self, values: Mapping[Size, Any]) -> tuple[Any, ...]:
        """The metadata of the tensors of a call, and its numbers."""
        tensors = tuple(m.at(values) for m in self.metadata)
        return tensors + tuple(numbers(self.scalars, values))


def numbers(sizes: tuple[Size, ...] | list[Size], values: Mapping[Size, Any]) -> list[Any]:
    """Sizes as numbers."""
    return [size if isinstance(size, (int, float)) else values[size] for size in sizes]


def fusion_node(region: Region, sizes: GraphSizes, rounded: AbstractSet[Node]) -> FusionNode:
    """Translates and registers a region of a graph whose kernels read these values `rounded`.

    NotTranslated if a node has no translation.
    """
    built = build_region(region.nodes, region.inputs, region.outputs, rounded)
    for position, node in enumerate(region.outputs):
        _set_memory_order(built.fusion, position, node)
    built.fusion.overwritten = {
        value
        for value, node in zip(built.fusion.inputs, built.inputs, strict=False)
        if _may_be_updated(node, region)
    }
    made_on = tensor_of(region.outputs[0])
    if not built.inputs and made_on is not None and made_on.device != torch.get_default_device():
        what = "tensors to read, which say what device it runs on"
        raise UnsupportedError(expected("region", what, f"none, on {made_on.device}"))
    metadata = []
    for node in built.inputs:
        value = tensor_of(node)
        assert value is not None
        entry = InputMetadata(
            sizes_of(value.shape), sizes_of(value.stride()), value.dtype, value.device
        )
        for size in (*entry.shape, *entry.stride):
            sizes.require(size)
        metadata.append(entry)
    scalars = [size_of(value) for value in built.scalars]
    for size in scalars:
        sizes.require(size)
    key = register_fusion(built.fusion)
    executor = registered_fusion(key).executor
    executor.prepare()  # raises if this failed: the nodes are left to torch
    return FusionNode(region, key, executor, built.inputs, metadata, scalars)


def _set_memory_order(fusion: Fusion, position: int, node: Node) -> None:
    """Gives an output the memory order of the metadata's strides."""
    output = fusion.outputs[position]
    value = tensor_of(node)
    assert value is not None and isinstance(output, TensorView)
    order = _allocation_order(value)
    rank = value.dim()
    if order == list(range(rank)):
        return
    positions = [0] * rank
    for place, dim in enumerate(order):
        positions[dim] = rank - 1 - place
    fusion.outputs[position] = stride_order(fusion, output, positions)


def _allocation_order(value: torch.Tensor) -> list[int]:
    """Dimensions, outermost in memory first; those of size 1 match the metadata's strides.

    Such a stride accesses nothing, but it decides the layout of torch's later results.
    """
    shape, stride = hints(value.shape), hints(value.stride())
    rank = len(shape)
    waiting = [dim for dim in reversed(range(rank)) if shape[dim] == 1]
    moving = sorted((d for d in range(rank) if shape[d] != 1), key=lambda d: -stride[d])
    inward: list[int] = []  # innermost first
    running = 1
    for dim in (*reversed(moving), None):
        fitting = [d for d in waiting if stride[d] == running]
        waiting = [d for d in waiting if d not in fitting]
        inward += fitting
        if dim is not None:
            inward.append(dim)
            running *= max(shape[dim], 1)
    order = inward[::-1]
    for dim in reversed(waiting):  # no order gives these strides
        order.insert(next((i for i, d in enumerate(order) if d > dim), rank), dim)
    return order


def _may_be_updated(node: Node, region: Region) -> bool:
    """True for an argument of the graph that is updated with a result of the region."""
    return node.op == "placeholder" and any(
        user.target is torch.ops.aten.copy_.default
        and user.args[0] is node
        and user.args[1] in region.outputs
        for user in node.users
    )
