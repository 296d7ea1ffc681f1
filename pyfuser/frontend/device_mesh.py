"""Meshes of devices, and where a definition's tensors lie on them.

A process computes on one device.  Its number is its rank in torch's process group; without a group
it is alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed

from ..errors import DefinitionError, expected
from ..ir.domains import ParallelType
from ..ir.vals import TensorView

if TYPE_CHECKING:
    from .fusion import DefinedFusion

MESH = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)


class Communicator:
    """The process's place in its group; without a group it is alone."""

    _instance: Communicator | None = None

    @classmethod
    def instance(cls) -> Communicator:
        """The communicator of the process."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    @staticmethod
    def _has_group() -> bool:
        return distributed.is_available() and distributed.is_initialized()

    def size(self) -> int:
        """The number of processes."""
        return distributed.get_world_size() if self._has_group() else 1

    def rank(self) -> int:
        """The number of this process."""
        return distributed.get_rank() if self._has_group() else 0

    def local_size(self) -> int:
        """The number of processes on this machine, as torchrun sets it."""
        return _from_environment("LOCAL_WORLD_SIZE", 1)

    def local_rank(self) -> int:
        """The number of this process on this machine, as torchrun sets it."""
        return _from_environment("LOCAL_RANK", 0)

    def barrier(self) -> None:
        """Waits for all processes."""
        if self._has_group():
            distributed.barrier()


def _from_environment(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


class DeviceMesh:
    """Devices by number, in an array of one or more dimensions."""

    def __init__(self, devices: Sequence[int] | torch.Tensor) -> None:
        self._devices = torch.as_tensor(devices, dtype=torch.int64)
        if len(set(self._devices.flatten().tolist())) != self._devices.numel():
            got = self._devices.tolist()
            raise DefinitionError(expected("DeviceMesh", "different devices", got))

    @property
    def size(self) -> int:
        """The number of devices."""
        return self._devices.numel()

    @property
    def shape(self) -> list[int]:
        """The extents of the array."""
        return list(self._devices.shape)

    def shard_tensor(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """The part of a tensor, cut along a dimension, that this process's device has.

        DefinitionError if the dimension can't be cut into equal parts; an empty tensor for a device
        outside the mesh.
        """
        if tensor.shape[axis] % self.size:
            what = f"a dimension {axis} that {self.size} devices share equally"
            raise DefinitionError(expected("shard_tensor", what, tensor.shape[axis]))
        flat = self._devices.flatten().tolist()
        rank = Communicator.instance().rank()
        if rank not in flat:
            return tensor.narrow(axis, 0, 0)
        return tensor.chunk(self.size, axis)[flat.index(rank)].contiguous()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and torch.equal(self._devices, other._devices)

    def __hash__(self) -> int:
        return hash(tuple(self._devices.flatten().tolist()))

    def __repr__(self) -> str:
        return f"DeviceMesh({self._devices.tolist()})"


@dataclass(frozen=True)
class Sharding:
    """Where a tensor is: on every device of a mesh, or cut over it."""

    mesh: DeviceMesh
    axes: tuple[tuple[ParallelType, int], ...] = ()

    def axis_sharded_on(self, parallel_type: ParallelType) -> int:
        """The dimension that is cut over a dimension of the mesh; -1 if none is."""
        return dict(self.axes).get(parallel_type, -1)


def sharding_of(tensor: TensorView, mesh: DeviceMesh, loop: Sequence[Any]) -> Sharding:
    """How a tensor of a definition lies on a mesh, from the parallel types of its axes."""
    logical = tensor.axes
    axes = tuple(
        (axis.parallel_type, logical.index(axis))
        for axis in loop
        if axis.parallel_type in MESH and axis in logical
    )
    return Sharding(mesh, axes)


def cut_axes(tensor: TensorView) -> tuple[tuple[ParallelType, int], ...]:
    """The dimensions of a definition's tensor that are cut over a mesh of several devices."""
    graph = cast("DefinedFusion", tensor.fusion)
    mesh = graph.meshes.get(tensor)
    if mesh is None or mesh.size == 1:
        return ()
    return sharding_of(tensor, mesh, graph.user_schedule[tensor].loop).axes
