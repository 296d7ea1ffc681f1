"""What AOTAutograd knows about the graph that is being compiled, which the graph doesn't say."""

from __future__ import annotations

from dataclasses import replace
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


def forget_dangling_views() -> None:
    """Results that are views of an `_unsafe_view` are made by their strides.

    torch would call the views that made them in tracing again.  Of this one it keeps the address
    of the sizes but not these: in a graph from its cache they are whatever is there by then.
    """
    known = metadata()
    for number, result in enumerate([] if known is None else known.output_info):
        views = getattr(result, "view_meta_sequence", None)
        if views is not None and any(map(_is_dangling, views.sequence)):
            known.output_info[number] = replace(result, view_meta_sequence=None)


def _is_dangling(view: object) -> bool:
    return type(view).__name__ == "_unsafe_view_ViewMeta"
