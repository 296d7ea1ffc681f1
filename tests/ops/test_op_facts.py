"""Facts on the rows of ops are true: checked against torch where possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node

from pyfuser import DataType, FusionDefinition
from pyfuser.analysis.costs import is_copy, is_cut, is_repeatable
from pyfuser.devices.registry import target_of
from pyfuser.ops import table
from pyfuser.ops.dtype_rules import OperandType, resolve
from pyfuser.ops.op import Op
from pyfuser.ops.table import OPS, REDUCTIONS
from pyfuser.torch_compile.aten import TRANSLATIONS, cost
from pyfuser.torch_compile.op_facts import FACTS, has_effects, is_random

aten = torch.ops.aten


def half_operands(op: Op) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4096, generator=generator).half().float() for _ in range(op.arity)]


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.keeps_values or op.is_copy])
def test_values_that_are_kept_need_no_rounding(op: Op) -> None:
    made = op.reference(*half_operands(op))
    assert torch.equal(made, made.half().float())


@pytest.mark.parametrize("name", ["add", "mul", "exp", "lerp", "sqrt", "round"])
def test_other_values_do(name: str) -> None:
    op = OPS[name]
    assert not op.keeps_values
    if name != "round":
        made = op.reference(*half_operands(op))
        assert not torch.equal(made, made.half().float())


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.is_copy])
def test_copies_copy(op: Op) -> None:
    (x,) = half_operands(op)
    assert torch.equal(op.reference(x), x)


def test_ops_that_give_bool_jump() -> None:
    for op in OPS.values():
        if op.arity > 2 or not op.in_kernels:
            continue
        try:
            result = resolve(op, [OperandType(DataType.Float)] * op.arity).result
        except Exception:  # not for floats
            continue
        if result is DataType.Bool:
            assert op.is_discontinuous, op.name


def test_repeated_elements_of_a_reduction() -> None:
    x = torch.tensor([1.5, -2.0])
    for reduction in REDUCTIONS.values():
        wanted = reduction.reference(x.expand(3, 2), (0,))
        got = x
        if reduction.repeated is not None:
            got = OPS[reduction.repeated].reference(x, torch.tensor(3.0))
        torch.testing.assert_close(got, wanted)


def test_expressions_ask_their_rows() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Float)
        fd.add_output(fd.ops.segment_set(fd.ops.set(fd.ops.exp(x))))
    exp, copy, cut = fd.fusion.definition.exprs
    assert [is_copy(e) for e in (exp, copy, cut)] == [False, True, True]
    assert [is_cut(e) for e in (exp, copy, cut)] == [False, False, True]
    assert [is_repeatable(e) for e in (exp, copy, cut)] == [True, True, False]


@pytest.mark.parametrize(
    ("field", "device", "other"), [("llvm", "cpu", "sm_90"), ("cuda", "sm_90", "cpu")]
)
def test_a_target_refuses_what_it_has_no_spelling_for(
    field: str, device: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Float)
        fd.add_output(fd.ops.exp(x))
    (expr,) = fd.fusion.definition.exprs
    assert target_of(device).refusal(expr) is None
    monkeypatch.setitem(table.OPS, "exp", replace(OPS["exp"], **{field: None}))
    assert target_of(device).refusal(expr) == "kernels don't compute exp"
    assert target_of(other).refusal(expr) is None


# -- aten


def test_translations_of_one_row_cost_what_the_row_says() -> None:
    for overload, row in TRANSLATIONS.items():
        name = overload._schema.name.removeprefix("aten::")
        if name in OPS and row.build.__qualname__.startswith(
            ("_unary", "_discontinuous", "_binary")
        ):
            assert row.cost == ("heavy" if OPS[name].is_expensive else "cheap"), name
            assert row.keeps_values is OPS[name].keeps_values, name


def refusing_call(name: str) -> tuple[Any, ...]:
    x, bad = torch.zeros(3, 3), torch.tensor([7])
    wide = torch.full((1, 3), 7)
    return {
        "index": (x, [bad]),
        "index_put": (x, [bad], torch.zeros(())),
        "index_select": (x, 0, bad),
        "index_add": (x, 0, bad, torch.zeros(1, 3)),
        "index_copy": (x, 0, bad, torch.zeros(1, 3)),
        "index_fill": (x, 0, bad, 1.0),
        "gather": (x, 0, wide),
        "scatter": (x, 0, wide, torch.zeros(1, 3)),
        "scatter_add": (x, 0, wide, torch.zeros(1, 3)),
        "scatter_reduce": (x, 0, wide, torch.zeros(1, 3), "sum"),
        "embedding": (x, bad),
        "take": (x, torch.tensor([9])),
        "put": (x, torch.tensor([9]), torch.zeros(1)),
        "_assert_async": (torch.tensor(False),),
    }[name]


@pytest.mark.parametrize(
    "packet", [packet for packet, row in FACTS.items() if row.refuses], ids=lambda p: p.__name__
)
def test_what_refuses_refuses(packet: Any) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        packet(*refusing_call(packet.__name__))


def test_what_may_be_a_view_may_be_one() -> None:
    x = torch.zeros(2, 3)
    given = {"_unsafe_view": ([6],), "reshape": ([6],), "_reshape_alias": ([6], [1])}
    for packet, row in FACTS.items():
        if row.may_view:
            made = packet(x, *given.get(packet.__name__, ()))
            assert made.untyped_storage()._cdata == x.untyped_storage()._cdata, packet


def node_of(target: Any, *arguments: Any) -> Node:
    graph = Graph()
    given = [graph.placeholder("x") if a is None else a for a in arguments]
    return graph.call_function(target, tuple(given))


def test_effects() -> None:
    assert has_effects(node_of(aten.bernoulli.p, None, 0.5))
    assert is_random(node_of(aten.bernoulli.p, None, 0.5))
    assert has_effects(node_of(aten.copy_.default, None, None))
    assert has_effects(node_of(aten._assert_async.default, None))
    assert not has_effects(node_of(aten.exp.default, None))
    assert cost(node_of(aten.exp.default, None)) == "heavy"
