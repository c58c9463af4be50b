"""What it costs to see the calls of modules: the ways that there are, and just-in-time tuning as it is.

Run by itself: ``python -m benchmarks.jit_discovery``; the figures of ``docs/jit.md`` come from it.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.jit.config import JITMode
from aitune.torch.jit.patcher import disable_jit_tuning, enable_jit_tuning

CALLS, BLOCKS, DEPTH = 20_000, 15, 50
SLOT = "_compiled_call_impl"


class Nothing(nn.Module):
    """Does as little as a module can do."""

    def forward(self, x: Any) -> Any:
        return x


class Many(nn.Module):
    """Calls many modules."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.parts = [Weighted() for _ in range(DEPTH)]
        for index, part in enumerate(self.parts):
            self.add_module(f"part{index}", part)

    def forward(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


class Weighted(Nothing):
    """Has a parameter, so that it is a level of the hierarchy."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1), requires_grad=False)


def nanoseconds(call: Callable[[Any], Any], argument: Any = 1, calls: int = CALLS) -> float:
    """Return the best of several blocks, a call; by the time of this thread alone, since machines are shared."""
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.thread_time_ns()
        for _ in range(calls):
            call(argument)
        best = min(best, (time.thread_time_ns() - start) / calls)
    return best


@contextmanager
def replaced(name: str, value: Any) -> Iterator[None]:
    """Have something else in a place of ``nn.Module``."""
    before = getattr(nn.Module, name)
    setattr(nn.Module, name, value)
    try:
        yield
    finally:
        setattr(nn.Module, name, before)


def on_class(module: Any, /, *args: Any, **kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)


def on_instance(module: Any, /, *args: Any, **kwargs: Any) -> Any:
    return module()._call_impl(*args, **kwargs)


def alternatives() -> Iterator[tuple[str, float]]:
    yield "bare", nanoseconds(Nothing())
    hook = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    yield "global forward pre-hook, decided or not", nanoseconds(Nothing())
    hook.remove()
    original = nn.Module.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    with replaced("__call__", call):
        yield "patched nn.Module.__call__, decided or not", nanoseconds(Nothing())
    module = Nothing()
    module.__dict__[SLOT] = functools.partial(on_instance, weakref.ref(module))
    yield "entry on the instance (patched __init__), undecided", nanoseconds(module)
    del module.__dict__[SLOT]
    yield "entry on the instance, decided: removed", nanoseconds(module)
    with replaced(SLOT, on_class):
        module = Nothing()
        yield "function on the class, undecided", nanoseconds(module)
        module.__dict__[SLOT] = None
        yield "function on the class, decided: None on the instance", nanoseconds(module)
    yield "bare, again", nanoseconds(Nothing())


def as_it_is() -> Iterator[tuple[str, float]]:
    calls = 400
    x = torch.zeros(1)

    def each(module: Any) -> float:
        return nanoseconds(module, x, calls) / (DEPTH + 1)

    with torch.no_grad():
        yield "bare", each(Many().eval())
        enable_jit_tuning()
        ait.jit_config.min_samples = 10**9
        ait.jit_config.max_depth_level = 0
        yield "children below a head that is recorded (its own recording included)", each(Many().eval())
        ait.jit_config.max_depth_level = 1
        yield "children that are recorded themselves", each(Many().eval())
        yield "calls that are not looked at (here: training mode)", each(Many().train())
        ait.jit_config.mode = JITMode.INSPECT
        yield "inspected", each(Many().eval())
        ait.jit_config.mode = JITMode.TUNE_EAGER
        ait.jit_config.min_samples = 1
        ait.jit_config.dry_run = True
        decided = Many().eval()
        decided(x)
        decided(x)
        yield "decided", each(decided)
        disable_jit_tuning()
        yield "bare, again", each(Many().eval())


def main() -> None:
    for title, figures in (("ways", alternatives()), ("as it is, a module", as_it_is())):
        print(f"\n{title}")
        for name, value in figures:
            print(f"  {value:8.0f} ns  {name}")


if __name__ == "__main__":
    main()
