"""torch's database of operators (op_db) through the backend: samples -> outcomes -> a comparison.

A `Case` is an operator in one dtype.  A sample of it runs eagerly and compiled, forward and (if it
has one) backward, from the same seed; all visible results are compared: values, dtypes, shapes,
strides, and the state of the inputs.  If rounding makes the two differ, float64 decides whether the
compiled result is as accurate as eager's.  A case that torch itself can't trace
(backend="aot_eager" fails as well) raises `Unfit`; it says nothing about this backend.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal import common_methods_invocations, common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core as opinfo
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

from pyfuser.torch_compile import compiled_graph

SEED = 1234
DTYPES = (
    *(torch.float32, torch.bfloat16, torch.int64, torch.float64, torch.float16, torch.int32),
    *(torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128),
)
_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
# It sets a seed in a way that Dynamo doesn't trace: dropout and its like would never be compiled.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
# For each sample it searches the stack, with the source of each frame, for a test of unittest.
opinfo.extract_test_fn = common_utils.extract_test_fn = lambda: None
# Their results are whatever memory held before.
_UNINITIALISED = frozenset(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)
# As near to float64 as this many times eager's error is near enough.
_FACTOR = 4


class Unfit(Exception):
    """A sample that says nothing about the backend, and why."""


@dataclass(frozen=True, eq=False)
class Case:
    """An operator in one dtype."""

    op: OpInfo
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """The operator's name with its variant, then the dtype's."""
        parts = (self.op.name, self.op.variant_test_name, str(self.dtype).removeprefix("torch."))
        return "-".join(part for part in parts if part)

    @property
    def has_backward(self) -> bool:
        """True if torch differentiates the operator in this dtype."""
        return bool(self.op.supports_autograd) and self.dtype in self.op.supported_backward_dtypes(
            "cpu"
        )

    def samples(self, backward: bool) -> Iterator[SampleInput]:
        """torch's samples, the same ones every time."""
        torch.manual_seed(SEED)
        yield from self.op.sample_inputs("cpu", self.dtype, requires_grad=backward)

    def first_sample(self, backward: bool) -> SampleInput | None:
        """The first sample with a tensor of more than one element; the very first if none has."""
        first = None
        for sample in self.samples(backward):
            tensors = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
            if any(isinstance(x, Tensor) and x.numel() > 1 for x in tensors):
                return sample
            first = first or sample
        return first


def cases(dtypes: tuple[torch.dtype, ...]) -> list[Case]:
    """Every operator in those of `dtypes` that torch supports on the CPU."""
    return [
        Case(op, dtype)
        for dtype, op in itertools.product(dtypes, op_db)
        if dtype in op.supported_dtypes("cpu")
    ]


@dataclass
class Compiled:
    """The backend's result for a sample: graphs, and fused regions in them."""

    graphs: int = 0
    regions: int = 0


@dataclass
class Outcome:
    """The state after a call: results, gradients and inputs, by a name for messages."""

    values: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None


def check_sample(
    case: Case, sample: SampleInput, backward: bool, dynamic: bool | None = None
) -> Compiled:
    """Runs one sample both ways; AssertionError if they differ, Unfit if torch can't run it."""
    eager = _run(case.op.op, sample, backward)
    if eager.error is not None:
        raise Unfit(f"eager: {_brief(eager.error)}") from eager.error
    found = Compiled()
    difference = None
    with _observed(found):
        got = _run(_compile(case.op.op, "pyfuser", dynamic), sample, backward)
    try:
        _compare(case, sample, backward, got, eager)
    except AssertionError as error:
        difference = error
    if difference is None:
        return found
    stand_in = _run(_compile(case.op.op, "aot_eager", dynamic), sample, backward)
    try:
        _compare(case, sample, backward, stand_in, eager)
    except AssertionError as error:
        raise Unfit(f"aot_eager: {_brief(error)}") from error
    raise difference


def _compile(
    operation: Callable[..., Any], backend: str, dynamic: bool | None
) -> Callable[..., Any]:
    torch._dynamo.reset()

    def function(given: Any, *args: Any, **kwargs: Any) -> Any:
        return operation(given, *args, **kwargs)

    return torch.compile(function, backend=backend, dynamic=dynamic)


class _observed:
    """Counts, while in use, the graphs that the backend compiles and their regions."""

    def __init__(self, found: Compiled) -> None:
        self.found, self.patch = found, pytest.MonkeyPatch()

    def __enter__(self) -> None:
        prepare = compiled_graph.prepare

        def observing(*given: Any) -> Any:
            self.found.graphs += 1
            traced = prepare(*given)
            self.found.regions += len(traced.fusions)
            return traced

        self.patch.setattr(compiled_graph, "prepare", observing)

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


# -- running


def _run(function: Callable[..., Any], sample: SampleInput, backward: bool) -> Outcome:
    """Calls with copies of the sample's tensors, which keep their strides and shared memory."""
    given = _copied((sample.input, sample.args, sample.kwargs))
    found = Outcome()
    torch.manual_seed(SEED)
    try:
        first, args, kwargs = given
        result = function(first, *args, **kwargs)
        _note(found, "output", result)
        if backward:
            _note(found, "gradient", _gradients(sample.output_process_fn_grad(result), given))
        _note(found, "input", given)
    except Exception as error:
        found.error = error
    return found


def _copied(values: Any) -> Any:
    memo: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        plain = value.detach()
        made = copy.deepcopy(plain, memo) if plain.layout is torch.strided else plain.clone()
        return made.requires_grad_(value.requires_grad)

    return tree_map(copied, values)


