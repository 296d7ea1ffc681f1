"""Defines inputs: turns shapes, contiguity and stride orders into a fusion's tensors and scalars.

Contains the three overloads of the interface's `define_tensor`, `define_scalar`, and
`compute_tensor_descriptor`, which derives contiguity and stride order from a tensor's strides.
Contiguity is in allocation order, outermost first; None marks a broadcast axis, or an expanded axis
if the size isn't 1.  Defaults are the interface's: contiguity False, dtype Float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import signature

import torch

from ..dtypes import COMPLEX, FLOATING, DataType, of_python_value
from ..errors import ArgumentTypeError, DefinitionError, expected
from ..ir.domains import IterDomain, IterType, TensorDomain
from ..ir.scalars import ONE, Integer
from ..ir.strides import contiguity_flags
from ..ir.vals import PythonNumber, Scalar
from ..ops.pointwise import constant, require_dtype
from ..ops.shape_builders import require_sequence
from .arguments import plain
from .fusion import Fusion
from .guard import fusion_to_define
from .tensor_view import TensorView

Contiguity = Sequence[bool | None] | bool
_LARGEST = 2**63 - 1


def compute_tensor_descriptor(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[list[bool | None], list[int]]:
    """(contiguity in allocation order, stride order) of a tensor with these sizes and strides.

    Axes are ordered by descending stride, ties in their given order; axes of stride 0 stay in
    place.
    """
    if len(sizes) != len(strides):
        what = f"as many strides as sizes ({len(sizes)})"
        raise DefinitionError(expected("compute_tensor_descriptor", what, len(strides)))
    if any(stride < 0 for stride in strides):
        got = list(strides)
        raise DefinitionError(expected("compute_tensor_descriptor", "strides of at least 0", got))
    rank = len(sizes)
    order = sorted((d for d in range(rank) if strides[d]), key=lambda d: -strides[d])
    for dim in range(rank):
        if strides[dim] == 0:
            order.insert(dim, dim)
    stride_order = [rank - 1 - order.index(dim) for dim in range(rank)]
    return contiguity_flags(sizes, strides, order), stride_order


def _wrapped_order(stride_order: Sequence[int], rank: int) -> list[int]:
    if not stride_order:
        return list(range(rank))[::-1]
    if len(stride_order) != rank:
        raise DefinitionError(
            f"Length of stride_order argument ({len(stride_order)}) must match that of shape "
            f"argument ({rank})"
        )
    for entry in stride_order:
        if not -rank <= entry < rank:
            what = f"entries in [{-rank}, {rank - 1}]"
            hint = "stride_order argument is out of range"
            raise DefinitionError(expected("define_tensor", what, entry, hint))
    wrapped = [entry % rank for entry in stride_order]
    if len(set(wrapped)) != rank:
        what = "no duplicated stride_order entries"
        raise DefinitionError(expected("define_tensor", what, list(stride_order)))
    return wrapped


def _checked_shape(shape: Sequence[int]) -> None:
    for index, entry in enumerate(shape):
        if isinstance(entry, bool) or not isinstance(entry, int) or abs(entry) > _LARGEST:
            operation = "define_tensor(): incompatible function arguments"
            raise TypeError(expected(operation, "a shape of 64-bit integers", repr(entry)))
        if entry < -1:
            raise DefinitionError(
                f"The value {entry} at index {index} was neither symbolic(-1), zero_element(0), "
                "broadcast(1), or static(>1)."
            )


def _contiguity_of(
    shape: Sequence[int], contiguity: Contiguity, order: Sequence[int]
) -> list[bool | None]:
    """The contiguity as a list in allocation order."""
    rank = len(shape)
    if not isinstance(contiguity, bool):
        require_sequence("define_tensor", contiguity, "True, False or None for each dimension")
    if isinstance(contiguity, bool):
        filled: list[bool | None] = [None] * rank
        for dim, entry in enumerate(shape):
            filled[rank - 1 - order[dim]] = None if entry == 1 else contiguity
        return filled
    if len(contiguity) != rank:
        raise DefinitionError(
            f"Length of contiguity argument ({len(contiguity)}) must match that of shape "
            f"argument ({rank})"
        )
    return list(contiguity)


def _input_axis(fusion: Fusion, entry: int, contiguous: bool | None) -> IterDomain:
    ids = fusion.graph.ids
    if entry == 1:
        return ids.broadcast()
    extent = fusion.graph.new_extent() if entry == -1 else Integer.of(entry)
    if contiguous is None:
        return ids.new(ONE, IterType.BROADCAST, extent)
    return ids.new(extent)


def _define_shaped(
    shape: Sequence[int],
    contiguity: Contiguity = False,
    dtype: DataType = DataType.Float,
    is_cpu: bool = False,
    stride_order: Sequence[int] = (),
) -> TensorView:
    fusion = fusion_to_define("define_tensor")
    require_dtype("define_tensor", dtype)
    require_sequence("define_tensor", shape, "sizes")
    rank, shape = len(shape), plain(shape)
    _checked_shape(shape)
    order = _wrapped_order(stride_order, rank)
    flags = _contiguity_of(shape, contiguity, order)
    if is_cpu and rank:
        raise DefinitionError("CPU non-scalar tensor is not supported!")
    axes = [_input_axis(fusion, e, flags[rank - 1 - order[d]]) for d, e in enumerate(shape)]
    allocation = [axes[order.index(rank - 1 - position)] for position in range(rank)]
    # Size 1 is always a broadcast axis, whatever the caller passed for its contiguity.
    flags = [
        None if axis.is_broadcast else flag for axis, flag in zip(allocation, flags, strict=True)
    ]
    domain = TensorDomain(axes, flags, allocation=None if allocation == axes else allocation)
    tensor = fusion.graph.new_tensor(domain, dtype, is_cpu)
    assert isinstance(tensor, TensorView)
    return tensor


def _define_strided(
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: DataType = DataType.Float,
    static_sizes: bool = False,
    is_cpu: bool = False,
) -> TensorView:
    contiguity, stride_order = compute_tensor_descriptor(sizes, strides)
    shape = list(sizes) if static_sizes else [size if size == 1 else -1 for size in sizes]
    return _define_shaped(shape, contiguity, dtype, is_cpu, stride_order)


def define_tensor(*args: object, **kwargs: object) -> TensorView:
    """A tensor of the active fusion, by one of three forms:

    - `(shape, contiguity: list[bool | None], dtype=Float, is_cpu=False, stride_order=[])`
    - `(shape, contiguity: bool = False, dtype=Float, is_cpu=False, stride_order=[])`
    - `(sizes, strides, dtype=Float, static_sizes=False, is_cpu=False)`

    In a shape -1 is symbolic, 0 empty, 1 a broadcast axis, any other number a static size.
    """
    second = args[1] if len(args) > 1 else None
    is_strided = "strides" in kwargs or "sizes" in kwargs
    if isinstance(second, (list, tuple)) and second:
        is_strided = all(isinstance(s, int) and not isinstance(s, bool) for s in second)
    form: Callable[..., TensorView] = _define_strided if is_strided else _define_shaped
    try:
        return form(*args, **kwargs)
    except TypeError:
        _check_arguments(form, args, kwargs)
        raise


def _check_arguments(
    form: Callable[..., TensorView], args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """ArgumentTypeError if a form of `define_tensor` can't be called with these."""
    expected_arguments = signature(form)
    try:
        expected_arguments.bind(*args, **kwargs)
    except TypeError as error:
        operation = "define_tensor(): incompatible function arguments"
        what = f"({', '.join(expected_arguments.parameters)})"
        got = str(error).removeprefix("got ")
        raise ArgumentTypeError(expected(operation, what, got)) from None


