"""Slices, pads, cat and gathers, fused with the operations around them.

Memory is poisoned, nothing may fall back to torch.  Into how many kernels a fusion is cut is asked
too: a read whose source was computed from inputs has to be moved to them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from pyfuser import DataType, FusionDefinition
from pyfuser.ir.exprs import GatherOp, WindowOp
from pyfuser.ir.keys import definition_key
from pyfuser.ir.vals import TensorView
from pyfuser.kernel_builds import compiled_kernel_count
from pyfuser.preseg import run as simplified
from pyfuser.schedule.common import Layouts
from tests.ops.read_definitions import Define, check, fused, kernels, values
from tests.support.targets import segment

pytestmark = pytest.mark.usefixtures("poison")


def rotated(o: Any, x: Any, sin: Any, cos: Any) -> Any:
    sizes = o.shape(x)
    half = o.div(sizes[3], 2)
    first = o.slice(x, [0, 0, 0, 0], [*sizes[:3], half])
    rest = o.slice(x, [0, 0, 0, half], sizes)
    rotated = o.cat([o.neg(rest), first], 3)
    return o.add(o.mul(rotated, sin), o.mul(x, cos))


@pytest.mark.parametrize("width", [2, 8, 64, 66])
def test_rotary_embedding_is_one_kernel(width: int) -> None:
    x = values((2, 3, 5, width), torch.float32)
    sin, cos = values((5, width), torch.float32).sin(), values((5, width), torch.float32).cos()
    half = width // 2
    want = torch.cat([-x[..., half:], x[..., :half]], -1) * sin + x * cos
    fd = check(rotated, [x, sin, cos], want)
    assert kernels(fd) == ["resize"]


def log_softmax(o: Any, x: Any) -> Any:
    shifted = o.sub(x, o.max(x, 1, True))
    return o.sub(shifted, o.log(o.sum(o.exp(shifted), 1, True)))


@pytest.mark.parametrize("shape", [(1, 2), (7, 33), (5, 300)], ids=str)
def test_cross_entropy_gathers_the_input(shape: tuple[int, int]) -> None:
    x = values(shape, torch.float32)
    label = torch.randint(0, shape[1], (shape[0], 1))
    want = functional.cross_entropy(x, label[:, 0], reduction="none")[:, None]
    fd = check(lambda o, x, i: o.neg(o.take_along_axis(log_softmax(o, x), i, 1)), [x, label], want)
    (gather,) = [e for e in simplified(fd.fusion.definition).exprs if isinstance(e, GatherOp)]
    assert gather.source is not None and gather.source.expr is None


def test_embedding_and_layer_norm_are_one_kernel() -> None:
    weight, index = values((50, 48), torch.float32), torch.randint(0, 50, (3, 9))
    position, scale = values((9, 48), torch.float32), values((48,), torch.float32)

    def define(o: Any, i: Any, weight: Any, position: Any, scale: Any) -> Any:
        x = o.add(o.embedding_fwd(i, weight), position)
        variance, mean = o.var_mean(x, [2], 0, True)
        return o.mul(o.mul(o.sub(x, mean), o.rsqrt(o.add(variance, 1e-5))), scale)

    want = functional.layer_norm(weight[index] + position, (48,), scale)
    fd = check(define, [index, weight, position, scale], want)
    assert kernels(fd) == ["inner_persistent"]


@pytest.mark.parametrize("dim", [0, 1])
def test_normalisations_of_padded_and_sliced_inputs(dim: int) -> None:
    x = values((37, 43), torch.float32)
    padded = functional.pad(x, [2, 3, 1, 0], value=0.5)

    def softmax(o: Any, x: Any) -> Any:
        shifted = o.exp(o.sub(x, o.max(x, dim, True)))
        return o.div(shifted, o.sum(shifted, dim, True))

    fd = check(lambda o, x: softmax(o, o.pad(x, [2, 3, 1, 0], 0.5)), [x], padded.softmax(dim))
    assert kernels(fd) == ["inner_persistent" if dim else "outer_persistent"]
    want = (x[1:30, 5:] * 2).softmax(dim)
    check(lambda o, x: softmax(o, o.slice(o.mul(x, 2.0), [1, 5], [30, 43])), [x], want)


@pytest.mark.parametrize("dims", [[0], [1], [0, 1]], ids=str)
def test_sums_of_reads(dims: list[int]) -> None:
    x, y = values((70, 43), torch.float32), values((70, 90), torch.float32)
    index = torch.randint(0, 70, (200,))
    want = torch.cat([x.abs(), y], 1).sum(dims)
    fd = check(lambda o, x, y: o.sum(o.cat([o.abs(x), y], 1), dims), [x, y], want, atol=1e-3)
    assert kernels(fd) == ["reduction"]
    want = x[index].sum(dims)
    fd = check(lambda o, x, i: o.sum(o.index_select(x, i, 0), dims), [x, index], want, atol=1e-3)
    assert kernels(fd) == ["reduction"]


def test_windows_move_through_all_that_moves_no_data() -> None:
    x, bias = values((7, 33), torch.float32), values((7, 1), torch.float32)

    def define(o: Any, x: Any, bias: Any) -> Any:
        transposed = o.permute(o.cast(o.add(o.exp(x), bias), DataType.Double), [1, 0])
        wide = o.broadcast(transposed, [False, True, False])
        return o.pad(o.slice(wide, [3, 0, 1], [30, 1, 7]), [2, 0, 1, 1, 0, 4], 9.0)

    want = (x.exp() + bias).double().t()[3:30, None, 1:7]
    want = functional.pad(want, [2, 0, 1, 1, 0, 4], value=9.0)
    fd = check(define, [x, bias], want)
    assert kernels(fd) == ["resize"]


def test_windows_of_windows() -> None:
    x = values((40,), torch.float32)
    padded = functional.pad(x, [5, 5], value=2.0)
    cases: list[tuple[Define, torch.Tensor]] = [
        (lambda o, x: o.slice(o.slice(x, [3], [33], [2]), [1], [9], [3]), x[3:33:2][1:9:3]),
        (lambda o, x: o.slice(o.pad(x, [5, 5], 2.0), [3], [44]), padded[3:44]),
        (lambda o, x: o.slice(o.pad(x, [5, 5], 2.0), [3], [44], [2]), padded[3:44:2]),
        (
            lambda o, x: o.pad(o.pad(x, [5, 5], 2.0), [-2, 3], 3.0),
            functional.pad(padded, [-2, 3], value=3.0),
        ),
        (
            lambda o, x: o.cat([o.cat([x, o.neg(x)], 0), o.slice(x, [0], [3])], 0),
            torch.cat([x, -x, x[:3]]),
        ),
    ]  # fmt: skip
    for define, want in cases:
        check(define, [x], want)


def test_what_is_reduced_or_expensive_is_stored_and_then_read() -> None:
    x = values((20, 33), torch.float32)
    fd = check(lambda o, x: o.pad(o.sum(x, 1), [1, 5]), [x], functional.pad(x.sum(1), [1, 5]))
    assert kernels(fd) == ["reduction", "resize"]
    want = [x.exp(), functional.pad(x.exp(), [1, 1])]

    def both(o: Any, x: Any) -> Any:
        power = o.exp(x)
        return [power, o.pad(power, [1, 1])]

    assert kernels(check(both, [x], want)) == ["pointwise", "resize"]
    flat = check(lambda o, x: o.slice(o.reshape(x, [-1]), [5], [600]), [x], x.reshape(-1)[5:600])
    assert kernels(flat) == ["no_op"]
    parts = check(
        lambda o, x: o.slice(o.reshape(x, [-1, 11]), [0, 5], [60, 9]),
        [x],
        x.reshape(-1, 11)[:, 5:9],
    )
    assert kernels(parts) == ["no_op", "resize"]


def test_a_window_after_a_permute_reads_what_is_permuted() -> None:
    """The view isn't stored beside the tensor: each tensor that a kernel stores is an output."""

    def define(o: Any, x: Any) -> Any:
        y = o.exp(x)
        transposed = o.permute(y, [1, 0, 2])
        return [
            y,
            o.mul(
                o.slice(transposed, [0, 0, 0], [9, 4, 5], [2, 1, 1]), transposed_rows(o, transposed)
            ),
        ]

    def transposed_rows(o: Any, transposed: Any) -> Any:
        return o.slice(transposed, [1, 0, 0], [10, 4, 5], [2, 1, 1])

    x = values((4, 10, 5), torch.float32)
    transposed = x.exp().permute(1, 0, 2)
    fd = check(define, [x], [x.exp(), transposed[0:9:2] * transposed[1:10:2]])
    graph = simplified(fd.fusion.definition)
    stored = [t for part in segment(graph).segments for t in part.outputs]
    assert set(stored) <= set(graph.outputs)
    # A pad of it is filled around as before.
    padded = functional.pad(transposed, [0, 0, 0, 0, 2, 1], value=1.5)
    fd = check(
        lambda o, x: [y := o.exp(x), o.pad(o.permute(y, [1, 0, 2]), [0, 0, 0, 0, 2, 1], 1.5)],
        [x],
        [x.exp(), padded],
    )