def _note(found: Outcome, name: str, values: Any) -> None:
    for number, value in enumerate(tree_flatten(values)[0]):
        found.values[f"{name} {number}"] = value.detach() if isinstance(value, Tensor) else value


def _gradients(result: Any, given: Any) -> list[Tensor | None]:
    outputs = [x for x in tree_flatten(result)[0] if isinstance(x, Tensor) and x.requires_grad]
    inputs = [x for x in tree_flatten(given)[0] if isinstance(x, Tensor) and x.requires_grad]
    if not outputs or not inputs:
        return []
    random = torch.Generator().manual_seed(SEED)
    cotangents = []
    for output in outputs:
        wide = torch.complex128 if output.is_complex() else torch.float64
        made = torch.randn(output.shape, dtype=wide, generator=random)
        cotangents.append(made.to(output.dtype))
    return list(torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True))


# -- comparing


def _compare(case: Case, sample: SampleInput, backward: bool, got: Outcome, eager: Outcome) -> None:
    if got.error is not None:
        raise AssertionError(_brief(got.error)) from got.error
    assert got.values.keys() == eager.values.keys(), "other results than eager's"
    exact: Outcome | None = None
    for name, value in got.values.items():
        reference = eager.values[name]
        if not isinstance(reference, Tensor):
            same = value == reference or (value != value and reference != reference)
            assert same is True, f"{name}: {value} instead of {reference}"
            continue
        assert isinstance(value, Tensor), f"{name}: {value} instead of a tensor"
        _compare_metadata(case, sample, name, value, reference)
        if case.op.name in _UNINITIALISED and name.startswith("output"):
            continue
        try:
            torch.testing.assert_close(value, reference, equal_nan=True, check_stride=False)
        except AssertionError as error:
            exact = exact or _in_double(case, sample, backward)
            _compare_errors(name, value, reference, exact, error)


def _compare_metadata(
    case: Case, sample: SampleInput, name: str, value: Tensor, reference: Tensor
) -> None:
    assert value.dtype == reference.dtype, f"{name}: {value.dtype} instead of {reference.dtype}"
    assert value.shape == reference.shape, f"{name}: {value.shape} instead of {reference.shape}"
    assert value.layout == reference.layout, f"{name}: {value.layout}"
    if not name.startswith("output") or value.layout is not torch.strided or not value.numel():
        return
    if not _is_dense(reference) or _same_strides(value, reference):
        return
    # Graphs are traced with torch's metadata, which is wrong for a few operators.
    traced = _in_metadata(case, sample).values.get(name)
    assert traced is not None and _same_strides(value, traced), (
        f"{name}: strides {value.stride()} instead of {reference.stride()} of {value.shape}"
    )


def _same_strides(value: Tensor, other: Tensor) -> bool:
    pairs = zip(value.shape, value.stride(), other.stride(), strict=True)
    return all(size == 1 or stride == expected for size, stride, expected in pairs)


def _in_metadata(case: Case, sample: SampleInput) -> Outcome:
    """The results' metadata according to torch, without computing them."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given = (sample.input, sample.args, sample.kwargs)
    fake = copy.copy(sample)
    fake.input, fake.args, fake.kwargs = tree_map(
        lambda x: mode.from_tensor(x.detach()) if isinstance(x, Tensor) else x, given
    )
    found = Outcome()
    with mode:
        _note(found, "output", case.op.op(fake.input, *fake.args, **fake.kwargs))
    return found


def _is_dense(tensor: Tensor) -> bool:
    """True if the elements fill a range of memory, in any order."""
    running = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != running:
            return False
        running *= size
    return True


def _in_double(case: Case, sample: SampleInput, backward: bool) -> Outcome:
    def widened(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return _WIDER.get(value, value)
        if isinstance(value, Tensor) and value.dtype in _WIDER:
            return value.detach().to(_WIDER[value.dtype]).requires_grad_(value.requires_grad)
        return value

    given = tree_map(widened, (sample.input, sample.args, sample.kwargs))
    wide = copy.copy(sample)
    wide.input, wide.args, wide.kwargs = given
    return _run(case.op.op, wide, backward)


def _compare_errors(
    name: str, value: Tensor, reference: Tensor, exact: Outcome, difference: AssertionError
) -> None:
    """Passes where `value` is as near to the exact one as eager's is, up to _FACTOR."""
    truth = exact.values.get(name)
    if value.dtype not in _WIDER or exact.error is not None or not isinstance(truth, Tensor):
        raise AssertionError(f"{name}: {_brief(difference)}") from difference
    assert truth.shape == value.shape, f"{name}: {value.shape} instead of {truth.shape}"
    wide, info = _WIDER[value.dtype], torch.finfo(value.dtype)
    ours, theirs = value.to(wide), reference.to(wide)
    rounded = truth.to(value.dtype).to(wide)
    same = (
        (ours == theirs) | (ours == rounded) | (ours.isnan() & (theirs.isnan() | rounded.isnan()))
    )
    # If half precision overflows in between, the compiled result may have the number eager lost.
    eagers = (theirs - truth).abs()[theirs.isfinite() & truth.isfinite()]
    worst = float(eagers.max()) if eagers.numel() else 0.0
    error = (ours - truth).abs()
    near = ours.isfinite() & (error <= _FACTOR * (worst + info.eps * truth.abs()) + info.tiny)
    assert bool((same | near).all()), (
        f"{name}: error {float(error[~same].max()):.2e} against float64, eager's {worst:.2e}; "
        f"{_brief(difference)}"
    )


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:6])}"[:600]
