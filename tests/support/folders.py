"""Where the project's files are: what tests read of the repository, they find from here."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