@pytest.mark.parametrize("step", [1, 2])
def test_an_axis_read_in_steps_is_no_range_with_the_next(step: int) -> None:
    x = values((16, 8), torch.float32)
    define = lambda o, x: o.slice(x, [2, 0], [14, o.size(x, 1)], [step, 1])  # noqa: E731
    fd = check(define, [x], x[2:14:step])
    graph = simplified(fd.fusion.definition)
    (output,) = graph.outputs
    assert isinstance(output, TensorView)
    assert Layouts(graph).merges(*output.axes) is (step == 1)


def test_several_reads_of_one_input() -> None:
    x = values((9, 64), torch.float32)

    def define(o: Any, x: Any) -> Any:
        parts = [o.slice(x, [0, a], [9, a + 16]) for a in (0, 16, 32, 48)]
        return o.add(o.mul(parts[0], o.sigmoid(parts[1])), o.sub(parts[2], parts[3]))

    a, b, c, d = x.split(16, 1)
    fd = check(define, [x], a * b.sigmoid() + (c - d))
    assert kernels(fd) == ["resize"]
    windows = [e for e in simplified(fd.fusion.definition).exprs if isinstance(e, WindowOp)]
    assert len(windows) == 4


def test_reads_of_an_input_that_is_updated() -> None:
    x = values((9, 10), torch.float32)
    kept = x.clone()
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        rolled = fd.ops.cat([fd.ops.slice(t, [1, 0], [9, 10]), fd.ops.slice(t, [0, 0], [1, 10])], 0)
        fd.add_output(rolled, t)
    fd.execute([x])
    torch.testing.assert_close(x, kept.roll(-1, 0))


