"""Writing token by token with a cache of keys and values, as language models are used.

A model -> by kind of cache and pass, seconds of a token by backend, and whether all backends wrote
the same tokens.  A *growing* cache is a new length with each token; a *static* one is as long as it
will ever be.  The first pass meets every length for the first time after a warm-up of a few tokens
("new lengths"); later ones meet them again ("seen lengths").  The backends write the same token one
after the other, each with its own cache, in a rotating order.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from .work import compiled, made_in
from .zoo import WORDS

MODELS = ("GPT-2", "Llama")
CACHES = ("growing", "static")
PRECISIONS = ("float32", "bfloat16")
_PROMPT, _WARM_UP_TOKENS, _TOKENS, _SEEN_PASSES = 8, 5, 40, 5


@dataclass
class _Writer:
    """One backend's text: its cache and its last token."""

    call: Callable[..., Any]
    cache: Any
    token: Tensor

    def write(self) -> float:
        """Writes a token; returns its seconds."""
        start = time.perf_counter()
        self.token = _token(self.call, self.token, self.cache)
        return time.perf_counter() - start


def _token(call: Callable[..., Any], words: Tensor, cache: Any) -> Tensor:
    scores = call(words, past_key_values=cache, use_cache=True).logits
    token: Tensor = scores[:, -1:].argmax(-1)
    return token


def _writer(model: nn.Module, call: Callable[..., Any], prompt: Tensor, kind: str) -> _Writer:
    """A writer that has read the prompt, in eager."""
    most = _PROMPT + _WARM_UP_TOKENS + _TOKENS
    config: Any = model.config
    cache = DynamicCache(config=config) if kind == "growing" else StaticCache(config, most)
    return _Writer(call, cache, _token(model, prompt, cache))


def decoding(name: str, backends: Sequence[str], kind: str, precision: str) -> dict[str, Any]:
    """Medians over tokens: "new lengths" and "seen lengths" by backend; "same tokens".

    Backends may round half precision differently, and so come to write different tokens.
    """
    model, _ = made_in(name, precision)
    model.eval()
    names = ["eager", *backends]
    calls = {backend: compiled(model, backend) for backend in names}
    prompt = torch.randint(0, WORDS, (1, _PROMPT))
    passes = []
    same = True
    with torch.no_grad():
        for _ in range(1 + _SEEN_PASSES):
            writers = {each: _writer(model, calls[each], prompt, kind) for each in names}
            for _ in range(_WARM_UP_TOKENS):
                for writer in writers.values():
                    writer.write()
            seconds: dict[str, list[float]] = {each: [] for each in names}
            for _ in range(_TOKENS):
                for each in names:
                    seconds[each].append(writers[each].write())
                names.append(names.pop(0))
                same = same and len({writer.token.item() for writer in writers.values()}) == 1
            passes.append(seconds)
    seen = {each: [s for seconds in passes[1:] for s in seconds[each]] for each in names}
    return {
        "new lengths": {each: statistics.median(s) for each, s in passes[0].items()},
        "seen lengths": {each: statistics.median(s) for each, s in seen.items()},
        "same tokens": same,
    }
