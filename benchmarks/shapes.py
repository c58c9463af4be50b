"""A loop over sequence lengths: how long the first call of a length takes, and how many engines are built for all.

A fresh module is recorded at the shortest and the longest length and some in between, tuned, then called at every
length. A tuner that compiles for each length would stop the loop for seconds again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.backend import Backend, ONNXRuntimeBackend, TorchInductorJitBackend
from benchmarks.record import Record, figure

LENGTHS = tuple(range(14, 65))
RECORDED = (14, 17, 29, 64)
QUICK_LENGTHS = tuple(range(14, 65, 5))
BACKENDS: tuple[Callable[[], Backend[Any]], ...] = (ONNXRuntimeBackend, TorchInductorJitBackend)
BOUND = 1e-4


class Encoder(nn.Module):
    """An embedding and one layer of attention; takes token ids and a mask of one length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = nn.Linear(64, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        x = x + self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        return self.head(x)


def inputs(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 100, (2, length)), torch.zeros(2, length, dtype=torch.bool)


def measure(quick: bool) -> Record:
    """Run the loop with each backend, and in eager beside it."""
    lengths = QUICK_LENGTHS if quick else LENGTHS
    figures, facts = [], {}
    with torch.no_grad():
        for backend in BACKENDS[:1] if quick else BACKENDS:
            recipe = backend()
            net, result = tuned(recipe)
            first, eager, worst = loop(net, lengths)
            stats = ait.handle(net).stats
            if stats.fallbacks or worst > BOUND:
                raise RuntimeError(f"{recipe}: not every call was an engine's, or one was wrong: {stats}, {worst}")
            figures.append(figure(f"{recipe.name}, first call of a length", "ms", first))
            figures.append(figure(f"{recipe.name}, eager beside it", "ms", eager))
            facts[recipe.name] = {
                "lengths": len(lengths),
                "engines built": sum(len(graph.trials) for graph in result.graphs),
                "slowest first call of a length, ms": round(max(first), 3),
                "largest error": float(f"{worst:.1e}"),
            }
    return Record("shapes", tuple(figures), facts)


def tuned(backend: Backend[Any]) -> tuple[nn.Module, Any]:
    """Return a fresh module that is served by the backend at every length, and what its tune found."""
    net = Encoder().eval()
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False).enable_find_max_batch_size(False)
    handle = ait.handle(ait.Module(net, "encoder", strategy=strategy))
    handle.enable_recording()
    for length in RECORDED:
        net(*inputs(length))
    return net, handle.tune()


def loop(net: nn.Module, lengths: tuple[int, ...]) -> tuple[list[float], list[float], float]:
    """Call every length once; return milliseconds tuned and in eager, and the largest relative error."""
    first, eager, worst = [], [], 0.0
    for length in lengths:
        call = inputs(length)
        start = time.perf_counter_ns()
        answer = net(*call)
        between = time.perf_counter_ns()
        expected = net._call_impl(*call)
        first.append((between - start) / 1e6)
        eager.append((time.perf_counter_ns() - between) / 1e6)
        worst = max(worst, float((answer - expected).norm() / expected.norm()))
    return first, eager, worst
