"""The dispatcher: sends each call to the engine that was validated for it, every other call to the original."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from aitune.exceptions import FOREIGN, text_of
from aitune.torch.backend.guarded import close_engine
from aitune.torch.module.change import ChangeWatch, turns
from aitune.torch.module.drift import EVERY
from aitune.torch.module.fork import keep_for_ever, tell_after_fork
from aitune.torch.module.miss import Miss, find_route
from aitune.torch.module.misses import Misses
from aitune.torch.module.refit import Refitter
from aitune.torch.module.resting import Place, Resting
from aitune.torch.module.route import Route, compile_route
from aitune.torch.module.serial import serialised
from aitune.torch.module.served import Served
from aitune.torch.module.slot import CALL_CODE, Slot, is_copy, its_own, same_forward
from aitune.torch.module.stats import Stats, Tally

__all__ = ["Dispatcher"]

_log = logging.getLogger(__name__)

_STALE = "weights, children, flags or attributes are not those it was tuned with; retune() tunes anew"


class Dispatcher:
    """Routes the calls of one module. Its :attr:`call` goes into the slot; any thread may call.

    Args:
        name: The module's name, for the log.
        slot: The module's slot.
        served: Graphs with their engines, in order of preference.

    Attributes:
        original: What answers where no engine does.
        resting: Where the weights are, None where they always were.
    """

    def __init__(self, name: str, slot: Slot, served: Sequence[Served]) -> None:
        self._name = name
        self._slot = slot
        self._served = tuple(served)
        self.original: Callable[..., Any] = slot.original
        self.resting: Resting | None = None
        self._tallies = {one.backend: Tally() for one in self._served}
        self._misses = Misses(name)
        self._lock = threading.Lock()
        self._retired: set[int] = set()
        self._stale = False
        self._drifted = False
        self._forked = False
        self._changes = 0
        self._refitter = Refitter.of(name, slot.module, slot.original, self._served)
        self._check: Callable[..., Any] = _nowhere
        self._quick: Callable[..., Any] = _nowhere
        self._begin_watching()
        self._compile()
        self.call = self._make_call()
        self.bypass = its_own(slot, self._run_original)
        self.bypass.dispatcher = self  # type: ignore[attr-defined]
        tell_after_fork(self)

    def _begin_watching(self) -> None:
        """Take the module as it is for the one that the engines were made of."""
        given_up = self.resting is not None and self.resting.place == "meta"
        frozen = any(not one.engine.live_weights for one in self._served) and not given_up
        self._watch = ChangeWatch(self._slot.module, frozen=frozen)
        self._routes = tuple(self._route(one, watched=not given_up) for one in self._served)
        # Only the module itself, in the place of an engine, runs the hooks of what is below. Not yet looked for any.
        self._hooks_seen = [-1] if any(not one.engine.own_errors for one in self._served) else None

    @property
    def stats(self) -> Stats:
        """Where the calls went so far."""
        return self.reader()()

    def reader(self) -> Callable[[], Stats]:
        """Return a function that returns :attr:`stats`, also once the module is gone; it keeps nothing alive."""
        missed, tallies = self._misses, self._tallies

        def read() -> Stats:
            misses = missed.copy()
            engines = {backend: tally.value for backend, tally in tallies.items()}
            return Stats({backend: calls for backend, calls in engines.items() if calls}, misses)

        return read

    @property
    def misses(self) -> Mapping[str, int]:
        """Calls that went to the original, by reason; a view that follows the counts, and is empty without any."""
        return self._misses.counts

    def reset_stats(self) -> None:
        """Count from zero again, and log every reason anew."""
        self._misses.clear()
        for tally in self._tallies.values():
            tally.reset()

    @property
    def served(self) -> tuple[Served, ...]:
        """What the calls are routed to."""
        return self._served

    @property
    def outdated(self) -> bool:
        """Whether an engine with weights of its own serves a module that was changed since."""
        return self._stale or self._watch.changed

    def rest(self, place: Place) -> str | None:
        """Put the weights of the original elsewhere, and go on serving.

        Args:
            place: Where to; on "meta" they are given up, with the answer to calls that no engine was made for.

        Returns:
            Why they stay where they are, None if they were moved.
        """
        needing = [one.backend for one in self._served if one.engine.keeps_module or one.engine.live_weights]
        if needing:
            return f"{', '.join(dict.fromkeys(needing))} runs the module itself"
        tensors = [*self._slot.module.parameters(), *self._slot.module.buffers()]
        if all(tensor.device.type == place for tensor in tensors):
            return f"it is on {place} already"
        with self._lock:
            self._check = _nowhere
            self.resting = Resting(self._name, self._slot.module, place, self._slot.original)
            self.original = self.resting.call
            self._refitter = None
            self._begin_watching()
            self._compile()
        return None

    def close(self) -> None:
        """Stop using the engines and free them. Calls that come later go to the original."""
        self._check = _nowhere
        for one in self._served:
            if not self._forked:
                close_engine(one.engine)

    def forked(self) -> None:
        """In a forked child: send every call to the original, since the threads of the engines are not there."""
        keep_for_ever((self._served, self._watch))
        self._watch = ChangeWatch.of_nothing()
        self._lock = threading.Lock()
        self._misses.forked()
        self._forked = True
        self._check = _nowhere

    def _make_call(self) -> Callable[..., Any]:
        original, missed, turn = self._slot.original, self._missed, turns().__next__
        module, frame_of, compiling = self._slot.module, sys._getframe, torch.compiler.is_dynamo_compiling

        def call(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(*args, **kwargs)
            frame = frame_of(1)
            if frame.f_code is CALL_CODE and (owner := frame.f_locals["self"]) is not module and is_copy(owner, call):
                return owner._call_impl(*args, **kwargs)
            if now := turn():
                self._look(now)
            try:
                run = self._check(*args, **kwargs)
            except Exception:  # noqa: BLE001 - a call that does not fit, or a user's container that cannot be read
                run = None
            if run is None:
                run = missed(args, kwargs)
                if run is None:
                    return self.original(*args, **kwargs)
            return run(*args, **kwargs)

        call.dispatcher = self  # type: ignore[attr-defined]
        return call

    def _run_original(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)

    def _look(self, turn: int) -> None:
        if not self._drifted and self._watch.look(turn):
            self._suspect()

    def _suspect(self) -> None:
        """Look at everything before an engine answers again."""
        with self._lock:
            self._drifted = True
            self._check = _nowhere

    def _route(self, one: Served, *, watched: bool) -> Route:
        run = self._counted(one)
        watch = None if one.engine.live_weights or not watched else self._watch.state
        forward = self._slot.module.__dict__.get("forward")
        return Route(one.graph.narrowed(one.engine.ranges), run, watch, forward, reads_memory=not one.engine.own_errors)

    def _counted(self, one: Served) -> Callable[..., Any]:
        engine_run, count = one.engine.run, self._tallies[one.backend].add
        if not one.engine.reentrant:
            engine_run = serialised(engine_run, self.original)
        if one.engine.own_errors or (self.resting is not None and self.resting.place == "meta"):

            def run_own(*args: Any, **kwargs: Any) -> Any:
                count()
                return engine_run(*args, **kwargs)

            return run_own

        original, failed, at_fault = self.original, self._failed, self._at_fault

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = engine_run(*args, **kwargs)
                count()
                return result
            except FOREIGN as raised:  # whatever an engine raises, the original still answers
                error = raised
            try:
                result = original(*args, **kwargs)
            except BaseException:  # the call was at fault and not the engine
                at_fault()
                raise
            failed(one, error)
            return result

        return run

    def _compile(self) -> None:
        routes = self._living()
        if not routes or self._stale or self._forked:
            self._check = self._quick = _nowhere
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
        self._check = self._quick = checks[0] if len(checks) == 1 else _first_of(checks)

    def _missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Count and log why a call goes to the original; return a route after all if only hooks had to be looked at."""
        if self._refitter is not None and self._refitter.unproven:
            proof = self._proof(self._refitter, args, kwargs)
            if proof is not None:
                return proof
        made = _hooks_made()
        try:
            found = self._find(args, kwargs)
        except Exception as error:  # noqa: BLE001 - arguments are the user's, and may refuse to be looked at
            found = Miss("unreadable", f"the arguments cannot be looked at: {text_of(error)}")
        if isinstance(found, Route):
            if self._hooks_seen is not None:
                self._hooks_seen[0] = made  # hooks were registered, and none of them is here
            return found.run
        if found.reason == "weights changed" and not self._stale:
            self._suspect()
            self._changes += 1
            if self._changes % EVERY == 1 and self._spoiled():
                self._renew()
        self._misses.count(found)
        return None

    def _spoiled(self) -> bool:
        away = self.resting is not None and self.resting.busy  # they are elsewhere for a call, and come back
        return not away and self._watch.spoiled

    def _renew(self) -> None:
        """The weights changed for good: have the engines take them over once they stay, or never look at them again."""
        refitter = self._refitter
        if refitter is None or not self._watch.rewritten:
            self._give_up()
        elif refitter.settled():
            problem = refitter.take_over()
            if problem:
                _log.warning("%s: %s", self._name, problem)
                self._give_up()
            elif problem is None:
                with self._lock:
                    self._begin_watching()
                    self._drifted = False
                    self._compile()
                if not refitter.completed():
                    self._give_up()

    def _proof(self, refitter: Refitter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Return what answers a call and lets an engine with new weights show that it computes with them.

        None where the call is for no such engine.
        """
        if self._stale or self._forked or self._watch.shows:
            return None
        routes = {i: route for i, route in enumerate(self._routes) if i in refitter.unproven}
        found = find_route(self._slot.module, list(routes.values()), args, kwargs)
        index = next((i for i, route in routes.items() if route is found), None)
        if index is None:
            return None
        self._misses.count(Miss("weights changed", "an engine has them now, and is held against the module's answer"))

        def prove(*args: Any, **kwargs: Any) -> Any:
            answer, problem = refitter.prove(index, args, kwargs)
            if problem != "":
                with self._lock:
                    if problem is not None:
                        self._retired.add(index)
                        refitter.unproven.discard(index)
                    self._compile()
            if problem:
                self._misses.count(Miss("engine failed", f"{problem}; it is not used again"))
            return answer

        return prove

    def _give_up(self) -> None:
        """The weights changed for good: keep nothing of the old ones alive, and answer with the original from now."""
        with self._lock:
            self._stale = True
            self._compile()
            self._routes, self._refitter, self._watch = (), None, ChangeWatch.of_nothing()

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Route | Miss:
        if self._forked:
            return Miss("forked process", "engines have threads, which do not survive a fork")
        if self._stale:
            return Miss("weights changed", _STALE)
        routes = self._living()
        if not routes and self._retired:
            return Miss("engine failed")
        training = self._slot.module.training
        matching = [route for route in routes if route.graph.training is training] or routes
        if all(route.watch is not None for route in matching) and self._watch.shows:
            return Miss("weights changed", _STALE)  # said quickly: it may be so for long
        self._follow_forward()
        found = find_route(self._slot.module, self._living(matching), args, kwargs)
        if isinstance(found, Route) and found.watch is not None and self._watch.frozen:
            # The quick check said no, and nothing that it looks at is different now: look at everything else.
            if self._watch.drifted:
                return Miss("weights changed", _STALE)
            self._watch.state.settle()
            if self._drifted:
                with self._lock:  # a flag or a child that is back, after train() and eval() for instance
                    self._drifted = False
                    self._check = self._quick
        return found

    def _living(self, among: Sequence[Route] | None = None) -> list[Route]:
        """Return the routes whose engines may be used, in their present form, of some or of all."""
        graphs = None if among is None else {id(route.graph) for route in among}
        out = self._retired if self._refitter is None else self._retired | self._refitter.unproven
        routes = enumerate(self._routes)
        return [r for i, r in routes if i not in out and (graphs is None or id(r.graph) in graphs)]

    def _follow_forward(self) -> None:
        """Take a forward on the instance that is the class's own for none; who removes a wrapper leaves that behind."""
        module = self._slot.module
        forward = module.__dict__.get("forward")
        if any(route.forward is not forward and same_forward(module, route.forward, forward) for route in self._routes):
            with self._lock:
                self._routes = tuple(replace(route, forward=forward) for route in self._routes)
                self._compile()

    def _failed(self, one: Served, error: BaseException) -> None:
        with self._lock:
            self._retired.update(i for i, served in enumerate(self._served) if served is one)
            self._compile()
        detail = f"{one.backend} raised {text_of(error)}"
        self._misses.count(Miss("engine failed", f"{detail}; it is not used again"))

    def _at_fault(self) -> None:
        self._misses.count(
            Miss("original raised", "an engine and the original could not answer a call; it was at fault")
        )


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
