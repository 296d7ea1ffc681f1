"""Every pointwise translation from aten on special values, as a compiled kernel, against eager.

All combinations of special values as tensors, in each floating dtype and in the integers, and a
special value for each number that an overload takes.  Differences are listed with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from pyfuser import explain
from pyfuser.interface import CompiledFusion
from pyfuser.ops.table import OPS
from pyfuser.torch_compile.aten import TRANSLATIONS, NotTranslated, refusal
from tests.support.long_cases import long
from tests.support.special_values import (
    FLOATS,
    HALVES,
    INTEGERS,
    grid,
    judge,
    report,
    spread,
    widened,
)
from tests.torch_compile.aten_graphs import Calls, OneNode, flat
from tests.torch_compile.aten_samples import arguments

pytestmark = pytest.mark.usefixtures("poison")

aten = torch.ops.aten
inf, nan = math.inf, math.nan

# They move or make elements, and their arguments aren't vectors of one size.
MOVING = {
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.copy.default,
    aten.fill.Tensor, aten.full.default, aten.masked_fill.Tensor, aten.ones.default,
    aten.scalar_tensor.default, aten.scatter.value, aten.tril.default, aten.triu.default,
    aten.zeros.default, torch.ops.prims.iota.default,
}  # fmt: skip
POINTWISE = sorted(
    (
        o
        for o, row in TRANSLATIONS.items()
        # tests/ops/test_checks.py has pyfuser's own, which refuse what is out of range.
        if row.cost in ("cheap", "heavy") and o not in MOVING and o.namespace != "pyfuser"
    ),
    key=str,
)
NUMBERS = {torch.float32: (0.0, -0.0, 0.1, inf, -inf, nan), torch.bfloat16: (0.0, 0.1)}
NUMBERS[torch.float16] = (0.1,)
# A short run has these; the rest compute in one of them, or as one of them does.
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
OTHER_DTYPES = tuple(dtype for dtype in (*FLOATS, *INTEGERS) if dtype not in DTYPES)
# 1 / keep of a dropout, and an epsilon, can't be just any number.
MEANINGLESS = (
    (aten.native_dropout_backward.default, "scale"),
    (aten.logit_backward.default, "eps"),
)


def _unfused_add(a: Any, b: Any, other: Any = None, alpha: Any = 1) -> Any:
    return a + b * alpha


def _unfused_sub(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a - b * alpha


def _unfused_rsub(a: Any, b: Any, alpha: Any = 1) -> Any:
    return b - a * alpha


def _unfused_addcmul(a: Any, b: Any, c: Any, value: Any = 1) -> Any:
    return a + b * value * c


def _unfused_lerp(start: Any, end: Any, weight: Any) -> Any:
    return OPS["lerp"].reference(start, end, torch.as_tensor(weight, dtype=start.dtype))


def _logaddexp2(a: Any, b: Any) -> Any:
    spread_apart = torch.minimum(a, b) - torch.maximum(a, b)
    return torch.maximum(a, b) + spread_apart.exp2().log1p() * (1 / math.log(2))


def _gcd(a: Any, b: Any) -> Any:
    return torch.gcd(a, b).abs()


def _hardsigmoid_backward(slope: Any, x: Any) -> Any:
    return torch.where((x > -3) & (x < 3), slope * (1.0 / 6.0), 0.0)


_FMA = "eager rounds a product and a sum once where the machine has fma; here each is rounded"
# Other correct results, and why.
OTHERWISE: dict[OpOverload, tuple[str, Callable[..., Any]]] = {
    aten.add.Tensor: (_FMA, _unfused_add),
    aten.add.Scalar: (_FMA, _unfused_add),
    aten.sub.Tensor: (_FMA, _unfused_sub),
    aten.sub.Scalar: (_FMA, _unfused_sub),
    aten.rsub.Tensor: (_FMA, _unfused_rsub),
    aten.rsub.Scalar: (_FMA, _unfused_rsub),
    aten.addcmul.default: (_FMA, _unfused_addcmul),
    aten.lerp.Tensor: (_FMA, _unfused_lerp),
    aten.lerp.Scalar: (_FMA, _unfused_lerp),
    aten.logaddexp2.default: ("two equal operands that cancel: 0 is right", _logaddexp2),
    aten.gcd.default: ("a divisor is positive; eager's has the lowest integer's sign", _gcd),
    aten.hardsigmoid_backward.default: ("eager's sixth is float32's", _hardsigmoid_backward),
}
# Units in the last place for ordinary values; 2 for half precision.
ULP = {aten.gelu_backward.default: 64}


@dataclass(frozen=True)
class Sample:
    """One call with vectors of special values."""

    overload: OpOverload
    dtype: torch.dtype
    given: tuple[Any, ...]
    keywords: dict[str, Any]
    changed: str = ""

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.overload} {self.dtype} {self.changed}"

    def run(self, function: Callable[..., Any], each: Callable[[Any], Any]) -> list[torch.Tensor]:
        """A function of the arguments, each of them changed."""
        given = [each(a) for a in self.given]
        return flat(function(*given, **self.keywords))

    def eager(self) -> list[list[torch.Tensor]]:
        """Everything that is right, a list an output."""
        found = [self.run(self.overload, lambda a: a), self.run(self.overload, spread)]
        if self.dtype in HALVES:
            found.append(self.run(self.overload, self.wide))
            found.append(self.run(self.overload, lambda a: spread(self.wide(a))))
        if self.overload in OTHERWISE:
            also = OTHERWISE[self.overload][1]
            found.append(self.run(also, self.wide if self.dtype in HALVES else lambda a: a))
        return [list(each) for each in zip(*found, strict=True)]

    def wide(self, argument: Any) -> Any:
        """A half-precision argument in float32."""
        return widened(argument, self.dtype, torch.float32)

    def exact(self) -> list[torch.Tensor]:
        """Eager in float64; itself for integers."""
        if not self.dtype.is_floating_point:
            return self.run(self.overload, lambda a: a)
        return self.run(self.overload, lambda a: widened(a, self.dtype, torch.float64))


def samples(overload: OpOverload, dtypes: Sequence[torch.dtype]) -> Iterator[Sample]:
    """Each dtype, and for some of them each number replaced."""
    for dtype in dtypes:
        plain = sample(overload, dtype)
        if plain is None or not is_taken(plain) or not is_translated(plain):
            continue
        yield plain
        if dtype in NUMBERS:
            yield from filter(is_taken, with_numbers(plain))


def sample(overload: OpOverload, dtype: torch.dtype) -> Sample | None:
    """The call that the schema makes, of vectors; None if it needs no such vectors."""

    def is_vector(argument: Any) -> bool:
        return isinstance(argument, torch.Tensor) and argument.dtype is dtype

    try:
        given, keywords = arguments(overload, lambda *sizes: torch.ones(sizes, dtype=dtype), 4)
    except NotImplementedError:  # a magnitude of Bool
        return None
    count = sum(map(is_vector, given))
    is_gradient = "backward" in str(overload)
    if not 1 <= count <= 3 or (is_gradient and not dtype.is_floating_point):
        return None
    vectors = grid(dtype, count)
    if is_division(overload) and not dtype.is_floating_point and count == 2:
        # Eager raises for a zero, and the lowest number divided by -1 traps.
        vectors[1] = torch.where((vectors[1] == 0) | (vectors[1] == -1), 3, vectors[1]).to(dtype)
    remaining = iter(vectors)
    mask = torch.arange(len(vectors[0])) % 3 != 0
    changed = [
        next(remaining) if is_vector(a) else mask if isinstance(a, torch.Tensor) else a
        for a in given
    ]
    if overload is aten.log_sigmoid_backward.default:  # the third is the buffer of the forward
        changed[2] = (-changed[1].abs()).exp()
    return Sample(overload, dtype, tuple(changed), keywords)


def is_division(overload: OpOverload) -> bool:
    """True if an integer zero is refused."""
    return any(name in str(overload) for name in ("div", "fmod", "remainder"))


def is_taken(one: Sample) -> bool:
    """Whether eager computes it."""
    try:
        one.run(one.overload, lambda a: a)
    except (RuntimeError, NotImplementedError, TypeError, ZeroDivisionError):
        return False
    return True


def is_translated(one: Sample) -> bool:
    """Whether a kernel computes it."""
    try:
        graph = OneNode(one.overload, one.given, one.keywords)
        return refusal(graph.node) is None and graph.region() is not None
    except (RuntimeError, NotTranslated):  # untraceable; a number that an integer doesn't hold
        return False


def with_numbers(plain: Sample) -> Iterator[Sample]:
    """The call with each of its numbers replaced by each special one."""
    for position, parameter in enumerate(plain.overload._schema.arguments):
        kind, name = str(parameter.type), parameter.name
        is_number = any(word in kind for word in ("float", "number", "Scalar"))
        if "Tensor" in kind or not is_number or (plain.overload, name) in MEANINGLESS:
            continue
        for number in NUMBERS[plain.dtype]:
            given, keywords = list(plain.given), dict(plain.keywords)
            if parameter.kwarg_only:
                keywords[name] = number
            elif position < len(given):
                given[position] = number
            changed = f"{name}={number}"
            yield Sample(plain.overload, plain.dtype, tuple(given), keywords, changed)


def kernels(found: list[Sample]) -> Iterator[tuple[Sample, list[torch.Tensor]]]:
    """Each sample with its results; those of one length share a kernel."""
    lengths: dict[int, list[Sample]] = {}
    for one in found:
        size = next(len(a) for a in one.given if isinstance(a, torch.Tensor))
        lengths.setdefault(size, []).append(one)
    for group in lengths.values():
        for start in range(0, len(group), 8):
            part = group[start : start + 8]
            graph = Calls([(one.overload, one.given, one.keywords) for one in part])
            region = graph.region()
            results = iter(CompiledFusion(region.fusion).execute(graph.values(region)))
            for one, node in zip(part, graph.calls, strict=True):
                meta = node.meta["val"]
                count = sum(m is not None for m in meta) if isinstance(meta, (tuple, list)) else 1
                yield one, [next(results) for _ in range(count)]


def complaint(one: Sample, got: list[torch.Tensor]) -> str:
    """What is wrong with the results; empty if they are eager's."""
    ulp = 2 if one.dtype in HALVES else ULP.get(one.overload, 16)
    found = []
    for mine, eager, exact in zip(got, one.eager(), one.exact(), strict=True):
        found.append(report(one.name, judge(mine, eager, exact, ulp), mine, eager, one.given))
    return "\n".join(filter(None, found))


@pytest.mark.parametrize("dtypes", [long(OTHER_DTYPES), DTYPES], ids=["other dtypes", "dtypes"])
@pytest.mark.parametrize("overload", POINTWISE, ids=str)
def test_overload(overload: OpOverload, dtypes: Sequence[torch.dtype]) -> None:
    found = list(samples(overload, dtypes))
    assert found or dtypes is OTHER_DTYPES, "no dtype is tested"
    complaints = [complaint(one, got) for one, got in kernels(found)]
    assert not any(complaints), "\n".join(filter(None, complaints))


@pytest.mark.parametrize("power", range(-9, 10))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
def test_whole_powers(dtype: torch.dtype, power: int) -> None:
    """Up to 8 they are products, or the reciprocals of products: integers wrap as in eager, floats
    are 4 units off at most.
    """
    if power < 0 and not dtype.is_floating_point:
        pytest.skip("integers have no negative powers")
    x = (torch.randn(1000) * 9).to(dtype)
    if dtype.is_floating_point:
        special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-30, 1e30]
        x[: len(special)] = torch.tensor(special)
    got = torch.compile(lambda x: x.pow(power) * 1, backend="pyfuser")(x)
    if not dtype.is_floating_point:
        assert torch.equal(got, x.pow(power))
        return
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got, x.pow(power), rtol=4 * eps, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(got[:4]), torch.signbit(x.pow(power)[:4]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_identity_matrices_are_parts_of_kernels(dtype: torch.dtype, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = x.shape
        square, wide = torch.eye(rows, dtype=dtype), torch.eye(rows, columns, dtype=dtype)
        return x + wide, square[:300], x.masked_fill(wide.bool(), 0).sum(), torch.eye(columns, 0)

    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for shape in [(5, 7), (7, 5), (1, 4), (300, 2), (2, 70000)]:  # any index type holds, or few
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x))
    assert (
        not explain(lambda x: (x - torch.eye(5)).square().sum(), torch.ones(5, 5)).graphs[0].outside
    )
