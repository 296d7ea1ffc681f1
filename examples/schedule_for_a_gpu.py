"""A schedule by hand for a GPU: a block for a row, whose threads add up the row together.

grid_x is blockIdx.x and block_x threadIdx.x.  rfactor splits the sum in two: each thread adds every
128th element, and then the threads of the block add up their results.  Without a GPU, CPU tensors
are computed by the same CUDA kernel, compiled by g++ and run by the emulator, which also finds
races and accesses out of bounds.
"""

import contextlib
import shutil

import torch

from pyfuser import FusionDefinition, ParallelType
from pyfuser.devices.cuda.emulator.runtime import emulated

with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    bias = fd.define_tensor(shape=[-1], contiguity=True)
    added = fd.ops.add(x, fd.ops.broadcast(bias, [True, False]))
    total = fd.ops.sum(fd.ops.relu(added), [1])
    fd.add_output(total)

    total.split(1, 128)  # [rows, columns / 128, 128]
    partial = total.rfactor([1])  # [rows, columns / 128, 128], and total [rows, 128]
    fd.sched.transform_like(partial)
    total.axis(0).parallelize(ParallelType.grid_x)
    total.axis(1).parallelize(ParallelType.block_x)
    partial.axis(0).parallelize(ParallelType.grid_x)
    partial.axis(2).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(partial)
    fd.sched.inline_most()

has_gpu = torch.cuda.is_available()
if has_gpu or shutil.which("g++"):
    device = "cuda" if has_gpu else "cpu"
    x, bias = torch.randn(60, 1000, device=device), torch.randn(1000, device=device)
    with contextlib.nullcontext() if has_gpu else emulated():
        (got,) = fd.manual_execute([x, bias])
    torch.testing.assert_close(got, (x + bias).relu().sum(1), rtol=1e-4, atol=1e-4)
    print("as scheduled, equal to torch's; the kernel:")
    print("pyfuser show examples/schedule_for_a_gpu.py --device sm_90 --stage cuda")
else:
    print("neither a GPU nor g++, which compiles kernels for the emulator")
