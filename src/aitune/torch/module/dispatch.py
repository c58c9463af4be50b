"""The dispatcher: sends each call to the engine that was validated for it, every other call to the original."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.backend.base import Engine
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.module.drift import EVERY, DriftWatch
from aitune.torch.module.miss import Miss, find_route
from aitune.torch.module.route import Route, compile_route
from aitune.torch.module.slot import Slot
from aitune.torch.module.stats import Stats, Tally
from aitune.torch.module.weights import StateWatch

__all__ = ["Dispatcher", "Served"]

_log = logging.getLogger(__name__)

_STALE = "weights, children, flags or attributes are not those it was tuned with; retune() tunes anew"


@dataclass(frozen=True)
class Served:
    """A graph with the engine that serves it.

    Attributes:
        graph: The graph, with the ranges that were validated.
        engine: The engine, owned by the dispatcher from now on.
        backend: Description of the backend that built it.
    """

    graph: GraphSpec
    engine: Engine
    backend: str


class Dispatcher:
    """Routes the calls of one module. Its :attr:`call` goes into the slot; any thread may call.

    Args:
        name: The module's name, for the log.
        slot: The module's slot.
        served: Graphs with their engines, in order of preference.
    """

    def __init__(self, name: str, slot: Slot, served: Sequence[Served]) -> None:
        self._name = name
        self._slot = slot
        self._served = tuple(served)
        self._watch = StateWatch(slot.module)
        self._drift = DriftWatch(slot.module) if any(not one.engine.live_weights for one in self._served) else None
        self._tallies = {one.backend: Tally() for one in self._served}
        self._misses: dict[str, int] = {}
        self._lock = threading.Lock()
        self._routes = tuple(self._route(one) for one in self._served)
        self._engine_of = dict(zip((id(route) for route in self._routes), self._served, strict=True))
        self._retired: set[int] = set()
        self._stale = False
        self._drifted = False
        bare = any(not one.engine.live_weights for one in self._served)
        self._hooks_seen = [_hooks_made()] if bare else None
        self._check: Callable[..., Any] = _nowhere
        self._compile()
        self.call = self._make_call()
        self.bypass = self._make_bypass()

    @property
    def stats(self) -> Stats:
        """Where the calls went so far."""
        return self.reader()()

    def reader(self) -> Callable[[], Stats]:
        """Return a function that returns :attr:`stats`, also once the module is gone; it keeps nothing alive."""
        lock, missed, tallies = self._lock, self._misses, self._tallies

        def read() -> Stats:
            with lock:
                misses = dict(missed)
            engines = {backend: tally.value for backend, tally in tallies.items()}
            return Stats({backend: calls for backend, calls in engines.items() if calls}, misses)

        return read

    @property
    def misses(self) -> Mapping[str, int]:
        """Calls that went to the original, by reason; a view that follows the counts, and is empty without any."""
        return self._misses

    def reset_stats(self) -> None:
        """Count from zero again, and log every reason anew."""
        with self._lock:
            self._misses.clear()
        for tally in self._tallies.values():
            tally.reset()

    @property
    def served(self) -> tuple[Served, ...]:
        """What the calls are routed to."""
        return self._served

    def close(self) -> None:
        """Stop using the engines and free them. Calls that come later go to the original."""
        self._check = _nowhere
        for one in self._served:
            one.engine.close()

    def _make_call(self) -> Callable[..., Any]:
        original, missed, turn = self._slot.original, self._missed, self._turns().__next__

        def call(*args: Any, **kwargs: Any) -> Any:
            if turn():
                self._look()
            try:
                run = self._check(*args, **kwargs)
            except Exception:  # noqa: BLE001 - a call that does not fit, or a user's container that cannot be read
                run = None
            if run is None:
                run = missed(args, kwargs)
                if run is None:
                    return original(*args, **kwargs)
            return run(*args, **kwargs)

        call.dispatcher = self  # type: ignore[attr-defined]
        return call

    def _turns(self) -> Iterator[bool]:
        """Return what tells, call by call and for any thread, whether it is time to look for drift."""
        return itertools.cycle([True, *[False] * (EVERY - 1)] if self._drift is not None else [False])

    def _look(self) -> None:
        if self._drift is not None and not self._drifted and self._drift.changed:
            with self._lock:
                self._drifted = True
                self._compile()

    def _make_bypass(self) -> Callable[..., Any]:
        original = self._slot.original

        def bypass(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs)

        bypass.dispatcher = self  # type: ignore[attr-defined]
        return bypass

    def _route(self, one: Served) -> Route:
        run = self._counted(one)
        watch = None if one.engine.live_weights else self._watch
        return Route(one.graph, run, watch, self._slot.module.__dict__.get("forward"))

    def _counted(self, one: Served) -> Callable[..., Any]:
        engine_run, count = one.engine.run, self._tallies[one.backend].add
        if not one.engine.reentrant:
            engine_run = _serialised(engine_run)
        if one.engine.own_errors:

            def run_own(*args: Any, **kwargs: Any) -> Any:
                count()
                return engine_run(*args, **kwargs)

            return run_own

        original, failed = self._slot.original, self._failed

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = engine_run(*args, **kwargs)
                count()
                return result
            except Exception as raised:  # noqa: BLE001 - whatever an engine raises, the original still answers
                error = raised
            result = original(*args, **kwargs)  # where this raises too, the call was at fault and not the engine
            failed(one, error)
            return result

        return run

    def _compile(self) -> None:
        routes = [route for route in self._routes if id(route) not in self._retired]
        if not routes or self._stale or self._drifted:
            self._check = _nowhere
            return
        training = {route.graph.training for route in routes}
        checks = [
            compile_route(
                self._slot.module,
                [route for route in routes if route.graph.training is flag],
                self._hooks_seen,
            )
            for flag in sorted(training)
        ]
        self._check = checks[0] if len(checks) == 1 else _first_of(checks)

    def _missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Count and log why a call goes to the original; return a route after all if only hooks had to be looked at."""
        made = _hooks_made()
        found = self._find(args, kwargs)
        if isinstance(found, Route):
            if self._hooks_seen is not None:
                self._hooks_seen[0] = made  # hooks were registered, and none of them is here
            return found.run
        if found.reason == "weights changed" and self._watch.spoiled:
            with self._lock:
                self._stale = True
                self._compile()
        self._count_miss(found)
        return None

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Route | Miss:
        if self._stale:
            return Miss("weights changed", _STALE)
        routes = [route for route in self._routes if id(route) not in self._retired]
        if not routes and self._retired:
            return Miss("engine failed")
        training = self._slot.module.training
        matching = [route for route in routes if route.graph.training is training] or routes
        found = find_route(self._slot.module, matching, args, kwargs)
        if isinstance(found, Route) and self._drifted and self._drift is not None:
            if self._drift.changed:
                return Miss("weights changed", _STALE)
            with self._lock:  # a flag or a child that is back, after train() and eval() for instance
                self._drifted = False
                self._compile()
        return found

    def _failed(self, one: Served, error: Exception) -> None:
        with self._lock:
            for route in self._routes:
                if self._engine_of[id(route)] is one:
                    self._retired.add(id(route))
            self._compile()
        detail = f"{one.backend} raised {type(error).__name__}: {error}"
        self._count_miss(Miss("engine failed", f"{detail}; it is not used again"))

    def _count_miss(self, miss: Miss) -> None:
        with self._lock:
            first = miss.reason not in self._misses
            self._misses[miss.reason] = self._misses.get(miss.reason, 0) + 1
        if first:
            level = logging.WARNING if miss.reason in ("weights changed", "engine failed") else logging.INFO
            detail = f" ({miss.detail})" if miss.detail else ""
            _log.log(level, "%s: the original answers: %s%s", self._name, miss.reason, detail)


def _hooks_made() -> int:
    return torch.utils.hooks.RemovableHandle.next_id


def _nowhere(*args: Any, **kwargs: Any) -> None:  # noqa: ARG001
    return None


def _first_of(checks: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def check(*args: Any, **kwargs: Any) -> Any:
        for one in checks:
            run = one(*args, **kwargs)
            if run is not None:
                return run
        return None

    return check


def _serialised(run: Callable[..., Any]) -> Callable[..., Any]:
    lock = threading.Lock()

    def run_alone(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return run(*args, **kwargs)

    return run_alone
