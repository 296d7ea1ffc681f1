"""Lets `import torchvision` work beside a torch that its compiled part doesn't fit.

Package indexes have torchvision built for CUDA.  Beside a torch for CPUs its library can't be
loaded, and the import fails at the first operator that it describes to torch.  No model here calls
one: declared, they are only missing if called.  timm needs the import, and transformers makes it
wherever there is a torchvision.
"""

from __future__ import annotations

import importlib.util

import torch

_OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # an operator lives as long as its library


def declare() -> None:
    """Declares what is missing.  Does nothing where torchvision can be imported, or isn't there."""
    if _declared or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in _OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