def test_new_sizes_need_no_new_kernel() -> None:
    def inputs(rows: int, columns: int) -> list[torch.Tensor]:
        index = torch.randint(0, rows, (rows, columns))
        return [torch.randn(rows, columns), torch.randn(rows, columns + 3), index]

    def define(o: Any, x: Any, y: Any, i: Any) -> Any:
        return o.mul(o.pad(o.cat([x, y], 1), [1, 2]), 2.0), o.gather(x, i, 0)

    fd = fused(lambda *a: list(define(*a)), inputs(70, 290))
    fd.execute(inputs(70, 290))
    before = compiled_kernel_count()
    # Even numbers of columns, but not multiples of 4: on a GPU, they decide on the vectors.  Rows
    # of fewer than 16 vectors have steps of up to three lengths.
    for rows, columns in ((80, 302), (65, 326)):
        x, y, i = inputs(rows, columns)
        wide, picked = fd.execute([x, y, i])
        torch.testing.assert_close(wide, functional.pad(torch.cat([x, y], 1), [1, 2]) * 2)
        torch.testing.assert_close(picked, x.gather(0, i))
    assert compiled_kernel_count() == before


def test_the_definition_prints_as_what_rebuilds_it() -> None:
    x, index = values((9, 10), torch.float32), torch.randint(0, 9, (4,))
    fd = fused(
        lambda o, x, i: o.pad(o.index_select(o.slice(x, [0, 2], [9, 7]), i, 0), [1, 2], 0.5),
        [x, index],
    )
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert definition_key(again.fusion.definition) == definition_key(fd.fusion.definition)
