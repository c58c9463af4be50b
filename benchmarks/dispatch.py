"""What a tuned module adds to a call: the tuned call minus the bare one.

The engine is the bound original (``TorchEagerBackend``, performance validation off), so that everything which
is left is dispatch: finding the graph, all guards, and the change detection.
"""

from __future__ import annotations

import copy
import gc
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.backend import TorchEagerBackend
from benchmarks.record import Figure, Record, figure

BLOCKS, CALLS = 301, 500
QUICK_BLOCKS, QUICK_CALLS = 21, 50
TENSORS, SCALARS = 48, 20


class OneTensor(nn.Module):
    """Takes one tensor, and does as little as a module can do."""

    def __init__(self, state: int) -> None:
        super().__init__()
        self.state = nn.ParameterList(nn.Parameter(torch.ones(4), requires_grad=False) for _ in range(state))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class ManyValues(OneTensor):
    """Takes 48 tensors and 20 scalars; does the same little."""

    # ruff: noqa: ARG002 - what is measured is how the arguments get here
    # fmt: off
    def forward(  # noqa: PLR0913
        self,
        t00, t01, t02, t03, t04, t05, t06, t07, t08, t09, t10, t11, t12, t13, t14, t15,
        t16, t17, t18, t19, t20, t21, t22, t23, t24, t25, t26, t27, t28, t29, t30, t31,
        t32, t33, t34, t35, t36, t37, t38, t39, t40, t41, t42, t43, t44, t45, t46, t47,
        s00, s01, s02, s03, s04, s05, s06, s07, s08, s09, s10, s11, s12, s13, s14, s15, s16, s17, s18, s19,
    ):
        return torch.relu(t00)
    # fmt: on


def one_tensor() -> tuple[Any, ...]:
    """A sample without a batch axis: the arguments of one call."""
    return (torch.randn(16),)


def many_values() -> tuple[Any, ...]:
    """The same for 48 tensors and 20 scalars of three types; equal over a batch, they stay scalars."""
    scalars = [(index, index / 2, index % 2 == 0)[index % 3] for index in range(SCALARS)]
    return (*(torch.randn(16) for _ in range(TENSORS)), *scalars)


# name: module class, its sample, number of state tensors, promised limit in µs
CASES: dict[str, tuple[type[OneTensor], Callable[[], tuple[Any, ...]], int, float | None]] = {
    "one tensor, 1 state tensor": (OneTensor, one_tensor, 1, 3.0),
    "one tensor, 8 state tensors": (OneTensor, one_tensor, 8, 3.0),
    "one tensor, 100 state tensors": (OneTensor, one_tensor, 100, None),
    "one tensor, 320 state tensors": (OneTensor, one_tensor, 320, None),
    "48 tensors and 20 scalars, 1 state tensor": (ManyValues, many_values, 1, 25.0),
    "48 tensors and 20 scalars, 8 state tensors": (ManyValues, many_values, 8, 25.0),
}


def measure(quick: bool) -> Record:
    """Measure every case, through the user's own module and through the handle over it."""
    blocks, calls = (QUICK_BLOCKS, QUICK_CALLS) if quick else (BLOCKS, CALLS)
    figures: list[Figure] = []
    bare_us: dict[str, float] = {}
    for name, (module_class, sample, state, goal) in CASES.items():
        net = module_class(state).eval()
        bare = copy.deepcopy(net)
        handle = tune(net, sample)
        arguments = tuple(v.expand(2, -1).contiguous() if torch.is_tensor(v) else v for v in sample())
        ways = {"bare": bare, "module": net, "handle": handle}
        with torch.no_grad():
            times = interleaved(ways, arguments, blocks, calls)
        if any(handle.stats.fallbacks.values()):
            raise RuntimeError(f"{name}: calls went to the original, so that the figures mean nothing: {handle.stats}")
        bare_us[name] = round(sorted(times["bare"])[blocks // 2], 3)
        for way in ("module", "handle"):
            added = [tuned - base for tuned, base in zip(times[way], times["bare"], strict=True)]
            figures.append(figure(f"{name}, {way}(...)", "µs", added, goal))
    return Record("dispatch", tuple(figures), {"blocks": blocks, "calls per block": calls, "bare call, µs": bare_us})


def tune(net: nn.Module, sample: Callable[[], tuple[Any, ...]]) -> Any:
    """Wrap and tune ``net`` with its own forward as the engine; returns the handle."""
    strategy = ait.OneBackendStrategy(TorchEagerBackend())
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    handle = ait.Module(net, type(net).__name__, strategy=strategy)
    first, second = sample(), sample()
    scalars_as_first = tuple(a if not torch.is_tensor(a) else b for a, b in zip(first, second, strict=True))
    dataset = [first, scalars_as_first]
    ait.tune(handle, dataset, batch_sizes=[1, 2], device="cpu", progress=False).raise_for_failures()
    return handle


def interleaved(
    ways: dict[str, Callable[..., Any]], arguments: tuple[Any, ...], blocks: int, calls: int
) -> dict[str, list[float]]:
    """Time blocks of calls, each round one block of every way in random order; returns µs per call."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for way in ways.values():
            block(way, arguments, calls)
        for _ in range(blocks):
            random.shuffle(order)
            for name in order:
                times[name].append(block(ways[name], arguments, calls))
    finally:
        if collecting:
            gc.enable()
    return times


def block(call: Callable[..., Any], arguments: tuple[Any, ...], calls: int) -> float:
    """Make a few untimed calls, then time ``calls`` of them; returns µs per call."""
    for _ in range(5):
        call(*arguments)
    start = time.perf_counter_ns()
    for _ in range(calls):
        call(*arguments)
    return (time.perf_counter_ns() - start) / calls / 1000
