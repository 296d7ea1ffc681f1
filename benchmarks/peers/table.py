"""The contestants that this machine has, in the order of the tables."""

from __future__ import annotations

import importlib.util

from ..kernels import inductor_works
from . import torch_peers
from .peer import Peer


def available(maximum: bool = False) -> list[Peer]:
    """All that are installed; `maximum` adds Inductor's mode "max-autotune".

    Inductor and the original fuser need a C++ compiler.
    """
    found = [
        Peer("eager", torch_peers.eager),
        Peer("pyfuser", torch_peers.pyfuser),
        Peer("definition", torch_peers.pyfuser_definition),
    ]
    if inductor_works("cpu"):
        found.append(Peer("inductor", torch_peers.inductor))
        if maximum:
            found.append(Peer("max-autotune", torch_peers.inductor_max_autotune))
        found.append(Peer("torchscript", torch_peers.torchscript))
    if importlib.util.find_spec("jax"):
        from . import jax_peer

        found.append(Peer("jax", jax_peer.jax_function, jax_peer.tensors, is_torch=False))
    if importlib.util.find_spec("numexpr"):
        from . import numexpr_peer

        found.append(
            Peer("numexpr", numexpr_peer.numexpr_function, numexpr_peer.tensors, is_torch=False)
        )
    if importlib.util.find_spec("openvino"):
        from . import openvino_peer

        found.append(
            Peer("openvino", openvino_peer.openvino_model, openvino_peer.tensors, is_torch=False)
        )
    return found
