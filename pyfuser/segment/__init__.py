"""Cuts a fusion into segments that become one kernel each; see `segmenter`."""

from .segmenter import segment

__all__ = ["segment"]
