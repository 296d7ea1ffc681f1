"""Misuse of the interface: each error names the operation, what was expected and what came."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pyfuser import (
    ArgumentTypeError,
    DataType,
    DefinitionError,
    FusionDefinition,
    FusionGuard,
    InputError,
    LruFusionCache,
    ScheduleError,
    TensorView,
    idm,
)

Define = Callable[[FusionDefinition], object]


def matrix(fd: FusionDefinition, rank: int = 2) -> TensorView:
    return fd.define_tensor([-1] * rank, contiguity=True)


def scattered(fd: FusionDefinition) -> TensorView:
    index = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Int)
    return fd.ops.scatter(matrix(fd), index, matrix(fd), 0, "add")


MISUSE: list[tuple[Define, type[Exception], str]] = [
    (lambda fd: fd.define_tensor(), ArgumentTypeError, "got missing a required argument: 'shape'"),
    (lambda fd: fd.define_tensor([-1], order=1), ArgumentTypeError, "got an unexpected keyword"),
    (lambda fd: fd.define_tensor(3), ArgumentTypeError, "expected a list of sizes, got 3"),
    (lambda fd: fd.define_tensor([-1], None), ArgumentTypeError, "True, False or None for each"),
    (lambda fd: fd.ops.reshape(matrix(fd), 24), ArgumentTypeError, "a list of sizes, got 24"),
    (lambda fd: fd.ops.squeeze(matrix(fd), 0), ArgumentTypeError, "a list of dimensions, got 0"),
    (lambda fd: fd.ops.cat(matrix(fd), 0), ArgumentTypeError, "a list of tensors, got T0_g_float"),
    (lambda fd: fd.ops.sum(matrix(fd), 1.5), ArgumentTypeError, "of dimensions, got 1.5; the arg"),
    (lambda fd: fd.ops.pad(matrix(fd), 1), ArgumentTypeError, "integers or scalars, got 1"),
    (lambda fd: fd.ops.size(matrix(fd), 1.5), ArgumentTypeError, "size(): incompatible function"),
    (lambda fd: fd.ops.full(3, 1.0, DataType.Float), ArgumentTypeError, "a list of sizes, got 3"),
    (lambda fd: fd.ops.full([3], 300, DataType.UInt8), DefinitionError, "of uint8_t, got 300"),
    (lambda fd: fd.ops.full([3], -129, DataType.Int8), DefinitionError, "of int8_t, got -129"),
    (lambda fd: fd.ops.cumsum(matrix(fd), 0, "a"), DefinitionError, "cumsum: add: expected a ten"),
    (lambda fd: fd.ops.var(matrix(fd), [1], "a"), DefinitionError, "var: sub: expected a tensor"),
    (lambda fd: fd.ops.topk(fd.define_tensor([3]), 4), DefinitionError, "a k of at most 3, got 4"),
    (lambda fd: fd.ops.sin(), ArgumentTypeError, "sin: expected operands ('x',), got 0"),
    (lambda fd: fd.ops.sin(y=matrix(fd)), ArgumentTypeError, "operands ('x',), got ['y']"),
    (lambda fd: fd.ops.add(matrix(fd), None), ArgumentTypeError, "or a Python number, got None"),
    (lambda fd: fd.ops.sum(matrix(fd), "a"), ArgumentTypeError, "expected dimensions, got 'a'"),
    (lambda fd: fd.ops.cast(matrix(fd), torch.int8), ArgumentTypeError, "mean DataType.Int8?"),
    (lambda fd: fd.ops.iota(5.5), ArgumentTypeError, "iota: expected a whole number, got 5.5"),
    (lambda fd: fd.ops.pad(matrix(fd), [0.5, 1]), ArgumentTypeError, "a whole number, got 0.5"),
    (
        lambda fd: fd.ops.embedding_fwd(fd.define_tensor([-1], dtype=DataType.Int), matrix(fd, 3)),
        DefinitionError,
        "embedding_fwd: expected a weight of rank 2, got rank 3",
    ),
    (scattered, DefinitionError, "scatter: expected one of set, sum, prod, max, min, got 'add'"),
    (lambda fd: fd.define_scalar(2**40, DataType.Int32), DefinitionError, "an integer of int, got"),
    (lambda fd: fd.ops.cat([matrix(fd, 0)], 0), DefinitionError, "got one of rank 0"),
    (lambda fd: fd.add_output(fd.define_scalar(3)), DefinitionError, "expected a tensor, got 3"),
    (lambda fd: fd.define_scalar(1j, DataType.Double), DefinitionError, "DataType.Double has"),
    (lambda fd: fd.define_scalar(math.nan, DataType.Int), DefinitionError, "Int has, got nan"),
    (lambda fd: fd.ops.neg(matrix(fd)).reorder([1, 0]), ScheduleError, "{old: new}, got [1, 0]"),
    (lambda fd: fd.ops.neg(matrix(fd)).split(0, 0), ScheduleError, "a factor of at least 1, got 0"),
    (lambda fd: idm.IdModel(fd), DefinitionError, "pass its `fusion`"),
    (
        lambda fd: idm.IdModel(fd.fusion).maybe_build_graph("exact"),  # type: ignore[arg-type]
        *(DefinitionError, "an IdMappingMode, got 'exact'"),
    ),
    (lambda fd: FusionGuard(1), DefinitionError, "FusionGuard: expected a Fusion, got 1"),
    (lambda fd: LruFusionCache(matrix), DefinitionError, "decorate with @LruFusionCache()"),
    (lambda fd: LruFusionCache()(lambda: 3)(), DefinitionError, "a FusionDefinition from <lambda>"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("define", "kind", "text"), MISUSE)
def test_errors_of_definitions(define: Define, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)), FusionDefinition() as fd:
        define(fd)


def test_a_copy_of_what_is_only_read_elsewhere() -> None:
    with FusionDefinition() as fd:
        x = matrix(fd)
        fd.add_output(fd.ops.slice(x, [0, 0], [2, 2]))
    with pytest.raises(ScheduleError, match="got only reads at other positions"):
        x.cache_after()


def test_library_operations_have_no_schedule_by_hand() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.matmul(matrix(fd), matrix(fd)))
    with pytest.raises(ScheduleError, match="KernelExecutor does not support the Fusion provided."):
        fd.manual_execute([torch.ones(2, 3), torch.ones(3, 2)])


def selected(fd: FusionDefinition) -> None:
    index = fd.define_scalar(dtype=DataType.Int)
    fd.add_output(fd.ops.neg(fd.ops.select(matrix(fd), index, 1)))


def padded(fd: FusionDefinition) -> None:
    width = fd.define_scalar(dtype=DataType.Int)
    fd.add_output(fd.ops.pad(matrix(fd), [width, 0]))


def divided(fd: FusionDefinition) -> None:
    divisor = fd.define_scalar(dtype=DataType.Int)
    fd.add_output(fd.ops.mul(matrix(fd), fd.ops.div(5, divisor)))


@pytest.mark.parametrize(
    ("define", "number", "kind", "text"),
    [
        (selected, 4, InputError, "to be at most i1, got 5 > 4"),
        (selected, -1, InputError, "(or an index, or the width of a pad), got -1"),
        (padded, -2, InputError, "(or an index, or the width of a pad), got -2"),
        (divided, 0, RuntimeError, "ZeroDivisionError (div: expected a divisor other than 0"),
    ],
)
def test_numbers_of_a_call(define: Define, number: int, kind: type[Exception], text: str) -> None:
    with FusionDefinition() as fd:
        define(fd)
    x = torch.arange(12.0).view(3, 4)
    fd.execute([1, x])
    with pytest.raises(kind, match=re.escape(text)):
        fd.execute([number, x])


def test_errors_of_sizes_name_the_operation_and_the_inputs() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.matmul(matrix(fd), matrix(fd)))
    text = r"^matmul: .* got i1 = 3 and i2 = 4; i1 is dimension 1 of input 0, i2 is dimension 0 of "
    with pytest.raises(InputError, match=text):
        fd.execute([torch.ones(2, 3), torch.ones(4, 5)])


def test_an_index_is_not_longer_than_what_it_gathers_from() -> None:
    with FusionDefinition() as fd:
        x, index = matrix(fd), fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.gather(x, index, 0))
    x = torch.arange(6.0).view(2, 3)
    for length in (0, 2, 3):
        rows = torch.ones(4, length, dtype=torch.int64)
        assert torch.equal(fd.execute([x, rows])[0], x.gather(0, rows))
    with pytest.raises(InputError, match="gather: expected i3 to be at most i1, got 5 > 3"):
        fd.execute([x, torch.zeros(2, 5, dtype=torch.int64)])


@pytest.mark.parametrize(
    ("dtype", "right", "wrong"),
    [
        (DataType.Int32, (5, -(2**31), np.int16(3)), (2**31, -(2**40))),
        (DataType.UInt64, (5, 2**63, 2**64 - 1), (-1, 2**64)),
        (DataType.Int, (-(2**63), np.int64(7), True), (2**63, np.float64(2.0))),
    ],
)
def test_scalars_of_a_call_fit_their_dtype(
    dtype: DataType, right: tuple[int, ...], wrong: tuple[int, ...]
) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Double)
        fd.add_output(fd.ops.mul(x, fd.define_scalar(dtype=dtype)))
    ones = torch.ones(3, dtype=torch.float64)
    for number in right:
        assert fd.execute([ones, number])[0].tolist() == [float(number)] * 3
    for number in wrong:
        with pytest.raises(InputError, match="is not compatible with the expected data type"):
            fd.execute([ones, number])


def test_definitions_with_other_memory_orders_are_not_equal() -> None:
    def defined(is_transposed: bool) -> FusionDefinition:
        with FusionDefinition() as fd:
            y = fd.ops.add(matrix(fd), 1.0)
            if is_transposed:
                y.set_allocation_domain([y.axis(1), y.axis(0)], True)
            fd.add_output(y)
        return fd

    cached = LruFusionCache()(defined)
    strides = [cached(flag).execute([torch.ones(3, 4)])[0].stride() for flag in (True, False, True)]
    assert strides == [(1, 3), (4, 1), (1, 3)]
    assert defined(True).fusion == defined(True).fusion


def test_an_input_is_updated_by_an_output_of_its_size() -> None:
    with FusionDefinition() as fd:
        x, updated = matrix(fd), matrix(fd)
        fd.add_output(fd.ops.add(x, 1.0), updated)
    kept = torch.zeros(4, 4)
    with pytest.raises(InputError, match="got i2 = 4 and i0 = 1"):
        fd.execute([torch.ones(1, 4), kept])
    assert not kept.any()
    fd.execute([torch.ones(4, 4), kept])
    assert kept.eq(2).all()


@pytest.mark.parametrize(
    ("value", "dtype", "added"),
    [
        (2.0, DataType.Int, 2),
        (3.5, DataType.Int, 3),
        (1.5, DataType.Bool, 1),
        (2, DataType.Double, 2),
    ],
)
@pytest.mark.parametrize("tensor_dtype", [DataType.Int, DataType.Float])
def test_a_constant_has_the_dtype_that_it_is_given(
    value: float, dtype: DataType, added: int, tensor_dtype: DataType
) -> None:
    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1], contiguity=True, dtype=tensor_dtype)
        fd.add_output(fd.ops.add(x, fd.define_scalar(value, dtype)))

    x = torch.arange(3).to(torch.int64 if tensor_dtype is DataType.Int else torch.float32)
    with FusionDefinition() as fd:
        define(fd)
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)  # type: ignore[operator]
    (out,), (repeated,) = fd.execute([x]), again.execute([x])
    assert out.tolist() == [added, added + 1, added + 2] and out.dtype is repeated.dtype
    assert out.is_floating_point() == (x.is_floating_point() or dtype is DataType.Double)


def test_numbers_of_numpy_and_constant_factors() -> None:
    with FusionDefinition() as fd:
        x = matrix(fd)
        wide = fd.ops.reshape(fd.ops.mul(x, np.float32(2.5)), [np.int64(2), -1])
        fd.add_output(wide)
        wide.split(1, fd.define_scalar(4))
    (out,) = fd.execute([torch.ones(4, 3)])
    assert out.shape == (2, 6) and out.eq(2.5).all()


def test_values_print_as_in_definitions() -> None:
    with FusionDefinition() as fd:
        x = matrix(fd)
        y = fd.ops.neg(x)
    assert repr(x.shape()) == "[i0, i1]" and repr(fd.fusion.inputs()) == f"[{x}]"
    assert repr(x.uses()) == f"[{y.definition()}]" and "neg(T0_g_float" in repr(y.definition())


def test_a_sum_of_a_tensor_of_rank_0_is_a_copy() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(matrix(fd, 0), [-1]))
    assert fd.execute([torch.tensor(3.0)])[0].item() == 3


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16])
def test_the_log_sum_of_attention_in_half_precision_is_valid(dtype: DataType) -> None:
    with FusionDefinition() as fd:
        operands = [fd.define_tensor([-1] * 4, contiguity=True, dtype=dtype) for _ in range(3)]
        for output in fd.ops.sdpfa_fwd(*operands)[:2]:
            fd.add_output(output)
    torch.manual_seed(0)
    kind = torch.float16 if dtype is DataType.Half else torch.bfloat16
    fd.validate([torch.randn(2, 3, 16, 8).to(kind) for _ in range(3)])


def test_options_are_a_list() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(matrix(fd)))
    with pytest.raises(ArgumentTypeError, match="a list of options, got 'fast_math'"):
        fd.execute([torch.randn(2, 3)], _enable_options="fast_math")


def test_numpy_integers_are_sizes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([np.int64(2), np.int32(-1)])
        fd.add_output(fd.ops.neg(x))
    given = torch.randn(2, 3)
    assert torch.equal(fd.execute([given])[0], -given)
