"""Tensors without the memory that their sizes speak of are errors, and don't end the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from pyfuser import FusionDefinition
from pyfuser.devices import tensor_memory
from pyfuser.devices.cpu import storage_check
from pyfuser.devices.cpu.jit import compile_module
from pyfuser.devices.cpu.native_function import native_function
from pyfuser.devices.tensor_memory import span_bytes
from pyfuser.errors import InputError

MESSAGE = "execute: expected .* bytes of memory for a tensor of shape .*, got "


def doubling() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=False)
        fd.add_output(fd.ops.mul(x, 2.0))
    return fd


def freed() -> torch.Tensor:
    x = torch.randn(4, 5)
    x.untyped_storage().resize_(0)
    return x


def freed_beyond_an_offset() -> torch.Tensor:
    x = torch.randn(40, 5)[9:13]
    x.untyped_storage().resize_(0)
    return x


def one_byte_short() -> torch.Tensor:
    x = torch.randn(8, 5)[2:6]
    x.untyped_storage().resize_(6 * 5 * 4 - 1)
    return x


def short_and_strided() -> torch.Tensor:
    x = torch.randn(5, 4).t()
    x.untyped_storage().resize_(76)
    return x


def freed_parameter() -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.randn(4, 5), requires_grad=False)
    parameter.untyped_storage().resize_(0)
    return parameter


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.randn(4, 5)


class Standing(torch.Tensor):
    """A tensor that wraps others, such as a distributed one."""

    @staticmethod
    def __new__(cls) -> Standing:
        made: Standing = torch.Tensor._make_wrapper_subclass(cls, (4, 5))  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def opaque() -> torch.Tensor:
    return torch.randn(4, 5).to_mkldnn()


def negated() -> torch.Tensor:
    return torch._neg_view(torch.randn(4, 5))


def zeros_without_memory() -> torch.Tensor:
    return torch._efficientzerotensor((4, 5))


LACKING = [freed, freed_beyond_an_offset, one_byte_short, short_and_strided, freed_parameter]
NOT_THERE = [fake, Standing, opaque]  # their elements aren't in memory
MAKERS = [*LACKING, *NOT_THERE]


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("seen", [False, True])
def test_a_fusion_refuses_it(make: Callable[[], torch.Tensor], seen: bool) -> None:
    fd, x = doubling(), make()
    if seen:
        fd.execute([torch.empty_strided((4, 5), x.stride() if make is not opaque else (5, 1))])
    not_there = "tensors with elements in memory, got a|a dense tensor with elements"
    message = not_there if make in NOT_THERE else MESSAGE
    with pytest.raises(InputError, match=message if seen else "execute|dense"):
        fd.execute([x])


@pytest.mark.parametrize("make", [negated, zeros_without_memory])
def test_a_fusion_reads_what_torch_reads(make: Callable[[], torch.Tensor]) -> None:
    fd, x = doubling(), make()
    for given in (x, x + 1, x):
        torch.testing.assert_close(fd.execute([given])[0], given * 2)


def test_a_schedule_by_hand_refuses_it() -> None:
    fd = doubling()
    fd.manual_execute([torch.randn(4, 5)])
    with pytest.raises(InputError, match=f"{MESSAGE}a storage of 0 bytes"):
        fd.manual_execute([freed()])


def test_the_message_says_how_much_there_is() -> None:
    what = r"expected 80 bytes of memory for a tensor of shape \(4, 5\), "
    with pytest.raises(
        InputError, match=what + "got a storage of 119 bytes that it begins 40 into"
    ):
        doubling().execute([one_byte_short()])


def test_a_pending_negation_is_looked_through() -> None:
    x = torch.randn(4, 5, dtype=torch.complex64).conj().imag
    x.untyped_storage().resize_(0)
    fd = doubling()
    with pytest.raises(InputError, match=MESSAGE):
        fd.execute([x])


def test_what_has_enough_is_taken() -> None:
    fd = doubling()
    exact = torch.randn(8, 5)[2:6]
    exact.untyped_storage().resize_(6 * 5 * 4)
    one = torch.randn(1).expand(4, 5)
    empty = torch.randn(7, 5)[7:]
    empty.untyped_storage().resize_(0)
    for x in (exact, one, empty, torch.nn.Parameter(torch.randn(4, 5)), torch.randn(5, 4).t()):
        for _ in range(2):
            torch.testing.assert_close(fd.execute([x])[0], x.detach() * 2)


def compiled(function: Callable[..., torch.Tensor], dynamic: bool) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    made: Callable[..., torch.Tensor] = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    return made


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [freed, one_byte_short, short_and_strided, freed_parameter])
def test_a_compiled_function_refuses_it(
    make: Callable[[], torch.Tensor], dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    function = compiled(lambda x: (x * 2).exp() + 1, dynamic)
    x = make()
    like = torch.empty_strided((4, 5), x.stride())
    torch.testing.assert_close(function(like), (like * 2).exp() + 1, equal_nan=True)
    with pytest.raises(InputError, match=MESSAGE):
        function(x)


def test_a_buffer_that_is_only_written_is_looked_at() -> None:
    function = compiled(lambda buffer, x: buffer.copy_(x.exp() + 1).sum(), dynamic=False)
    function(torch.randn(4, 5), torch.randn(4, 5))
    with pytest.raises(InputError, match=MESSAGE):
        function(freed(), torch.randn(4, 5))


def test_memory_that_the_function_itself_gets_is_there() -> None:
    """As FSDP does with its parameters."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.untyped_storage().resize_(x.numel() * 4)
        x.copy_(y * 2)
        return (x * 3).exp()

    y = torch.randn(4, 5)
    actual = compiled(function, dynamic=False)(freed(), y)
    torch.testing.assert_close(actual, (y * 2 * 3).exp())


