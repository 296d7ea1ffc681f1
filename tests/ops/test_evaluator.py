"""The eager evaluator and binding: values against torch, layouts, aliases, and input errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pyfuser.dtypes import DataType, to_torch
from pyfuser.errors import InputError
from pyfuser.ir.domains import TensorDomain
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.vals import TensorView
from pyfuser.ops import builders
from pyfuser.ops.binding import bind, bind_extents, convert_number
from pyfuser.ops.evaluator import evaluate
from tests.ops.test_builders import tensor

DTYPES = [
    DataType.Double,
    DataType.Float,
    DataType.Half,
    DataType.BFloat16,
    DataType.Int,
    DataType.Int32,
    DataType.UInt8,
    DataType.Bool,
]


def sample(shape: Sequence[int], dtype: DataType) -> torch.Tensor:
    return torch.testing.make_tensor(
        tuple(shape), dtype=to_torch(dtype), device="cpu", low=1, high=9
    )


def run(
    build: Callable[[Fusion, TensorView], Any],
    x: torch.Tensor,
    shape: Sequence[int],
    **options: Any,
) -> torch.Tensor:
    """build(fusion, tensor) evaluated for one input."""
    fusion = Fusion()
    dtypes = {to_torch(d): d for d in DTYPES}
    fusion.add_output(build(fusion, tensor(fusion, shape, dtypes[x.dtype])))
    (output,) = evaluate(fusion, [x], **options)
    return output


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["add", "mul", "div", "pow", "maximum", "eq", "lt"])
def test_binary_ops_promote_and_broadcast_like_torch(op: str, dtype: DataType) -> None:
    torch.manual_seed(0)
    functions = {"maximum": torch.maximum, "div": torch.div, "pow": torch.pow}
    fusion = Fusion()
    a, b = tensor(fusion, [-1, 1, -1], dtype), tensor(fusion, [-1, -1])
    fusion.add_output(builders.pointwise(fusion, op, a, b))
    x, y = sample([2, 1, 3], dtype), sample([4, 3], DataType.Float)
    (result,) = evaluate(fusion, [x, y])
    wide = to_torch(dtype) if dtype is DataType.Double else torch.float32
    reference = functions.get(op, getattr(torch, op))(x.to(wide), y.to(wide))
    assert result.dtype is reference.dtype
    assert torch.equal(result, reference)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [[0], [1], [0, 2], [0, 1, 2], [-1]])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_reductions(op: str, keepdim: bool, dims: list[int], dtype: DataType) -> None:
    torch.manual_seed(0)
    x = sample([2, 3, 2], dtype)
    result = run(lambda f, t: builders.reduce(f, op, t, dims, keepdim), x, [-1, -1, -1])
    if op in ("max", "min"):
        reference = getattr(torch, f"a{op}")(x, dims, keepdim)
    else:
        is_whole = not x.is_floating_point()
        reference = x.to(torch.int64) if is_whole else x.double()
        for dim in sorted((d % 3 for d in dims), reverse=True):
            reference = getattr(torch, op)(reference, dim, keepdim)
        reference = reference if is_whole else reference.to(x.dtype)
    assert result.dtype is reference.dtype
    torch.testing.assert_close(result, reference)


@pytest.mark.parametrize("correction", [0, 1, 2.5, 6])
@pytest.mark.parametrize("shape", [[-1, -1], [-1, 6], [4, 6]])
def test_variance(shape: list[int], correction: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    result = run(lambda f, t: builders.var(f, t, [1], correction, True), x, shape)
    deviations = ((x - x.mean(1, keepdim=True)) ** 2).sum(1, keepdim=True)
    reference = deviations / max(6 - correction, 0)
    torch.testing.assert_close(result, reference)


def test_welford_gives_mean_squares_and_count() -> None:
    torch.manual_seed(0)
    fusion = Fusion()
    x = tensor(fusion, [-1, -1])
    for output in builders.welford(fusion, x, [0]):
        fusion.add_output(output)
    given = torch.randn(5, 3)
    mean, squares, count = evaluate(fusion, [given])
    torch.testing.assert_close(mean, given.mean(0))
    torch.testing.assert_close(squares, given.var(0, correction=0) * 5)
    assert count.tolist() == [5, 5, 5] and count.dtype is torch.int64


def test_reductions_over_broadcast_axes() -> None:
    x = torch.tensor([[2.0, 3.0]])
    shape = [1, -1]

    def expanded(f: Fusion, t: TensorView) -> TensorView:
        return builders.expand(f, t, [4, -1])

    assert run(lambda f, t: builders.sum(f, t, [0]), x, shape).tolist() == [2, 3]
    assert run(lambda f, t: builders.sum(f, expanded(f, t), [0]), x, shape).tolist() == [8, 12]
    assert run(lambda f, t: builders.prod(f, expanded(f, t), [0]), x, shape).tolist() == [16, 81]
    assert run(lambda f, t: builders.max(f, expanded(f, t), [0, 1]), x, shape).item() == 3
    wide = x.expand(4, 2)
    variance = run(lambda f, t: builders.var(f, expanded(f, t), [0, 1]), x, shape)
    torch.testing.assert_close(variance, wide.var())
    alone = run(lambda f, t: builders.var(f, t, [0], 0), x, shape)
    assert alone.tolist() == [0, 0]


def test_empty_reductions_give_the_identity() -> None:
    x = torch.empty(0, 3)
    assert run(lambda f, t: builders.sum(f, t, [0]), x, [-1, -1]).tolist() == [0, 0, 0]
    assert run(lambda f, t: builders.prod(f, t, [0]), x, [0, 3]).tolist() == [1, 1, 1]
    assert run(lambda f, t: builders.max(f, t, [0]), x, [-1, 3]).tolist() == [-math.inf] * 3


def test_float64_override_and_kept_rounding() -> None:
    x = torch.tensor([1 / 3], dtype=torch.float32)

    def build(f: Fusion, t: TensorView) -> object:
        half = builders.cast(f, builders.mul(f, t, 1.1), DataType.Half)
        return builders.mul(f, half, 2.0)

    exact = run(build, x, [-1], dtype_override=torch.float64)
    rounded = run(build, x, [-1], dtype_override=torch.float64, keep_rounding=True)
    product = x.double() * torch.tensor(1.1, dtype=torch.float32).double()
    assert exact.dtype is rounded.dtype is torch.float64
    assert exact.item() == 2 * product.item()
    assert rounded.item() == 2 * product.half().item()


@pytest.mark.parametrize(
    ("build", "reference"),
    [
        (lambda f, t: builders.permute(f, t, [1, 0]), lambda x: x.permute(1, 0)),
        (lambda f, t: builders.reshape(f, t, [3, -1]), lambda x: x.reshape(3, -1)),
        (lambda f, t: builders.reshape(f, t, [-1, 1]), lambda x: x.reshape(-1, 1)),
        (lambda f, t: builders.broadcast(f, t, [False, True, False]), lambda x: x.unsqueeze(1)),
        (lambda f, t: builders.squeeze(f, builders.sum(f, t, [0], True), [0]), lambda x: x.sum(0)),
        (lambda f, t: builders.full(f, builders.shape(f, t), 2, DataType.Half),
         lambda x: torch.full(x.shape, 2, dtype=torch.float16)),
        (lambda f, t: builders.iota(f, builders.size(f, t, 0), 3, 2),
         lambda x: torch.arange(3, 15, 2)),
        (lambda f, t: builders.iota(f, 4, 0.5, 0.25, DataType.Float),
         lambda x: 0.5 + 0.25 * torch.arange(4)),
    ],
)  # fmt: skip
def test_shape_ops(build: Any, reference: Any) -> None:
    x = torch.arange(24.0).reshape(6, 4)
    result, wanted = run(build, x, [-1, 4]), reference(x)
    assert result.dtype is wanted.dtype and result.is_contiguous()
    assert torch.equal(result, wanted)


def test_outputs_have_the_strides_of_the_definition() -> None:
    x = torch.randn(2, 3, 4)
    result = run(lambda f, t: builders.stride_order(f, t, [1, 0, 2]), x, [-1, -1, -1])
    assert torch.equal(result, x) and result.stride() == (3, 1, 6)
    expanded = run(lambda f, t: builders.expand(f, t, [5, -1]), x[0, :1], [1, -1])
    assert expanded.shape == (5, 4) and expanded.is_contiguous()


def test_results_never_share_memory_with_inputs_or_each_other() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1, -1])
    copy = builders.set(fusion, x)
    fusion.add_output(copy)
    fusion.add_output(builders.permute(fusion, copy, [1, 0]))
    given = torch.randn(1, 3)
    results = evaluate(fusion, [given])
    pointers = {t.untyped_storage().data_ptr() for t in (given, *results)}
    assert len(pointers) == 3


def test_aliases_update_the_input_and_hidden_outputs_are_not_returned() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1])
    doubled = builders.mul(fusion, x, 2.0)
    fusion.add_output(doubled, x)
    fusion.add_output(builders.add(fusion, x, 1.0))
    given = torch.tensor([1.0, 2.0])
    (plus_one,) = evaluate(fusion, [given])
    assert plus_one.tolist() == [2, 3] and given.tolist() == [2, 4]
    fusion.add_output(doubled)
    results = evaluate(fusion, [given])
    assert results[1] is given and given.tolist() == [4, 8]


def test_an_input_may_be_an_output() -> None:
    x = torch.randn(3)
    assert run(lambda f, t: t, x, [-1]) is x


def test_conjugate_and_negative_views_are_resolved() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1], DataType.ComplexFloat)
    fusion.add_output(builders.mul(fusion, x, 2.0))
    given = torch.tensor([1 + 2j], dtype=torch.complex64).conj()
    assert evaluate(fusion, [given])[0].tolist() == [2 - 4j]
    imaginary = torch.tensor([3 + 4j], dtype=torch.complex64).conj().imag
    assert imaginary.is_neg()
    assert run(lambda f, t: builders.mul(f, t, 2.0), imaginary, [-1]).tolist() == [-8]


def test_scalars_are_computed_on_the_host() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1, -1])
    factor = fusion.new_scalar(DataType.Double)
    fusion.add_input(factor)
    rows = builders.size(fusion, x, 0)
    mean_factor = builders.truediv(fusion, factor, rows)
    fusion.add_output(builders.mul(fusion, x, mean_factor))
    given = torch.ones(4, 2)
    assert evaluate(fusion, [given, 2.0])[0].tolist() == [[0.5, 0.5]] * 4
    binding = bind(fusion, [given, 2])
    assert [binding.scalar(each) for each in (factor, rows, mean_factor)] == [2.0, 4, 0.5]
    assert bind_extents(fusion, [given, 2.0]) == {"i0": 4, "i1": 2}


def test_sizes_that_scalars_compute() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1])
    columns = fusion.new_scalar(DataType.Int)
    fusion.add_input(columns)
    half = builders.sub(fusion, columns, 1)
    fusion.add_output(builders.reshape(fusion, x, [-1, half]))
    assert evaluate(fusion, [torch.arange(6.0), 4])[0].shape == (2, 3)
    with pytest.raises(InputError, match="to be equal"):
        evaluate(fusion, [torch.arange(6.0), 5])
    with pytest.raises(InputError, match="expected a size of at least 0"):
        evaluate(fusion, [torch.arange(6.0), 0])


def test_strided_input_checks() -> None:
    fusion = Fusion()
    axes = [fusion.ids.new(fusion.new_extent()) for _ in range(2)]
    x = fusion.new_tensor(TensorDomain(axes, [False, True]), DataType.Float)
    fusion.add_input(x)
    bind(fusion, [torch.randn(4, 6)[:, :3]])
    with pytest.raises(InputError, match=r"contiguous in dimension 1 \(of stride 1\)"):
        bind(fusion, [torch.randn(6, 4).t()])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([2, 1.0], "Expected input 0, .*, to be an at::Tensor but got scalar 2"),
        ([torch.zeros(2, 3), torch.zeros(2)],
         "Expected input 1, d0, to be a scalar but got float tensor of rank 1"),
        ([torch.zeros(2, 3).half(), 1.0],
         "Expected input 0, .*, to be bound to a tensor of dtype float, but got a tensor of "
         "dtype __half"),
        ([torch.zeros(2, 3), 2 + 1j],
         r"Scalar value \(2,1\) is not compatible with the expected data type: double."),
        ([torch.zeros(2), 1.0], "to be of rank 2, but got a tensor of rank 1"),
        ([torch.zeros(2, 4), 1.0], "to be of size 3 in dimension 1, but got size 4"),
        ([torch.zeros(2, 3)], "execute: expected 2 inputs, got 1"),
        ([torch.zeros(2, 3, dtype=torch.uint16), 1.0], "but got a tensor of dtype torch.uint16"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_named(inputs: list[Any], message: str) -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1, 3])
    d = fusion.new_scalar(DataType.Double)
    fusion.add_input(d)
    fusion.add_output(builders.mul(fusion, x, d))
    with pytest.raises(InputError, match=message):
        evaluate(fusion, inputs)


def test_sizes_that_must_be_equal_are_checked() -> None:
    fusion = Fusion()
    a, b = tensor(fusion, [-1]), tensor(fusion, [-1])
    fusion.add_output(builders.add(fusion, a, b))
    with pytest.raises(InputError, match="the sizes i0 and i1 to be equal, got i0 = 2 and i1 = 3"):
        evaluate(fusion, [torch.zeros(2), torch.zeros(3)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0, 1, True, -1, 2**31, 0.1, -2.75, 1e39, math.inf, 3 + 4j])
def test_numbers_convert_as_tensors_do(value: Any, dtype: DataType) -> None:
    plain = value.real if isinstance(value, complex) else value
    if isinstance(plain, float) and abs(plain) > 2**31 and not to_torch(dtype).is_floating_point:
        plain = value = 7.9  # a value that doesn't fit is undefined as an integer
    widest = torch.float64 if isinstance(plain, float) else torch.int64
    wanted = torch.tensor(plain, dtype=widest).to(to_torch(dtype)).item()
    converted = convert_number(value, dtype)
    assert converted == wanted and type(converted) is type(wanted)


@pytest.mark.parametrize(("value", "wanted"), [(0j, False), (1j, True), (1 + 0j, True)])
def test_a_complex_number_is_true_unless_it_is_zero(value: complex, wanted: bool) -> None:
    assert convert_number(value, DataType.Bool) is wanted
    fusion = Fusion()
    x = tensor(fusion, [-1], DataType.ComplexFloat)
    fusion.add_output(builders.cast(fusion, x, DataType.Bool))
    assert evaluate(fusion, [torch.tensor([value])])[0].tolist() == [wanted]


def test_numbers_of_uint64_convert() -> None:
    assert convert_number(-1, DataType.UInt64) == 2**64 - 1
    assert convert_number(2**64 - 1, DataType.UInt64) == 2**64 - 1
    assert convert_number(2**64 - 1, DataType.Int) == -1
    assert convert_number(2**64 - 1, DataType.Bool) is True


def test_flips_of_uint64() -> None:
    fusion = Fusion()
    fusion.add_output(builders.flip(fusion, tensor(fusion, [-1], DataType.UInt64), [0]))
    x = torch.tensor([1, 2, 2**63 - 1], dtype=torch.uint64)
    assert evaluate(fusion, [x])[0].tolist() == [2**63 - 1, 2, 1]
