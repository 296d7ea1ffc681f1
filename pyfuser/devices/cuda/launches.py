"""FusedKernelCUDA: a kernel as functions on a GPU, launched one phase after the other.

The end of a launch is the barrier between two phases: launches of a stream run in order.  The
kernel is given one callable per phase,

    launch(grid x, y, z, block x, y, z, bytes of shared memory, *arguments)

so the same plans run on a GPU and on a simulator.  A callable looks at its arguments to choose
between the text for aligned vectors and the one for any address (alignment.py).  A launch whose
last blocks finish the work is given counters, which are zero:

    counters(count) -> an argument
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...dtypes import DataType
from ...ir.kernel import Buffer, ScalarParameter, TensorParameter
from ...ir.scalar_queries import evaluate, substitute
from ...ir.scalars import Symbol
from ..runtime import LaunchWriter, LoadedKernel
from .alignment import misaligned_text
from .codegen import Counters, CudaSource, Launch, Parameter, SeedAddress
from .launcher import bfloat16_bits

# Returns whether the kernel refused the call; a GPU doesn't report it (an assertion fails), and
# gives None.  It does nothing if the grid or the blocks are empty, and raises ScheduleError if they
# are larger than the target's limits.
Launcher = Callable[..., "bool | None"]

# What a launcher is given before the arguments: grid, block, bytes of shared memory.
GEOMETRY = 7


def launch_aligned(
    aligned: Launcher, launch: Launch, any_address: Callable[[], Sequence[Launcher]], number: int
) -> Launcher:
    """A launcher that takes `aligned` if its vectors are, or else the one of this number among
    those for any address, which are made when a call first needs them.
    """
    if not launch.alignments:
        return aligned
    text = misaligned_text(launch.alignments, (None,) * GEOMETRY + launch.parameters)
    call = f"lambda *given: (any_address()[number] if {text} else aligned)(*given)"
    known = {"aligned": aligned, "any_address": any_address, "number": number}
    made: Launcher = eval(call, known)
    return made


class FusedKernelCUDA(LoadedKernel):
    """A kernel whose phases are launches."""

    def __init__(
        self, code: CudaSource, launchers: Sequence[Launcher], counters: Callable[[int], Any]
    ) -> None:
        self.code: CudaSource = code
        self.launchers, self.counters = launchers, counters

    def shared_bytes(self, sizes: Mapping[str, int]) -> int:
        """The most bytes that a block of one of the launches has."""
        bytes_of = (
            substitute(each.shared_bytes, self.kernel.joined) for each in self.code.launches
        )
        return max(evaluate(each, sizes) for each in bytes_of)

    def write_launch(self, writer: LaunchWriter) -> None:
        """A call for each phase."""
        scratch = {buffer: writer.scratch(writer.size(buffer.bytes)) for buffer in self._scratch()}
        tensors = {tensor.buffer: tensor for tensor in self.kernel.tensors}

        def argument(parameter: Parameter) -> str:
            match parameter:
                case Symbol():
                    return writer.size(parameter)
                case ScalarParameter():
                    return self.scalar_argument(writer, parameter)
                case SeedAddress(seed=seed):
                    return self.seed_argument(writer.number_in_memory(seed))
                case Buffer() if parameter in tensors:
                    return self.tensor_argument(writer, tensors[parameter])
                case Buffer():
                    return self.scratch_argument(*scratch[parameter])
                case Counters(count=count):
                    counters = writer.constant("counters", self.counters)
                    return f"{counters}({writer.size(count)})"

        for number, each in enumerate(self.code.launches):
            phase = f"_{number}_" if len(self.code.launches) > 1 else ""
            launch = writer.constant(f"launch{phase}", self.launchers[number])
            extents = (*each.grid, *each.block, each.shared_bytes)
            arguments = [writer.size(extent) for extent in extents]
            arguments += [argument(parameter) for parameter in each.parameters]
            writer.call(f"{launch}({', '.join(arguments)})")

    def tensor_argument(self, writer: LaunchWriter, tensor: TensorParameter) -> str:
        """How a tensor is passed: by its address."""
        return writer.address(tensor)

    def scratch_argument(self, tensor: str, address: str) -> str:
        """How scratch memory is passed: by its address."""
        del tensor
        return address

    def scalar_argument(self, writer: LaunchWriter, parameter: ScalarParameter) -> str:
        """How a scalar is passed: as a number that Python's struct packs.

        A seed in memory is passed as its address alone: reading it would wait for the GPU.
        """
        if writer.number_in_memory(parameter):
            return "0"
        text = writer.scalar(parameter)
        if parameter.dtype is not DataType.BFloat16:
            return text
        return f"{writer.constant('bits', bfloat16_bits)}({text})"

    def seed_argument(self, tensor: str) -> str:
        """How a seed in memory is passed: by its address; null if there is no tensor."""
        return f"{tensor}.data_ptr()" if tensor else "0"

    def _scratch(self) -> list[Buffer]:
        """The scratch buffers that a launch is given."""
        given = {p for launch in self.code.launches for p in launch.parameters}
        return [buffer for buffer in self.kernel.scratch if buffer in given]
