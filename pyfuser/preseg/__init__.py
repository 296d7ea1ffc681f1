"""Simplifies a fusion before it is segmented; see `pipeline`."""

from .pipeline import PIPELINE, run

__all__ = ["PIPELINE", "run"]
