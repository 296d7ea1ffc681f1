"""The contestants of `make bench`: each makes a callable of a function, or says that it can't.

A peer that isn't installed is left out, as is a row that it can't express.  All of them run in one
process, on the same inputs and as many threads.
"""

from __future__ import annotations

from .peer import Peer
from .table import available

__all__ = ["Peer", "available"]
