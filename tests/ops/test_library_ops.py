"""Products are equal to torch's in every dtype, layout and shape, and one call each.

Definitions run with symbolic and with static sizes.  What surrounds an operation is in kernels: the
plans are read.  test_library_orders.py, test_attention.py and test_composites.py have the others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, KernelExecutor
from pyfuser.dtypes import to_torch
from pyfuser.errors import DefinitionError, InputError, ScheduleError
from pyfuser.ir.exprs import LibraryOp
from pyfuser.ir.keys import definition_key
from pyfuser.ops.library_ops import LIBRARY_OPS
from tests.ops.library_definitions import (
    FLOATS,
    INTEGERS,
    LAYOUTS,
    check,
    defined,
    numbers,
)
from tests.support.random_tensors import laid_out

pytestmark = pytest.mark.usefixtures("poison")


# -- products

PRODUCTS = [
    ((3,), (3,)), ((3,), (3, 4)), ((5, 3), (3,)), ((5, 3), (3, 4)), ((2, 5, 3), (3,)),
    ((2, 5, 3), (3, 4)), ((3,), (2, 3, 4)), ((5, 3), (2, 3, 4)), ((2, 5, 3), (2, 3, 4)),
    ((1, 5, 3), (2, 3, 4)), ((2, 1, 5, 3), (4, 3, 6)), ((2, 4, 5, 3), (2, 4, 3, 6)),
    ((2, 4, 5, 3), (3, 6)), ((1, 1), (1, 1)), ((5, 1), (1, 4)), ((0, 3), (3, 4)),
    ((5, 0), (0, 4)), ((5, 3), (3, 0)), ((2, 0, 3), (3, 4)), ((0, 5, 3), (0, 3, 4)), ((0,), (0,)),
]  # fmt: skip


def matmul(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.matmul(a, b)


@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_matmul_has_torchs_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    source = check(matmul, torch.matmul, numbers(left), numbers(right, seed=1))
    assert "run(" not in source


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64], ids=str)
@pytest.mark.parametrize("shapes", [((5, 3), (3, 4)), ((2, 5, 3), (2, 3, 4))])
def test_matmul_keeps_the_dtype(dtype: torch.dtype, shapes: Any) -> None:
    a, b = (numbers(shape, dtype, seed) for seed, shape in enumerate(shapes))
    check(matmul, torch.matmul, a, b)


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_matmul_takes_every_layout(left: str, right: str) -> None:
    for shapes in (((5, 3), (3, 4)), ((2, 5, 3), (2, 3, 4))):
        a, b = (numbers(shape, seed=seed) for seed, shape in enumerate(shapes))
        check(matmul, torch.matmul, laid_out(a, left), laid_out(b, right))


def test_a_transposed_operand_is_passed_by_its_strides() -> None:
    def define(fd: Any, a: Any, b: Any) -> Any:
        return fd.ops.matmul(fd.ops.permute(a, [1, 0]), fd.ops.permute(fd.ops.sin(b), [1, 0]))

    a, b = numbers((3, 5)), numbers((4, 3), seed=1)
    source = check(define, lambda a, b: a.t() @ b.sin().t(), a, b, exact=False)
    assert source.count("into_mm(") == 1
    assert source.count("launch") == 1
    assert source.count(".permute((1, 0))") == 2
    assert "copy_" not in source and "reshape" not in source


def test_kernels_write_operands_and_read_results() -> None:
    """One product, one kernel before it and one after it; nothing is copied."""

    def define(fd: Any, x: Any, w: Any, b: Any) -> Any:
        product = fd.ops.matmul(fd.ops.mul(fd.ops.sin(x), 2.0), w)
        biased = fd.ops.add(product, fd.ops.broadcast(b, [True, False]))
        return fd.ops.mul(fd.ops.sigmoid(biased), biased)

    def eager(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu((x.sin() * 2) @ w + b)

    inputs = [torch.randn(64, 48), torch.randn(48, 80), torch.randn(80)]
    source = check(define, eager, *inputs, exact=False)
    assert source.count("into_mm(") == 1
    assert source.count("launch") == 2
    assert all(text not in source for text in ("copy_", "with_strides", "run("))


def test_a_chain_of_products_and_normalizations() -> None:
    def define(fd: Any, x: Any, w: Any, v: Any) -> Any:
        out = fd.ops.add(fd.ops.linear(fd.ops.silu(fd.ops.linear(x, w)), v), x)
        variance, mean = fd.ops.var_mean(out, [1], 0, True)
        scaled = fd.ops.mul(fd.ops.sub(out, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
        return fd.ops.matmul(scaled, fd.ops.permute(scaled, [1, 0]))

    def eager(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        functional = torch.nn.functional
        out = functional.linear(functional.silu(functional.linear(x, w)), v) + x
        scaled = functional.layer_norm(out, (32,))
        return scaled @ scaled.t()

    inputs = [torch.randn(16, 32), torch.randn(64, 32), torch.randn(32, 64)]
    source = check(define, eager, *inputs, exact=False)
    assert source.count("into_mm(") == 3
    assert source.count("launch") == 2


def test_half_precision_crosses_a_product_in_half_precision() -> None:
    def define(fd: Any, x: Any, w: Any) -> Any:
        product = fd.ops.matmul(fd.ops.cast(fd.ops.mul(x, 2.7), DataType.BFloat16), w)
        return product, fd.ops.exp(product)

    x, w = numbers((32, 16), torch.bfloat16), numbers((16, 8), torch.bfloat16, 1)
    fd = defined(define, [x, w])
    product, above = fd.execute([x, w])
    assert product.dtype is torch.bfloat16 and above.dtype is torch.float32
    want = (x.float() * 2.7).bfloat16() @ w
    torch.testing.assert_close(product, want)
    torch.testing.assert_close(above, want.float().exp())


def test_an_operand_of_several_products_is_computed_once() -> None:
    """A cast that would be free for kernels, and an iota."""

    def define(fd: Any, x: Any, w: Any, v: Any) -> Any:
        wide = fd.ops.cast(x, DataType.Float)
        steps = fd.ops.broadcast(
            fd.ops.iota(fd.ops.size(x, 0), 0, 1, DataType.Float), [True, False]
        )
        return fd.ops.matmul(wide, w), fd.ops.matmul(steps, wide), fd.ops.matmul(steps, v)

    def eager(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
        steps = torch.arange(len(x)).float()[None]
        return x.float() @ w, steps @ x.float(), steps @ v

    inputs = numbers((6, 5), torch.bfloat16), numbers((5, 4), seed=1), numbers((6, 3), seed=2)
    source = check(define, eager, *inputs)
    assert source.count("launch") == 2 and source.count("into_mm(") == 3
    assert "run(" not in source and "to_copy" not in source


def test_the_expanded_operand_is_not_written_out() -> None:
    def define(fd: Any, x: Any, w: Any) -> Any:
        wide = fd.ops.expand(fd.ops.broadcast(fd.ops.sin(x), [True, False, False]), [6, -1, -1])
        return fd.ops.matmul(wide, w)

    x, w = numbers((5, 3)), numbers((6, 3, 4), seed=1)
    source = check(define, lambda x, w: x.sin().expand(6, 5, 3) @ w, x, w, exact=False)
    assert "empty((6, 5, 3)" not in source and source.count("launch") == 1


LINEAR = [
    ((5, 3), (4, 3), True), ((5, 3), (4, 3), False), ((3,), (4, 3), True), ((3,), (4, 3), False),
    ((2, 5, 3), (4, 3), True), ((2, 6, 5, 3), (4, 3), False), ((5, 3), (3,), False),
    ((3,), (3,), False), ((1, 1), (1, 1), True), ((0, 3), (4, 3), True), ((5, 0), (4, 0), True),
    ((2, 0, 3), (4, 3), True), ((2, 5, 3), (0, 3), True), ((2, 0, 0), (4, 0), False),
]  # fmt: skip


def linear(fd: Any, *operands: Any) -> Any:
    return fd.ops.linear(*operands)


@pytest.mark.parametrize(("shape", "weight", "has_bias"), LINEAR)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_linear(shape: Any, weight: Any, has_bias: bool, dtype: torch.dtype) -> None:
    inputs = [numbers(shape, dtype), numbers(weight, dtype, 1)]
    inputs += [numbers(weight[:1], dtype, 2)] if has_bias else []
    source = check(linear, torch.nn.functional.linear, *inputs)
    assert "run(" not in source


@pytest.mark.parametrize("layout", LAYOUTS)
def test_linear_takes_every_layout_in_one_product(layout: str) -> None:
    x, w, b = numbers((2, 5, 3)), numbers((4, 3), seed=1), numbers((4,), seed=2)
    inputs = [laid_out(x, layout), laid_out(w, layout), laid_out(b, layout)]
    source = check(linear, torch.nn.functional.linear, *inputs)
    assert source.count("into_addmm(") == 1


def test_wrong_products_are_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3])
        half = fd.define_tensor([-1, 3], dtype=DataType.Half)
        number = fd.define_tensor([], dtype=DataType.Float)
        mask = fd.define_tensor([-1, 3], dtype=DataType.Bool)
        for message, call in {
            "matmul: expected operands of one dtype": lambda: fd.ops.matmul(x, half),
            "matmul: expected operands of at least one dim": lambda: fd.ops.matmul(x, number),
            "matmul: expected numbers": lambda: fd.ops.matmul(mask, mask),
            "matmul: expected a tensor": lambda: fd.ops.matmul(x, 2.0),
            "matmul: expected axes of one size": lambda: fd.ops.matmul(x, fd.define_tensor([4, 5])),
            r"linear: expected a bias \[n\]": lambda: fd.ops.linear(x, x, x),
            "linear: expected a weight of rank 1 or 2": lambda: fd.ops.linear(
                x, fd.define_tensor([2, 2, 3])
            ),
        }.items():
            with pytest.raises(DefinitionError, match=message):
                call()


def test_sizes_that_differ_are_refused_by_the_call() -> None:
    fd = defined(matmul, [numbers((5, 3)), numbers((3, 4))])
    with pytest.raises(InputError, match="to be equal"):
        fd.execute([numbers((5, 3)), numbers((2, 4))])


def test_views_of_a_result_share_memory_with_no_other_output() -> None:
    """The only view of a product is no copy; a second output gets its own memory."""

    def two(fd: Any, a: Any, b: Any) -> Any:
        product = fd.ops.matmul(a, b)
        return product, fd.ops.permute(product, [1, 0])

    def three(fd: Any, a: Any, b: Any) -> Any:
        product = fd.ops.matmul(a, b)
        return fd.ops.permute(product, [1, 0]), fd.ops.reshape(product, [-1])

    a, b = numbers((5, 3)), numbers((3, 4), seed=1)
    alone = defined(lambda fd, a, b: two(fd, a, b)[1], [a, b])
    torch.testing.assert_close(alone.execute([a, b])[0], (a @ b).t())
    assert "copy_" not in alone.fec.engine.executor.plans[0].source
    for define in (two, three):
        first, second = defined(define, [a, b]).execute([a, b])
        before = second.clone()
        first.zero_()
        assert torch.equal(second, before)


def test_a_hand_written_schedule_has_no_product() -> None:
    x = numbers((4, 4))
    fd = defined(matmul, [x, x])
    with pytest.raises(ScheduleError, match="KernelExecutor does not support the Fusion provided"):
        KernelExecutor().compile(fd.fusion, [x, x])


# -- the table


def test_every_row_is_an_operation_of_the_interface() -> None:
    with FusionDefinition() as fd:
        assert set(LIBRARY_OPS) <= set(dir(fd.ops))


def test_the_text_of_a_definition_rebuilds_it() -> None:
    def define(fd: Any, x: Any, at: Any, k: Any) -> Any:
        ops = fd.ops
        heads = ops.broadcast(x, [True, True, False, False])
        output, sums, seed, offset = ops.sdpfa_fwd(heads, heads, heads, scale=0.5)
        product = ops.linear(ops.triu(x, k), x, ops.cumsum(ops.sum(x, [1]), 0))
        return (
            *ops.topk(x, k, 0, False), ops.argsort(x, 1), ops.cummax(x, 1), sums, offset, product,
            ops.matmul(x, ops.permute(x, [1, 0])), ops.scatter(x, at, 1.0, 1),
            output,
            *ops.sdpfa_bwd(
                output, heads, heads, heads, output, sums, 0.0, False, seed, offset
            ),
            ops.embedding_fwd(at, x, max_norm=1.0),
        )  # fmt: skip

    inputs = [numbers((4, 4)), torch.zeros(4, 2, dtype=torch.int64), 2]
    fd = defined(define, inputs)
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(str(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert definition_key(again.fusion.definition) == definition_key(fd.fusion.definition)
    for got, want in zip(again.execute(inputs), fd.execute(inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_a_definition_prints_its_arguments() -> None:
    fd = defined(lambda fd, x, k: fd.ops.topk(x, k, 0, False, True), [numbers((4,)), 2])
    assert "topk(tv0, k=c0, dim=0, largest=False, sorted=True)" in str(fd)
    (expr,) = [e for e in fd.fusion.definition.exprs if isinstance(e, LibraryOp)]
    assert str(expr).endswith("largest=False, sorted=True)")
    assert to_torch(expr.outputs[1].dtype) is torch.int64


@pytest.mark.parametrize("offsets", [[-2, 7], [5, 3], [5, 30]])
def test_offsets_of_groups_rise_to_the_number_of_rows(offsets: list[int]) -> None:
    with FusionDefinition() as fd:
        rows = fd.define_tensor([-1, -1], contiguity=True)
        matrices = fd.define_tensor([-1, -1, -1], contiguity=True)
        ends = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int32)
        fd.add_output(fd.ops.grouped_mm(rows, matrices, ends))
    given = [torch.randn(7, 4), torch.randn(2, 4, 5), torch.tensor(offsets, dtype=torch.int32)]
    with pytest.raises(InputError, match="grouped_mm: expected offsets that rise from 0 to at mos"):
        fd.execute(given)
