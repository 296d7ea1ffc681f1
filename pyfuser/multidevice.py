"""The interface's devices of a process group: one process computes on one device.

Meshes and shardings describe tensors that are replicated; tensors cut over several devices are not
supported yet, and are a clear error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from .errors import DefinitionError, UnsupportedError, expected
from .frontend.device_mesh import Communicator, DeviceMesh, Sharding, cut_axes
from .frontend.enums import CommunicatorBackend
from .frontend.executors import FusionExecutorCache

if TYPE_CHECKING:
    from .frontend.definition import FusionDefinition
    from .frontend.fusion import DefinedFusion, Fusion
    from .frontend.tensor_view import TensorView


@dataclass
class MultiDeviceExecutorParams:
    """How the kernels and the communication of several devices are arranged."""

    use_allocation_cache: bool = False
    number_of_streams: int = 4
    backend_type: CommunicatorBackend = CommunicatorBackend.nccl
    offset_stream_indexing_by_rank: bool = True
    inter_stream_synchronization: bool = False


class MultiDeviceExecutor:
    """Runs a fusion whose tensors are whole on every device."""

    def __init__(self, fusion: Fusion, params: MultiDeviceExecutorParams | None = None) -> None:
        self.params = params or MultiDeviceExecutorParams()
        require_whole(fusion)
        self._cache = FusionExecutorCache(fusion)

    def run(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs on this process's device."""
        return self._cache.execute(args)

    def __str__(self) -> str:
        return f"MultiDeviceExecutor({self.params})\n{self._cache.fusion()}"


def require_whole(fusion: Fusion) -> None:
    """Raises UnsupportedError if a tensor of the fusion is cut over several devices."""
    for tensor, mesh in fusion.graph.meshes.items():
        for _, axis in cut_axes(tensor):
            what = f"T{tensor.name} to be whole on every device"
            raise UnsupportedError(expected("execute", what, f"axis {axis} cut over {mesh}"))


def shard_tensor(tensor: torch.Tensor, tv: TensorView) -> torch.Tensor:
    """The part of a tensor that this process's device has, as the definition's tensor is cut."""
    mesh = cast("DefinedFusion", tv.fusion).meshes.get(tv)
    if mesh is None:
        raise DefinitionError(expected("shard_tensor", "a tensor with a mesh", tv))
    for _, axis in cut_axes(tv):
        tensor = mesh.shard_tensor(tensor, axis)
    return tensor


def execute_with_dtensors(fd: FusionDefinition, in_dtensors: Sequence[Any]) -> list[Any]:
    """Runs a definition on replicated DTensors; the results are replicated on the same mesh."""
    from torch.distributed.tensor import DTensor, Replicate

    meshes = []
    for position, given in enumerate(in_dtensors):
        if not isinstance(given, DTensor):
            got = type(given).__name__
            what = f"a DTensor as input {position}"
            raise DefinitionError(expected("execute_with_dtensors", what, got))
        if any(not placement.is_replicate() for placement in given.placements):
            what, got = f"input {position} to be replicated", str(given.placements)
            raise UnsupportedError(expected("execute_with_dtensors", what, got))
        meshes.append(given.device_mesh)
    if len(set(meshes)) != 1:
        what = "inputs on one mesh"
        raise DefinitionError(expected("execute_with_dtensors", what, f"{len(set(meshes))}"))
    outputs = fd.execute([given.to_local() for given in in_dtensors])
    placements = [Replicate()] * meshes[0].ndim
    return [DTensor.from_local(out, meshes[0], placements, run_check=False) for out in outputs]


__all__ = [
    "Communicator",
    "DeviceMesh",
    "MultiDeviceExecutor",
    "MultiDeviceExecutorParams",
    "Sharding",
    "execute_with_dtensors",
    "shard_tensor",
]
