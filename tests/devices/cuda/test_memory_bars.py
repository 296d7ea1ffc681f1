"""How many sectors the automatic schedulers' kernels move on a GPU, by the emulator's counts.

A bar is 32 bytes per sector, over the bytes of the definition's inputs and outputs, each counted
once: the aim is 1.05, without bank conflicts, in vectors of 16 bytes (16 sectors per request).
Sectors are those that the multiprocessors ask for.  The memory sees fewer: a cache serves weights
that many blocks read, and partial results that one launch leaves for the next.  A bar says how
often weights are read, so that nothing else can hide behind them; what is left must keep to 1.05.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.command_line.profile import profiled
from pyfuser.devices.cuda.emulator.counters import SECTOR_BYTES, Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.emulator.table import table
from pyfuser.errors import InputError
from pyfuser.ops.evaluator import evaluate
from tests.cuda.host_compiler import requires_host_compiler
from tests.schedule.test_inner_outer_persistent import layer_norm_backward

pytestmark = requires_host_compiler

AIM = 1.05


@dataclass(frozen=True)
class Bars:
    """What all launches of a definition together may need, and the least sectors per request.

    `weight_reads` is how often each one-dimensional input, of at most 64 KiB, is read as a whole.
    `scratch` says that partial results, which are written and read once, are not counted.
    """

    overhead: float = AIM
    weight_reads: int = 1
    scratch: bool = False
    cached_overhead: float = AIM
    conflicts_per_request: float = 0
    sectors_per_request: float = 4


def matrix(fd: FusionDefinition) -> Any:
    return fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)


def gelu(fd: FusionDefinition) -> None:
    x = matrix(fd)
    fd.add_output(fd.ops.mul(x, fd.ops.add(fd.ops.erf(fd.ops.mul(x, 0.7071)), 1.0)))


def sum_of_two(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.add(matrix(fd), matrix(fd)))


def biased(fd: FusionDefinition) -> None:
    x, bias = matrix(fd), fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
    fd.add_output(fd.ops.relu(fd.ops.add(x, fd.ops.broadcast(bias, [True, False]))))


def softmax(fd: FusionDefinition) -> None:
    x = matrix(fd)
    power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [-1], keepdim=True)))
    fd.add_output(fd.ops.div(power, fd.ops.sum(power, [-1], keepdim=True)))


def layer_norm(fd: FusionDefinition) -> None:
    x = matrix(fd)
    variance, mean = fd.ops.var_mean(x, [1], 0, True)
    scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
    fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), scale))


def weighted_norm(fd: FusionDefinition) -> None:
    x, weight = matrix(fd), fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
    scale = fd.ops.rsqrt(fd.ops.add(fd.ops.sum(fd.ops.mul(x, x), [1], keepdim=True), 1e-5))
    fd.add_output(fd.ops.mul(fd.ops.mul(x, scale), fd.ops.broadcast(weight, [True, False])))


def batch_norm(fd: FusionDefinition) -> None:
    x = matrix(fd)
    variance, mean = fd.ops.var_mean(x, [0], 0, True)
    scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
    fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), scale))


def row_sums(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.sum(matrix(fd), [1]))


def column_sums(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.sum(matrix(fd), [0]))


def total(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.sum(matrix(fd), [0, 1]))


def transpose(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.neg(fd.ops.permute(matrix(fd), [1, 0])))


Define = Callable[[FusionDefinition], None]
SMALL, LARGE = (64, 1024), (1024, 1024)
VECTORS = 16  # sectors per request
BARS: dict[tuple[Define, tuple[int, int]], Bars] = {
    (gelu, SMALL): Bars(sectors_per_request=VECTORS),
    (gelu, LARGE): Bars(sectors_per_request=VECTORS),
    (sum_of_two, SMALL): Bars(sectors_per_request=VECTORS),
    (sum_of_two, LARGE): Bars(sectors_per_request=VECTORS),
    # A thread reads its part of the bias once for four rows; if the tensor is small, for one row:
    # there are just enough threads for all multiprocessors.
    (biased, SMALL): Bars(weight_reads=64, sectors_per_request=VECTORS),
    (biased, LARGE): Bars(weight_reads=1024 // 4, sectors_per_request=VECTORS),
    (softmax, SMALL): Bars(sectors_per_request=VECTORS),
    (softmax, LARGE): Bars(sectors_per_request=VECTORS),
    (layer_norm, SMALL): Bars(sectors_per_request=VECTORS),
    (layer_norm, LARGE): Bars(sectors_per_request=VECTORS),
    # The weights are read again for each row, from a cache.
    (weighted_norm, (4096, 1024)): Bars(weight_reads=4096, sectors_per_request=VECTORS),
    # 128 blocks have 8 rows each, in two lines that read the weights once.  They leave 8 % of the
    # bytes as partial sums of columns, so that all multiprocessors have a block.
    (layer_norm_backward, LARGE): Bars(
        weight_reads=256, scratch=True, cached_overhead=1.17, sectors_per_request=12
    ),
    # A block has 8 columns, a sector of each row, so that there are enough blocks.
    (batch_norm, SMALL): Bars(),
    (batch_norm, LARGE): Bars(),
    # A result of a row is a request of its own.
    (row_sums, SMALL): Bars(sectors_per_request=14.3),
    (row_sums, LARGE): Bars(sectors_per_request=14.3),
    # Few columns are an element each, so that there are enough blocks.  Blocks that share columns
    # write and read partial results, one for 64 rows.
    (column_sums, SMALL): Bars(),
    (column_sums, LARGE): Bars(sectors_per_request=VECTORS),
    (total, SMALL): Bars(sectors_per_request=15.4),
    (total, LARGE): Bars(sectors_per_request=15.5),
    # Few tiles have a thread for each element of a row.
    (transpose, SMALL): Bars(),
    (transpose, LARGE): Bars(sectors_per_request=VECTORS),
}


SCRIPT = """
import torch
from pyfuser import FusionDefinition

