"""Parts of a program that are no kernels: resolved calls of torch's library, and views.

Each program is compared with the evaluator, bit by bit, and its plan is read.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import COMPLEX, FLOATING, KERNEL_DTYPES, to_torch
from pyfuser.ops.dtype_rules import OperandType, resolve
from pyfuser.ops.evaluator import evaluate
from pyfuser.ops.table import OPS
from pyfuser.plans.library_calls import overload_into
from pyfuser.plans.library_parts import overload_of
from pyfuser.preseg.allocation_orders import with_inherited_orders
from tests.support.folders import ROOT

PACKAGE = ROOT / "pyfuser"

Define = Callable[..., Any]


def defined(define: Define, *inputs: Any) -> FusionDefinition:
    """The definition of a function of a definition and the handles of its inputs."""
    with FusionDefinition() as fd:
        handles = [
            fd.from_pytorch(x) if isinstance(x, torch.Tensor) else fd.define_scalar(dtype=_of(x))
            for x in inputs
        ]
        outputs = define(fd, *handles)
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            fd.add_output(output)
    return fd


def _of(number: complex) -> DataType:
    return DataType.ComplexDouble if isinstance(number, complex) else DataType.Double


def source_of(fd: FusionDefinition) -> str:
    """The text of the plan of the last call."""
    source: str = fd.fec.engine.executor.plans[0].source
    return source


def same_as_evaluator(define: Define, *inputs: Any, views: bool = False) -> str:
    """Compares values, dtypes and strides; the text of the plan."""
    fd = defined(define, *inputs)
    given = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    wanted = evaluate(with_inherited_orders(fd.fusion.definition), given, views=views)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            outputs = fd.execute(list(inputs))
            for got, want in zip(outputs, wanted, strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
                assert got.stride() == want.stride()
                assert not got.requires_grad
    return source_of(fd)


def complex_tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Random complex tensors."""
    return [torch.randn(shape, dtype=torch.complex64) for shape in shapes]


# -- library calls


