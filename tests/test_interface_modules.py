"""The interface's other modules: versions, PyTorch helpers, timers, axis graphs, devices."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import distributed

import pyfuser as nvfuser_direct
from pyfuser import (
    FusionDefinition,
    IdMappingMode,
    ParallelType,
    benchmark_utils,
    idm,
    multidevice,
    nvf_cutlass,
    pytorch_utils,
)
from pyfuser.dtypes import DataType
from pyfuser.errors import DefinitionError, InputError, UnsupportedError
from pyfuser.nvfuser_direct_version import NvfuserVersion, Version
from tests.frontend.definitions import doubled

# -- versions


def test_versions_compare_by_number() -> None:
    version = nvfuser_direct.version()
    assert isinstance(version, str) and version == nvfuser_direct.__version__
    assert version >= "0.2.34" and version > Version("0.2.9")
    ordered = ["0.2.9", "0.2.34.dev1", "0.2.34a1", "0.2.34rc2", "0.2.34", "0.10", "1.0.0+git"]
    assert all(NvfuserVersion(a) < b for a, b in itertools.pairwise(ordered))
    assert NvfuserVersion("1.0") == "1.0.0" and NvfuserVersion("1.0") != "1.0.1"
    assert hash(NvfuserVersion("1.0")) == hash(NvfuserVersion("1.0.0"))
    with pytest.raises(ValueError, match="Version: expected a version"):
        Version("new")


# -- the package under another name


def test_modules_of_another_name_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvfuser_alias", nvfuser_direct)
    for name in ("idm", "pytorch_utils", "frontend.ops", "dtypes"):
        monkeypatch.delitem(sys.modules, f"nvfuser_alias.{name}", raising=False)
        found = importlib.import_module(f"nvfuser_alias.{name}")
        assert found is importlib.import_module(f"pyfuser.{name}")
        assert found.__spec__ is not None and found.__spec__.name == f"pyfuser.{name}"
        monkeypatch.delitem(sys.modules, f"nvfuser_alias.{name}")
    assert nvfuser_direct.DataType is DataType
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nvfuser_alias.nothing")


# -- PyTorch helpers


def test_dtypes_of_torch_and_python() -> None:
    assert pytorch_utils.torch_dtype_to_nvfuser_dtype(torch.bfloat16) is DataType.BFloat16
    assert pytorch_utils.torch_dtype_to_nvfuser_dtype(int) is DataType.Int
    assert pytorch_utils.python_scalar_to_nvfuser_dtype(True) is DataType.Bool
    assert pytorch_utils.python_scalar_to_nvfuser_dtype(1j) is DataType.ComplexDouble
    with pytest.raises(KeyError):
        pytorch_utils.torch_dtype_to_nvfuser_dtype(torch.qint8)
    with pytest.raises(KeyError):
        pytorch_utils.python_scalar_to_nvfuser_dtype("one")  # type: ignore[arg-type]


def test_a_test_without_memory_is_retried_then_skipped() -> None:
    calls = []

    @pytorch_utils.retry_on_oom_or_skip_test
    def fails(times: int) -> str:
        calls.append(times)
        if len(calls) <= times:
            raise torch.OutOfMemoryError("full")
        return "done"

    assert fails(1) == "done" and len(calls) == 2
    calls.clear()
    with pytest.raises(pytest.skip.Exception, match="full"):
        fails(9)


def test_device_properties_need_a_gpu() -> None:
    if torch.cuda.is_available():
        assert pytorch_utils.DEVICE_PROPERTIES["gpu_sm_count"] > 0
    else:
        assert pytorch_utils.DEVICE_PROPERTIES is None and not pytorch_utils.get_device_properties()


# -- timers


def test_timers_measure_what_lies_between_two_calls() -> None:
    clock = benchmark_utils.Timer()
    assert clock() <= clock()
    timer, fd, x = benchmark_utils.FusionProfileTimer(), doubled(), torch.randn(64, 64)
    fd.execute([x])
    first = timer()
    fd.execute([x])
    second = timer()
    assert second > first
    assert timer() == second
    timer.cleanup()
    assert benchmark_utils.demangle_kernel_name("plain") == "plain"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cupti_needs_a_gpu() -> None:
    for kind in (benchmark_utils.CuptiTimer, benchmark_utils.CuptiProfiler):
        with pytest.raises(UnsupportedError, match="CuptiProfiler: expected an NVIDIA GPU"):
            kind()


def test_block_scaled_products_say_what_they_need() -> None:
    for name in ("mxfp8_scaled_mm", "nvfp4_scaled_mm", "nvfp4_scaled_mm_blockscale",
                 "grouped_mm", "nvfp4_scaled_grouped_mm"):  # fmt: skip
        with pytest.raises(UnsupportedError, match=f"not supported on this device: {name}"):
            getattr(nvf_cutlass, name)(torch.ones(1))


# -- graphs of axes


def broadcast_sum() -> tuple[FusionDefinition, list[nvfuser_direct.TensorView]]:
    """z = x[:, None] + y, and z's axes merged and split."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        y = fd.define_tensor([-1, -1], contiguity=True)
        column = fd.ops.broadcast(x, [False, True])
        z = fd.ops.add(column, y)
        fd.add_output(z)
    return fd, [x, y, column, z]


