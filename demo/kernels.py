"""Hand-written kernels: parts of a transformer on activations of the documents, against eager.

For every part: define the fusion, call it (which compiles it), compare with torch in float64, then
time both.  The model is run once in plain torch with random weights from a fixed seed, so each part
is measured on realistic inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich import box
from rich.table import Table

from benchmarks.harness import error_of, interleaved

from . import parts
from .parts import Outputs, Part

BATCH, TOKENS, WIDTH, HEADS, HIDDEN = 8, 256, 512, 8, 2048
CLASSES = 256
Case = tuple[Part, list[torch.Tensor]]
# A result passes if it is within this many roundings of float64, or as good as eager's.
_ROUNDINGS = 32
_EPSILON = torch.finfo(torch.float32).eps


@dataclass
class Outcome:
    """The measurements of one part; times in seconds."""

    part: Part
    error: float
    eager_error: float
    first_call: float
    seconds: dict[str, float]

    @property
    def is_right(self) -> bool:
        """True if the result is as close to float64 as it should be."""
        return self.error <= max(_ROUNDINGS * _EPSILON, 2 * self.eager_error)


@torch.no_grad()
def cases(text: torch.Tensor) -> list[Case]:
    """The parts in the order in which the model runs them, each with its inputs."""
    torch.manual_seed(0)
    found: list[Case] = []

    def run(part: Part, *inputs: torch.Tensor) -> Outputs:
        found.append((part, list(inputs)))
        result = part.reference(*inputs)
        return result if isinstance(result, tuple) else (result,)

    data = text[: BATCH * (TOKENS + 1)].view(BATCH, -1)
    tokens, targets = data[:, :-1], data[:, 1:].reshape(-1).contiguous()
    x = F.embedding(tokens, torch.randn(CLASSES, WIDTH)).view(-1, WIDTH)
    weight, bias = torch.rand(WIDTH) + 0.5, torch.randn(WIDTH) * 0.1

    (normal,) = run(parts.RMS_NORM, x, weight)
    query, key, value = _linear(normal, 3 * WIDTH).view(BATCH, TOKENS, 3, HEADS, -1).unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    (attention,) = run(parts.MASKED_SOFTMAX, scores, mask)
    mixed = torch.einsum("bhqk,bkhd->bqhd", attention, value).reshape(-1, WIDTH)

    _, normal = run(parts.RESIDUAL_LAYER_NORM, _linear(mixed, WIDTH), x, weight, bias)
    hidden, hidden_bias = _linear(normal, HIDDEN), torch.randn(HIDDEN) * 0.1
    run(parts.BIAS_GELU_TANH, hidden, hidden_bias)
    run(parts.BIAS_GELU_ERF, hidden, hidden_bias)
    (gated,) = run(parts.SWIGLU, hidden, _linear(normal, HIDDEN))
    run(parts.LOG_SOFTMAX_LOSS, _linear(gated, CLASSES), targets)
    return found


def _linear(x: torch.Tensor, features: int) -> torch.Tensor:
    return x @ (torch.randn(x.shape[-1], features) / x.shape[-1] ** 0.5)


def measured(text: torch.Tensor) -> list[Outcome]:
    """All parts, compiled, checked and timed."""
    return [measure(part, inputs) for part, inputs in cases(text)]


def measure(part: Part, inputs: list[torch.Tensor]) -> Outcome:
    """Compiles, checks and times one part."""
    eager = _outputs(part.reference(*inputs))
    doubles = [each.double() if each.is_floating_point() else each for each in inputs]
    references = _outputs(part.reference(*doubles))
    start = time.perf_counter()
    fd = part.fused(inputs)
    outputs = fd.execute(inputs)
    first_call = time.perf_counter() - start
    contestants: dict[str, Callable[[], Any]] = {
        "pyfuser": lambda: fd.execute(inputs),
        "eager": lambda: part.reference(*inputs),
    }
    return Outcome(
        part,
        error_of(outputs, references),
        error_of(eager, references),
        first_call,
        interleaved(contestants, seconds=0.2, fewest_rounds=5),
    )


def table(outcomes: list[Outcome]) -> Table:
    """One line per part: milliseconds, speedup, and error against float64."""
    headings = ("pyfuser", "eager", "ratio", "first call", "error", "eager's")
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column("by hand (ms)", no_wrap=True)
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    for each in outcomes:
        ours, eager = each.seconds["pyfuser"], each.seconds["eager"]
        mark = "[green]" if each.is_right else "[bold red]wrong: "
        made.add_row(
            each.part.name,
            f"{ours * 1e3:.2f}",
            f"{eager * 1e3:.2f}",
            f"[bold]{eager / ours:.1f}x",
            f"{each.first_call * 1e3:.0f}",
            f"{mark}{each.error:.0e}",
            f"{each.eager_error:.0e}",
        )
    return made


def _outputs(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]