for shape in ([-1, -1], [8, 8]):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor(shape, contiguity=True)))
    if shape == [-1, -1]:
        for _ in range(3):
            fd.execute([torch.randn(60, 100)])
"""


def inputs_of(fd: FusionDefinition, shape: tuple[int, int]) -> list[torch.Tensor]:
    """Contiguous inputs of a definition; an axis of size 1 is in place of a column."""
    made = []
    for each in fd.fusion.graph.definition.inputs:
        axes = each.domain.logical
        sizes = zip(axes, shape[-len(axes) :], strict=True)
        made.append(torch.randn([1 if axis.is_broadcast else size for axis, size in sizes]))
    return made


def profile_of(define: Define, shape: tuple[int, int]) -> Profile:
    """The launches of one call with contiguous inputs; its results are right."""
    with FusionDefinition() as fd:
        define(fd)
    inputs = inputs_of(fd, shape)
    profile = Profile()
    want = evaluate(fd.fusion.graph.definition, inputs)
    with emulated(profile=profile):
        got = fd.execute(inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    return profile


@pytest.mark.parametrize(
    ("define", "shape"), BARS, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_kernels_move_no_more_sectors_than_their_bar(define, shape):
    counts, bars = profile_of(define, shape).total, BARS[define, shape]
    weights = bytes_of_weights(define, shape)
    assert weights <= 64 << 10
    moved = SECTOR_BYTES * counts.sectors - (bars.weight_reads - 1) * weights
    if bars.scratch:
        moved -= counts.scratch_bytes
    assert moved <= bars.overhead * counts.bytes_needed
    assert counts.cached_overhead <= bars.cached_overhead
    assert counts.sectors_per_request >= bars.sectors_per_request
    assert counts.bank_conflicts <= bars.conflicts_per_request * counts.shared_requests


def bytes_of_weights(define: Define, shape: tuple[int, int]) -> int:
    """The bytes of the one-dimensional inputs."""
    with FusionDefinition() as fd:
        define(fd)
    return sum(x.nbytes for x in inputs_of(fd, shape) if x.dim() == 1)


def test_the_profile_of_a_script(tmp_path):
    """Each definition once, in the order of definition, also one that the script doesn't run."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    profile, failure = profiled(str(script), "sm_80")
    assert failure is None
    assert [each.counts.bytes_needed for each in profile.launches] == [2 * 4 * 6000, 2 * 4 * 64]
    lines = table(profile, "sm_80").splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert lines[1].endswith("100%")


def test_a_script_that_fails_is_profiled_up_to_there(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "raise ValueError('no')\n")
    profile, failure = profiled(str(script), "sm_90")
    assert "ValueError: no" in failure
    assert len(profile.launches) == 2


def test_a_profile_is_of_a_gpu():
    with pytest.raises(InputError, match="expected a device sm_NN, got cpu"):
        profiled("script.py", "cpu")


def test_a_whole_tile_is_transposed_without_predicates():
    """A block whose tile is cut off tests each of its elements."""
    whole, cut = (profile_of(transpose, shape).total for shape in (SMALL, (31, 31)))
    assert whole.divergent_branches == 0
    assert whole.operations_per_thread <= 0.8 * cut.operations_per_thread