def mapped(fd: FusionDefinition, mode: IdMappingMode, a: object, b: object) -> bool:
    sets = idm.IdModel(fd.fusion).maybe_build_graph(mode).disjoint_val_sets()
    return sets.strict_are_mapped(a, b)  # type: ignore[arg-type]


def test_modes_differ_in_what_they_say_of_broadcasts() -> None:
    fd, (x, y, column, z) = broadcast_sum()
    rows = [t.get_logical_domain()[0] for t in (x, y, column, z)]
    columns = [t.get_logical_domain()[1] for t in (y, column, z)]
    for mode in (IdMappingMode.exact, IdMappingMode.almost_exact, IdMappingMode.broadcast):
        assert all(mapped(fd, mode, rows[0], row) for row in rows)
        assert not mapped(fd, mode, rows[0], columns[0])
        assert mapped(fd, mode, columns[0], columns[2])
    assert not mapped(fd, IdMappingMode.exact, columns[1], columns[2])
    assert mapped(fd, IdMappingMode.broadcast, columns[1], columns[2])


def test_equal_splits_of_mapped_axes_are_mapped() -> None:
    fd, (_, y, _, z) = broadcast_sum()
    for tensor in (y, z):
        tensor.merge(0).split(0, 8)
    y.split(1, 2)
    z.split(1, 4)
    exact = IdMappingMode.exact
    assert mapped(fd, exact, y.axis(0), z.axis(0))
    assert not mapped(fd, exact, y.axis(1), z.axis(1))


def test_mapping_two_axes_maps_what_is_made_of_them() -> None:
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.neg(a))
        fd.add_output(fd.ops.neg(b))
    a.split(0, 4)
    b.split(0, 4)
    graph = idm.IdModel(fd.fusion).maybe_build_graph(IdMappingMode.exact)
    assert not graph.disjoint_val_sets().strict_are_mapped(a.axis(1), b.axis(1))
    graph.map_vals(a.get_logical_domain()[0], b.get_logical_domain()[0])
    assert graph.disjoint_val_sets().strict_are_mapped(a.axis(0), b.axis(0))
    assert graph.disjoint_val_sets().strict_are_mapped(a.axis(1), b.axis(1))
    graph = idm.IdModel(fd.fusion).maybe_build_graph(IdMappingMode.exact)
    graph.map_vals(a.axis(1), b.axis(1))
    sets = graph.disjoint_val_sets()
    assert not sets.strict_are_mapped(a.axis(0), b.axis(0))
    graph.map_vals(a.axis(0), b.axis(0))
    roots = a.get_logical_domain()[0], b.get_logical_domain()[0]
    assert graph.disjoint_val_sets().strict_are_mapped(*roots)
    assert "iS" in str(graph)


