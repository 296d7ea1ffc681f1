"""The LLVM text writer: exact literals, remembered instructions, lanes and memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyfuser.devices.cpu.llvm_writer import (
    DOUBLE,
    FLOAT,
    I32,
    I64,
    PTR,
    FunctionWriter,
    LLVMType,
    Value,
)
from pyfuser.errors import InternalError
from tests.devices.cpu import vector_math_harness as harness

OUT, INPUT = Value("%out", PTR), Value("%in0", PTR)


def writer() -> FunctionWriter:
    return FunctionWriter(has_fma=True)


@pytest.mark.parametrize(
    ("number", "element", "text"),
    [
        (0.1, "float", "0x3FB99999A0000000"),
        (0.1, "double", "0x3FB999999999999A"),
        (-0.0, "float", "0x8000000000000000"),
        (math.inf, "double", "0x7FF0000000000000"),
        (math.nan, "float", "0x7FF8000000000000"),
        (1e300, "float", "0x7FF0000000000000"),
        (1.0, "half", "0xH3C00"),
        (1.00390625, "bfloat", "0xR3F80"),
        (300, "i8", "44"),
        (True, "i1", "true"),
    ],
)
def test_literals_are_exact(number, element, text):
    assert writer().constant(number, LLVMType(element)).name == text
    splat = writer().constant(number, LLVMType(element, 4))
    assert splat == Value(f"splat ({element} {text})", LLVMType(element, 4))


def test_zero_and_minus_zero_are_different_literals():
    w = writer()
    assert w.constant(0.0, FLOAT) != w.constant(-0.0, FLOAT)
    assert w.constant(0, FLOAT) == w.constant(0.0, FLOAT)


def test_equal_instructions_are_printed_once_in_a_block():
    w = writer()
    a, b = Value("%a", FLOAT), Value("%b", FLOAT)
    first = w.fadd(a, b)
    assert w.fadd(a, b) == first and len(w.lines) == 1
    w.label("next")
    assert w.fadd(a, b) != first
    outside: list[str] = []
    inside, w.lines = w.lines, outside
    w.fadd(a, b)
    assert len(outside) == 1
    w.lines = inside
    w.fadd(a, b)
    assert len(inside) == 4


def test_a_label_written_by_hand_also_ends_the_memory():
    w = writer()
    first = w.fadd(Value("%a", FLOAT), Value("%b", FLOAT))
    w.emit("by_hand:")
    assert w.fadd(Value("%a", FLOAT), Value("%b", FLOAT)) != first


def test_loads_are_never_merged():
    w = writer()
    assert w.load(FLOAT, OUT, 4) != w.load(FLOAT, OUT, 4)


def test_fma_is_two_instructions_without_the_hardware():
    w = FunctionWriter(has_fma=False)
    a = Value("%a", FLOAT)
    w.fma(a, a, a)
    assert [line.split()[2] for line in w.lines] == ["fmul", "fadd"]
    assert not w.declarations


def test_reduce_tree_refuses_odd_lanes():
    with pytest.raises(InternalError, match="reduce_tree: expected a power of two of lanes, got 3"):
        writer().reduce_tree(Value("%a", FLOAT.with_lanes(3)), "fadd")


def run_vector(body, *inputs: np.ndarray, element: LLVMType = FLOAT) -> np.ndarray:
    text = harness.function_text(body, [element] * len(inputs), element)
    return harness.run(harness.compile_text(text, len(inputs)), inputs, inputs[0].dtype)


def test_masked_memory_and_gathers():
    x = np.arange(16, dtype=np.float32)

    def body(w: FunctionWriter, value: Value) -> Value:
        low = w.fcmp("olt", value, w.constant(4.0, value.type))
        loaded = w.masked_load(value.type, INPUT, low, 4)
        lanes = w.lane_numbers(I64.with_lanes(16))
        backwards = w.sub(w.constant(15, lanes.type), lanes)
        pointers = w.element_pointer(INPUT, "float", backwards)
        gathered = w.gather(value.type, pointers, w.not_(low), 4)
        return w.fadd(loaded, gathered)

    expected = np.where(x < 4, x, x[::-1])
    np.testing.assert_array_equal(run_vector(body, x), expected)


def test_masked_store_and_scatter():
    x = np.arange(16, dtype=np.float32)

    def body(w: FunctionWriter, value: Value) -> Value:
        memory = w.alloca(FLOAT, 16, 64)
        w.store(w.constant(-1.0, value.type), memory, 4)
        low = w.fcmp("olt", value, w.constant(4.0, value.type))
        w.masked_store(value, memory, low, 4)
        lanes = w.lane_numbers(I64.with_lanes(16))
        pointers = w.element_pointer(memory, "float", w.sub(w.constant(15, lanes.type), lanes))
        w.scatter(value, pointers, low, 4)
        return w.load(value.type, memory, 4)

    expected = [0, 1, 2, 3, *[-1] * 8, 3, 2, 1, 0]
    np.testing.assert_array_equal(run_vector(body, x), expected)


def test_reductions_and_lanes():
    x = np.arange(1, 17, dtype=np.float64)

    def body(w: FunctionWriter, value: Value) -> Value:
        total = w.reduce_tree(value, "fadd")
        ordered = w.reduce("fadd", value, w.constant(0.0, DOUBLE))
        last = w.extractelement(value, 15)
        reversed_ = w.shufflevector(value, None, range(15, -1, -1))
        low = w.insertelement(reversed_, w.fadd(total, ordered), 0)
        return w.insertelement(low, last, Value("1", I32))

    expected = np.array([272.0, 16.0, *x[::-1][2:]])
    np.testing.assert_array_equal(run_vector(body, x, element=DOUBLE), expected)


def test_branches_and_phis():
    x = np.full(16, 3.0, np.float32)

    def body(w: FunctionWriter, value: Value) -> Value:
        w.branch("before")
        w.label("before")
        large = w.any(w.fcmp("ogt", value, w.constant(2.0, value.type)))
        w.branch_if(large, "large", "after")
        w.label("large")
        doubled = w.fadd(value, value)
        w.branch("after")
        w.label("after")
        return w.phi(value.type, [(doubled, "large"), (value, "before")])

    np.testing.assert_array_equal(run_vector(body, x), x * 2)


def test_names_are_counted_so_text_is_deterministic():
    texts = []
    for _ in range(2):
        w = writer()
        w.splat(w.fmul(Value("%a", FLOAT), w.constant(4, FLOAT)), 8)
        texts.append(w.lines)
    assert texts[0] == texts[1]
