"""Fusion text: the Python that a fusion prints as rebuilds it; golden text where users see it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import UnsupportedError
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.keys import definition_key
from pyfuser.ir.text import number_text, translate
from pyfuser.ir.verify import verify_fusion
from pyfuser.ops.evaluator import evaluate

Define = Callable[[FusionDefinition], None]


def defined(define: Define) -> Fusion:
    with FusionDefinition() as fd:
        define(fd)
    return fd.fusion.graph


def rebuilt(text: str) -> Fusion:
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, names)
    return defined(names["nvfuser_fusion"])


def normalisation(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Half)
    weight = fd.define_tensor([-1], contiguity=True)
    epsilon = fd.define_scalar(dtype=DataType.Double)
    wide = fd.ops.cast(x, DataType.Float)
    variance, mean = fd.ops.var_mean(wide, [1], 0, True)
    scaled = fd.ops.mul(fd.ops.sub(wide, mean), fd.ops.rsqrt(fd.ops.add(variance, epsilon)))
    fd.add_output(fd.ops.cast(fd.ops.mul(scaled, weight), DataType.Half))


def shapes(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, -1, 1], contiguity=[True, True, None])
    columns = fd.define_scalar(None, DataType.Int)
    flat = fd.ops.reshape(x, [-1])
    fd.add_output(fd.ops.reshape(flat, [-1, 2]))
    fd.add_output(fd.ops.reshape(flat, [columns, -1]))
    fd.add_output(fd.ops.permute(x, [2, 1, 0]))
    fd.add_output(fd.ops.expand(x, [-1, -1, 7]))
    fd.add_output(fd.ops.sum(fd.ops.expand(x, [-1, -1, 7]), [0, 2], True))
    fd.add_output(fd.ops.stride_order(x, [0, 2, 1]))
    fd.add_output(fd.ops.broadcast_in_dim(flat, [3, fd.ops.size(flat, 0)], [1]))
    fd.add_output(fd.ops.squeeze(x, [2]))
    fd.add_output(fd.ops.pad(x, [1, 2]))
    fd.add_output(fd.ops.slice_scatter(x, fd.ops.neg(x), 2))


def factories(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, 4])
    rows = fd.ops.size(x, 0)
    fd.add_output(fd.ops.full([rows, fd.ops.mul(rows, 3), 1], True, DataType.Bool))
    fd.add_output(fd.ops.iota(fd.ops.add(rows, 2), 1, 3))
    fd.add_output(fd.ops.add(fd.ops.iota(rows, dtype=DataType.Float), 0.1))


def scalars(fd: FusionDefinition) -> None:
    x = fd.define_tensor([])
    a = fd.define_scalar(DataType.Int)
    b = fd.define_scalar(2.5, dtype=DataType.Float)
    c = fd.ops.cast(fd.ops.mul(a, fd.ops.neg(b)), DataType.Double)
    y = fd.ops.where(fd.ops.gt(x, c), x, -math.inf)
    fd.add_output(fd.ops.clamp(y, -1.5, math.nan))


def aliases(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, False], stride_order=[0, 1])
    y = fd.define_tensor(shape=[-1, 5], contiguity=[True, None], is_cpu=False)
    total = fd.ops.add(x, y)
    fd.add_output(total, x)
    fd.add_output(total)
    fd.add_output(fd.ops.segment_set(total))
    fd.add_output(fd.ops.relu(total), y)


@pytest.mark.parametrize("define", [normalisation, shapes, factories, scalars, aliases])
def test_printed_python_rebuilds_the_fusion(define: Define) -> None:
    fusion = defined(define)
    verify_fusion(fusion)
    again = rebuilt(translate(fusion))
    verify_fusion(again)
    assert definition_key(again) == definition_key(fusion)
    # From here on values are numbered as they are printed, so the text itself is a fixed point.
    third = rebuilt(translate(again))
    assert definition_key(third) == definition_key(again)
    assert list(map(str, again.equal_extents)) == list(map(str, third.equal_extents))


def test_rebuilt_fusion_computes_the_same() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 4).half(), torch.randn(4)
    inputs = {
        normalisation: [x, y, 1e-5],
        shapes: [torch.randn(2, 4, 1), 4],
        factories: [torch.randn(3, 4)],
        scalars: [torch.tensor(1.5), 3],
    }
    for define, given in inputs.items():
        fusion = defined(define)
        first, second = evaluate(fusion, given), evaluate(rebuilt(translate(fusion)), given)
        for a, b in zip(first, second, strict=True):
            assert a.dtype is b.dtype and a.stride() == b.stride()
            assert torch.equal(a, b) or bool((a.isnan() & b.isnan()).all())


def test_text_of_a_small_fusion() -> None:
    def define(fd: FusionDefinition) -> None:
        a = fd.define_tensor([-1, -1, -1], contiguity=True)
        b = fd.define_tensor([-1, -1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.add(a, b), 3.0), -1))

    tensor = "shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False"
    assert translate(defined(define)) == (
        "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"
        f"    tv0 = fd.define_tensor({tensor})\n"
        f"    tv1 = fd.define_tensor({tensor})\n"
        "    tv2 = fd.ops.add(tv0, tv1)\n"
        "    tv3 = fd.ops.mul(tv2, 3.00000)\n"
        "    tv4 = fd.ops.sum(tv3, dims=[2], dtype=DataType.Float)\n"
        "    fd.add_output(tv4)\n"
    )


def test_dead_operations_are_not_printed() -> None:
    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1])
        fd.ops.exp(x)
        fd.add_output(fd.ops.neg(x))

    assert "exp" not in translate(defined(define))


def test_key_tells_definitions_apart() -> None:
    def multiplied(factor: object, shape: list[int], contiguity: bool) -> str:
        def define(fd: FusionDefinition) -> None:
            fd.ops.exp(x := fd.define_tensor(shape, contiguity))
            fd.add_output(fd.ops.mul(x, factor))

        return definition_key(defined(define))

    same = multiplied(2.0, [-1], True)
    assert multiplied(2.0, [-1], True) == same
    others = {
        multiplied(2, [-1], True),
        multiplied(2.5, [-1], True),
        multiplied(2.0, [4], True),
        multiplied(2.0, [-1], False),
        multiplied(2.0, [-1, -1], True),
    }
    assert len(others) == 5 and same not in others


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (3, "3"),
        (3.0, "3.00000"),
        (0.1, "0.100000"),
        (1e-5, "1.00000e-05"),
        (1 / 3, "0.3333333333333333"),
        (math.inf, 'float("inf")'),
        (-math.inf, 'float("-inf")'),
        (math.nan, 'float("nan")'),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_numbers_are_exact(value: Any, text: str) -> None:
    assert number_text(value) == text
    again = eval(text)
    assert again == value or value != value


def test_a_tensor_from_nowhere_is_an_error() -> None:
    fusion, other = defined(normalisation), defined(normalisation)
    fusion.outputs.append(other.inputs[0])
    with pytest.raises(UnsupportedError, match="translate: expected every tensor to be an input"):
        translate(fusion)


def test_a_product_prints_its_operands_by_position() -> None:
    def define(fd: FusionDefinition) -> None:
        x, weight = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        bias = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.linear(x, weight, bias))
        fd.add_output(fd.ops.linear(x, weight))

    text = translate(defined(define))
    assert "tv3 = fd.ops.linear(tv0, tv1, bias=tv2)\n" in text
    assert "tv4 = fd.ops.linear(tv0, tv1)\n" in text


def test_a_slice_to_one_element_prints_as_it_was_defined() -> None:
    def define(fd: FusionDefinition) -> None:
        x = fd.ops.reshape(fd.define_tensor([-1, -1], contiguity=True), [3, 2, 2])
        fd.add_output(fd.ops.sum(fd.ops.slice(x, [0, 0, 0], [3, 2, 1]), [2]))

    fusion = defined(define)
    text = translate(fusion)
    bounds = "start_indices=[0, 0, 0], end_indices=[3, 2, 1], manual_normalization=True"
    assert f"tv2 = fd.ops.slice(tv1, {bounds})\n" in text
    assert definition_key(rebuilt(text)) == definition_key(fusion)


def test_tensors_that_are_joined_print_as_a_cat() -> None:
    def define(fd: FusionDefinition) -> None:
        x, y = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        joined = fd.ops.cat([x, fd.ops.exp(y), x], 1)
        fd.add_output(fd.ops.neg(joined))
        fd.add_output(fd.ops.cat([joined, joined], 0))

    fusion = defined(define)
    text = translate(fusion)
    assert "fd.ops.cat([tv0, tv2, tv0], dim=1)\n" in text
    assert text.count("fd.ops.cat") == 2 and "fd.ops.pad" not in text
    assert definition_key(rebuilt(text)) == definition_key(fusion)


def test_pads_that_only_resemble_a_cat_print_as_they_are() -> None:
    def define(fd: FusionDefinition) -> None:
        x = fd.define_tensor([3], contiguity=True)
        padded = fd.ops.pad(x, [0, 3])
        fd.add_output(fd.ops.pad(x, [3, 0], padded))
        fd.add_output(padded)  # an output as well
        fd.add_output(fd.ops.pad(x, [3, 0], fd.ops.pad(x, [0, 3], 1.0)))  # not 0 around it
        fd.add_output(fd.ops.pad(x, [4, 0], fd.ops.pad(x, [0, 4])))  # a gap between them
        fd.add_output(fd.ops.pad(x, [2, 0], fd.ops.pad(x, [0, 2])))  # one on top of the other

    fusion = defined(define)
    text = translate(fusion)
    assert "cat" not in text
    assert definition_key(rebuilt(text)) == definition_key(fusion)
    x = torch.tensor([1.0, 2.0, 3.0])
    for a, b in zip(evaluate(fusion, [x]), evaluate(rebuilt(text), [x]), strict=True):
        assert torch.equal(a, b)
