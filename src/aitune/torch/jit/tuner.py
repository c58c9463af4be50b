"""Tuning one module in the middle of a running program."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import text_of
from aitune.torch.config import config
from aitune.torch.jit.config import jit_config
from aitune.torch.jit.crew import Crew
from aitune.torch.jit.history import History
from aitune.torch.jit.interception import Interception
from aitune.torch.jit.patched_module import JITState, PatchedModule
from aitune.torch.jit.policy import Decision, after_tune
from aitune.torch.jit.serve import serve
from aitune.torch.jit.strategy import candidates, default_strategy
from aitune.torch.jit.summary import Summary
from aitune.torch.jit.waste import Waste
from aitune.torch.jit.wrapped import handle_of_ours
from aitune.torch.module.handle import try_tuning_alone
from aitune.torch.module.plan import Plan
from aitune.torch.module.recording import Recording
from aitune.torch.module.stats import Stats
from aitune.torch.module.tune_module import TuneOptions, module_device
from aitune.torch.report import ModuleResult
from aitune.torch.store import Store

__all__ = ["Tuner"]

_log = logging.getLogger(__name__)


class Tuner:
    """Tunes modules, one at a time in the whole process.

    Args:
        history: Takes the steps.
        interception: Stands still while a module is tuned.
        summary: Takes how calls are counted.

    Attributes:
        crew: Has the workers that builds run in.
        waste: Knows which tunes were for nothing.
    """

    def __init__(self, history: History, interception: Interception, summary: Summary) -> None:
        self._history = history
        self._summary = summary
        self._interception = interception
        self.crew = Crew()
        self.waste = Waste()

    def tune(self, node: PatchedModule) -> Decision | None:
        """Tune a module on its recorded calls, and install what was found.

        Returns:
            What follows for the module and what is below it; None if another tune is running and nothing was done.
        """
        module, recording = node.module, node.recording
        if module is None or recording is None:
            return None
        with try_tuning_alone() as alone:
            if not alone:
                return None
            for part in module.modules():
                self._interception.let_go(part)
            with self._interception.only_marking(), _as_outside_of_calls():
                outcome = self._carried_out(node, module, recording)
            if not outcome.serves:
                for part in module.modules():
                    self._interception.see_again(part)
        return after_tune(outcome.serves, outcome.failure, outcome.verdicts, outcome.reasons)

    def plan(self, node: PatchedModule) -> str:
        """Return in words what a dry run would do with a module."""
        device = module_device(node.module) if node.module is not None else torch.device("cpu")
        strategy = jit_config.strategy or default_strategy(device)
        return f"Dry run: would tune {node.title} level={node.level}🪜 with {candidates(strategy, device)}"

    def widen(self, node: PatchedModule, recording: Recording) -> None:
        """Tune a module anew on calls of which some came after it was tuned; where that finds nothing, all stays."""
        module = node.module
        with try_tuning_alone() as alone:
            if not alone or module is None:
                return
            node.retunes += 1
            with self._interception.only_marking(), _as_outside_of_calls():
                self._carry_out(node, module, recording)

    def _carried_out(self, node: PatchedModule, module: torch.nn.Module, recording: Recording) -> _Outcome:
        try:
            return self._carry_out(node, module, recording)
        except Exception as error:
            if jit_config.raise_failures:
                raise
            return _Outcome(False, text_of(error))

    def _carry_out(self, node: PatchedModule, module: torch.nn.Module, recording: Recording) -> _Outcome:
        device = module_device(module)
        strategy = jit_config.strategy or default_strategy(device)
        _log.info("Tuning %s with %s", node.title, candidates(strategy, device))
        start = time.perf_counter()
        handle = handle_of_ours(module)
        with self.crew.executor() as executor:
            options = TuneOptions(folders=self.crew.folders, executor=executor, store=_store())
            result = handle.tune_with(options, recording, Plan.checked(strategy, None), keep=True)
        took = f"{time.perf_counter() - start:.2f}s"
        trials = [trial for graph in result.graphs for trial in graph.trials]
        if result.error is None and any(graph.chosen_trial is not None for graph in result.graphs):
            node.decide(JITState.TUNED, backend=_backends(result))
            read = serve(node, module, recording, self.widen, self._history)
            self._summary.serves(read)
            self._watch(node, read)
            self._history.add(f"Tuning {node.title} took {took}")
            self._tell_recalled(node, result)
            return _Outcome(True)
        self._history.add(f"Tuning {node.title} failed after {took}: {_why(result)}")
        self._tell_recalled(node, result)
        if handle.serves:
            serve(node, module, recording, self.widen, self._history)
        else:
            handle.untune()
            self._watch(node, Stats)
        reasons = [f"{trial.backend}: {trial.reason}" for trial in trials if trial.reason]
        notes = [note for graph in result.graphs for note in graph.notes]
        return _Outcome(False, result.failure_text, tuple(trial.verdict for trial in trials), (*notes, *reasons))

    def _watch(self, node: PatchedModule, read: Callable[[], Stats]) -> None:
        head = node.head
        if not head.watched and head.module is not None:
            head.watched = True
            self.waste.watch(head.module, head.path, read)

    def _tell_recalled(self, node: PatchedModule, result: ModuleResult) -> None:
        if result.graphs and all(graph.recalled for graph in result.graphs):
            self._history.add(f"{node.title} is as an earlier run chose; no backend was tried")


@dataclass(frozen=True)
class _Outcome:
    serves: bool
    failure: str = ""
    verdicts: tuple[Any, ...] = ()
    reasons: tuple[str, ...] = ()


def _store() -> Store:
    """Return where findings are kept: with all others, unless just-in-time tuning was given a folder for itself."""
    own = jit_config.cache_dir
    return Store.configured(config, None if own == config.cache_dir / "jit" else own)


def _backends(result: ModuleResult) -> str:
    chosen = [graph.chosen.partition("(")[0] for graph in result.graphs if graph.chosen_trial is not None]
    return ", ".join(dict.fromkeys(chosen))


def _why(result: ModuleResult) -> str:
    if result.failure_text:
        return result.failure_text
    parts = [f"{trial.backend.partition('(')[0]} {trial.verdict}" for graph in result.graphs for trial in graph.trials]
    notes = [note for graph in result.graphs for note in graph.notes]
    return "; ".join((*notes, *parts)) or "nothing could be tried"


@contextlib.contextmanager
def _as_outside_of_calls() -> Iterator[None]:
    """Undo, within the block, what a program's call may be made under: builders do not expect inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield
