"""What AOTAutograd knows about the graph that is being compiled, which the graph doesn't say."""

from __future__ import annotations

from typing import Any

from torch._guards import TracingContext


def metadata() -> Any:
    """What it knows; None if it doesn't say."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def metadata_of_results() -> Any:
    """The same, if the results of the graph are those that it describes, in their order.

    With effects, tokens are among them.
    """
    known = metadata()
    return None if known is None or known.tokens else known
