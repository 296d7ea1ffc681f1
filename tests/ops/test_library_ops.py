"""Library operations: equal to torch's in every dtype, layout and shape, and one call each.

Each definition is compared with eager and with the evaluator; it runs twice, with symbolic sizes
and with static ones.  What surrounds an operation is in kernels: the plans are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, KernelExecutor
from pyfuser.dtypes import to_torch
from pyfuser.errors import DefinitionError, InputError, UnsupportedError
from pyfuser.ir.exprs import LibraryOp
from pyfuser.ir.keys import definition_key
from pyfuser.ops.evaluator import evaluate
from pyfuser.ops.library_ops import LIBRARY_OPS
from tests.support.random_fusions import laid_out, random_tensor

Define = Callable[..., Any]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "misaligned")


pytestmark = pytest.mark.usefixtures("poison")


@pytest.fixture(autouse=True)
def _nothing_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")


def defined(define: Define, inputs: list[Any], static: bool = False) -> FusionDefinition:
    """The definition of a function of a definition and the handles of its inputs."""
    with FusionDefinition() as fd:
        handles = [
            fd.define_scalar(dtype=DataType.Int)
            if isinstance(x, int)
            else fd.from_pytorch(x, static_sizes=static)
            for x in inputs
        ]
        outputs = define(fd, *handles)
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            fd.add_output(output)
    return fd


def check(define: Define, eager: Callable[..., Any], *inputs: Any, exact: bool = True) -> str:
    """Compares a definition with eager and with the evaluator; the text of the last plan."""
    wanted = eager(*inputs)
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    rounding = {"rtol": 0.0, "atol": 0.0} if exact else {}
    for static in (False, True):
        fd = defined(define, list(inputs), static)
        outputs = fd.execute(list(inputs))
        evaluated = evaluate(fd.fusion.definition, list(inputs))
        for got, want, reference in zip(outputs, wanted, evaluated, strict=True):
            torch.testing.assert_close(got, want, equal_nan=True, check_stride=False, **rounding)
            torch.testing.assert_close(got, reference, equal_nan=True, **rounding)
            assert got.stride() == reference.stride()
    source: str = fd.fec.engine.executor.plans[0].source
    return source


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Multiples of 1/4 between -2 and 2, whose products have no rounding error."""
    return random_tensor(shape, dtype, seed)


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
        product = fd.ops.matmul(fd.ops.cast(fd.ops.sin(x), DataType.BFloat16), w)
        return product, fd.ops.exp(product)

    x, w = numbers((32, 16), torch.bfloat16), numbers((16, 8), torch.bfloat16, 1)
    fd = defined(define, [x, w])
    product, above = fd.execute([x, w])
    assert product.dtype is torch.bfloat16 and above.dtype is torch.float32
    want = x.float().sin().bfloat16() @ w
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
    with pytest.raises(UnsupportedError, match="schedule: expected expressions that kernels comp"):
        KernelExecutor().compile(fd.fusion, [x, x])


# -- scans and orders

