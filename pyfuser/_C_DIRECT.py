"""The interface under the name of nvfuser_direct's binary module, which some programs import."""

from typing import Any

import pyfuser


def __getattr__(name: str) -> Any:
    return getattr(pyfuser, name)


def __dir__() -> list[str]:
    return dir(pyfuser)
