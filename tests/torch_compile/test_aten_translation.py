"""From aten to fusions: every translated overload against eager, in every dtype it takes.

Graphs of one node are built with fake tensors, translated, and evaluated with torch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch.fx import Node

from pyfuser.dtypes import DataType
from pyfuser.ops.evaluator import evaluate
from pyfuser.torch_compile.aten import TRANSLATIONS, NotTranslated, cost, refusal, translation
from pyfuser.torch_compile.aten.pointwise import compares_signs
from pyfuser.torch_compile.aten.region_builder import Call
from pyfuser.torch_compile.aten.term import Term
from pyfuser.torch_compile.views import is_view
from tests.torch_compile.aten_graphs import OneNode, flat, of_metadata, require_close, tensor_maker
from tests.torch_compile.aten_samples import arguments

aten = torch.ops.aten
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.bool,
)
# No kernel of torch for the CPU; it has a separate test.
ELSEWHERE = (aten._fused_rms_norm_backward.default,)
OVERLOADS = sorted((o for o in TRANSLATIONS if o not in ELSEWHERE), key=str)
# Eager's sixth is one of float32, in float64 too.
LOOSER = {(aten.hardsigmoid_backward.default, torch.float64): torch.float32}


# Overloads that eager computes and that have no translation.
NOT_TRANSLATED = {
    **dict.fromkeys(
        (
            *(aten.hardtanh.default, aten.relu6.default, aten.threshold.default),
            aten.threshold_backward.default,
        ),
        (torch.int64, torch.int32),
    ),
    **dict.fromkeys(
        (
            *(aten.scatter_add.default, aten.scatter_reduce.two, aten.index_add.default),
            *(aten.index_put.default, aten._unsafe_index_put.default),
            aten.embedding_dense_backward.default,
        ),
        (torch.bool,),
    ),
    aten.nextafter.default: (torch.bfloat16, torch.float16),
    aten.__lshift__.Scalar: (torch.bool,),
    aten.__rshift__.Scalar: (torch.bool,),
}
# How often torch's fake tensors refuse such an overload: they lack symbolic sizes for it.
UNTRACEABLE = ("SymIntArrayRef", "symbolic shapes", "integral dtype")


def sample(overload: OpOverload, dtype: torch.dtype, n: int = 5) -> tuple[Any, Any, Any] | None:
    """(arguments, keywords, eager's results); None if torch doesn't accept this dtype."""
    torch.manual_seed(0)
    try:
        given, keywords = arguments(overload, tensor_maker(dtype), n)
        return given, keywords, flat(overload(*given, **keywords))
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def one_node(
    overload: OpOverload, given: Any, keywords: Any, symbolic: bool = False
) -> OneNode | None:
    """The graph, if torch can trace it and it isn't refused."""
    try:
        graph = OneNode(overload, given, keywords, symbolic)
    except RuntimeError as error:
        assert any(text in str(error) for text in UNTRACEABLE), error
        return None
    return graph if refusal(graph.node) is None else None


def require_as_eager(graph: OneNode, wanted: list[torch.Tensor], dtype: torch.dtype) -> None:
    """The region's values are eager's."""
    region = graph.region()
    got = evaluate(region.fusion, graph.values(region))
    require_close(got, of_metadata(graph, wanted), dtype)


@pytest.mark.parametrize("overload", OVERLOADS, ids=str)
def test_overload(overload: OpOverload) -> None:
    found = {dtype: sample(overload, dtype) for dtype in DTYPES}
    assert any(found.values()), "eager takes no dtype"
    for dtype, made in found.items():
        if made is None:
            continue
        graph = one_node(overload, *made[:2])
        assert (graph is None) == (dtype in NOT_TRANSLATED.get(overload, ())), dtype
        if graph is not None:
            require_as_eager(graph, made[2], LOOSER.get((overload, dtype), dtype))


@pytest.mark.parametrize("overload", OVERLOADS, ids=str)
def test_exact_arguments_are_declared(
    overload: OpOverload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a translation reads rounded, the table says: other readers of it read the same."""
    read: set[Node] = set()
    exact = Call.exact

    def noted(call: Call, argument: Any, dtype: DataType | None = None) -> Term:
        read.add(argument)
        return exact(call, argument, dtype)

    monkeypatch.setattr(Call, "exact", noted)
    made = sample(overload, torch.bfloat16)
    graph = one_node(overload, *made[:2]) if made else None
    if graph is None:
        return
    graph.region()
    given, places = translation.arguments(graph.node), TRANSLATIONS[overload].exact
    declared = {given[place] for place in places if isinstance(given[place], Node)}
    halves = {node for node in read if node.meta["val"].dtype is torch.bfloat16}
    assert halves <= declared
    assert read or not declared or compares_signs(DataType.BFloat16, *given)


@pytest.mark.parametrize("overload", OVERLOADS, ids=str)
def test_structure_holds_no_size(overload: OpOverload) -> None:
    """Other sizes (not of short rows) give the same text, symbolic sizes the same numbers."""
    for dtype in (torch.float32, torch.int64, torch.bool):
        small, large = sample(overload, dtype, 17), sample(overload, dtype, 23)
        if small is None or large is None:
            continue
        graphs = [one_node(overload, *found[:2]) for found in (small, large)]
        texts = [str(graph.region().fusion) for graph in graphs if graph is not None]
        if len(texts) < 2:
            continue
        assert texts[0] == texts[1]
        symbolic = one_node(overload, *small[:2], symbolic=True)
        if symbolic is not None:
            require_as_eager(symbolic, small[2], dtype)
        return
    raise AssertionError("no dtype is translated")


# -- refusals


def refused(overload: OpOverload, *given: Any, **keywords: Any) -> str | None:
    """Why a call is refused."""
    return refusal(OneNode(overload, given, keywords).node)


def test_refusals_say_why() -> None:
    x = torch.randn(4, 6)
    assert refused(aten.geqrf.default, x) == "no translation of this operation"
    assert refused(aten.mm.default, x, x.t()) == "a product of several rows and columns"
    assert refused(aten.view.default, x, [24]) == "a reshape of real axes"
    assert refused(aten.neg.default, x.to(torch.complex64)) == "the dtype torch.complex64"
    assert refused(aten.add.Tensor, x.to(torch.uint16), 1) == "the dtype torch.uint16"
    assert refused(aten.amax.default, torch.empty(0, 3), [1]) == "no elements"
    assert refused(aten.add.Tensor, torch.ones(2, dtype=torch.uint8), 300) is not None
    negative = "torch.int64 to a power that may be negative"
    assert refused(aten.pow.Tensor_Scalar, torch.ones(2, dtype=torch.int64), -1) == negative
    assert refused(aten.pow.Tensor_Scalar, torch.ones(2, dtype=torch.int64), 3) is None
    assert refused(aten.pow.Tensor_Scalar, x, -1) is None
    index = [torch.tensor([0]), torch.tensor([1])]
    assert refused(aten.index.Tensor, x, index) == "several index tensors"
    assert refused(aten.add.Tensor, x, x) is None


def test_a_node_outside_of_the_tables_is_not_translated() -> None:
    graph = OneNode(aten.inverse.default, (torch.randn(3, 3),), {})
    with pytest.raises(NotTranslated, match="no translation"):
        graph.region()


def test_costs_and_views() -> None:
    def of(overload: OpOverload, *given: Any) -> Node:
        return OneNode(overload, given, {}).node

    x = torch.randn(4, 6)
    assert cost(of(aten.add.Tensor, x, x)) == "cheap"
    assert cost(of(aten.exp.default, x)) == "heavy"
    assert cost(of(aten.pow.Tensor_Scalar, x, 2)) == "cheap"
    assert cost(of(aten.pow.Tensor_Scalar, x, 2.5)) == "heavy"
    assert cost(of(aten.sum.default, x)) == "reduction"
    assert cost(of(aten.cat.default, [x, x])) == "read"
    assert is_view(of(aten.permute.default, x, [1, 0]))
    assert not is_view(of(aten.clone.default, x))
