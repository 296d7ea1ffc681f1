"""Calls in which an argument that the graph updates shares memory with another argument.

    def f(x, y):
        x.mul_(2)          f(a, b), then f(c[:4], c[2:6])
        return x + y

A compiled graph reads its arguments' old values, and updates them in the end.  AOTAutograd compiles
it for the overlaps of the first call; with fixed sizes, nothing asks whether a later call has the
same.  Here each call is asked, if the graph updates anything: one with such an overlap runs through
torch, as does the whole graph if the first call has one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..devices.tensor_memory import span_bytes
from .quick_calls import with_attributes
from .sizes import hint, hints

try:
    from torch._C._dynamo.guards import compute_overlapping_tensors
except ImportError:  # this torch compares only ranges of memory
    compute_overlapping_tensors = None  # type: ignore[assignment]

_Call = Callable[..., Any]


def updated_inputs(metadata: Any, count: int) -> frozenset[int] | None:
    """The numbers of the inputs that a graph updates, by AOTAutograd's metadata.

    None if it has other inputs than the `count` that it was given: some of these overlap.
    """
    if metadata is None:
        return frozenset()
    if len(metadata.input_info) != count:
        return None
    infos = enumerate(metadata.input_info)
    return frozenset(n for n, info in infos if info.mutates_data)


def all_inputs(graph_module: torch.nn.Module, arguments: Sequence[Any]) -> list[Any]:
    """AOTAutograd's inputs: the graph's own tensors, such as an optimiser's, then the arguments."""
    own = (graph_module.named_parameters, graph_module.named_buffers)
    found = [each for named in own for _, each in named(remove_duplicate=False)]
    return [*found, *arguments]


def asking_for_overlaps(
    compiled: _Call,
    by_torch: _Call,
    inputs: Sequence[Any],
    argument_count: int,
    updated: Collection[int] | None,
    *,
    is_boxed: bool,
) -> _Call:
    """`compiled`, which `by_torch` does the work of if an updated input overlaps another one.

    `inputs` are all inputs, the last ones the arguments of a call; a boxed call has one list of
    them.  Of the graph's own tensors, which stay where they are, only overlaps with arguments are
    asked for in a call.
    """
    if updated is None or overlap(inputs, updated):
        return by_torch
    own_count = len(inputs) - argument_count
    own, example = list(inputs[:own_count]), inputs[own_count:]  # a call needs no example
    places = [n for n, each in enumerate(example) if _has_memory(each)]
    tensors = [each for each in (*own, *example) if _has_memory(each)]
    if not updated or len(tensors) < 2 or not places:
        return compiled
    if any(map(is_traceable_wrapper_subclass, tensors)):
        return compiled
    ranges = [(each.data_ptr(), _bytes(each)) for each in own if _has_memory(each)]
    spans = _fixed_spans([example[n] for n in places])
    takes_all = len(places) == argument_count
    known: list[int] | None = None  # the addresses of the last call, if sizes don't change

    def call(*arguments: Any) -> Any:
        nonlocal known
        given = arguments[0] if is_boxed else arguments
        tensors = given if takes_all else [given[n] for n in places]
        starts = list(map(Tensor.data_ptr, tensors))
        if starts != known:
            called = zip(starts, spans or map(_bytes, tensors), strict=True)
            if _meet([*ranges, *called]) and overlap([*own, *given], updated):
                return by_torch(*arguments)
            known = starts if spans else None
        return compiled(*arguments)

    return with_attributes(call, compiled)


def _meet(ranges: list[tuple[int, int]]) -> bool:
    """True if two ranges of memory, (first byte, number of bytes), have bytes in common."""
    end = 0
    for start, size in sorted(ranges):
        if start < end:
            return True
        end = start + size
    return False


def overlap(inputs: Sequence[Any], chosen: Collection[int]) -> bool:
    """True if a tensor at one of the chosen places may share elements with one at another place.

    The tensors may be fakes; of sizes that change, the current ones count.
    """
    ranges = []
    for number, each in enumerate(inputs):
        if _has_memory(each) and each.numel() != 0:
            ranges.append((*_start(each), number))
    ranges.sort()
    active: list[tuple[str, int, int]] = []  # memory, end, number
    for memory, start, number in ranges:
        active = [a for a in active if a[0] == memory and a[1] > start]
        for _, _, other in active:
            if (number in chosen or other in chosen) and _share(inputs[number], inputs[other]):
                return True
        active.append((memory, start + _bytes(inputs[number]), number))
    return False


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _start(tensor: Tensor) -> tuple[str, int]:
    """The first byte of a tensor, and in which memory: a fake one is known by its storage only."""
    if isinstance(tensor, FakeTensor):
        offset = hint(tensor.storage_offset()) * tensor.element_size()
        return f"storage {tensor.untyped_storage()._cdata}", offset
    return str(tensor.device), tensor.data_ptr()


def _share(a: Tensor, b: Tensor) -> bool:
    """True if two tensors whose ranges of memory overlap may share an element."""
    numbers = (*a.shape, *b.shape, *a.stride(), *b.stride(), a.storage_offset(), b.storage_offset())
    is_known = all(isinstance(number, int) for number in numbers) and a.dtype == b.dtype
    is_one = a.untyped_storage()._cdata == b.untyped_storage()._cdata
    if compute_overlapping_tensors is None or not (is_known and is_one):
        return True
    return bool(compute_overlapping_tensors([a, b], symbolic=False))


def _fixed_spans(tensors: Sequence[Tensor]) -> list[int] | None:
    """The bytes from the first element of each to its last; None if sizes change."""
    numbers = (number for each in tensors for number in (*each.shape, *each.stride()))
    if not all(isinstance(number, int) for number in numbers):
        return None
    return list(map(_bytes, tensors))


def _bytes(tensor: Tensor) -> int:
    return span_bytes(hints(tensor.shape), hints(tensor.stride()), tensor.element_size())
