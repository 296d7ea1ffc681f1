"""FusedKernelCUDA: a kernel as functions on a GPU, launched one phase after the other.

The end of a launch is the barrier between two phases.  The kernel is given the function that
launches, `launch(number, grid, block, shared_bytes, arguments)`, so the same plans run on a GPU and
on a simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ir.kernel import Buffer, ScalarParameter, TensorParameter
from ...ir.scalars import Symbol
from ...target.target import Limits
from ..runtime import LaunchWriter, LoadedKernel
from .codegen import CudaSource, Geometry, Parameter

# (number of the launch, blocks, threads per block, bytes of shared memory, arguments) -> whether
# the kernel refused the call; a GPU doesn't report it (an assertion fails), and gives None.
Launcher = Callable[[int, Sequence[int], Sequence[int], int, Sequence[Any]], "bool | None"]


class FusedKernelCUDA(LoadedKernel):
    """A kernel whose phases are launches."""

    def __init__(self, code: CudaSource, limits: Limits, launch: Launcher) -> None:
        self.code: CudaSource = code
        self.limits, self.launch = limits, launch

    def write_launch(self, writer: LaunchWriter) -> None:
        """A call for each phase; none if its grid or its blocks are empty."""
        launch = writer.constant("launch", self._checked)
        scratch = {buffer: writer.scratch(writer.size(buffer.bytes)) for buffer in self._scratch()}
        tensors = {tensor.buffer: tensor for tensor in self.kernel.tensors}

        def argument(parameter: Parameter) -> str:
            match parameter:
                case Symbol():
                    return writer.size(parameter)
                case ScalarParameter():
                    return writer.scalar(parameter)
                case Buffer() if parameter in tensors:
                    return self.tensor_argument(writer, tensors[parameter])
                case Buffer():
                    return self.scratch_argument(*scratch[parameter])

        for number, each in enumerate(self.code.launches):
            grid, block = (
                f"({', '.join(writer.size(extent) for extent in extents)})"
                for extents in (each.grid, each.block)
            )
            shared = writer.size(each.shared_bytes)
            arguments = ", ".join(argument(parameter) for parameter in each.parameters)
            writer.call(f"{launch}({number}, {grid}, {block}, {shared}, [{arguments}])")

    def tensor_argument(self, writer: LaunchWriter, tensor: TensorParameter) -> str:
        """How a tensor is passed: by its address."""
        return writer.address(tensor)

    def scratch_argument(self, tensor: str, address: str) -> str:
        """How scratch memory is passed: by its address."""
        del tensor
        return address

    def _scratch(self) -> list[Buffer]:
        """The scratch buffers that a launch is given."""
        given = {p for launch in self.code.launches for p in launch.parameters}
        return [buffer for buffer in self.kernel.scratch if buffer in given]

    def _checked(
        self,
        number: int,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        arguments: Sequence[Any],
    ) -> bool | None:
        """Launches; ScheduleError if the sizes need more than the target has."""
        if 0 in grid or 0 in block:
            return None
        function = self.code.launches[number].function
        Geometry(tuple(grid), tuple(block), shared_bytes).check(function, self.limits)
        return self.launch(number, grid, block, shared_bytes, arguments)
