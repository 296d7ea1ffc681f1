"""Invalid inputs raise errors: iterators, integers beyond 64 bits, tensors that aren't dense."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.errors import DefinitionError, InputError


def scaled(dtype: DataType = DataType.Double) -> FusionDefinition:
    """x * s."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1])
        s = fd.define_scalar(dtype=dtype)
        fd.add_output(fd.ops.mul(x, s))
    return fd


X = torch.ones(2, 3)
NO_LISTS: dict[str, Callable[[], object]] = {
    "generator": lambda: (value for value in (X, 2.0)),
    "list_iterator": lambda: iter([X, 2.0]),
    "map": lambda: map(torch.as_tensor, [X, 2.0]),
    "dict": lambda: {"x": X, "s": 2.0},
    "set": lambda: {X, 2.0},
    "str": lambda: "xs",
    "int": lambda: 2,
    "NoneType": lambda: None,
}


@pytest.mark.parametrize("kind", NO_LISTS)
@pytest.mark.parametrize("function", ["execute", "validate", "manual_execute", "manual_validate"])
def test_what_is_no_list_of_inputs(function: str, kind: str) -> None:
    message = f"{function}: expected a list of inputs, got an object of type {kind}"
    with pytest.raises(InputError, match=message):
        getattr(scaled(), function)(NO_LISTS[kind]())


@pytest.mark.parametrize("kind", [kind for kind in NO_LISTS if kind != "set"])
def test_what_is_no_list_of_inputs_after_a_call(kind: str) -> None:
    fd = scaled()
    fd.execute([X, 2.0])
    with pytest.raises(InputError, match=f"expected a list of inputs, got .* {kind}"):
        fd.execute(NO_LISTS[kind]())  # type: ignore[arg-type]


def test_what_is_as_good_as_a_list() -> None:
    fd = scaled()
    for inputs in ([X, 2.0], (X, 2.0), {"x": X, "s": 2.0}.values(), [[X], (2.0,)]):
        assert torch.equal(fd.execute(inputs)[0], X * 2)  # type: ignore[arg-type]


def len_of(number: object) -> str:
    """A name for a test: the digits would be too many."""
    return f"{number.bit_length()}bits" if isinstance(number, int) else str(number)


@pytest.mark.parametrize("dtype", [DataType.Int, DataType.Int32])
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**70, 10**5000], ids=len_of)
def test_an_integer_beyond_64_bits(number: int, dtype: DataType) -> None:
    fd = scaled(dtype)
    for _ in range(2):
        with pytest.raises(InputError, match="is not compatible with the expected data type"):
            fd.execute([X, number])
        fd.execute([X, 3])


@pytest.mark.parametrize("dtype", [DataType.Double, DataType.Float, DataType.BFloat16])
def test_a_floating_scalar_takes_what_a_double_can_hold(dtype: DataType) -> None:
    fd = scaled(dtype)
    for _ in range(2):
        assert torch.equal(fd.execute([X, 2**70])[0].float(), X * 2.0**70)
        with pytest.raises(InputError, match="1329 bits"):
            fd.execute([X, 10**400])


@pytest.mark.parametrize("number", [2**63, -(2**70), 10**5000], ids=len_of)
def test_a_constant_beyond_64_bits(number: int) -> None:
    wanted = "expected an integer of 64 bits, got "
    with pytest.raises(DefinitionError, match=f"define_scalar: {wanted}"), FusionDefinition() as fd:
        fd.define_scalar(number)
    with pytest.raises(DefinitionError, match=f"add: {wanted}"), FusionDefinition() as fd:
        fd.ops.add(fd.define_tensor(shape=[-1]), number)


def test_the_outermost_integers_of_64_bits_are_taken() -> None:
    x = torch.zeros(2, 3, dtype=torch.int64)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        s = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.add(fd.ops.add(t, s), -(2**63)))
    assert torch.equal(fd.execute([x, 2**63 - 1])[0], x - 1)
    assert torch.equal(fd.execute([x + 1, -(2**63)])[0], x + 1)


def test_a_compiled_function_raises_what_eager_does() -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x, n: x * n, backend="pyfuser")
    function(X, 3), function(X, 4)
    with pytest.raises(OverflowError, match="int too big to convert"):
        X * 2**70
    with pytest.raises(OverflowError, match="int too big to convert"):
        function(X, 2**70)
    assert torch.equal(function(X, 5), X * 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: X.to_sparse(),
        lambda: X.to_sparse_csr(),
        lambda: X.to_mkldnn(),
        lambda: torch.nested.nested_tensor([X, X], layout=torch.jagged),
        lambda: torch.nested.nested_tensor([X]),
        lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("seen", [False, True])
def test_a_tensor_that_is_not_dense(make: Callable[[], torch.Tensor], seen: bool) -> None:
    fd = scaled()
    if seen:
        fd.execute([X, 2.0])
    with pytest.raises(InputError, match="expected|Expected"):
        fd.execute([make(), 2.0])