def test_a_split_by_one_is_almost_exactly_its_input() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        y = fd.ops.neg(x)
        fd.add_output(y)
    y.split(0, 1)
    logical = y.get_logical_domain()[0]
    assert mapped(fd, IdMappingMode.almost_exact, y.axis(0), logical)
    assert not mapped(fd, IdMappingMode.exact, y.axis(0), logical)


def test_inlined_tensors_share_loops_and_the_longest_promotes() -> None:
    fd, (_, _, column, z) = broadcast_sum()
    model = idm.IdModel(fd.fusion)
    sets = model.maybe_build_graph(IdMappingMode.loop).disjoint_val_sets()
    assert not sets.strict_are_mapped(column.axis(1), z.axis(1))
    fd.sched.inline_at(z, 2, selected_tensors=[column])
    model = idm.IdModel(fd.fusion, build_graphs=True, validate=True)
    sets = model.maybe_build_graph(IdMappingMode.loop).disjoint_val_sets()
    assert sets.strict_are_mapped(column.axis(1), z.axis(1))
    assert model.loop_promotion(column.axis(1)) == z.axis(1)
    assert "almost_exact" in str(model)


def test_a_tensor_plus_its_transpose_maps_onto_itself() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))
    idm.IdModel(fd.fusion, allow_self_mapping=True)
    with pytest.raises(DefinitionError, match="IdModel: expected axes of T"):
        idm.IdModel(fd.fusion, allow_self_mapping=False)


# -- devices


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "0")
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_process_alone() -> None:
    communicator = multidevice.Communicator.instance()
    assert communicator is multidevice.Communicator.instance()
    assert (communicator.size(), communicator.rank()) == (1, 0)
    assert (communicator.local_size(), communicator.local_rank()) == (1, 0)
    communicator.barrier()


def test_meshes() -> None:
    mesh = multidevice.DeviceMesh([[0, 1], [2, 3]])
    assert (mesh.size, mesh.shape) == (4, [2, 2])
    assert repr(mesh) == "DeviceMesh([[0, 1], [2, 3]])"
    x = torch.arange(8)
    assert torch.equal(mesh.shard_tensor(x, 0), x[:2])
    assert multidevice.DeviceMesh(torch.tensor([1])).shard_tensor(x, 0).numel() == 0
    with pytest.raises(DefinitionError, match="shard_tensor: expected a dimension 0 that 3 dev"):
        multidevice.DeviceMesh([0, 1, 2]).shard_tensor(x, 0)
    with pytest.raises(DefinitionError, match="DeviceMesh: expected different devices"):
        multidevice.DeviceMesh([0, 0])


def test_a_tensor_on_a_mesh_of_one_device_runs() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.mul(x, 2.0)
        fd.add_output(y)
        mesh = multidevice.DeviceMesh([0])
        y.set_device_mesh(mesh)
        y.axis(0).parallelize(ParallelType.mesh_x)
    given = torch.randn(3, 4)
    assert torch.equal(multidevice.shard_tensor(given, y), given)
    executor = multidevice.MultiDeviceExecutor(fd.fusion, multidevice.MultiDeviceExecutorParams())
    assert torch.equal(executor.run([given])[0], given * 2)
    cache = nvfuser_direct.FusionExecutorCache(fd.fusion)
    (sharding,) = cache.get_output_shardings()
    assert sharding.mesh == mesh
    assert sharding.axis_sharded_on(ParallelType.mesh_x) == 0
    assert sharding.axis_sharded_on(ParallelType.mesh_y) == -1


def test_tensors_that_are_cut_are_an_error() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.mul(x, 2.0)
        fd.add_output(y)
        y.set_device_mesh(multidevice.DeviceMesh([0, 1]))
        y.axis(1).parallelize(ParallelType.mesh_x)
    given = torch.randn(3, 4)
    assert torch.equal(multidevice.shard_tensor(given, y), given[:, :2])
    with pytest.raises(UnsupportedError, match="to be whole on every device, got axis 1 cut"):
        multidevice.MultiDeviceExecutor(fd.fusion)


@pytest.mark.usefixtures("group")
def test_replicated_dtensors() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    given = torch.randn(4, 6)
    replicated = distribute_tensor(given, mesh, [Replicate()])
    (out,) = nvfuser_direct.execute_with_dtensors(doubled(), [replicated])
    assert out.placements == (Replicate(),) and torch.equal(out.to_local(), given * 2)
    cut = distribute_tensor(given, mesh, [Shard(0)])
    with pytest.raises(UnsupportedError, match="expected input 0 to be replicated"):
        nvfuser_direct.execute_with_dtensors(doubled(), [cut])
    with pytest.raises(DefinitionError, match="expected a DTensor as input 0, got Tensor"):
        nvfuser_direct.execute_with_dtensors(doubled(), [given])


# -- what an execution leaves


def test_the_most_recent_schedule() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), dims=[1]))
    cache = nvfuser_direct.FusionExecutorCache(fd.fusion)
    with pytest.raises(InputError, match="get_most_recent_scheduled_ir: expected an execution"):
        cache.get_most_recent_scheduled_ir()
    small, large = [torch.randn(4, 6)], [torch.randn(2, 1 << 16)]
    texts = []
    for inputs in (small, large, small):
        cache.execute(inputs)
        texts.append(cache.get_most_recent_scheduled_ir())
        assert texts[-1] == cache.get_scheduled_ir(inputs)
    assert texts[0] == texts[2] != texts[1]
    assert cache.get_output_shardings() == []


def test_schedules_with_their_transformations_and_code_with_its_functions() -> None:
    fd, inputs = doubled(), [torch.randn(5, 7)]
    cache = nvfuser_direct.FusionExecutorCache(fd.fusion)
    plain = cache.get_scheduled_ir(inputs)
    full = cache.get_scheduled_ir(inputs, tensor_transforms=True)
    assert full.startswith(plain) and "= split(" in full and "loop: [" in full
    assert cache.get_cuda_kernel(inputs) == cache.get_cuda_kernel(inputs, intrinsic_code=True)


def test_values_have_the_interface_s_methods() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        s = fd.define_scalar(dtype=DataType.Double)
        t = fd.ops.mul(s, 2.0)
        y = fd.ops.mul(x, t)
        fd.add_output(y)
    assert x.is_symbolic() and s.is_symbolic() and s.definition() is None
    assert t.definition().name == "mul" and t.definition().input(0) is s
    assert [use.output(0) for use in t.uses()] == [y]
    for value in (x, s, y.definition(), x.axis(0), x.domain()):
        assert isinstance(value, nvfuser_direct.Statement)


def test_importing_the_modules_needs_no_compiler() -> None:
    names = "benchmark_utils, idm, multidevice, nvf_cutlass, nvfuser_direct_version, pytorch_utils"
    script = f"from pyfuser import {names}; import sys; assert 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_schedulers_are_asked_about_what_torch_computes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.argsort(x, 1))
    inputs = [torch.randn(3, 4)]
    found = fd.sched.find_compatible_schedulers(fd.fusion, inputs)
    assert found == [nvfuser_direct.SchedulerType.expr_eval]
    params = fd.sched.compute_heuristics(fd.fusion, found[0], inputs)
    assert params.scheduler_type is found[0]
    assert fd.sched.schedule(fd.fusion, found[0], inputs) == params


def test_random_numbers_are_no_hindrance_to_questions() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(x, fd.ops.rand_like(x)))
    inputs = [torch.randn(3, 4)]
    fd.execute(inputs)
    kind = nvfuser_direct.SchedulerType.pointwise
    assert fd.sched.can_schedule(fd.fusion, kind, inputs) == (True, "")
    assert fd.sched.compute_heuristics(fd.fusion, kind, inputs).decisions is not None
    assert fd.fec.get_scheduled_ir(inputs) and fd.fec.get_cuda_kernel(inputs)


def test_the_binary_module_is_the_interface() -> None:
    from pyfuser import _C_DIRECT

    assert _C_DIRECT.FusionDefinition is nvfuser_direct.FusionDefinition
    assert "DataType" in dir(_C_DIRECT)
    with pytest.raises(AttributeError, match="nothing"):
        _C_DIRECT.nothing  # noqa: B018
