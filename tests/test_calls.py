"""The inputs and outputs of a definition's call: every kind of input, and invalid ones.

Scalars, tensors without dimensions, negated ones, inputs that are outputs or are updated in place.
Memory is poisoned, and nothing may fall back to torch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import InputError
from pyfuser.interface import compiled_kernel_count
from tests.support.definitions import affine, float_tensor

pytestmark = pytest.mark.usefixtures("poison")


def test_an_output_that_updates_an_input() -> None:
    with FusionDefinition() as fd:
        t, s = float_tensor(fd, 2), float_tensor(fd, 2)
        y = fd.ops.add(t, s)
        fd.add_output(y, t)
        fd.add_output(fd.ops.neg(s))
    x, d = torch.randn(3, 4), torch.randn(3, 4)
    want, address = x + d, x.data_ptr()
    outputs = fd.execute([x, d])
    assert len(outputs) == 1 and torch.equal(outputs[0], -d)
    assert torch.equal(x, want) and x.data_ptr() == address
    strided = torch.randn(4, 3).t()
    want = strided + d
    fd.execute([strided, d])
    assert torch.equal(strided, want)


def test_an_updated_input_that_is_read_elsewhere_is_read_before() -> None:
    with FusionDefinition() as fd:
        t = float_tensor(fd, 2, True)
        total = fd.ops.sum(t, [1], keepdim=True)
        fd.add_output(fd.ops.sub(t, total), t)
        fd.add_output(fd.ops.mul(t, 3.0))
        fd.add_output(total)
    x = torch.randn(5, 8)
    old = x.clone()
    tripled, total = fd.execute([x])
    assert torch.equal(tripled, old * 3)
    torch.testing.assert_close(total, old.sum(1, keepdim=True))
    torch.testing.assert_close(x, old - old.sum(1, keepdim=True))


def test_an_aliased_output_that_is_also_plain_is_the_input() -> None:
    with FusionDefinition() as fd:
        t = float_tensor(fd, 1)
        y = fd.ops.add(t, 1.0)
        fd.add_output(y, t)
        fd.add_output(y)
    x = torch.zeros(4)
    outputs = fd.execute([x])
    assert all(out.data_ptr() == x.data_ptr() for out in outputs) and outputs
    assert torch.equal(x, torch.ones(4))


def test_an_input_as_output_and_one_output_twice() -> None:
    with FusionDefinition() as fd:
        t = float_tensor(fd, 2)
        y = fd.ops.neg(t)
        for output in (t, y, y, t):
            fd.add_output(output)
    x = torch.randn(3, 2)
    a, b, c, d = fd.execute([x])
    assert a.data_ptr() == x.data_ptr() == d.data_ptr()
    assert torch.equal(b, -x) and torch.equal(c, -x)


def test_no_inputs() -> None:
    with FusionDefinition() as fd:
        full = fd.ops.full([3, 4], fd.define_scalar(2.0), DataType.Float)
        fd.add_output(fd.ops.mul(full, 3.0))
        fd.add_output(fd.ops.iota(fd.define_scalar(5), fd.define_scalar(1), fd.define_scalar(2)))
    six, odd = fd.execute([])
    assert torch.equal(six, torch.full((3, 4), 6.0))
    assert odd.tolist() == [1, 3, 5, 7, 9]


def test_tensors_without_dimensions() -> None:
    with FusionDefinition() as fd:
        a, b = float_tensor(fd, 0), float_tensor(fd, 2)
        fd.add_output(fd.ops.mul(a, a))
        fd.add_output(fd.ops.mul(b, a))
        fd.add_output(fd.ops.sum(b, [0, 1]))
    a, b = torch.tensor(3.0), torch.randn(4, 5)
    square, scaled, total = fd.execute([a, b])
    assert square.shape == () and square.item() == 9
    assert torch.equal(scaled, b * 3)
    torch.testing.assert_close(total, b.sum())


def test_scalars_as_inputs_compile_once() -> None:
    with FusionDefinition() as fd:
        t = float_tensor(fd, 1)
        f = fd.define_scalar(dtype=DataType.Double)
        i = fd.define_scalar(dtype=DataType.Int)
        b = fd.define_scalar(dtype=DataType.Bool)
        sum_ = fd.ops.add(fd.ops.mul(t, f), fd.ops.cast(i, DataType.Float))
        fd.add_output(fd.ops.where(b, sum_, t))
    x = torch.randn(10)
    torch.testing.assert_close(fd.execute([x, 0.5, 3, True])[0], x * 0.5 + 3)
    before = compiled_kernel_count()
    for f, i in ((2.0, -4), (float("inf"), 0), (1e-30, 2**40)):
        (y,) = fd.execute([x, f, i, True])
        torch.testing.assert_close(y, x * f + i)
        assert torch.equal(fd.execute([x, f, i, False])[0], x)
    assert compiled_kernel_count() == before
    torch.testing.assert_close(fd.execute([x, 2, True, True])[0], x * 2 + 1)


def test_negated_and_gradient_inputs() -> None:
    fd = affine(4.0)
    x = torch.randn(3, 4)
    negated = torch._neg_view(x)
    assert negated.is_neg()
    for _ in range(2):
        assert torch.equal(fd.execute([negated])[0], -x * 4 + 1)
        assert torch.equal(fd.execute([x])[0], x * 4 + 1)
    needs = x.clone().requires_grad_()
    (y,) = fd.execute([needs])
    assert not y.requires_grad and torch.equal(y, x * 4 + 1)
    with torch.no_grad():
        assert torch.equal(fd.execute([needs])[0], y)
    with torch.inference_mode():
        assert torch.equal(fd.execute([torch.randn(1).expand(3, 4) * 0])[0], torch.ones(3, 4))


def test_a_negated_input_that_is_updated() -> None:
    with FusionDefinition() as fd:
        t = float_tensor(fd, 1)
        fd.add_output(fd.ops.add(t, 1.0), t)
    x = torch.arange(4.0)
    negated = torch._neg_view(x)
    fd.execute([negated])
    assert torch.equal(negated, 1 - torch.arange(4.0))


def test_a_real_view_of_a_conjugate() -> None:
    values = torch.randn(3, 4, dtype=torch.complex64)
    imaginary = values.conj().imag
    assert imaginary.is_neg()
    (y,) = affine_of_strided().execute([imaginary])
    torch.testing.assert_close(y, -values.imag * 2)


def affine_of_strided() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(float_tensor(fd, 2, [False, False]), 2.0))
    return fd


def test_outputs_do_not_share_memory_with_later_calls() -> None:
    fd = affine(6.0)
    x = torch.randn(50, 60)
    first = fd.execute([x])[0]
    copy = first.clone()
    second = fd.execute([x + 1])[0]
    assert first.data_ptr() != second.data_ptr() and torch.equal(first, copy)


def test_inputs_that_swap() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.add_output(y, x)
        fd.add_output(x, y)
    a, b = torch.ones(2), torch.zeros(2)
    fd.execute([a, b])
    assert a.tolist() == [0, 0]
    assert b.tolist() == [1, 1]


def test_view_doesnt_show_a_later_update() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.reshape(x, [4]))
        fd.add_output(fd.ops.mul(x, 2.0), x)
    given = torch.ones(2, 2)
    (view,) = fd.execute([given])
    assert view.tolist() == [1, 1, 1, 1]
    assert given.tolist() == [[2, 2], [2, 2]]


# -- wrong inputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([2, 1.0], "Expected input 0, .*, to be an at::Tensor but got scalar 2"),
        (
            [torch.ones(2, 2), torch.ones(3)],
            "Expected input 1, d0, to be a scalar but got float tensor of rank 1",
        ),
        (
            [torch.ones(2, 2).half(), 1.0],
            "Expected input 0, .*, to be bound to a tensor of dtype float, but got a tensor of "
            "dtype __half",
        ),
        (
            [torch.ones(2, 2), 2 + 1j],
            r"Scalar value \(2,1\) is not compatible with the expected data type: double.",
        ),
        ([torch.ones(2, 2)], "execute: expected 2 inputs, got 1"),
        ([torch.ones(2, 2), 1.0, 2.0], "execute: expected 2 inputs, got 3"),
        ([torch.ones(2), 1.0], "Expected input 0, .*, to be of rank 2, but got a tensor of rank 1"),
        (
            [torch.ones(4, 5).t(), 1.0],
            "Expected input 0, .*, to be contiguous in dimension 1 .*, but got stride 5",
        ),
        ([torch.ones(2, 2), "x"], "Scalar value x is not compatible with the expected data type"),
        ([None, 1.0], "Expected input 0, .*, to be an at::Tensor but got scalar None"),
    ],
)
def test_wrong_inputs(inputs: list[Any], message: str) -> None:
    with FusionDefinition() as fd:
        t = float_tensor(fd, 2, True)
        fd.add_output(fd.ops.mul(t, fd.define_scalar(dtype=DataType.Double)))
    for warm in (False, True):
        with pytest.raises(InputError, match=message):
            fd.execute(inputs)
        if not warm:
            fd.execute([torch.ones(2, 2), 1.0])


def test_sizes_that_must_be_equal() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(float_tensor(fd, 2), float_tensor(fd, 2)))
    with pytest.raises(InputError, match="expected the sizes i0 and i2 to be equal, got i0 = 3"):
        fd.execute([torch.ones(3, 2), torch.ones(4, 2)])


def test_static_and_broadcast_sizes() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([4, 1], dtype=DataType.Float)))
    assert fd.execute([torch.ones(4, 1)])[0].shape == (4, 1)
    with pytest.raises(InputError, match="to be of size 4 in dimension 0, but got size 3"):
        fd.execute([torch.ones(3, 1)])
    with pytest.raises(InputError, match="to be of size 1 in dimension 1, but got size 2"):
        fd.execute([torch.ones(4, 2)])


@pytest.mark.parametrize("stride", [0, 128, 7])
@pytest.mark.parametrize("outside", [2048, 128])
def test_an_expanded_axis_in_the_middle_may_have_any_stride(stride: int, outside: int) -> None:
    """The definition says that the elements along it are one, so the first one counts."""
    with FusionDefinition() as fd:
        contiguity = [None, True, None, True]
        x = fd.define_tensor(shape=[1, 64, 16, 128], contiguity=contiguity)
        fd.add_output(fd.ops.mul(x, 2.0))
    memory = torch.randn(64 * 2048 + 16 * 128)
    given = memory.as_strided((1, 64, 16, 128), (131072, outside, stride, 1))
    (out,) = fd.execute([given])
    assert torch.equal(out, (given[:, :, :1] * 2).expand_as(given))


@pytest.mark.parametrize("moments", [False, True])
def test_a_reduction_that_is_expanded_an_output_and_read(
    moments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of a mask's rows: a count along an axis that only the other operand has."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        mask = fd.define_tensor([-1, 1, -1], contiguity=[True, None, True], dtype=DataType.Double)
        x = float_tensor(fd, 3, True)
        wide = fd.ops.expand(mask, fd.ops.shape(x))
        found = fd.ops.welford(wide, [2])[:2] if moments else [fd.ops.sum(wide, [2])]
        total = fd.ops.sum(fd.ops.mul(x, wide), [2])
        for output in (*found, *(fd.ops.div(total, each) for each in found)):
            fd.add_output(output)
    given, y = torch.rand(3, 1, 5, dtype=torch.float64), torch.randn(3, 4, 5)
    spread = given.expand(3, 4, 5)
    expected = [spread.sum(2)]
    if moments:
        expected = [spread.mean(2), spread.var(2, correction=0) * 5]
    expected += [(y * spread).sum(2) / each for each in expected]
    for ours, eagers in zip(fd.execute([given, y]), expected, strict=True):
        torch.testing.assert_close(ours, eagers)
        assert ours.is_contiguous()


def test_an_axis_found_to_have_one_element_beside_an_expanded_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The squeeze says that the slice has one element; in the first output its axis is real."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with FusionDefinition() as fd:
        row = fd.ops.slice(float_tensor(fd, 1), [2], [3])
        column = fd.define_tensor([1, 1], contiguity=[None, None])
        wide = fd.ops.expand(column, [3, 1])
        fd.add_output(fd.ops.add(fd.ops.broadcast(row, [True, False]), wide))
        fd.add_output(fd.ops.exp(fd.ops.squeeze(row, [0])))
    x, y = torch.randn(5), torch.randn(1, 1)
    total, single = fd.execute([x, y])
    assert torch.equal(total, (x[2] + y).expand(3, 1))
    torch.testing.assert_close(single, x[2].exp())


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((2, 0, 3), (2, 0)),
        ((0, 4), (4, 0)),
        ((0,), (2, 0)),
        ((2, 3, 0), (6, 0)),
        ((0, 4), (0, 3)),
        ((0, 4), (1, 0, 7)),
    ],
)
def test_reshapes_of_tensors_without_elements(
    old: tuple[int, ...], new: tuple[int, ...], is_symbolic: bool
) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * len(old) if is_symbolic else list(old), contiguity=True)
        fd.add_output(fd.ops.reshape(x, list(new)))
        fd.add_output(fd.ops.reshape(fd.ops.sin(x), list(new)))
    assert [tuple(out.shape) for out in fd.execute([torch.randn(old)])] == [new, new]
    if is_symbolic:
        with pytest.raises(InputError, match="expected the sizes"):
            fd.execute([torch.randn([n or 1 for n in old])])


@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("new", [[], [1], [1, 1, 1]])
def test_reshapes_of_any_size_to_one_element(new: list[int], is_computed: bool) -> None:
    with FusionDefinition() as fd:
        x = float_tensor(fd, 2, True)
        one = fd.ops.reshape(fd.ops.neg(x) if is_computed else x, new)
        fd.add_output(one)
        fd.add_output(fd.ops.add(x, fd.ops.reshape(one, [fd.ops.size(x, 0)])))
    x = torch.randn(1, 1)
    expected = -x if is_computed else x
    one, total = fd.execute([x])
    assert torch.equal(one, expected.reshape(new)) and torch.equal(total, x + expected)
    for sizes in ((2, 1), (0, 3)):
        with pytest.raises(InputError, match="reshape: expected the sizes"):
            fd.execute([torch.randn(sizes)])


def test_reshapes_to_sizes_that_are_scalars() -> None:
    """The second merges other axes than the first: one kernel, and wrong sizes are refused."""
    with FusionDefinition() as fd:
        x = float_tensor(fd, 3, True)
        times, rows, columns = (fd.define_scalar(dtype=DataType.Int) for _ in range(3))
        wide = fd.ops.broadcast(fd.ops.neg(x), [False, False, True, False])
        wide = fd.ops.expand(wide, [-1, -1, times, -1])
        joined = fd.ops.reshape(wide, [fd.ops.size(x, 0), fd.ops.size(x, 1), columns])
        again = fd.ops.expand(
            fd.ops.broadcast(joined, [True, False, False, False]), [2, -1, -1, -1]
        )
        fd.add_output(fd.ops.add(fd.ops.reshape(again, [rows, fd.ops.size(x, 1), columns]), 1.0))
    x = torch.randn(5, 7, 2)
    (result,) = fd.execute([x, 3, 10, 6])
    assert torch.equal(result, 1 - x.repeat(2, 1, 3))
    for wrong in ((3, 10, 7), (3, 11, 6), (2, 10, 6)):
        with pytest.raises(InputError):
            fd.execute([x, *wrong])


@pytest.mark.parametrize("size", ["constant", "of another tensor", "symbolic"])
def test_symbolic_sizes_that_are_flattened_to_a_known_one(size: str) -> None:
    """One kernel computes both sides of the reshape: the merged sizes are the other tensor's."""
    with FusionDefinition() as fd:
        x = float_tensor(fd, 2, True)
        y = fd.define_tensor([14 if size == "constant" else -1], contiguity=True)
        length = fd.ops.size(y, 0) if size == "of another tensor" else 14
        flat = fd.ops.reshape(fd.ops.sin(x), [length])
        fd.add_output(fd.ops.add(flat, y))
        fd.add_output(fd.ops.sum(flat, [0]))
    given, other = torch.randn(2, 7), torch.randn(14)
    total, length_sum = fd.execute([given, other])
    torch.testing.assert_close(total, given.sin().reshape(14) + other)
    torch.testing.assert_close(length_sum, given.sin().sum())
    with pytest.raises(InputError):
        fd.execute([torch.randn(3, 7), other])


def test_a_dense_tensor_where_an_axis_is_declared_expanded() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[None, True])
        fd.add_output(fd.ops.add(x, 1.0))
    for given in (torch.randn(1, 5), torch.randn(0, 5), torch.randn(1, 5).expand(4, 5)):
        assert torch.equal(fd.execute([given])[0], given + 1)


def test_an_input_is_updated_by_what_does_not_read_it() -> None:
    with FusionDefinition() as fd:
        a, b = float_tensor(fd, 1), float_tensor(fd, 1)
        fd.add_output(fd.ops.abs(b), a)
    x, y = torch.randn(5), torch.randn(5)
    assert fd.execute([x, y]) == [] and torch.equal(x, y.abs())