def test_a_plan_shows_the_resolved_calls() -> None:
    """One call per operation, each into memory of the runtime; intermediates are deleted."""

    def define(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.mul(fd.ops.add(x, y), y)

    source = same_as_evaluator(define, *complex_tensors((3, 4), (3, 4)))
    lines = [line.strip() for line in source.splitlines()]
    added = next(i for i, line in enumerate(lines) if line.startswith("call_aten__add_out("))
    assert lines[added - 1].startswith("t2 = empty((")
    assert lines[added].endswith(", out=t2)")
    assert any(line.startswith("call_aten__mul_out(t2, ") for line in lines)
    assert "del t2" in lines
    assert "run(" not in source


PROGRAMS: dict[str, tuple[Define, list[Any]]] = {
    "arithmetic": (
        lambda fd, x, y: fd.ops.sub(fd.ops.div(fd.ops.neg(x), y), fd.ops.pow(x, y)),
        complex_tensors((3, 4), (3, 4)),
    ),
    "absolute": (lambda fd, x: fd.ops.abs(x), complex_tensors((3, 4))),
    "parts": (
        lambda fd, x: (fd.ops.real(x), fd.ops.imag(x)),
        complex_tensors((3, 4)),
    ),
    "into_a_kernel": (
        lambda fd, x: fd.ops.relu(fd.ops.add(fd.ops.real(x), fd.ops.imag(x))),
        complex_tensors((3, 4)),
    ),
    "out_of_a_kernel": (
        lambda fd, a, b: fd.ops.exp(fd.ops.complex(fd.ops.neg(a), fd.ops.abs(b))),
        [torch.randn(5), torch.randn(5)],
    ),
    "wider": (
        lambda fd, x: (fd.ops.exp(x), fd.ops.cast(fd.ops.exp(x), DataType.ComplexDouble)),
        complex_tensors((3, 4)),
    ),
    "narrower": (
        lambda fd, x: (fd.ops.cast(x, DataType.Float), fd.ops.cast(x, DataType.Half)),
        complex_tensors((3, 4)),
    ),
    "as_bool": (
        lambda fd, x: (fd.ops.cast(x, DataType.Bool), fd.ops.logical_not(fd.ops.sub(x, x))),
        [torch.tensor([0, 1, 1j, 1 + 1j, complex(math.nan, 0)])],
    ),
    "constants": (
        lambda fd, x: fd.ops.add(fd.ops.mul(x, 2.5), fd.define_scalar(1 + 2j)),
        complex_tensors((3, 4)),
    ),
    "numbers": (
        lambda fd, x, a, b: fd.ops.add(fd.ops.mul(x, a), b),
        [*complex_tensors((3, 4)), 1 + 2j, 3.5],
    ),
    "broadcast": (
        lambda fd, x, y: fd.ops.add(x, fd.ops.broadcast(y, [True, False])),
        complex_tensors((3, 4), (4,)),
    ),
    "permuted": (
        lambda fd, x: (
            fd.ops.exp(fd.ops.permute(x, [1, 0])),
            fd.ops.permute(fd.ops.exp(x), [1, 0]),
        ),
        complex_tensors((3, 4)),
    ),
    "a_view_that_another_part_gives": (
        lambda fd, x, w: (
            transposed := fd.ops.permute(x, [1, 0]),
            fd.ops.relu(fd.ops.real(fd.ops.neg(transposed))),
            fd.ops.sub(transposed, fd.ops.complex(fd.ops.neg(w), w)),
        ),
        [*complex_tensors((3, 4)), torch.randn(4, 3)],
    ),
    "reshaped": (
        lambda fd, x: fd.ops.exp(fd.ops.reshape(fd.ops.sin(x), [12])),
        complex_tensors((3, 4)),
    ),
    "sum": (
        lambda fd, x: (fd.ops.sum(fd.ops.mul(x, x), [0]), fd.ops.sum(x, [0, 1])),
        complex_tensors((3, 4)),
    ),
    "transposed_input": (
        lambda fd, x: (fd.ops.exp(x), fd.ops.isfinite(x), fd.ops.cast(x, DataType.ComplexDouble)),
        [torch.randn(4, 3, dtype=torch.complex64).t()],
    ),
    "strided_input": (
        lambda fd, x: (fd.ops.exp(x), fd.ops.isfinite(x), fd.ops.cast(x, DataType.ComplexDouble)),
        [torch.randn(5, 8, dtype=torch.complex64)[:, ::2]],
    ),
    "predicates": (
        lambda fd, x, y: (fd.ops.isreal(x), fd.ops.eq(x, y), fd.ops.isnan(x)),
        complex_tensors((6,), (6,)),
    ),
    "where": (
        lambda fd, x, y: fd.ops.where(fd.ops.isfinite(x), x, y),
        complex_tensors((6,), (6,)),
    ),
    "no_elements": (lambda fd, x: fd.ops.exp(x), complex_tensors((0, 4))),
    "no_dimensions": (lambda fd, x: fd.ops.exp(x), complex_tensors(())),
    "copied": (lambda fd, x: (fd.ops.set(x), fd.ops.exp(x)), complex_tensors((3, 4))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_library_part_gives_what_the_evaluator_gives(name: str) -> None:
    define, inputs = PROGRAMS[name]
    assert "run(" not in same_as_evaluator(define, *inputs)


def test_what_has_no_direct_call_is_left_to_the_evaluator() -> None:
    """`silu` of torch refuses complex numbers; its row is several calls."""

    def define(fd: Any, x: Any) -> Any:
        return fd.ops.silu(fd.ops.exp(x))

    assert "= run(" in same_as_evaluator(define, *complex_tensors((3, 4)))


def test_a_new_size_runs_the_same_plan() -> None:
    fd = defined(lambda fd, x: fd.ops.mul(fd.ops.exp(x), x), *complex_tensors((3, 4)))
    for rows in (200, 300, 400):
        (x,) = complex_tensors((rows, 300))
        torch.testing.assert_close(fd.execute([x])[0], x.exp() * x)
    assert len(fd.fec.engine.executor.plans) == 1


def test_autograd_sees_nothing_of_a_library_part() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64, requires_grad=True)

    def define(fd: Any, x: Any) -> Any:
        return fd.ops.exp(fd.ops.permute(x, [1, 0])), fd.ops.permute(x, [1, 0])

    fd = defined(define, x)
    for got, want in zip(fd.execute([x]), (x.t().exp(), x.t()), strict=True):
        assert not got.requires_grad
        torch.testing.assert_close(got, want.detach())


@pytest.mark.parametrize("op", ["exp", "silu"])
def test_an_input_is_updated_after_its_last_reader(op: str) -> None:
    """The part that makes the new value, then a kernel, then a part that reads the old one."""
    with FusionDefinition() as fd:
        x = fd.from_pytorch(torch.randn(6, dtype=torch.complex64))
        new = getattr(fd.ops, op)(x)
        fd.add_output(new, x)
        part = fd.ops.relu(fd.ops.real(new))
        fd.add_output(fd.ops.mul(fd.ops.complex(part, part), x))
    given = torch.randn(6, dtype=torch.complex64)
    old = given.clone()
    made = torch.exp(old) if op == "exp" else old * torch.sigmoid(old)
    (output,) = fd.execute([given])
    torch.testing.assert_close(given, made)
    torch.testing.assert_close(output, torch.complex(made.real.relu(), made.real.relu()) * old)


# -- views


def test_a_view_part_allocates_nothing() -> None:
    x = torch.randn(3, 4)

    def define(fd: Any, x: Any) -> Any:
        transposed = fd.ops.permute(x, [1, 0])
        return fd.ops.broadcast(transposed, [False, True, False]), fd.ops.reshape(x, [2, 6])

    source = same_as_evaluator(define, x, views=True)
    assert ".permute((1, 0)).unsqueeze(1)" in source
    assert ".reshape((" in source
    assert "empty(" not in source
    assert "run(" not in source
    for output in defined(define, x).execute([x]):
        assert output.data_ptr() == x.data_ptr()


def test_rows_of_a_dense_input_are_a_view() -> None:
    x = torch.randn(6, 4)
    with FusionDefinition() as fd:
        given = fd.define_tensor([6, 4], contiguity=True)
        rows = fd.ops.slice(given, [2, 0], [5, 4])
        fd.add_output(rows)
        fd.add_output(fd.ops.reshape(rows, [2, 6]))
        fd.add_output(fd.ops.permute(rows, [1, 0]))
    for output, want in zip(fd.execute([x]), (x[2:5], x[2:5].view(2, 6), x[2:5].t()), strict=True):
        assert torch.equal(output, want) and output.data_ptr() == x[2:5].data_ptr()
    for starts, ends in (([0, 1], [6, 3]), ([2, 0], [5, 3])):
        with FusionDefinition() as fd:
            given = fd.define_tensor([6, 4], contiguity=True)
            fd.add_output(fd.ops.slice(given, starts, ends))
        (output,) = fd.execute([x])
        assert output.is_contiguous()
        assert torch.equal(output, x[starts[0] : ends[0], starts[1] : ends[1]])


def test_a_view_of_an_updated_input_is_a_copy() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with FusionDefinition() as fd:
        given = fd.from_pytorch(x)
        fd.add_output(fd.ops.permute(given, [1, 0]))
        fd.add_output(fd.ops.add(given, 1.0), given)
    before = x.clone()
    transposed = fd.execute([x])[0]
    assert torch.equal(x, before + 1)
    assert torch.equal(transposed, before.t())
    assert transposed.is_contiguous()


def test_outputs_without_elements_are_only_allocated() -> None:
    x = torch.randn(0, 4)
    source = same_as_evaluator(lambda fd, x: fd.ops.exp(x), x)
    assert source.count("empty(") == 1
    assert "launch" not in source


def test_views_of_a_compiled_graph_share_no_memory_with_its_inputs() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.exp(x), x.t().clone()

    x = torch.randn(3, 4)
    made, transposed = torch.compile(function, backend="pyfuser")(x)
    torch.testing.assert_close(made, x.exp())
    assert transposed.data_ptr() != x.data_ptr()
    assert torch.equal(transposed, x.t())


# -- which overload a row is


def rows_and_dtypes() -> Iterator[tuple[str, DataType]]:
    for name, op in OPS.items():
        for dtype in (*KERNEL_DTYPES, *COMPLEX):
            if dtype is not DataType.Index and overload_of(op, dtype) is not None:
                yield name, dtype


def operands_of(name: str, dtype: DataType) -> list[torch.Tensor] | None:
    """Tensors of the dtypes that a row computes operands of `dtype` in."""
    op = OPS[name]
    try:
        kinds = [DataType.Bool, dtype, dtype] if name == "where" else [dtype] * op.arity
        compute = resolve(op, [OperandType(kind) for kind in kinds]).compute
    except Exception:
        return None
    torch.manual_seed(1)
    drawn = (torch.rand(4, 5, dtype=torch.float64) * 3 + 0.2 for _ in compute)
    return [x.to(to_torch(kind)) for x, kind in zip(drawn, compute, strict=True)]


def test_the_overload_of_a_row_is_its_reference() -> None:
    """Also if it writes into a tensor."""
    tried = set()
    for name, dtype in rows_and_dtypes():
        op, operands = OPS[name], operands_of(name, dtype)
        overload = overload_of(op, dtype)
        assert overload is not None
        try:
            torch.manual_seed(2)
            wanted = op.reference(*operands or ())
        except (RuntimeError, TypeError, NotImplementedError):
            continue  # not a dtype of this row
        torch.manual_seed(2)
        made = overload(*operands or ())
        torch.testing.assert_close(made, wanted, rtol=0, atol=0, equal_nan=True)
        into = overload_into(overload)
        if into is not None:
            there = torch.empty_like(wanted)
            assert into(*operands or (), out=there) is there
            torch.testing.assert_close(there, wanted, rtol=0, atol=0, equal_nan=True)
        tried.add((name, dtype))
    assert {name for name, _ in tried} >= {"add", "sub", "div", "exp", "abs", "where", "complex"}
    assert len(tried) > 300


def test_rows_that_say_more_than_torch_have_no_overload() -> None:
    for name in ("minimum", "clamp", "silu", "fmod", "lerp"):
        assert all(overload_of(OPS[name], dtype) is None for dtype in FLOATING), name
    assert overload_of(OPS["sub"], DataType.Bool) is None
    assert overload_of(OPS["div"], DataType.Int) is None


# -- scheduler names are for human readers


NAMES = {"expr_eval", "no_op", "pointwise", "reduction", "inner_persistent", "outer_persistent"}
# The registry names schedulers and modules; the front end has nvFuser's names.
MAY_COMPARE = {PACKAGE / "schedule" / "registry.py"} | set((PACKAGE / "frontend").glob("*.py"))


def compared_names(text: str) -> list[int]:
    """The lines that compare something with the name of a scheduler."""
    found = []
    for node in ast.walk(ast.parse(text)):
        patterns = [case.pattern for case in node.cases] if isinstance(node, ast.Match) else []
        compared = [node] if isinstance(node, ast.Compare) else patterns
        for part in compared:
            for inner in ast.walk(part):
                if isinstance(inner, ast.Constant) and inner.value in {*NAMES, "user"}:
                    found.append(inner.lineno)
    return found


def test_no_scheduler_name_decides_what_is_run() -> None:
    assert compared_names("a = part.scheduler != 'no_op'") == [1]
    assert compared_names("match part.scheduler:\n    case 'no_op': pass") == [2]
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in MAY_COMPARE
        for line in compared_names(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []
