"""The nvfuser_direct interface: definitions, guards, executing, validation, and error messages.

The engine is replaced by the eager evaluator (see conftest.py).
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pyfuser as nvfuser_direct
from pyfuser import (
    DataType,
    Fusion,
    FusionDefinition,
    FusionGuard,
    MemoryType,
    compute_tensor_descriptor,
    reproducer,
)
from pyfuser.errors import (
    DefinitionError,
    InputError,
    ScheduleError,
    UnsupportedError,
)
from pyfuser.frontend import validation
from pyfuser.frontend.define import define_scalar, define_tensor
from pyfuser.ir.verify import verify_scheduled
from tests.frontend.definitions import Engine, doubled
from tests.support.folders import ROOT

# -- defining tensors


def axes_of(tensor: Any) -> list[str]:
    return [f"{axis.iter_type.value}{axis.size}" for axis in tensor.domain.logical]


def test_shapes_and_contiguity() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 0, 1, 5], contiguity=True, dtype=DataType.Half)
        assert axes_of(x) == ["ii0", "i0", "b1", "i5"]
        assert x.domain.contiguity == [True, True, None, True]
        assert fd.define_tensor([-1, 1]).domain.contiguity == [False, None]
        expanded = fd.define_tensor(shape=[-1, 6], contiguity=[True, None])
        assert axes_of(expanded) == ["ii2", "b6"]
        assert fd.define_tensor([]).ndim == 0


def test_stride_order_makes_an_allocation_domain() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 3, 4], contiguity=[True, False, True], stride_order=[0, -1, 1])
        a, b, c = x.domain.logical
        assert x.domain.allocation == [b, c, a]
        assert x.domain.contiguity == [True, False, True]
        assert fd.define_tensor([2, 3], stride_order=[1, 0]).domain.allocation is None


def test_strides_overload() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 1, 3], [1, 12, 4], dtype=DataType.Int)
        assert axes_of(x) == ["ii0", "b1", "ii1"]
        assert x.domain.contiguity == [None, True, True]
        y = fd.define_tensor(sizes=[4, 2], strides=[2, 1], static_sizes=True)
        assert axes_of(y) == ["i4", "i2"]


@pytest.mark.parametrize(
    ("sizes", "strides", "contiguity", "order"),
    [
        ([2, 3, 4], [12, 4, 1], [True, True, True], [2, 1, 0]),
        ([2, 3, 4], [1, 2, 6], [True, True, True], [0, 1, 2]),
        ([2, 3, 4], [24, 8, 2], [True, True, False], [2, 1, 0]),
        ([2, 3, 4], [15, 5, 1], [True, False, True], [2, 1, 0]),
        ([2, 1, 4], [4, 4, 1], [True, None, True], [2, 1, 0]),
        ([2, 3, 4], [4, 0, 1], [True, None, True], [2, 1, 0]),
        ([5, 2, 3], [0, 1, 2], [None, True, True], [2, 0, 1]),
        ([], [], [], []),
    ],
)
def test_compute_tensor_descriptor(
    sizes: list[int], strides: list[int], contiguity: list[bool | None], order: list[int]
) -> None:
    assert compute_tensor_descriptor(sizes, strides) == (contiguity, order)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shape": [-2]}, DefinitionError,
         r"The value -2 at index 0 was neither symbolic\(-1\), zero_element\(0\), broadcast\(1\), "
         r"or static\(>1\)."),
        ({"shape": [1.5]}, TypeError, "expected a shape of 64-bit integers"),
        ({"shape": [2**63]}, TypeError, "expected a shape of 64-bit integers"),
        ({"shape": [2, 3], "contiguity": [True] * 3}, DefinitionError,
         r"Length of contiguity argument \(3\) must match that of shape argument \(2\)"),
        ({"shape": [2, 3], "stride_order": [0]}, DefinitionError,
         r"Length of stride_order argument \(1\) must match that of shape argument \(2\)"),
        ({"shape": [2, 3], "stride_order": [0, 2]}, DefinitionError,
         r"entries in \[-2, 1\], got 2; stride_order argument is out of range"),
        ({"shape": [2, 3], "stride_order": [1, -1]}, DefinitionError,
         "no duplicated stride_order entries"),
        ({"shape": [2], "is_cpu": True}, DefinitionError,
         "CPU non-scalar tensor is not supported!"),
        ({"sizes": [2], "strides": [1, 1]}, DefinitionError, "as many strides as sizes"),
        ({"sizes": [2], "strides": [-1]}, DefinitionError, "strides of at least 0"),
    ],
)  # fmt: skip
def test_errors_of_define_tensor(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with FusionDefinition() as fd, pytest.raises(error, match=message):
        fd.define_tensor(**arguments)


def test_from_pytorch_reads_layout_off_the_tensor() -> None:
    with FusionDefinition() as fd:
        x = fd.from_pytorch(torch.empty(2, 1, 3, dtype=torch.bfloat16).transpose(0, 2))
        assert x.dtype is DataType.BFloat16
        assert axes_of(x) == ["ii0", "b1", "ii1"]
        assert x.domain.allocation is not None
        assert axes_of(fd.from_pytorch(torch.empty(2, 3), static_sizes=True)) == ["i2", "i3"]
        assert fd.from_pytorch(torch.tensor(1.0)).is_cpu_scalar
        assert axes_of(fd.from_pytorch(torch.empty(2, device="meta"))) == ["ii2"]


def test_define_scalar() -> None:
    with FusionDefinition() as fd:
        a = fd.define_scalar()
        b = fd.define_scalar(dtype=DataType.Int)
        c = fd.define_scalar(DataType.Float)
        assert [s.dtype for s in (a, b, c)] == [DataType.Double, DataType.Int, DataType.Float]
        assert fd.define_scalar(True).dtype is DataType.Bool
        assert fd.define_scalar(3, DataType.Int32).constant == 3
        vector = fd.define_vector(2)
        assert fd.fusion.inputs() == [a, b, c, *vector]
        with pytest.raises(TypeError, match="define_scalar: expected a Python number"):
            fd.define_scalar("x")


# -- guards and operations


def test_guards_nest_and_end_when_dropped() -> None:
    outer, inner = Fusion(), Fusion()
    guard = FusionGuard(outer)
    a = define_tensor([-1])
    nested = FusionGuard(inner)
    b = define_scalar(1)
    assert a.fusion is outer.graph and b.fusion is inner.graph
    del nested
    gc.collect()
    assert define_scalar(1).fusion is outer.graph
    del guard
    gc.collect()
    with pytest.raises(DefinitionError, match="define_tensor: expected an active FusionGuard"):
        define_tensor([-1])


def test_operations_take_the_interface_names() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.ops.sum(arg=x, dims=[0], keepdim=True, dtype=DataType.Double)
        fd.ops.sum(x, dim=1)
        assert fd.ops.sum(x, DataType.Double).dtype is DataType.Double
        fd.ops.clamp(x, min=0.0, max=1.0)
        fd.ops.where(cond=fd.ops.gt(x, 0), x=x, y=0.0)
        fd.ops.sub(lhs=x, rhs=1)
        with pytest.raises(DefinitionError, match="sub: expected operands"):
            fd.ops.sub(x, right=1)
        with pytest.raises(UnsupportedError, match="nv_block_quantize: not supported"):
            fd.ops.nv_block_quantize(x)
        with pytest.raises(AttributeError, match="ops: expected the name of an operation"):
            fd.ops.no_such_operation  # noqa: B018
        assert set(dir(fd.ops)) >= {"add", "sum", "reshape"}


def test_unknown_operations_suggest_near_names() -> None:
    with FusionDefinition() as fd:
        with pytest.raises(AttributeError, match="'mean'; did you mean var_mean.* `pyfuser ops`"):
            fd.ops.mean  # noqa: B018
        with pytest.raises(AttributeError, match="'qqqq'; `pyfuser ops` lists all"):
            fd.ops.qqqq  # noqa: B018


def test_dtypes_are_checked_at_the_call() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        for name, call in {
            "define_tensor": lambda: fd.define_tensor([-1], dtype=torch.float16),
            "define_scalar": lambda: fd.define_scalar(torch.float16),
            "define_scalar ": lambda: fd.define_scalar(1.0, torch.float16),
            "cast": lambda: fd.ops.cast(x, torch.float16),
            "sum": lambda: fd.ops.sum(x, [0], dtype=torch.float16),
            "prod": lambda: fd.ops.prod(x, torch.float16),
            "full": lambda: fd.ops.full([2], 1.0, torch.float16),
            "iota": lambda: fd.ops.iota(2, dtype=torch.float16),
        }.items():
            what = f"{name.strip()}: expected a DataType, got torch.float16; did you mean"
            with pytest.raises(DefinitionError, match=f"{what} DataType.Half"):
                call()
        with pytest.raises(DefinitionError, match="cast: expected a DataType, got 'Half'$"):
            fd.ops.cast(x, "Half")


def test_memory_and_parallel_types_are_checked_at_the_call() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.exp(fd.define_tensor([-1]))
        with pytest.raises(ScheduleError, match="did you mean MemoryType.shared"):
            y.set_memory_type("shared")
        with pytest.raises(ScheduleError, match="did you mean ParallelType.grid_x"):
            y.axis(0).parallelize("grid_x")
        with pytest.raises(ScheduleError, match="parallelize: expected a ParallelType, got 3$"):
            y.axis(0).parallelize(3)


def test_packages_carry_the_interface_functions() -> None:
    from pyfuser.ops import builders
    from pyfuser.schedule import registry

    assert builders.reshape is not nvfuser_direct.ops.reshape
    assert registry.SCHEDULERS and callable(nvfuser_direct.schedule.inline_most)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        assert nvfuser_direct.ops.neg(x).definition().name == "neg"


def test_every_public_name_is_there() -> None:
    for name in set(nvfuser_direct.__all__) - nvfuser_direct._LATE.keys():
        assert getattr(nvfuser_direct, name) is not None
    assert str(DataType.Float) == "DataType.Float"
    assert getattr(MemoryType, "global") is MemoryType.global_
    entries = getattr(nvfuser_direct.SchedulerType, "__entries")
    assert entries["pointwise"][0] is nvfuser_direct.SchedulerType.pointwise


def test_names_that_load_the_compiler_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyfuser.interface", raising=False)
    for name in nvfuser_direct._LATE:
        assert callable(getattr(nvfuser_direct, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = nvfuser_direct.nothing


# -- executing


def test_execute_and_its_thin_second_call(engine: type[Engine]) -> None:
    fd = doubled()
    x = torch.randn(2, 3)
    assert torch.equal(fd.execute([x])[0], x * 2)
    fd._prepare = None  # type: ignore[assignment,method-assign]  # must not be needed again
    assert torch.equal(fd.execute([x])[0], x * 2)
    assert (engine.made, engine.calls) == (1, 2)
    assert fd.fec.fusion() is fd.fusion and "_fusion" not in vars(fd)


def test_nested_inputs_are_flattened() -> None:
    with FusionDefinition() as fd:
        a, s = fd.define_tensor([-1]), fd.define_scalar()
        fd.add_output(fd.ops.mul(a, s))
    x = torch.randn(3)
    assert torch.equal(fd.execute([[x, (2.0,)]])[0], x * 2)
    with pytest.raises(InputError, match="expected 2 inputs, got 1"):
        fd.execute([x])


def test_one_tensor_is_no_list_of_inputs() -> None:
    fd, x = doubled(), torch.ones(2, 3)
    for _ in range(2):
        with pytest.raises(InputError, match=r"got a tensor; write fd.execute\(\[x\]\)"):
            fd.execute(x)
        fd.execute([x])
    with pytest.raises(InputError, match=r"write fd.manual_execute\(\[x\]\)"):
        doubled().manual_execute(x)


def test_inputs_of_other_kinds_are_named_and_not_printed() -> None:
    fd, x = doubled(), torch.ones(2, 3)
    for given, message in (
        (x.numpy(), "at::Tensor but got a numpy.ndarray$"),
        ("x", "at::Tensor but got a str$"),
        (x.to_sparse(), "got layout torch.sparse_coo$"),
    ):
        with pytest.raises(InputError, match=message):
            fd.execute([given])


def test_a_fusion_is_fixed_once_it_was_executed() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        y = fd.ops.exp(x)
        fd.add_output(y)
        fd.execute([torch.ones(3)])
        for call in (
            lambda: fd.ops.neg(x),
            lambda: fd.define_tensor([-1]),
            lambda: fd.define_scalar(2.0),
            lambda: fd.add_output(x),
        ):
            with pytest.raises(DefinitionError, match="the fusion was executed already"):
                call()
    assert len(fd.fusion.inputs()) == len(fd.fusion.outputs()) == 1


def test_definition_errors_of_execute() -> None:
    with pytest.raises(NotImplementedError, match="Fusion does not exist!"):
        FusionDefinition().execute([])
    with FusionDefinition() as fd:
        fd.define_tensor([-1])
    assert fd.validate_definition() == (False, "Fusion is empty!")
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        fd.execute([torch.randn(2)])
    with pytest.raises(RuntimeError, match="Unrecognized enable_option: fast"):
        doubled().execute([torch.randn(2, 2)], _enable_options=["fast"])
    with pytest.raises(RuntimeError, match="Unrecognized disable_option: fast"):
        doubled().execute([torch.randn(2, 2)], _disable_options=["fast"])
    with pytest.raises(InputError, match="execute: expected a device of torch's, got nowhere"):
        doubled().execute([torch.randn(2, 2)], device="nowhere")
    with (
        FusionDefinition() as fd,
        pytest.raises(DefinitionError, match="add_output: expected a te"),
    ):
        fd.add_output(fd.define_scalar(1))
    assert doubled().validate_definition() == (True, None)


def test_one_output_updates_one_input() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        total = fd.ops.add(x, y)
        fd.add_output(total, x)
        with pytest.raises(DefinitionError, match="one input to update with an output"):
            fd.add_output(total, y)


def test_manual_and_automatic_execution_exclude_each_other() -> None:
    fd = doubled()
    fd.execute([torch.randn(2, 2)])
    with pytest.raises(AssertionError, match="FusionExecutorCache already exists!"):
        fd.manual_execute([torch.randn(2, 2)])
    fd = doubled()
    fd.ke = nvfuser_direct.KernelExecutor()
    with pytest.raises(AssertionError, match="KernelExecutor already exists!"):
        fd.execute([torch.randn(2, 2)])


def test_exception_in_a_definition_is_printed_and_raised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ZeroDivisionError), FusionDefinition():
        _ = 1 // 0
    assert "ZeroDivisionError" in capsys.readouterr().out
    with pytest.raises(DefinitionError):
        define_tensor([-1])


def test_manual_execution_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    class ManualKernel:
        def __init__(self, scheduled: Any, inputs: Any) -> None:
            verify_scheduled(scheduled)
            compiled.append(scheduled)

        def run(self, inputs: list[Any]) -> list[torch.Tensor]:
            return [inputs[0] * 2]

    monkeypatch.setattr(sys.modules["pyfuser.interface"], "ManualKernel", ManualKernel, False)
    fd = doubled()
    fd.fusion.outputs()[0].split(0, 4)  # type: ignore[attr-defined]
    x = torch.randn(3, 4)
    fd.manual_validate([x])
    fd.manual_execute([x])
    assert compiled == [fd.fusion.user_schedule]
    with pytest.raises(ScheduleError, match="does not support the Fusion provided"):
        nvfuser_direct.KernelExecutor().compile(Fusion())
    with pytest.raises(ScheduleError, match="run: expected a compiled kernel"):
        nvfuser_direct.KernelExecutor().run([x])


# -- validation


def test_validate_compares_with_the_evaluator_or_references() -> None:
    fd = doubled()
    x = torch.randn(4, 4)
    assert torch.equal(fd.validate([x])[0], x * 2)
    fd.validate([x], [x * 2])
    with pytest.raises(AssertionError, match="validate: expected output 0 within"):
        fd.validate([x], [x * 2.1])
    with pytest.raises(AssertionError, match=r"output 0 of shape \(4,\)"):
        fd.validate([x], [x[0]])
    with pytest.raises(InputError, match="validate: expected 1 references, got 2"):
        fd.validate([x], [x, x])


def test_validation_allows_for_roundings_on_the_way() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        rounded = fd.ops.cast(fd.ops.exp(x), DataType.BFloat16)
        fd.add_output(fd.ops.mul(rounded, 2.0))
    x = torch.tensor([0.0, 1.0])
    exact = x.exp().bfloat16().float() * 2
    fd.validate([x], [exact])
    fd.validate([x], [exact * (1 + 2**-8)])
    with pytest.raises(AssertionError, match="validate: expected output 0 within"):
        fd.validate([x], [exact * (1 + 2**-5)])


def test_tolerances_grow_with_the_reduction() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.sum(x, 1))
        fd.add_output(fd.ops.cast(fd.ops.sum(x), DataType.BFloat16))
        fd.add_output(fd.ops.cast(x, DataType.Int))
    bounds = nvfuser_direct.get_val_tolerances(fd.fusion, [torch.zeros(4, 8)])
    assert bounds[0] == (1.68222e-06, 2.23704e-06)
    assert bounds[1] == (2.95788e-06, 2.95788e-06 * 0.01)
    assert bounds[2][0] == pytest.approx(0.155334 * 2, rel=1) and bounds[3] == (0, 0)
    assert bounds[2][0] == pytest.approx(10 * 0.0156269)


def test_the_last_places_of_a_large_sum_are_not_an_error() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1]), 1))
    x = torch.rand(8, 4096) + 1.0
    right = x.double().sum(1).float()
    near = right * (1 + 4 * torch.finfo(torch.float32).eps)
    fusion = fd.fusion.definition
    validation.validate(fusion, [x], [near])
    with pytest.raises(validation.ValidationError, match="output 0 within"):
        validation.validate(fusion, [x], [right * 1.0001])


def test_a_wrong_result_leaves_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_REPRODUCER_DIR", str(tmp_path))
    monkeypatch.setattr(reproducer, "_written", 0)
    x = torch.randn(3, 4)
    doubled().validate([x], [x * 2])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AssertionError, match=r"got a difference of .*\.py reproduces it"):
        doubled().validate([x], [x * 3])
    (script,) = tmp_path.iterdir()
    assert "fd.validate(inputs)" in script.read_text()
    subprocess.run([sys.executable, str(script)], check=True, cwd=ROOT)


def test_computed_sizes_of_tensors_without_elements() -> None:
    """No size that is given is computed as a quotient of others, which may be 0."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.neg(fd.ops.reshape(x, fd.define_vector(2))))
    empty = torch.randn(0, 3)
    for x in (empty, torch.randn(6, 4), empty):
        for sizes in ((3, 0), (0, 5), (0, 0)) if x is empty else ((3, 8), (24, 1)):
            (got,) = fd.execute([x, *sizes])
            torch.testing.assert_close(got, -x.reshape(sizes))


def test_a_size_that_could_be_anything_is_named() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.neg(fd.ops.reshape(x, [fd.define_scalar(None, DataType.Int), -1])))
    for _ in range(2):  # without and with a plan
        with pytest.raises(InputError, match=r"ceildiv.*i2.* can be computed, got a division by 0"):
            fd.execute([torch.randn(0, 3), 0])
        assert fd.execute([torch.randn(4, 3), 6])[0].shape == (6, 2)
