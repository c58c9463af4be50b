"""The shelf: what earlier tunes found out about the candidates of one graph, and where the findings of this one go."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aitune.exceptions import FOREIGN, text_of
from aitune.torch.backend import Backend, Engine
from aitune.torch.backend.guarded import described
from aitune.torch.bench.rules import Rules
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.measure import PairedTiming
from aitune.torch.store import Choice, Entry, Journal, Key, NoKeyError, Store, Subject, Turn, entry_key, tune_key
from aitune.torch.store.journal import Finding
from aitune.torch.trial import ORIGINAL, Trial, Verdict

__all__ = ["Known", "Shelf", "marked", "saved_files"]

_log = logging.getLogger(__name__)

_LONGEST_WAIT = 900.0  # seconds, for another process that builds the same

RECALLED = "found out by an earlier tune; clear_cache=True tries again"


@dataclass(frozen=True)
class Known:
    """What is known of a candidate.

    Attributes:
        trial: Its record.
        timing: Its figures against the original, None where they have to be measured again.
        entry: Where its engine is kept, None where it is not.
    """

    trial: Trial
    timing: PairedTiming | None = None
    entry: Entry | None = None


class Shelf:
    """Looks things up in the store for one graph, and puts them there. Does nothing where no key can be made.

    Args:
        store: The store.
        subject: Gives the digests of module and graph; called once, when they are needed.
        strategy: What chooses.
        candidates: What it may try, in order.
        rules: What candidates are held to.
    """

    def __init__(
        self,
        store: Store,
        subject: Callable[[], Subject],
        strategy: object,
        candidates: Sequence[Backend[Any]],
        rules: Rules,
    ) -> None:
        self._store = store
        self._make_subject = subject
        self._strategy = strategy
        self._candidates = tuple(candidates)
        self._check = (rules.check, rules.correctness)

    @property
    def unfinished(self) -> bool:
        """Whether an earlier tune of the same was interrupted, and left findings."""
        return self._journal is not None and self._journal.found

    @property
    def batch_size(self) -> int | None:
        """At which batch size that one measured."""
        return self._journal.batch_size if self._journal is not None else None

    @contextlib.contextmanager
    def building(self, backend: Backend[Any], graph: GraphSpec, seconds: float | None) -> Iterator[bool]:
        """Be the only process that builds a candidate, and give whether to look again: another one has built it.

        Args:
            backend: The candidate.
            graph: The graph that it is built for.
            seconds: How long to wait for another process; then both build.
        """
        key = self._key(backend, graph)
        if key is None:
            yield False
            return
        with self._store.building(key, _LONGEST_WAIT if seconds is None else seconds) as turn:
            yield turn is Turn.after_another

    def choice(self) -> Choice | None:
        """Return what a finished tune of the same graph, strategy and candidates chose."""
        return None if self._tune_key is None else self._store.choice(self._tune_key)

    def chosen(self, choice: Choice, graph: GraphSpec) -> tuple[Backend[Any], Known] | None:
        """Return the candidate that was chosen, with its engine where that is kept; None where it is not among them.

        Args:
            choice: What was chosen.
            graph: The graph at the choice's batch size.
        """
        trial = next((found.trial for found in choice.findings if found.key == choice.key), None)
        timing = next((found.timing for found in choice.findings if found.key == choice.key), None)
        for backend in self._candidates:
            key = self._key(backend, graph)
            if trial is not None and key is not None and key.text == choice.key:
                entry = self._store.lookup(key)
                if entry is None and type(backend).load is not Backend.load:
                    return None  # its engine was kept, and is not there any more
                return backend, Known(trial, timing, entry)
        return None

    def recall(self, backend: Backend[Any], graph: GraphSpec, seconds: float | None) -> Known | None:
        """Return what is known of a candidate, None where it has to be tried.

        Args:
            backend: The candidate.
            graph: The graph that it would be built for.
            seconds: Time that it would have.
        """
        key = self._key(backend, graph)
        if key is None:
            return None
        entry = self._store.lookup(key, seconds)
        found = self._journal.find(key.text) if self._journal is not None else None
        if found is not None and (not found.trial.accepted or entry is not None):
            return Known(marked(found.trial), found.timing, entry)
        if entry is None:
            return None
        # Speed is measured again: the other candidates, and the calls, may be others than they were.
        return Known(marked(entry.trial), None, entry)

    def keep(
        self,
        backend: Backend[Any],
        graph: GraphSpec,
        known: Known,
        *,
        files: Callable[[], Path | None],
        seconds: float | None,
    ) -> None:
        """Keep what was found out about a candidate.

        Args:
            backend: The candidate.
            graph: The graph that it was built for.
            known: The findings.
            files: Gives the folder that holds the files of its engine, None where it cannot be kept.
            seconds: Time that it had.
        """
        key = self._key(backend, graph)
        if key is None:
            return
        if self._journal is not None:
            self._journal.begin(known.trial.batch_size)
            self._journal.add(Finding(key.text, known.trial, known.timing))
        folder = files() if known.trial.accepted else None
        limit = seconds if known.trial.verdict is Verdict.timed_out else None
        self._store.publish(key, known.trial, folder, timing=known.timing, limit_seconds=limit)

    def reject(self, known: Known, reason: str) -> None:
        """Remove an engine that could not be loaded, or is wrong, and the choice that may have led to it."""
        if known.entry is not None:
            self._store.reject(known.entry, reason)
        if self._tune_key is not None:
            self._store.forget(self._tune_key)

    def finish(
        self,
        chosen: Trial,
        graph: GraphSpec,
        batch_size: int | None,
        findings: Sequence[tuple[Backend[Any], Known]],
    ) -> None:
        """Keep what the strategy chose; not the original where some candidate was neither faster nor slower for sure.

        Args:
            chosen: The trial.
            graph: The graph that engines were built for.
            batch_size: At which batch size was measured.
            findings: Every candidate with what was found out about it.
        """
        if self._tune_key is None:
            return
        if chosen.backend == ORIGINAL and any(known.trial.verdict is Verdict.undecided for _, known in findings):
            self._store.forget(self._tune_key)  # a machine that was too busy to tell may not be the next time
            return
        listed, choice_key = [], None
        for backend, known in findings:
            key = self._key(backend, graph)
            if key is None:
                return
            listed.append(Finding(key.text, known.trial, known.timing))
            if known.trial is chosen:
                choice_key = key.text
        if choice_key is None and chosen.backend != ORIGINAL:
            return
        self._store.finish(self._tune_key, Choice(chosen.backend, choice_key, batch_size, tuple(listed)))

    def leave_original(self, reason: str) -> None:
        """Keep that the graph is better left alone, whatever was chosen."""
        choice = self.choice()
        if choice is not None and self._tune_key is not None:
            _log.info("the choice of %s is taken back in the store: %s", choice.backend, reason)
            self._store.finish(self._tune_key, replace(choice, backend=ORIGINAL, key=None))

    @cached_property
    def _subject(self) -> Subject | None:
        try:
            return self._make_subject()
        except NoKeyError as error:
            _log.info("nothing is kept of this tune: %s", error.reason)
            return None

    @cached_property
    def _tune_key(self) -> Key | None:
        if self._subject is None:
            return None
        try:
            return tune_key(self._subject, self._strategy, self._candidates, self._check)
        except NoKeyError as error:
            _log.info("the choice of this tune is not kept: %s", error.reason)
            return None

    @cached_property
    def _journal(self) -> Journal | None:
        return None if self._tune_key is None else self._store.journal(self._tune_key)

    def _key(self, backend: Backend[Any], graph: GraphSpec) -> Key | None:
        if self._subject is None:
            return None
        try:
            return entry_key(self._subject.with_graph(graph), backend, self._check)
        except NoKeyError as error:
            _log.info("nothing is kept of %s: %s", described(backend), error.reason)
            return None


def saved_files(engine: Engine, folder: Path) -> Path | None:
    """Save an engine into a folder; None where it cannot be kept."""
    if type(engine).save is Engine.save:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        engine.save(folder)
    except NotImplementedError:
        return None
    except FOREIGN as error:  # foreign code; an engine that is not kept is no failure of the tune
        _log.info("an engine cannot be kept: %s", text_of(error))
        return None
    return folder


def marked(trial: Trial) -> Trial:
    """Return a trial with the remark that it is an earlier tune's."""
    return replace(trial, evidence=(*(note for note in trial.evidence if note != RECALLED), RECALLED), log_path=None)
