"""Kernels for other processors: narrower vectors are run here, AArch64 is compiled across."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import replace

import llvmlite.binding as llvm
import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cpu.host import host
from pyfuser.frontend.executors import stage_texts
from pyfuser.frontend.tensor_view import TensorView
from tests.support.accuracy import assert_close_to_oracle
from tests.support.targets import Pretend

pytestmark = pytest.mark.usefixtures("poison")

X86 = platform.machine().lower() in ("x86_64", "amd64")
HOST = host()
MACHINES = {
    "sse4": replace(host(), cpu_name="x86-64-v2", features="", vector_bits=128, has_fma=False),
    "avx2": replace(host(), cpu_name="x86-64-v3", features="", vector_bits=256, has_fma=True),
}
NEON = replace(
    host(), cpu_name="cortex-a72", features="", vector_bits=128, has_fma=True,
    architecture="aarch64",
)  # fmt: skip


def gelu(fd: FusionDefinition) -> TensorView:
    x = fd.define_tensor([-1, -1], dtype=DataType.Float)
    bias = fd.define_tensor([-1], dtype=DataType.Float)
    h = fd.ops.add(x, bias)
    return fd.ops.mul(fd.ops.mul(h, 0.5), fd.ops.add(fd.ops.erf(fd.ops.mul(h, 0.70710678)), 1.0))


def softmax(fd: FusionDefinition) -> TensorView:
    x = fd.ops.cast(fd.define_tensor([-1, -1], dtype=DataType.BFloat16), DataType.Float)
    powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
    return fd.ops.div(powers, fd.ops.sum(powers, [1], keepdim=True))


def column_variance(fd: FusionDefinition) -> TensorView:
    return fd.ops.var(fd.define_tensor([-1, -1], dtype=DataType.Double), [0])


def integers(fd: FusionDefinition) -> TensorView:
    x = fd.define_tensor([-1, -1], dtype=DataType.Int)
    return fd.ops.where(fd.ops.gt(x, 2), fd.ops.mul(x, x), fd.ops.neg(x))


def transposed(fd: FusionDefinition) -> TensorView:
    x, y = (fd.define_tensor([-1, -1], dtype=DataType.Float) for _ in range(2))
    return fd.ops.add(x, y)


FUSIONS: dict[str, tuple[Callable[[FusionDefinition], TensorView], list[torch.Tensor]]] = {
    "gelu": (gelu, [torch.randn(7, 131), torch.randn(131)]),
    "softmax": (softmax, [torch.randn(9, 77).bfloat16()]),
    "column_variance": (column_variance, [torch.randn(53, 29, dtype=torch.float64)]),
    "integers": (integers, [torch.randint(-9, 9, (5, 67))]),
    "transposed": (transposed, [torch.randn(45, 67), torch.randn(67, 45).t()]),
}


def defined(name: str) -> tuple[FusionDefinition, list[torch.Tensor]]:
    build, inputs = FUSIONS[name]
    with FusionDefinition() as fd:
        fd.add_output(build(fd))
    return fd, inputs


@pytest.mark.skipif(not X86, reason="runs x86 code")
@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", FUSIONS)
def test_narrower_vectors(name: str, kind: str, pretend: Pretend) -> None:
    pretend(MACHINES[kind])
    fd, inputs = defined(name)
    outputs = fd.execute(inputs)
    assert_close_to_oracle(fd.fusion.definition, inputs, outputs, factor=8, absolute=1e-7)
    assembly = stage_texts(fd.fec.fusion(), inputs)["asm"]
    assert "zmm" not in assembly
    assert kind == "avx2" or "ymm" not in assembly


@pytest.mark.parametrize("name", FUSIONS)
def test_aarch64_assembles(name: str, pretend: Pretend) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu"
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip("this LLVM has no AArch64")
    pretend(NEON)
    with FusionDefinition() as fd:
        build, inputs = FUSIONS[name]
        fd.add_output(build(fd))
    text = stage_texts(fd.fusion, inputs)["llvm"]
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple = triple
    assembly = str(target.create_target_machine(cpu=NEON.cpu_name, opt=1).emit_assembly(module))
    module.close()
    assert re.search(r"v\d+\.(4s|2d)", assembly)
