"""Counters of arrived blocks: zeros that a launch counts up and leaves as zeros.

    address(count)  ->  the address of so many counters, for the next launch on the current stream

Launches that share counters must not overlap.  Those of one stream don't, so each stream has its
own.  A captured launch may run beside those of any stream, but never beside itself, because it has
outputs: it gets counters of its own, which no other launch ever has.  They are set to zero when a
kernel that needs counters is first loaded outside of a capture; until then, and if none are left,
the graph sets the counters of each launch to zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...locks import ForkSafeLock
from ..tensor_memory import EmptyStrided

# cudaStreamPerThread: one handle for a stream of each thread.
_PER_THREAD = 2
# Counters that a stream gets at once, and those that are kept for captured launches.
_OF_A_STREAM, _OF_GRAPHS = 1 << 10, 1 << 16
_BYTES = 4


class ArrivalCounters:
    """The counters of one GPU; the functions are those of `Gpu`."""

    def __init__(
        self,
        empty_strided: EmptyStrided,
        current_stream: Callable[[], int],
        is_capturing: Callable[[], bool],
    ) -> None:
        self._empty_strided = empty_strided
        self._current_stream, self._is_capturing = current_stream, is_capturing
        self._of_streams: dict[int, torch.Tensor] = {}
        self._of_graphs: torch.Tensor | None = None
        self._taken = 0
        self._lock = ForkSafeLock()

    def prepare(self) -> None:
        """Sets the counters of captured launches to zero, for all streams; not during a capture."""
        with self._lock:
            if self._of_graphs is None and not self._is_capturing():
                found = self._empty_strided((_OF_GRAPHS,), (1,), torch.int32)
                # A copy from the CPU's memory is done when it returns, so all streams see it.
                zeros = torch.zeros(_OF_GRAPHS, dtype=torch.int32, device="cpu")
                self._of_graphs = found.copy_(zeros)

    def address(self, count: int) -> int:
        """Where `count` zeros are, for one launch."""
        if self._is_capturing():
            return self._for_a_graph(count)
        stream = self._current_stream()
        if stream == _PER_THREAD:
            return self._zeros(count).data_ptr()
        found = self._of_streams.get(stream)
        if found is None or found.numel() < count:
            # Launches under way may still count in the old ones, but memory that is freed is used
            # again in the order of the stream.
            found = self._of_streams[stream] = self._zeros(max(count, _OF_A_STREAM))
        return found.data_ptr()

    def _for_a_graph(self, count: int) -> int:
        with self._lock:
            first = self._taken
            if self._of_graphs is not None and first + count <= _OF_GRAPHS:
                self._taken = first + count
                return self._of_graphs.data_ptr() + first * _BYTES
        return self._zeros(count).data_ptr()  # the graph itself sets them to zero

    def _zeros(self, count: int) -> torch.Tensor:
        """Zeros for the current stream.  If they are dropped, their memory is used again only by
        what the stream, or the graph, runs later.
        """
        return self._empty_strided((count,), (1,), torch.int32).zero_()
