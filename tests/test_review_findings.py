"""Cases that reviewers found wrong once: outputs of unlike shapes, empty ones, aliases, devices."""

from __future__ import annotations

import pytest
import torch

from pyfuser import DataType, DefinitionError, FusionDefinition, InputError

pytestmark = pytest.mark.usefixtures("poison")


@pytest.mark.parametrize("sizes", [(31, 7), (3, 7), (64, 16)])
def test_broadcast_output_of_static_size_beside_a_full_one(sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    with FusionDefinition() as fd:
        v, w = fd.define_tensor([rows, 1, 1]), fd.define_tensor([1, 1, columns])
        negated = fd.ops.neg(v)
        fd.add_output(negated)
        fd.add_output(fd.ops.add(negated, w))
    x, y = torch.randn(rows, 1, 1), torch.randn(1, 1, columns)
    first, second = fd.execute([x, y])
    assert torch.equal(first, -x)
    assert torch.equal(second, y - x)


def test_output_beside_an_empty_one_is_written() -> None:
    with FusionDefinition() as fd:
        bias, batch = fd.define_tensor([-1]), fd.define_tensor([-1, -1])
        negated = fd.ops.neg(bias)
        fd.add_output(negated)
        fd.add_output(fd.ops.add(fd.ops.broadcast(negated, [True, False]), batch))
    for rows in (0, 3):
        first, second = fd.execute([torch.ones(16), torch.zeros(rows, 16)])
        assert torch.equal(first, -torch.ones(16))
        assert torch.equal(second, -torch.ones(rows, 16))


def test_inputs_that_swap() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.add_output(y, x)
        fd.add_output(x, y)
    a, b = torch.ones(2), torch.zeros(2)
    fd.execute([a, b])
    assert a.tolist() == [0, 0]
    assert b.tolist() == [1, 1]


def test_one_output_updates_one_input() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        total = fd.ops.add(x, y)
        fd.add_output(total, x)
        with pytest.raises(DefinitionError, match="one input to update with an output"):
            fd.add_output(total, y)


def test_view_doesnt_show_a_later_update() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.reshape(x, [4]))
        fd.add_output(fd.ops.mul(x, 2.0), x)
    given = torch.ones(2, 2)
    (view,) = fd.execute([given])
    assert view.tolist() == [1, 1, 1, 1]
    assert given.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16, DataType.Float])
def test_negative_zero_scalar_after_zero(dtype: DataType) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        s = fd.define_scalar(dtype)
        fd.add_output(fd.ops.mul(x, s))
    ones = torch.ones(3)
    for value in (0.0, -0.0):
        (output,) = fd.execute([ones, value])
        assert torch.equal(output.signbit(), (ones * value).signbit())


def test_tensors_on_two_devices() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(x, y))
    with pytest.raises(InputError):
        fd.execute([torch.zeros(3, 3), torch.zeros(3, 3, device="meta")])


def test_reduction_of_an_input_that_stands_still_along_the_lanes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([1, -1, -1])
        least = fd.ops.min(fd.ops.sigmoid(x), [1])
        fd.add_output(fd.ops.broadcast(least, [False, True, False]))
    given = torch.randn(1, 5, 1).expand(1, 5, 33)
    (output,) = fd.execute([given])
    torch.testing.assert_close(output, torch.sigmoid(given).amin(1, keepdim=True))
