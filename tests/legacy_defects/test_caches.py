"""Legacy defects of caches, threads and switches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, interface
from pyfuser.errors import InputError, UnsupportedError
from pyfuser.interface import (
    compiled_kernel_count,
    debug_kernel_code,
    override_can_fuse_on_cpu,
    register_fusion,
    run_fusion,
)
from pyfuser.ir.fusion import Fusion
from tests.legacy_defects.running import (
    compiled,
)
from tests.support.concurrency import in_threads


def doubled(number: float) -> Fusion:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Float)
        fd.add_output(fd.ops.mul(x, number))
    return fd.fusion.definition


def test_18_registration_from_many_threads() -> None:
    """One key per structure, which works in every thread as soon as it exists."""
    keys: list[list[int]] = [[] for _ in range(8)]

    def work(thread: int) -> None:
        for number in range(12):
            scale = 2.0 + (number + thread) % 12
            key = register_fusion(doubled(scale))
            keys[thread].append((number + thread) % 12)
            keys[thread].append(key)
            stack: list[Any] = [torch.ones(3 + thread)]
            run_fusion(key, stack)
            assert torch.equal(stack[0], torch.full((3 + thread,), scale))

    in_threads(8, work)
    found = [dict(zip(each[::2], each[1::2], strict=True)) for each in keys]
    assert all(each == found[0] for each in found) and len(set(found[0].values())) == 12


def contiguous(rank: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1] * rank, contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(fd.ops.tanh(fd.ops.mul(x, y)), fd.ops.mul(x, 20.25)))
    return fd


def new_kernels(fd: FusionDefinition, *inputs: torch.Tensor) -> int:
    before = compiled_kernel_count()
    fd.execute(list(inputs))
    return compiled_kernel_count() - before


def test_20_one_kernel_for_contiguous_tensors_of_every_rank() -> None:
    shapes = [(720,), (24, 30), (6, 4, 30), (6, 4, 5, 6), (2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6)]
    counts = []
    for shape in shapes:
        x, y = torch.randn(shape), torch.randn(shape)
        counts.append(new_kernels(contiguous(len(shape)), x, y))
        (got,) = contiguous(len(shape)).execute([x, y])
        torch.testing.assert_close(got, torch.tanh(x * y) + x * 20.25)
    assert counts == [1, 0, 0, 0, 0, 0]


def test_20_strides_of_axes_of_one_element_do_not_matter() -> None:
    fd, data = contiguous(2), torch.randn(1000)
    new_kernels(fd, data[:12].view(4, 3), data[:12].view(4, 3))
    for shape, strides in (
        ((1, 3), (3, 1)),
        ((1, 3), (77, 1)),
        ((3, 1), (1, 1)),
        ((3, 1), (1, 55)),
        ((1, 1), (5, 9)),
    ):
        x = data.as_strided(shape, strides)
        assert new_kernels(fd, x, x) == 0
        assert torch.equal(fd.execute([x, x])[0], fd.execute([x.clone(), x.clone()])[0])


def test_20_rows_and_their_sums_share_kernels_too() -> None:
    """Of merged axes only the product of the sizes remains: rows of a bias, rows of a sum."""
    counts = []
    for shape in ((600, 50), (20, 30, 50), (4, 5, 30, 50)):
        rank = len(shape)
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1] * rank, contiguity=True)
            b = fd.define_tensor([-1], contiguity=True)
            wide = fd.ops.broadcast(b, [True] * (rank - 1) + [False])
            fd.add_output(fd.ops.sum(fd.ops.mul(x, fd.ops.exp(wide)), [rank - 1]))
        x, b = torch.randn(shape), torch.randn(50)
        counts.append(new_kernels(fd, x, b))
        torch.testing.assert_close(fd.execute([x, b])[0], (x * b.exp()).sum(-1))
    assert counts[1:] == [0, 0]


def test_29_no_code_is_shown_while_fusing_is_off() -> None:
    """An error instead of the inputs; run_fusion still computes, with kernels again afterwards."""
    key, x = register_fusion(doubled(29.5)), torch.randn(7)
    override_can_fuse_on_cpu(False)
    before = compiled_kernel_count()
    with pytest.raises(UnsupportedError, match="debug_kernel_code: torch computes fusion"):
        debug_kernel_code(key, [x])
    stack: list[Any] = [x]
    run_fusion(key, stack)
    assert torch.equal(stack[0], x * 29.5) and stack[0] is not x
    assert compiled_kernel_count() == before
    override_can_fuse_on_cpu(None)
    assert "kernel" in debug_kernel_code(key, [x])
    run_fusion(key, stack)
    assert compiled_kernel_count() == before + 1


def test_28_a_number_on_the_cpu_beside_tensors_of_another_device(other_device: Any) -> None:
    """It is copied to the device once per call; kernels run, in definitions and in graphs."""
    x, number = torch.empty(3, 4, device="meta"), torch.tensor(2.0)
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(number), fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(fd.ops.sin(b), a))
    (got,) = fd.execute([number, x])
    assert (got.device, got.shape) == (x.device, x.shape)
    (launch,) = other_device.launches
    assert number.data_ptr() not in launch
    other_device.launches.clear()
    program = compiled(lambda n, x: (torch.sin(x) * n, n + 1))
    scaled, sum_ = program(number, x)
    assert (scaled.device, scaled.shape) == (x.device, x.shape)
    assert sum_.item() == 3 and sum_.device.type == "cpu"
    (launch,) = other_device.launches
    assert number.data_ptr() not in launch
    with pytest.raises(InputError, match="expected all tensors on cpu, got one on meta"):
        fd.execute([torch.ones(3, 4), x])


def test_30_switches_and_registrations_from_many_threads() -> None:
    """Switched off and on by some while others register and run: always the right result."""
    key = register_fusion(doubled(30.5))

    def work(thread: int) -> None:
        for number in range(40):
            if thread < 2:
                override_can_fuse_on_cpu((False, None)[(number + thread) % 2])
            else:
                stack: list[Any] = [torch.ones(1 + number % 5)]
                run_fusion(key, stack)
                assert torch.equal(stack[0], torch.full((1 + number % 5,), 30.5))
                interface.can_fuse_on_cpu()

    in_threads(6, work)
    override_can_fuse_on_cpu(None)
    before = compiled_kernel_count()
    run_fusion(key, [torch.ones(3)])
    assert compiled_kernel_count() - before <= 1
