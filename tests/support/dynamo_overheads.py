"""Switches off what Dynamo does after every compilation for its own logs, a third of a small test.

It flushes the processor's caches to time the guards once, for a debug message, which takes 6 ms or
more.  And it describes graphs, guards and configurations as JSON for its structured trace: outside
of pytest that ends with the first record, because nobody asked for a trace, but pytest's logging
plugin adds a handler of its own to every logger that doesn't propagate.
"""

from __future__ import annotations

import logging

import torch._dynamo.guards
import torch._logging._internal


def switch_off() -> None:
    """For this process, until it ends."""
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    torch._logging._internal.trace_log = logging.Logger("a trace without handlers")