def define_scalar(
    value: PythonNumber | DataType | None = None, dtype: DataType | None = None
) -> Scalar:
    """A scalar of the active fusion: symbolic `(dtype=Double)`, or the constant `value`.

    A constant's dtype is that of the Python number unless it is given.
    """
    graph = fusion_to_define("define_scalar").graph
    for given in (dtype, value):
        if given is dtype is not None or isinstance(given, torch.dtype):
            require_dtype("define_scalar", given)
    if isinstance(value, DataType):
        return graph.new_scalar(value)
    if value is None:
        return graph.new_scalar(DataType.Double if dtype is None else dtype)
    try:
        inferred = of_python_value(value)
    except TypeError:
        raise TypeError(expected("define_scalar", "a Python number", repr(value))) from None
    return constant(graph, value if dtype is None else _as_kind(value, dtype), dtype or inferred)


def _as_kind(value: PythonNumber, dtype: DataType) -> PythonNumber:
    """The number as one of the dtype's kind: an integer of 2.5 is 2."""
    if dtype in COMPLEX:
        return complex(value)
    if not isinstance(value, complex):
        if dtype is DataType.Bool:
            return bool(value)
        if dtype in FLOATING:
            return float(value)
        if math.isfinite(value):
            return int(value)
    raise DefinitionError(expected("define_scalar", f"a number that {dtype} has", value))