def test_tensors_without_a_storage_run_in_torch() -> None:
    function = compiled(lambda x: (x * 2).to_dense().exp(), dynamic=False)
    with pytest.warns(RuntimeWarning, match="tensors with memory that kernels can read, got"):
        actual = function(torch.ones(4, 5).to_mkldnn())
    torch.testing.assert_close(actual, (torch.ones(4, 5) * 2).exp())


def test_python_and_native_code_agree() -> None:
    native = storage_check.require_memory()
    assert native is not tensor_memory.require_memory
    good = torch.randn(4, 5), torch.nn.Parameter(torch.randn(4, 5)), torch.randn(9, 5)[5:]
    for check in (native, tensor_memory.require_memory):
        assert check() is False
        assert check(*(a for x in good for a in (x, 80, 4))) is False
        assert check(torch.randn(7, 5)[7:], 0, 4) is False
        assert check(torch.randn(4, 5, requires_grad=True), 80, 4) is False
        with torch.inference_mode():
            assert check(torch.randn(4, 5), 80, 4) is False
        for make in LACKING:
            with pytest.raises(InputError):
                check(good[0], 80, 4, make(), 80, 4)
        for other in (*NOT_THERE, negated, zeros_without_memory):
            assert check(good[0], 80, 4, other(), 80, 4) is True
        with pytest.raises(InputError):
            check(*(a for x in good for a in (x, 84, 4)))


@pytest.mark.parametrize("mode", [torch.inference_mode, FakeTensorMode, torch.no_grad])
def test_what_is_plain_does_not_depend_on_the_mode(mode: Callable[[], Any]) -> None:
    """Nothing is known before the first call, which may be in any mode."""
    with mode():
        keys = tensor_memory.plain_keys.__wrapped__("cpu")
        native = storage_check.require_memory.__wrapped__()
    assert keys == tensor_memory.plain_keys.__wrapped__("cpu")
    assert native is not tensor_memory.require_memory
    assert native(torch.randn(4, 5, requires_grad=True), 80, 4) is False
    assert native(negated(), 80, 4) is True


def test_native_code_looks_into_tensors_only() -> None:
    native = storage_check.require_memory()
    for other in (None, 3, "tensor", object(), torch.Tensor):
        with pytest.raises((AttributeError, TypeError)):
            native(other, 4, 4)


def test_python_is_asked_only_where_something_is_wrong() -> None:
    assert storage_check.require_memory().__self__ is tensor_memory.require_memory
    asked: list[object] = []
    module = compile_module(storage_check._text(*checked(storage_check._places())))
    native = native_function(module, "require_memory", lambda *needs: asked.append(needs))
    native(torch.randn(4, 5), 80, 4)
    assert asked == []
    short = freed()
    native(short, 80, 4)
    assert asked == [(short, 80, 4)]


def checked(places: tuple[int, int, int] | None) -> tuple[int, int, int]:
    assert places is not None
    return places


def test_without_a_known_place_python_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_check, "_places", lambda: None)
    assert storage_check.require_memory.__wrapped__() is tensor_memory.require_memory


@pytest.mark.parametrize(
    ("shape", "stride", "span"),
    [((), (), 4), ((3,), (1,), 12), ((4, 5), (5, 1), 80), ((4, 5), (0, 0), 4), ((2, 0), (7, 1), 0)]
    + [((2, 3), (10, 2), 60), ((1, 3), (1000, 1), 12)],
)
def test_span(shape: tuple[int, ...], stride: tuple[int, ...], span: int) -> None:
    assert span_bytes(shape, stride, 4) == span