SHAPES = [((7,), 0), ((5, 3), 0), ((5, 3), -1), ((2, 5, 3), 1), ((1,), 0), ((0, 3), 0), ((5, 0), 0)]
SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummin": lambda x, dim: torch.cummin(x, dim)[0],
    "cummax": lambda x, dim: torch.cummax(x, dim)[0],
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_scans(name: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    def define(fd: Any, x: Any) -> Any:
        return getattr(fd.ops, name)(x, dim)

    check(define, lambda x: SCANS[name](x, dim), numbers(shape, dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCANS)
def test_scans_take_every_layout(name: str, layout: str) -> None:
    def define(fd: Any, x: Any) -> Any:
        return getattr(fd.ops, name)(fd.ops.add(x, 1.0), 1), getattr(fd.ops, name)(x, 0)

    def eager(x: torch.Tensor) -> Any:
        return SCANS[name](x + 1, 1), SCANS[name](x, 0)

    check(define, eager, laid_out(numbers((6, 5)), layout))


def test_scans_start_with_an_initial_value() -> None:
    for name, want in {"cumsum": 3.5, "cumprod": 3.0, "cummin": 1.0, "cummax": 2.5}.items():
        x = torch.tensor([1.0, 2.0, 0.5])
        fd = defined(lambda fd, x, name=name: getattr(fd.ops, name)(x, 0, init=2.5), [x])
        got = fd.execute([x])[0]
        first = {"cumsum": 3.5, "cumprod": 2.5, "cummin": 1.0, "cummax": 2.5}[name]
        assert got[0].item() == first, (name, want)
        assert got.dtype is torch.float32
    half = numbers((4,), torch.float16)
    fd = defined(lambda fd, x: fd.ops.cumsum(x, 0, 1.0), [half])
    torch.testing.assert_close(fd.execute([half])[0], half.cumsum(0) + 1)


def test_a_scan_between_kernels() -> None:
    """The exclusive sum of a mask's counts, as mixtures of experts use it."""

    def define(fd: Any, x: Any) -> Any:
        counts = fd.ops.sum(fd.ops.cast(fd.ops.gt(x, 0.0), DataType.Int), [1])
        return fd.ops.sub(fd.ops.cumsum(counts, 0), counts)

    def eager(x: torch.Tensor) -> torch.Tensor:
        counts = (x > 0).sum(1)
        return counts.cumsum(0) - counts

    source = check(define, eager, torch.randn(9, 40))
    assert source.count("launch") == 2 and "call_aten__cumsum_out(" in source


def distinct(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Different numbers in random order."""
    count = int(torch.tensor(shape).prod())
    generator = torch.Generator().manual_seed(count)
    return torch.randperm(count, generator=generator).reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("descending", [False, True])
def test_argsort(dtype: torch.dtype, shape: Any, dim: int, descending: bool) -> None:
    def define(fd: Any, x: Any) -> Any:
        return fd.ops.argsort(x, dim, descending, True)

    def eager(x: torch.Tensor) -> torch.Tensor:
        return torch.argsort(x, dim=dim, descending=descending, stable=True)

    check(define, eager, numbers(shape, dtype))


def test_argsort_of_booleans_and_of_a_number() -> None:
    mask = numbers((9,)) > 0
    check(
        lambda fd, x: fd.ops.argsort(x, 0, stable=True),
        lambda x: torch.argsort(x, stable=True),
        mask,
    )
    check(lambda fd, x: fd.ops.argsort(x, 0), torch.argsort, torch.tensor(2.0))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim", "k"), [((7,), 0, 3), ((5, 3), -1, 3), ((2, 5, 3), 1, 1), ((4, 3), 0, 0)]
)
@pytest.mark.parametrize("largest", [False, True])
def test_topk(dtype: torch.dtype, shape: Any, dim: int, k: int, largest: bool) -> None:
    def define(fd: Any, x: Any) -> Any:
        return fd.ops.topk(x, k, dim, largest, True)

    def eager(x: torch.Tensor) -> Any:
        values, indices = torch.topk(x, k, dim, largest, True)
        return values, indices

    check(define, eager, distinct(shape, dtype))


@pytest.mark.parametrize("layout", LAYOUTS[:3])
def test_topk_with_a_symbolic_k_in_the_middle_of_kernels(layout: str) -> None:
    """The probabilities of the k best experts, normalised."""

    def define(fd: Any, x: Any, k: Any) -> Any:
        values, indices = fd.ops.topk(fd.ops.exp(x), k, 1, True, True)
        shares = fd.ops.div(values, fd.ops.sum(values, [1], True))
        return shares, fd.ops.add(indices, 1)

    def eager(x: torch.Tensor, k: int) -> Any:
        values, indices = torch.topk(x.exp(), k, 1, True, True)
        return values / values.sum(1, keepdim=True), indices + 1

    x = laid_out(distinct((6, 8)) / 16, layout)
    for k in (3, 1, 8):
        check(define, eager, x, k, exact=False)
    fd = defined(define, [x, 3])
    for k in (3, 5):
        assert fd.execute([x, k])[0].shape == (6, k)


def test_results_that_nothing_reads_are_dropped() -> None:
    source = check(
        lambda fd, x: fd.ops.neg(fd.ops.topk(x, 2, 0, True, True)[1]),
        lambda x: -torch.topk(x, 2, 0)[1],
        distinct((9,)),
    )
    assert source.count("call_aten__topk_values(") == 1


def test_wrong_scans_and_orders_are_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3])
        z = fd.define_tensor([-1, 3], dtype=DataType.ComplexFloat)
        mask = fd.define_tensor([-1, 3], dtype=DataType.Bool)
        for message, call in {
            r"cumsum: expected a dimension in \[-2, 1\]": lambda: fd.ops.cumsum(x, 2),
            "cummax: expected real numbers": lambda: fd.ops.cummax(z, 0),
            "argsort: expected real numbers": lambda: fd.ops.argsort(z, 0),
            "topk: expected real numbers": lambda: fd.ops.topk(z, 1),
            "topk: expected numbers": lambda: fd.ops.topk(mask, 1),
            "topk: expected an integer k": lambda: fd.ops.topk(x, 1.5),
            "topk: expected a size of at least 0": lambda: fd.ops.topk(x, -1),
        }.items():
            with pytest.raises(DefinitionError, match=message):
                call()


# -- writes at computed positions

SCATTERS = [
    ((5, 4), (5, 4), (5, 4), 0), ((5, 4), (2, 3), (4, 4), 1), ((5, 4), (7, 4), (7, 4), 0),
    ((6,), (3,), (3,), -1), ((2, 3, 4), (2, 3, 4), (2, 3, 4), 1), ((1, 1), (1, 1), (1, 1), 0),
    ((5, 4), (0, 4), (0, 4), 0), ((0,), (0,), (0,), 0),
]  # fmt: skip


def places(shape: tuple[int, ...], size: int, dim: int) -> torch.Tensor:
    """An index without duplicates along `dim`."""
    order = torch.rand(shape, generator=torch.Generator().manual_seed(7)).argsort(dim)
    return order % max(size, 1)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize(("shape", "index", "source", "dim"), SCATTERS)
def test_scatter(dtype: torch.dtype, shape: Any, index: Any, source: Any, dim: int) -> None:
    x, at = numbers(shape, dtype), places(index, shape[dim], dim)
    at = at.clamp(max=max(shape[dim] - 1, 0))
    if index[dim] > shape[dim]:
        at, source = at[: shape[dim]], tuple(source)
    check(
        lambda fd, x, at, src: fd.ops.scatter(x, at, src, dim),
        lambda x, at, src: x.scatter(dim, at, src),
        x, at, numbers(source, dtype, 1),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=str)
def test_scatter_of_a_number(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    number = dtype is torch.bool or 3
    check(
        lambda fd, x, at: fd.ops.scatter(x, at, number, 1),
        lambda x, at: x.scatter(1, at.long(), number),
        numbers((5, 4), dtype), places((5, 2), 4, 1).to(index_dtype),
    )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scatter_between_kernels(layout: str) -> None:
    """One-hot rows of the best, scaled: the scatter writes into a tensor that nothing fills."""

    def define(fd: Any, x: Any) -> Any:
        values, indices = fd.ops.topk(fd.ops.sigmoid(x), 2, 1, True, True)
        empty = fd.ops.full(fd.ops.shape(x), 0.0, DataType.Float)
        return fd.ops.mul(fd.ops.scatter(empty, indices, fd.ops.neg(values), 1), x)

    def eager(x: torch.Tensor) -> torch.Tensor:
        values, indices = x.sigmoid().topk(2, 1)
        return torch.zeros_like(x).scatter(1, indices, -values) * x

    source = check(define, eager, laid_out(distinct((6, 8)) / 16, layout), exact=False)
    assert source.count("launch") == 3 and "run(" not in source


def test_an_index_out_of_range_raises_torchs_error() -> None:
    x, at = numbers((3, 4)), torch.tensor([[0, 9]])
    fd = defined(lambda fd, x, at: fd.ops.scatter(x, at, 1.0, 1), [x, at])
    with pytest.raises(RuntimeError, match="out of bounds"):
        fd.execute([x, at])


# -- attention


def attention(fd: Any, q: Any, k: Any, v: Any) -> Any:
    return fd.ops.sdpfa_fwd(q, k, v, is_causal=False)[0]


def heads(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(("length", "keys"), [(6, 6), (1, 5), (5, 1), (4, 7), (0, 3), (3, 0)])
def test_attention(
    dtype: torch.dtype, causal: bool, scale: float | None, length: int, keys: int
) -> None:
    """Also its backward, from the results of the forward."""

    def define(fd: Any, q: Any, k: Any, v: Any, g: Any) -> Any:
        made = fd.ops.sdpfa_fwd(q, k, v, None, None, 0.0, causal, scale)
        output, sums, seed, offset = made
        return (
            *made,
            *fd.ops.sdpfa_bwd(g, q, k, v, output, sums, 0.0, causal, seed, offset, scale),
        )

    q, k, v, g = heads(
        (2, 3, length, 8), (2, 3, keys, 8), (2, 3, keys, 8), (2, 3, length, 8), dtype=dtype
    )
    fd = defined(define, [q, k, v, g])
    output, sums, seed, offset, *gradients = fd.execute([q, k, v, g])
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    factor = 8**-0.5 if scale is None else scale
    scores = wide[0] @ wide[1].mT * factor
    if causal:
        scores = scores.masked_fill(~torch.ones(length, keys).tril().bool(), -torch.inf)
    want = scores.softmax(-1) @ wide[2]
    close = {"rtol": 0.05, "atol": 0.05} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-5}
    assert output.dtype is dtype and (seed.shape, offset.shape) == ((2,), ())
    torch.testing.assert_close(output.double(), want, check_stride=False, **close)
    if keys:
        torch.testing.assert_close(sums.double(), scores.logsumexp(-1), **close)
    want.backward(g.double())
    for got, operand in zip(gradients, wide, strict=True):
        assert operand.grad is not None and got.dtype is dtype
        torch.testing.assert_close(got.double(), operand.grad, check_stride=False, **close)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_takes_every_layout_and_gives_torchs(layout: str) -> None:
    q, k, v = (laid_out(x, layout) for x in heads((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8)))
    eager = torch.nn.functional.scaled_dot_product_attention
    check(attention, eager, q, k, v, exact=False)
    if layout != "transposed":  # torch's other attention, with other strides
        got = defined(attention, [q, k, v]).execute([q, k, v])[0]
        assert got.stride() == eager(q, k, v).stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["bias", "mask", "both"])
def test_attention_with_a_bias_or_a_mask(dtype: torch.dtype, kind: str) -> None:
    def define(fd: Any, q: Any, k: Any, bias: Any, mask: Any) -> Any:
        given = {"bias": None if kind == "mask" else bias, "mask": None if kind == "bias" else mask}
        return fd.ops.sdpfa_fwd(q, k, k, **given)[0]

    def eager(q: Any, k: Any, bias: Any, mask: Any) -> torch.Tensor:
        added = torch.zeros_like(bias) if kind == "mask" else bias
        added = added if kind == "bias" else added.masked_fill(~mask, -torch.inf)
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, added.to(q.dtype))

    q, k = heads((2, 3, 4, 8), (2, 3, 5, 8), dtype=dtype)
    bias, mask = torch.randn(2, 1, 4, 5), torch.rand(4, 5) > 0.3
    mask[:, 0] = True
    check(define, eager, q, k, bias, mask, exact=False)


def test_an_attention_block_is_kernels_and_one_call_for_each_product() -> None:
    """Projections, heads by views, attention, and the residual addition in one kernel."""

    def define(fd: Any, x: Any, w: Any, u: Any) -> Any:
        ops = fd.ops
        queries = ops.linear(x, w)
        b, t, _ = ops.shape(x)
        split = ops.permute(ops.reshape(queries, [b, t, 4, 8]), [0, 2, 1, 3])
        output, *_ = ops.sdpfa_fwd(split, split, split, is_causal=True)
        joined = ops.reshape(ops.permute(output, [0, 2, 1, 3]), [b, t, 32])
        return ops.add(ops.linear(joined, u), x)

    def eager(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        split = torch.nn.functional.linear(x, w).unflatten(-1, (4, 8)).transpose(1, 2)
        attend = torch.nn.functional.scaled_dot_product_attention
        output = attend(split, split, split, is_causal=True)
        return torch.nn.functional.linear(output.transpose(1, 2).flatten(-2), u) + x

    inputs = heads((2, 6, 32), (32, 32), (32, 32))
    source = check(define, eager, *inputs, exact=False)
    assert (source.count("into_mm("), source.count("library_sdpfa_fwd(")) == (2, 1)
    assert source.count("launch") == 1 and "copy_" not in source


def test_slices_of_a_projection_are_passed_by_their_strides() -> None:
    """Queries, keys and values from one product: no kernel runs between the two calls."""

    def define(fd: Any, x: Any, w: Any) -> Any:
        joint = fd.ops.linear(x, w)
        b, t, _ = fd.ops.shape(x)
        parts = []
        for first in (0, 32, 64):
            part = fd.ops.slice(joint, [0, 0, first], [b, t, first + 32])
            split = fd.ops.reshape(part, [b, t, 4, 8])
            parts.append(fd.ops.permute(split, [0, 2, 1, 3]))
        return fd.ops.sdpfa_fwd(*parts, is_causal=True)[0]

    def eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        parts = torch.nn.functional.linear(x, w).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)

    source = check(define, eager, *heads((2, 6, 32), (96, 32)), exact=False)
    assert "launch" not in source and "run(" not in source
    assert source.count("into_mm(") == source.count("library_sdpfa_fwd(") == 1


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_sliced_operand_of_a_product(step: int) -> None:
    def define(fd: Any, a: Any, b: Any) -> Any:
        part = fd.ops.slice(a, [1, 0], [9, 4], [step, 2])
        return fd.ops.matmul(part, fd.ops.slice(fd.ops.permute(b, [1, 0]), [0, 0], [2, 3]))

    source = check(
        define,
        lambda a, b: a[1:9:step, 0:4:2] @ b.t()[0:2, 0:3],
        numbers((8, 4)),
        numbers((4, 2), seed=1),
    )
    assert "launch" not in source and "run(" not in source


def test_dropout_in_attention_needs_cuda() -> None:
    q = heads((1, 1, 2, 8))[0]
    fd = defined(lambda fd, q: fd.ops.sdpfa_fwd(q, q, q, dropout_p=0.1)[0], [q])
    with pytest.raises(UnsupportedError, match="sdpfa_fwd: expected dropout_p of 0 on this device"):
        fd.execute([q])


# -- products of groups, and scaled ones


def grouped(fd: Any, a: Any, b: Any, ends: Any) -> Any:
    return fd.ops.grouped_mm(a, b, ends)


GROUPED = [((9, 4), (3, 4, 5)), ((3, 9, 4), (4, 9)), ((9, 9), (9, 5)), ((9, 0), (3, 0, 5))]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
@pytest.mark.parametrize(("left", "right"), GROUPED)
@pytest.mark.parametrize("ends", [[2, 2, 9], [0, 4, 9]])
def test_grouped_mm(dtype: torch.dtype, left: Any, right: Any, ends: list[int]) -> None:
    def eager(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        starts = [0, *ends[:-1]]
        spans = [slice(s, e) for s, e in zip(starts, ends, strict=True)]
        match a.dim(), b.dim():
            case 2, 2:
                return torch.stack([a[:, span] @ b[span] for span in spans])
            case 3, 2:
                return torch.cat([x @ b[:, span] for x, span in zip(a, spans, strict=True)], 1)
            case _:
                return torch.cat([a[span] @ y for y, span in zip(b, spans, strict=True)])

    a, b = numbers(left, dtype), numbers(right, dtype, 1)
    check(grouped, eager, a, b, torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_mm_takes_every_layout_between_kernels(layout: str) -> None:
    def define(fd: Any, a: Any, b: Any, ends: Any) -> Any:
        return fd.ops.relu(fd.ops.grouped_mm(fd.ops.mul(a, 2.0), b, ends))

    def eager(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return (2 * torch.cat([a[:4] @ b[0], a[4:] @ b[1]])).relu()

    a, b = laid_out(numbers((7, 4)), layout), laid_out(numbers((2, 4, 5), seed=1), layout)
    source = check(define, eager, a, b, torch.tensor([4, 7]))
    assert source.count("launch") == 2 and source.count("library_grouped_mm(") == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_scaled_mm(dtype: torch.dtype) -> None:
    def define(fd: Any, a: Any, b: Any, rows: Any, columns: Any, bias: Any) -> Any:
        plain = fd.ops.scaled_mm(a, b, rows, columns)
        more = fd.ops.scaled_mm(a, b, rows, columns, 2.0, bias, 0.5, DataType.Float)
        assert plain[1:] == more[1:] == (None, None)
        return plain[0], more[0]

    def eager(a: Any, b: Any, rows: Any, columns: Any, bias: Any) -> Any:
        product = (a.float() @ b.float()) * rows * columns
        return product.bfloat16(), 2 * product + 0.5 * bias

    a, b = numbers((6, 4), dtype), numbers((4, 5), dtype, 1)
    for rows, columns in (((6, 1), (1, 5)), ((), (1,))):
        scales = torch.rand(rows) + 0.5, torch.rand(columns) + 0.5
        source = check(define, eager, a, b, *scales, numbers((5,)), exact=False)
        assert "run(" not in source


def test_grouped_mm_with_scales() -> None:
    def define(fd: Any, a: Any, b: Any, ends: Any, rows: Any, columns: Any) -> Any:
        made = fd.ops.grouped_mm(a, b, ends, rows, columns, 2.0, dtype=DataType.Float)
        assert made[1:] == (None, None)
        return made[0]

    def eager(a: Any, b: Any, ends: Any, rows: Any, columns: Any) -> torch.Tensor:
        a, b = a.float() * rows, b.float() * columns
        return 2 * torch.cat([a[:4] @ b[0], a[4:] @ b[1]])

    a, b = numbers((7, 4), torch.bfloat16), numbers((2, 4, 5), torch.bfloat16, 1)
    scales = torch.rand(7, 1) + 0.5, torch.rand(2, 1, 5) + 0.5
    source = check(define, eager, a, b, torch.tensor([4, 7]), *scales, exact=False)
    assert source.count("launch") == 3 and source.count("library_grouped_mm(") == 1


def test_what_needs_other_hardware_says_so() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([32, 64])
        blocks = fd.define_tensor([32, 4])
        for message, call in {
            "scaled_mm: expected a scale of the tensor": lambda: fd.ops.scaled_mm(
                x, fd.ops.permute(x, [1, 0]), blocks, blocks
            ),
            "scaled_mm: expected a result without scales": lambda: fd.ops.scaled_mm(
                x, x, x, x, output_block_scale_size=16
            ),
            "nv_block_quantize: not supported on this device; it needs 4-bit floats": lambda: (
                fd.ops.nv_block_quantize(x)
            ),
            "nv_grouped_block_quantize: not supported on this device": lambda: (
                fd.ops.nv_grouped_block_quantize(x, x, x)
            ),
            "cutlass_nvfp4_grouped_mm: not supported on this device": lambda: (
                fd.ops.cutlass_nvfp4_grouped_mm(x, x, x, x, x, x, x, x)
            ),
            "preprocess_grouped_matmul_input_sf: not supported on this device": lambda: (
                fd.ops.preprocess_grouped_matmul_input_sf(x, x, x)
            ),
        }.items():
            with pytest.raises(UnsupportedError, match=message):
                call()


def test_wrong_attention_and_groups_are_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1, 8])
        half = fd.define_tensor([-1, -1, -1, 8], dtype=DataType.Half)
        matrix = fd.define_tensor([-1, 8])
        ends = fd.define_tensor([3], dtype=DataType.Int)
        ops = fd.ops
        for message, call in {
            "sdpfa_fwd: expected tensors of rank 4": lambda: ops.sdpfa_fwd(matrix, x, x),
            "sdpfa_fwd: expected tensors of one floating dtype": lambda: ops.sdpfa_fwd(x, half, x),
            "sdpfa_fwd: expected a mask of Bool": lambda: ops.sdpfa_fwd(x, x, x, mask=x),
            "sdpfa_fwd: expected a number as scale": lambda: ops.sdpfa_fwd(x, x, x, scale=x),
            "sdpfa_bwd: expected rank 4 of": lambda: ops.sdpfa_bwd(
                half, x, x, x, x, x, 0.0, False, ends, ends
            ),
            "grouped_mm: expected offsets of rank 1": lambda: ops.grouped_mm(matrix, matrix, x),
            "grouped_mm: expected matrices": lambda: ops.grouped_mm(x, matrix, ends),
            "scatter: expected an index of Int": lambda: ops.scatter(x, x, x, 0),
            "scatter: expected a src of": lambda: ops.scatter(
                matrix, ops.cast(matrix, DataType.Int), ops.cast(matrix, DataType.Half), 0
            ),
            "scatter: expected an index of rank 1": lambda: ops.scatter(
                fd.define_tensor([8]), ops.cast(matrix, DataType.Int), 0.0, 0
            ),
            "scatter: expected an index of at most 3": lambda: ops.scatter(
                fd.define_tensor([8, 3]), fd.define_tensor([2, 4], dtype=DataType.Int), 0.0, 0
            ),
        }.items():
            with pytest.raises(DefinitionError, match=message):
                call()


# -- what is made of other operations


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize(
    "shape", [(5, 7), (7, 5), (2, 3, 4), (1, 1), (4, 1), (1, 4), (0, 3), (3, 0)]
)
def test_triu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for diagonal in (0, 1, -2, 9, -9):
        source = check(
            lambda fd, x, diagonal=diagonal: fd.ops.triu(x, diagonal),
            lambda x, diagonal=diagonal: torch.triu(x, diagonal),
            numbers(shape, dtype),
        )
        assert "run(" not in source


def test_triu_of_complex_numbers() -> None:
    check(lambda fd, x: fd.ops.triu(x, 1), lambda x: x.triu(1), numbers((4, 5), torch.complex64))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_triu_is_part_of_a_kernel(layout: str) -> None:
    """A causal mask between two products: one kernel."""

    def define(fd: Any, x: Any, k: Any) -> Any:
        scores = fd.ops.exp(fd.ops.mul(x, 0.5))
        kept = fd.ops.triu(scores, k)
        return fd.ops.div(kept, fd.ops.add(fd.ops.sum(kept, [1], True), 1.0))

    def eager(x: torch.Tensor, k: int) -> torch.Tensor:
        kept = (x * 0.5).exp().triu(k)
        return kept / (kept.sum(1, keepdim=True) + 1)

    for k in (0, 1):
        x = laid_out(numbers((40, 40)), layout)
        assert check(define, eager, x, k, exact=False).count("launch") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", [None, 2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("index_shape", [(5,), (2, 3), (), (0,)])
def test_embedding_scales_rows_to_the_largest_norm(
    dtype: torch.dtype, order: float | None, index_shape: tuple[int, ...]
) -> None:
    def define(fd: Any, index: Any, weight: Any) -> Any:
        return fd.ops.embedding_fwd(index, weight, None, 1.5, order, True, False)

    def eager(index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        norm = 2.0 if order is None else order
        return torch.nn.functional.embedding(index, weight.clone(), None, 1.5, norm)

    index = torch.randint(0, 9, index_shape, generator=torch.Generator().manual_seed(3))
    weight = numbers((9, 4), dtype)
    weight[2] = 0
    before = weight.clone()
    check(define, eager, index, weight, exact=False)
    assert torch.equal(weight, before)


def test_wrong_composites_are_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        table = fd.define_tensor([-1, -1], dtype=DataType.Int)
        index = fd.define_tensor([-1], dtype=DataType.Int)
        with pytest.raises(DefinitionError, match="triu: expected a tensor of rank 2 or more"):
            fd.ops.triu(x)
        with pytest.raises(DefinitionError, match="triu: expected an integer diagonal"):
            fd.ops.triu(fd.define_tensor([2, 2]), 0.5)
        with pytest.raises(DefinitionError, match="embedding_fwd: expected a floating weight"):
            fd.ops.embedding_fwd(index, table, max_norm=1.0)


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
    assert "topk(arg=tv0, k=c0, dim=0, largest=False, sorted=True)" in str(fd)
    (expr,) = [e for e in fd.fusion.definition.exprs if isinstance(e, LibraryOp)]
    assert str(expr).endswith("largest=False, sorted=True)")
    assert to_torch(expr.outputs[1].dtype) is torch.int64
