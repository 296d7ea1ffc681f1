"""Builders: their expressions are well formed, with the right axes, dtypes and sizes.

Values are checked in test_evaluator.py; here it is structure: implicit casts and broadcasts,
output axes, recorded equalities, reshape's splits and merges, and one test for each error message.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyfuser import FusionDefinition
from pyfuser.dtypes import DataType
from pyfuser.errors import DefinitionError, UnsupportedError
from pyfuser.ir.domains import IterDomain, Merge, Split, history
from pyfuser.ir.exprs import BroadcastOp, Expr
from pyfuser.ir.fusion import Fusion, plain_domain
from pyfuser.ir.scalar_queries import evaluate
from pyfuser.ir.scalars import Integer
from pyfuser.ir.vals import Scalar, TensorView
from pyfuser.ir.verify import verify_fusion
from pyfuser.ops import builders
from pyfuser.ops.table import OPS


def tensor(fusion: Fusion, shape: Sequence[int], dtype: DataType = DataType.Float) -> TensorView:
    """An input: -1 is a symbolic size, 1 a broadcast axis."""
    axes = []
    for size in shape:
        if size == 1:
            axes.append(fusion.ids.broadcast())
        else:
            axes.append(fusion.ids.new(fusion.new_extent() if size == -1 else Integer.of(size)))
    made = fusion.new_tensor(plain_domain(axes), dtype)
    fusion.add_input(made)
    return made


def names(fusion: Fusion) -> list[str]:
    return [expr.name for expr in fusion.exprs]


def sizes(value: TensorView) -> list[str]:
    return [str(axis.size) for axis in value.axes]


def kinds(value: TensorView) -> str:
    return "".join(axis.iter_type.value for axis in value.axes)


# -- pointwise


def test_add_of_tensors_joins_their_axes() -> None:
    fusion = Fusion()
    a, b = tensor(fusion, [-1, 4]), tensor(fusion, [-1, -1])
    out = builders.add(fusion, a, b)
    assert sizes(out) == ["i0", "4"]
    assert [(str(x), str(y)) for x, y in fusion.equal_extents] == [("i0", "i1"), ("4", "i2")]
    verify_fusion(fusion)


def test_constant_size_is_preferred_wherever_it_stands() -> None:
    fusion = Fusion()
    out = builders.add(fusion, tensor(fusion, [-1]), tensor(fusion, [8]))
    assert sizes(out) == ["8"]


def test_lower_rank_is_broadcast_on_the_left() -> None:
    fusion = Fusion()
    out = builders.mul(fusion, tensor(fusion, [-1, -1]), tensor(fusion, [-1]))
    broadcast, multiply = fusion.exprs
    assert isinstance(broadcast, BroadcastOp) and broadcast.flags == (True, False)
    assert multiply.output is out and kinds(out) == "ii"
    assert kinds(broadcast.outputs[0]) == "bi"  # type: ignore[arg-type]


def test_axis_is_broadcast_only_where_all_are() -> None:
    fusion = Fusion()
    a, b = tensor(fusion, [1, 1, -1]), tensor(fusion, [1, -1, 1])
    out = builders.add(fusion, a, b)
    assert kinds(out) == "bii"
    assert sizes(out) == ["1", "i1", "i0"]


def test_expanded_operands_keep_the_expanded_extent() -> None:
    fusion = Fusion()
    a = builders.expand(fusion, tensor(fusion, [1, -1]), [5, -1])
    assert kinds(builders.neg(fusion, a)) == "bi"
    out = builders.add(fusion, a, tensor(fusion, [-1, -1]))
    assert kinds(out) == "ii" and sizes(out) == ["5", "i0"]


def test_half_operands_are_cast_and_the_result_stays_float() -> None:
    fusion = Fusion()
    half = tensor(fusion, [-1], DataType.Half)
    out = builders.add(fusion, half, half)
    assert names(fusion) == ["cast", "add"]  # one cast for both operands
    assert out.dtype is DataType.Float


@pytest.mark.parametrize("op", ["relu", "silu", "floor", "abs"])
def test_ops_that_keep_the_dtype_cast_back(op: str) -> None:
    fusion = Fusion()
    out = builders.pointwise(fusion, op, tensor(fusion, [-1], DataType.BFloat16))
    assert names(fusion) == ["cast", op, "cast"]
    assert out.dtype is DataType.BFloat16


def test_where_keeps_half_precision_and_needs_a_bool() -> None:
    fusion = Fusion()
    half = tensor(fusion, [-1], DataType.Half)
    out = builders.where(fusion, builders.gt(fusion, half, 0), half, 1.0)
    assert out.dtype is DataType.Half
    assert names(fusion) == ["cast", "gt", "cast", "where", "cast"]
    verify_fusion(fusion)
    with pytest.raises(DefinitionError, match="Condition should be of DataType Bool"):
        builders.where(fusion, half, half, half)


@pytest.mark.parametrize("op", ["set", "segment_set"])
def test_copies_move_any_dtype_as_it_is(op: str) -> None:
    fusion = Fusion()
    out = builders.pointwise(fusion, op, tensor(fusion, [-1], DataType.Half))
    assert names(fusion) == [op] and out.dtype is DataType.Half


def test_numbers_keep_their_value_and_are_not_cast() -> None:
    fusion = Fusion()
    out = builders.mul(fusion, tensor(fusion, [-1]), 3.5)
    (expr,) = fusion.exprs
    operand = expr.inputs[1]
    assert isinstance(operand, Scalar) and operand.constant == 3.5
    assert operand.dtype is DataType.Double and out.dtype is DataType.Float


@pytest.mark.parametrize("op", sorted(op.name for op in OPS.values() if op.in_kernels))
def test_every_row_builds_a_valid_expression(op: str) -> None:
    row = OPS[op]
    for dtype in (DataType.Float, DataType.Int, DataType.Bool):
        fusion = Fusion()
        operands: list[object] = [tensor(fusion, [-1, 3], dtype) for _ in range(row.arity)]
        if op == "where":
            operands[0] = tensor(fusion, [-1, 3], DataType.Bool)
        if op in ("clamp", "threshold") or op.startswith("checked_"):
            operands[1:] = [1, 2][: row.arity - 1]
        try:
            if op == "cast":
                out = builders.cast(fusion, operands[0], DataType.Half)
            else:
                out = builders.pointwise(fusion, op, *operands)
        except DefinitionError:
            assert row.rule.name in ("BITWISE", "INTEGER", "FLOAT_RESULT")
            continue
        assert isinstance(out, TensorView) and out.ndim == 2
        verify_fusion(fusion)


def test_scalars_compute_on_the_host_and_keep_sizes() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1, -1])
    rows, columns = builders.shape(fusion, x)
    product = builders.mul(fusion, rows, columns)
    quotient = builders.div(fusion, product, 4)
    assert str(product.extent) == "i0*i1" and str(quotient.extent) == "((i0*i1) // 4)"
    assert builders.sub(fusion, rows, 1).extent is None
    assert builders.add(fusion, rows, 0.5).dtype is DataType.Double


def test_errors_of_pointwise() -> None:
    fusion, other = Fusion(), Fusion()
    x = tensor(fusion, [3])
    with pytest.raises(DefinitionError, match="add: expected axes of one size, 3, got 4"):
        builders.add(fusion, x, tensor(fusion, [4]))
    with pytest.raises(DefinitionError, match="add: expected a value of this fusion"):
        builders.add(fusion, x, tensor(other, [3]))
    with pytest.raises(DefinitionError, match="add: expected a tensor, a scalar or a Python num"):
        builders.add(fusion, x, "1")
    with pytest.raises(DefinitionError, match="add: expected 2 operands, got 1"):
        builders.add(fusion, x)
    with pytest.raises(UnsupportedError, match="nv_block_quantize"):
        builders.nv_block_quantize(fusion, x)


# -- reductions


def test_reduction_keeps_reduced_axes_in_its_domain() -> None:
    fusion = Fusion()
    out = builders.sum(fusion, tensor(fusion, [-1, -1, -1]), [0, -1])
    assert [axis.iter_type.value for axis in out.domain.logical] == ["r", "i", "r"]
    assert out.ndim == 1
    verify_fusion(fusion)


def test_keepdim_broadcasts_afterwards() -> None:
    fusion = Fusion()
    out = builders.max(fusion, tensor(fusion, [-1, -1]), 0, True)
    assert names(fusion) == ["max", "broadcast"] and kinds(out) == "bi"


@pytest.mark.parametrize(
    ("dtype", "requested", "expected_names", "result"),
    [
        (DataType.Float, DataType.Null, ["sum"], DataType.Float),
        (DataType.Half, DataType.Null, ["cast", "sum", "cast"], DataType.Half),
        (DataType.Half, DataType.Float, ["cast", "sum"], DataType.Float),
        (DataType.Bool, DataType.Null, ["cast", "sum"], DataType.Int),
        (DataType.Int32, DataType.Null, ["cast", "sum"], DataType.Int),
        (DataType.Float, DataType.Half, ["sum", "cast"], DataType.Half),
    ],
)
def test_dtypes_of_sum(
    dtype: DataType, requested: DataType, expected_names: list[str], result: DataType
) -> None:
    fusion = Fusion()
    out = builders.sum(fusion, tensor(fusion, [-1], dtype), dtype=requested)
    assert names(fusion) == expected_names and out.dtype is result


def test_reducing_broadcast_axes_squeezes_them() -> None:
    fusion = Fusion()
    x = tensor(fusion, [1, -1])
    builders.sum(fusion, x, [0])
    assert names(fusion) == ["squeeze"]
    expanded = builders.expand(fusion, x, [7, -1])
    builders.prod(fusion, expanded, [0, 1])
    assert names(fusion)[1:] == ["expand", "squeeze", "prod", "pow"]
    verify_fusion(fusion)


def test_zero_dim_tensors_are_copied() -> None:
    fusion = Fusion()
    builders.sum(fusion, tensor(fusion, []))
    assert names(fusion) == ["set"]


def test_var_divides_by_a_scalar() -> None:
    fusion = Fusion()
    builders.var(fusion, tensor(fusion, [-1, 8]), [1], 0)
    welford, divide = fusion.exprs
    assert welford.name == "welford" and divide.name == "div"
    assert isinstance(divide.inputs[1], Scalar) and divide.inputs[1].constant == 8.0


def test_extrema_are_of_real_numbers() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1], DataType.ComplexFloat)
    for name in ("max", "min", "nanmax", "nanmin"):
        with pytest.raises(DefinitionError, match=f"{name}: expected real numbers, got DataType.C"):
            builders.reduce(fusion, name, x, [0])


def test_errors_of_reductions() -> None:
    fusion = Fusion()
    x, half = tensor(fusion, [-1, -1]), tensor(fusion, [-1], DataType.Half)
    with pytest.raises(DefinitionError, match=r"sum: expected dimensions in \[-2, 1\], got 2"):
        builders.sum(fusion, x, 2)
    with pytest.raises(DefinitionError, match="sum: expected each dimension once"):
        builders.sum(fusion, x, [0, -2])
    with pytest.raises(DefinitionError, match="sum: expected at least one dimension"):
        builders.sum(fusion, x, [])
    with pytest.raises(DefinitionError, match="max: expected no dtype"):
        builders.max(fusion, x, dtype=DataType.Float)
    with pytest.raises(DefinitionError, match="var_mean: expected a tensor of Float or Double"):
        builders.var_mean(fusion, half, [0])
    with pytest.raises(DefinitionError, match="welford: expected a tensor of Float or Double"):
        builders.welford(fusion, tensor(fusion, [-1], DataType.Int), [0])


# -- shapes


@pytest.mark.parametrize(
    "build",
    [
        lambda f, x: builders.permute(f, x, [0, 1]),
        lambda f, x: builders.reshape(f, x, builders.shape(f, x)),
        lambda f, x: builders.reshape(f, x, [builders.size(f, x, 0), -1]),
        lambda f, x: builders.expand(f, x, [-1, -1]),
        lambda f, x: builders.broadcast(f, x, [False, False]),
        lambda f, x: builders.squeeze(f, x, []),
    ],
)
def test_what_changes_nothing_is_a_set(build) -> None:  # type: ignore[no-untyped-def]
    fusion = Fusion()
    build(fusion, tensor(fusion, [-1, 4]))
    assert names(fusion) == ["set"]


def test_broadcast_in_dim() -> None:
    fusion = Fusion()
    out = builders.broadcast_in_dim(fusion, tensor(fusion, [-1]), [3, 4, 5], [1])
    assert names(fusion) == ["broadcast", "expand"] and kinds(out) == "bib"
    assert sizes(out) == ["3", "i0", "5"]
    assert [(str(a), str(b)) for a, b in fusion.equal_extents] == [("i0", "4")]


def test_stride_order_without_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        given = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.stride_order(fd.ops.sum(given, [0]), []))
    (result,) = fd.execute([torch.ones(3)])
    assert torch.equal(result, torch.tensor(3.0))


def test_stride_order_is_the_allocation_domain() -> None:
    fusion = Fusion()
    out = builders.stride_order(fusion, tensor(fusion, [-1, -1, -1]), [1, 2, 0])
    assert out.domain.allocation == [out.axes[1], out.axes[0], out.axes[2]]
    stated = builders.stride_order(fusion, out, [2, 1, 0])
    assert stated.domain.allocation == stated.axes
    verify_fusion(fusion)


def test_sizes_from_scalars_get_a_symbol_when_needed() -> None:
    fusion = Fusion()
    length = fusion.new_scalar(DataType.Int)
    fusion.add_input(length)
    assert length.extent is None
    out = builders.full(fusion, [length, 1, 3], 0.0, DataType.Float)
    assert kinds(out) == "ibi" and out.axes[0].extent is length.extent


def test_errors_of_shape_ops() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1, 4])
    cases = [
        (lambda: builders.squeeze(fusion, x, [1]), "squeeze: expected dimension 1 of size 1"),
        (lambda: builders.permute(fusion, x, [0, 0]), "permute: expected no duplicated"),
        (lambda: builders.broadcast(fusion, x, [True]), "broadcast: expected 2 False entries"),
        (lambda: builders.expand(fusion, x, [4]), "expand: expected a shape of at least 2"),
        (lambda: builders.expand(fusion, x, [-1, 5]), "expand: expected axes of one size"),
        (lambda: builders.size(fusion, x, 2), "Tried to access out of boundary index"),
        (lambda: builders.iota(fusion, 3, 0, 0), "iota: expected a step other than 0"),
        (lambda: builders.iota(fusion, 3, float("inf")), "iota: expected a finite start"),
        (lambda: builders.full(fusion, [-2], 0, DataType.Int), "full: expected a size of at lea"),
        (lambda: builders.full(fusion, [2], x, DataType.Int), "full: expected a scalar"),
        (lambda: builders.stride_order(fusion, x, [0]), "stride_order: expected each of 2"),
        (lambda: builders.broadcast_in_dim(fusion, x, [4, 4], [1, 0]), "ascending dimensions"),
        (lambda: builders.sum(fusion, 3.0), "sum: expected a tensor"),
        (lambda: builders.cast(fusion, x, DataType.Null), "cast: expected a dtype"),
    ]
    for build, message in cases:
        with pytest.raises(DefinitionError, match=message):
            build()


# -- reshape


def linear(index: Sequence[int], shape: Sequence[int]) -> int:
    total = 0
    for i, n in zip(index, shape, strict=True):
        total = total * n + i
    return total


def root_index(out: TensorView, index: Sequence[int], bound: dict[str, int]) -> list[int]:
    """The input element that an output element is, by undoing the splits and merges."""
    at: dict[IterDomain, int] = dict(zip(out.domain.logical, index, strict=True))
    for expr in reversed(history(out.domain.logical, out.domain.root_or_logical)):
        match expr:
            case Split():
                inner = evaluate(expr.inner_id.extent, bound)
                at[expr.input_id] = at[expr.outer_id] * inner + at[expr.inner_id]
            case Merge():
                inner = evaluate(expr.inner_id.extent, bound)
                at[expr.outer_id], at[expr.inner_id] = divmod(at[expr.output_id], inner)
    return [at[axis] for axis in out.domain.root_or_logical]


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool], int | None]:
    """(old shape, new shape, which old sizes are symbolic, position of the -1)."""
    factors = draw(st.lists(st.integers(2, 3), min_size=1, max_size=4))

    def cut() -> list[int]:
        shape = [1]
        for factor in factors:
            if draw(st.booleans()):
                shape.append(factor)
            else:
                shape[-1] *= factor
        if draw(st.booleans()):
            shape.insert(draw(st.integers(0, len(shape))), 1)
        return shape

    old, new = cut(), cut()
    symbolic = [draw(st.booleans()) for _ in old]
    inferred = draw(st.none() | st.integers(0, len(new) - 1))
    return old, new, symbolic, inferred


@given(reshapes())
@settings(max_examples=150, deadline=None)
def test_reshape_maps_every_element_where_torch_does(
    case: tuple[list[int], list[int], list[bool], int | None],
) -> None:
    old, new, symbolic, inferred = case
    fusion = Fusion()
    x = tensor(fusion, [-1 if s and n != 1 else n for n, s in zip(old, symbolic, strict=True)])
    entries: list[object] = [-1 if i == inferred else n for i, n in enumerate(new)]
    try:
        out = builders.reshape(fusion, x, entries)
    except UnsupportedError:
        # A size that is only 1 because of the symbolic ones can't be dropped or added.
        assert any(symbolic)
        return
    verify_fusion(fusion)
    bound = {str(a.extent): n for a, n in zip(x.axes, old, strict=True) if not a.extent.is_constant}
    assert [evaluate(axis.size, bound) for axis in out.axes] == new
    for a, b in fusion.equal_extents:
        assert evaluate(a, bound) == evaluate(b, bound)
    for expr in fusion.exprs:
        if expr.name == "reshape":
            _check_elements(expr, bound)


def _check_elements(expr: Expr, bound: dict[str, int]) -> None:
    out = expr.tensor_outputs[0]
    roots = [evaluate(axis.extent, bound) for axis in out.domain.root_or_logical]
    logical = [evaluate(axis.extent, bound) for axis in out.domain.logical]
    for index in itertools.product(*map(range, logical)):
        assert linear(root_index(out, index, bound), roots) == linear(index, logical)


def test_reshape_groups_are_as_small_as_can_be_proved() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1, -1, -1])
    a, b, c = builders.shape(fusion, x)
    out = builders.reshape(fusion, x, [builders.mul(fusion, a, b), c])
    root, logical = out.domain.root, out.domain.logical
    assert root is not None and logical[1] is root[2]  # the last axis is not touched
    assert isinstance(logical[0].definition, Merge)
    assert not fusion.equal_extents


def test_reshape_groups_sizes_that_an_earlier_reshape_made_equal() -> None:
    fusion = Fusion()
    x = tensor(fusion, [-1, -1, -1])
    merged, total = (fusion.new_scalar(DataType.Int) for _ in range(2))
    flat = builders.reshape(fusion, x, [builders.size(fusion, x, 0), merged])  # b * c, unproved
    wide = builders.broadcast(fusion, flat, [True, False, False])
    wide = builders.expand(fusion, wide, [fusion.new_scalar(DataType.Int), -1, -1])
    out = builders.reshape(fusion, wide, [total, merged])
    root, logical = out.domain.root, out.domain.logical
    assert root is not None and logical[1] is root[2]
    assert isinstance(logical[0].definition, Merge)


def test_reshape_with_minus_one_records_what_must_divide() -> None:
    fusion = Fusion()
    builders.reshape(fusion, tensor(fusion, [-1]), [-1, 4])
    assert [(str(a), str(b)) for a, b in fusion.equal_extents] == [("i0", "ceildiv(i0, 4)*4")]


def test_reshape_of_expanded_axes_makes_them_real() -> None:
    fusion = Fusion()
    out = builders.reshape(fusion, builders.expand(fusion, tensor(fusion, [1, -1]), [6, -1]), [-1])
    assert kinds(out) == "i" and sizes(out) == ["i0*6"]
    verify_fusion(fusion)


@pytest.mark.parametrize("dim", [0.0, "0", None])
def test_a_dimension_is_an_integer(dim: object) -> None:
    fusion = Fusion()
    x = tensor(fusion, [3, 4])
    with pytest.raises(DefinitionError, match=r"permute\(\): incompatible function arguments"):
        builders.permute(fusion, x, [dim, 1])
    with pytest.raises(
        TypeError, match=r"topk\(\): incompatible function arguments: expected an int"
    ):
        builders.topk(fusion, x, 1, dim)


def test_errors_of_reshape() -> None:
    fusion = Fusion()
    x = tensor(fusion, [3, 4])
    with pytest.raises(DefinitionError, match="reshape: expected a shape of 12 elements, got 10"):
        builders.reshape(fusion, x, [2, 5])
    with pytest.raises(DefinitionError, match="reshape: expected at most one -1"):
        builders.reshape(fusion, x, [-1, -1])
    with pytest.raises(DefinitionError, match="reshape: expected no -1 beside a size of 0"):
        builders.reshape(fusion, tensor(fusion, [0, 4]), [-1, 0])
