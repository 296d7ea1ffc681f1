"""All architectures of `make zoo` by name."""

from __future__ import annotations

from .language import LANGUAGE
from .other import OTHER
from .vision import VISION

ARCHITECTURES = {entry.name: entry for entry in (*VISION, *LANGUAGE, *OTHER)}
