"""The worker: a fresh interpreter that tries candidates out, told what to do over its channel."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
from dataclasses import replace
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]

from aitune.exceptions import FOREIGN, said
from aitune.torch.backend.circumstance import is_of_the_moment
from aitune.torch.measure import is_out_of_memory
from aitune.torch.worker import cargo
from aitune.torch.worker.attempt import Attempt
from aitune.torch.worker.channel import Channel, ClosedError
from aitune.torch.worker.messages import Answer, Bring, Failure, Go, MakeReference, Ready, Release, Stage, Try, Turn
from aitune.torch.worker.module_files import ModuleFiles
from aitune.torch.worker.printing import flush, show
from aitune.torch.worker.tryout import Tryout

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Answer requests until the other side closes.

    Args:
        descriptor: File descriptor of the channel.
    """
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        channel.send(Ready())
        gc.collect()
        gc.freeze()  # what was imported is not looked through after each candidate
        Worker(channel).serve()
    except ClosedError:
        pass
    flush()
    os._exit(0)  # threads and exit hooks of foreign libraries may hang, and the guard looks after the rest


class Worker:
    """Holds at most one assignment, and answers requests about it.

    Args:
        channel: Where requests come from.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._files = ModuleFiles({})
        self._tryout: Tryout | None = None
        self._ambient: Any = None
        sys.meta_path.append(self._files)

    def serve(self) -> None:
        """Answer until the other side is gone."""
        while True:
            request = self._channel.receive()
            try:
                answer = self._answer(request)
            except FOREIGN as error:  # whatever it is, the other side has to know
                show(error)
                answer = Answer(failure=failure_of(error))
            flush()
            self._channel.send(answer)

    def _answer(self, request: Any) -> Answer:
        if self._ambient is not None:
            self._ambient.restore()
        if isinstance(request, Bring):
            self._bring(request)
        elif isinstance(request, MakeReference):
            self._given.make_reference(request.seconds)
        elif isinstance(request, Try):
            return self._try(request)
        elif isinstance(request, Release):
            self._tryout = None
        return Answer()

    @property
    def _given(self) -> Tryout:
        assert self._tryout is not None, "there is no assignment"
        return self._tryout

    def _bring(self, request: Bring) -> None:
        self._tryout = None
        self._stage("carrying")
        self._files.add(request.files)
        self._ambient = request.ambient
        self._ambient.restore()
        self._tryout = Tryout(cargo.load(request.cargo), request.cargo, self._stage)

    def _try(self, request: Try) -> Answer:
        attempt: Attempt = pickle.loads(request.attempt)
        outcome = self._given.attempt(attempt, *([self._take_turn] if request.in_turn else []))
        failure = failure_of(outcome.error) if outcome.error is not None else None
        return Answer(outcome=replace(outcome, error=None), failure=failure, worn=self._given.worn)

    def _take_turn(self) -> None:
        self._stage("waiting for its turn")
        self._channel.send(Turn())
        assert isinstance(self._channel.receive(), Go)

    def _stage(self, name: str) -> None:
        self._channel.send(Stage(name))


def failure_of(error: BaseException) -> Failure:
    """Describe an exception for another process."""
    try:
        pickled: bytes | None = cloudpickle.dumps(error)
    except Exception:  # noqa: BLE001 - exceptions of vendor libraries often do not pickle
        pickled = None
    kind = type(error)
    text = said(error)
    return Failure(
        kind=kind.__name__,
        module=kind.__module__,
        text=text,
        pickled=pickled,
        out_of_memory=is_out_of_memory(error),
        of_the_moment=is_of_the_moment(error),  # seen here: what it was raised from does not travel
    )
