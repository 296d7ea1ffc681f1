"""The nvfuser_direct interface: texts, scripts, caches, handles of tensors, and schedules.

The engine is replaced by the eager evaluator (see conftest.py).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pyfuser as nvfuser_direct
from pyfuser import (
    DataType,
    Fusion,
    FusionDefinition,
    LRUCache,
    LruFusionCache,
    MemoryType,
    ParallelType,
)
from pyfuser.errors import (
    DefinitionError,
    InputError,
    PyfuserError,
    ScheduleError,
    UnsupportedError,
)
from pyfuser.ir.verify import verify_fusion, verify_scheduled
from tests.frontend.definitions import Engine, doubled

# -- text, scripts, caches


def test_repr_and_repro_scripts_run() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1, -1]), fd.define_scalar()
        fd.add_output(fd.ops.mul(x, s))
    with pytest.raises(AssertionError, match=r"save_repro_inputs=True\) was not executed"):
        fd.last_repro_script()
    inputs = [torch.randn(6, 4)[:, ::2], float("inf")]
    fd.execute(inputs, save_repro_inputs=True)
    script = fd.last_repro_script()
    assert ".as_strided((6, 2), (4, 2))" in script and 'float("inf")' in script
    names: dict[str, Any] = {}
    exec(script, names)
    assert names["inputs"][0].stride() == (4, 2) and Engine.made == 2
    assert "inputs = [" not in fd.repro_script_for()
    assert "make_tensor((2, 3)" in fd.repro_script_for([torch.zeros(2, 3), 1.0])


INDICES = [torch.int64, torch.int32]


@pytest.mark.parametrize("dtype", INDICES)
@pytest.mark.parametrize("indices", [[0, 2, 1, 2], [2], []])
def test_a_repro_script_has_indices_that_are_inside(dtype: torch.dtype, indices: list[int]) -> None:
    x, index = torch.randn(3, 4), torch.tensor(indices, dtype=dtype)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.index_select(fd.from_pytorch(x), fd.from_pytorch(index), 0))
    exec(fd.repro_script_for([x, index]), {})


def test_a_repro_script_of_every_dtype() -> None:
    dtypes = [torch.uint8, torch.int8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]
    dtypes += [torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else []
    for dtype in dtypes:
        x = torch.full((3, 2), 255, dtype=torch.uint8).view(dtype)
        for given in (x, x.t(), x[:, 1:]):
            with FusionDefinition() as fd:
                fd.add_output(fd.ops.permute(fd.from_pytorch(given), [1, 0]))
            exec(fd.repro_script_for([given]), {})


def test_a_printed_select_refuses_what_the_definition_refuses() -> None:
    with FusionDefinition() as fd:
        x, index = fd.define_tensor([-1, -1]), fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.select(x, index, 0))
    assert "select(tv0, c0, dim=0)" in str(fd)
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    x = torch.randn(3, 5)
    assert torch.equal(again.execute([x, 2])[0], x[2])
    for definition in (fd, again):
        with pytest.raises(InputError, match="select: expected"):
            definition.execute([x, 7])


def test_print_math_shows_live_expressions() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.ops.exp(x)
        fd.add_output(fd.ops.neg(x))
    text = fd.fusion.print_math()
    assert text.startswith(
        "Inputs:\n  T0_g_float[iS0{i0}]\nOutputs:\n  T2_g_float[iS2{i0}]\n\n%kern"
    )
    assert text.endswith("} // %kernel_math \n\n") and "exp" not in text
    assert "exp" in fd.fusion.print_math(from_outputs_only=False)


def test_equal_definitions_are_equal_fusions() -> None:
    assert doubled().fusion == doubled().fusion
    assert hash(doubled().fusion) == hash(doubled().fusion)
    assert doubled().fusion != Fusion()
    assert [type(v).__name__ for v in doubled().fusion.vals()] == [
        "TensorView",
        "Scalar",
        "TensorView",
    ]


def test_lru_cache_statistics() -> None:
    cache = LruFusionCache(max_fusions=10)

    @cache
    def define(op: str) -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1])
            fd.add_output(getattr(fd.ops, op)(x))
        return fd

    assert define.stats() == "Max Fusions Allowed: 10\nThe fusion cache is empty.\n"  # type: ignore[attr-defined]
    executors = {define(op).fec for _ in range(5) for op in ("neg", "exp")}
    assert len(executors) == define.num_fusions() == 2  # type: ignore[attr-defined]
    assert define.stats() == (  # type: ignore[attr-defined]
        "Max Fusions Allowed: 10\nTotal Fusions in Cache: 2\nTotal Unique Fusions Compiled: 2\n"
        "Cache Hits by LRU ordering:\n\t0 -> 4 hits\n\t1 -> 4 hits\n"
        "Cache Lookups: 10\nCache Hits: 8\nHit Rate: 80%\n"
    )
    x = torch.randn(3)
    assert torch.equal(define("exp").execute([x])[0], x.exp())


def test_lru_cache_drops_the_oldest() -> None:
    cache = LRUCache(1)
    first = cache.cache_compile(doubled().fusion)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1])))
    cache.cache_compile(fd.fusion)
    assert cache.num_fusions() == 1
    assert cache.cache_compile(doubled().fusion) is not first
    with pytest.raises(DefinitionError, match="LRUCache: expected room for at least 1 fusion"):
        LRUCache(0)


# -- handles and schedules


def test_tensor_handles_read_the_definition() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4])
        y = fd.ops.sum(x, 1)
        assert x.ndim == 2 and y.ndim == 1 and x.is_tensor()
        assert [str(s) for s in x.shape()] == ["i0", "4"] and str(x.size(-1)) == "4"
        assert x.definition() is None and x.uses() == [y.definition()]
        assert not x.has_root() and y.get_root_domain() == []
        assert [axis.is_reduction() for axis in y.get_logical_domain()] == [False, True]
        assert str(y.axis(1).extent()) == "4"
        definition = y.definition()
        assert definition.input(0) is x and definition.output(0) is y
        broadcast = fd.ops.broadcast(y, [True, False])
        assert type(broadcast.definition()) is nvfuser_direct.BroadcastOp
        reshaped = fd.ops.reshape(x, [-1])
        assert reshaped.has_root() and len(reshaped.get_root_domain()) == 2


def test_split_and_merge_are_seen_in_the_loop_domain() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.ops.neg(x)
        fd.add_output(y)
        assert y.merge(0).split(0, 8) is y
    outer, inner = y.get_loop_domain()
    split = inner.definition()
    assert type(split) is nvfuser_direct.Split and split.inner() == inner and split.outer() == outer
    merged = split.input(0)
    assert type(merged.definition()) is nvfuser_direct.Merge
    assert merged.definition().inner() == y.get_logical_domain()[1]
    assert merged.definition().outer().definition() is None
    outer.parallelize(ParallelType.grid_x)
    assert "iblockIdx.x" in str(y) and str(x) == "T0_g_float[iS0{i0}, iS1{i1}]"
    y.reorder({0: 1})
    assert y.axis(0) == inner
    with pytest.raises(ScheduleError, match=r"axis: expected an axis of T1 in \[-2, 1\], got 2"):
        y.axis(2)


def test_caches_and_rfactor_leave_the_definition_alone() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.sum(x, 1)
        fd.add_output(y)
    before = repr(fd)
    cache = x.cache_after()
    y.split(1, 4)
    partial = y.rfactor([1])
    copy = y.cache_before()
    verify_fusion(fd.fusion.graph)
    verify_scheduled(fd.fusion.user_schedule)
    for made in (cache, partial, copy):
        assert isinstance(made, nvfuser_direct.TensorView)
    assert repr(fd) == before and len(fd.fusion.graph.exprs) == 4
    cache.set_memory_type(MemoryType.shared)
    assert str(cache).startswith(f"T{cache.name}_s_float")
    with pytest.raises(ScheduleError, match="set_memory_type: expected T0, an input or output"):
        x.set_memory_type(MemoryType.shared)


def test_allocation_domain_by_hand() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.ops.neg(x)
        fd.add_output(y)
        a, b = y.get_logical_domain()
        y.set_allocation_domain([b, a], True)
        with pytest.raises(DefinitionError, match="set_allocation_domain: expected the logical ax"):
            y.set_allocation_domain([a], True)
    assert fd.execute([torch.randn(2, 3)])[0].stride() == (1, 2)


def test_the_classic_schedule() -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1], contiguity=True)
        t1 = fd.define_tensor([-1, -1], contiguity=True)
        t2 = fd.ops.add(t1, 2.0)
        t3 = fd.ops.add(t0, t2)
        fd.add_output(t3)
        t3.merge(0).split(0, 128).split(0, 4)
        fd.sched.transform_like(t3)
        for axis, kind in ((0, "grid_x"), (-2, "unroll"), (-1, "block_x")):
            t3.axis(axis).parallelize(ParallelType[kind])
        fd.sched.parallelize_like(t3)
        fd.sched.inline_at(t3, 1)
    verify_scheduled(fd.fusion.user_schedule)
    assert "ca_pos( 1 )" in str(t2) and "threadIdx.x" in str(t2)
    assert len(t1.get_loop_domain()) == 3


def test_questions_to_the_schedulers() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), 1))
    schedule, kinds = nvfuser_direct.schedule, nvfuser_direct.SchedulerType
    inputs = [torch.randn(4, 4)]
    possible, message = schedule.can_schedule(fd.fusion, kinds.pointwise, inputs)
    assert not possible
    assert message.strip().startswith("Scheduler _pointwise_ ***rejected*** because : ")
    assert schedule.can_schedule(fd.fusion, kinds.reduction, inputs) == (True, "")
    assert not schedule.can_schedule(fd.fusion, kinds.matmul, inputs)[0]
    assert kinds.reduction in schedule.find_compatible_schedulers(fd.fusion, inputs)


@pytest.mark.parametrize(
    ("call", "needs"),
    [
        (lambda t: t.swizzle1d(0, ParallelType.mesh_x), "several devices"),
        (lambda t: t.cache_after(nvfuser_direct.LoadStoreOpType.tma), "tensor memory acc.* sm_90"),
        (lambda t: t.cache_before(nvfuser_direct.LoadStoreOpType.cp_async), "copies .* sm_80"),
        (
            lambda t: nvfuser_direct.schedule.warp_specialize(t, 2, 1, ParallelType.block_x),
            "barriers for warps .* sm_90",
        ),
    ],
)
def test_what_is_not_supported_says_what_it_needs(call: Any, needs: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        y = fd.ops.neg(x)
        fd.add_output(y)
        with pytest.raises(UnsupportedError, match=f"not supported on this device; it .*{needs}"):
            call(y)


def test_schedules_of_foreign_tensors_are_errors() -> None:
    from pyfuser.ir import fusion as ir
    from pyfuser.ir.fusion import plain_domain

    foreign = ir.Fusion()
    tensor = foreign.new_tensor(plain_domain([]), DataType.Float)
    with pytest.raises(PyfuserError, match="inline_at: expected a tensor of a FusionDefinition"):
        nvfuser_direct.schedule.inline_at(tensor)


def test_parameters_compare_and_hash() -> None:
    a, b = nvfuser_direct.PointwiseParams(), nvfuser_direct.PointwiseParams()
    assert a == b and a.hash() == b.hash()
    b.vectorization_factor = 4
    assert a != b and a.hash() != b.hash()
    assert "vectorization_factor=4" in repr(b)
    a.lparams.bdimx = 128
    assert a.lparams == nvfuser_direct.LaunchParams(bdimx=128)


def test_automatic_schedules_for_manual_execution() -> None:
    kinds = nvfuser_direct.SchedulerType
    inputs = [torch.randn(4, 64)]
    fd = doubled()
    params = fd.sched.compute_heuristics(fd.fusion, kinds.pointwise, inputs)
    assert isinstance(params, nvfuser_direct.PointwiseParams) and params.decisions is not None
    assert fd.sched.schedule(fd.fusion, kinds.pointwise, inputs) == params
    verify_scheduled(fd.fusion.user_schedule)
    assert fd.fusion.user_schedule.scheduler == "pointwise"
    again = doubled()
    assert again.sched.schedule(again.fusion, kinds.pointwise, params) is None
    assert str(again.fusion.user_schedule) == str(fd.fusion.user_schedule)
    with pytest.raises(ScheduleError, match="compute_heuristics: expected a scheduler that accep"):
        fd.sched.compute_heuristics(fd.fusion, kinds.reduction, inputs)


def test_only_inputs_of_the_same_rank_are_updated() -> None:
    with nvfuser_direct.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1], contiguity=True)
        negated = fd.ops.neg(x)
        for wrong in (negated, 3):
            with pytest.raises(DefinitionError, match="add_output: expected an input of this fusi"):
                fd.add_output(x, wrong)
        with pytest.raises(DefinitionError, match="expected an input of 2 dimensions to update, g"):
            fd.add_output(negated, y)
        fd.add_output(negated, x)
        with pytest.raises(DefinitionError, match="one output to update an input with, got a seco"):
            fd.add_output(fd.ops.exp(x), x)


def test_only_tensors_of_known_dtypes_are_taken_from_pytorch() -> None:
    with nvfuser_direct.FusionDefinition() as fd:
        with pytest.raises(DefinitionError, match="from_pytorch: expected a tensor, got 3"):
            fd.from_pytorch(3)  # type: ignore[arg-type]
        with pytest.raises(DefinitionError, match="a dtype that fusions have, got torch.uint16"):
            fd.from_pytorch(torch.zeros(2, dtype=torch.uint16))
