"""Tuning one module: each graph through its strategy, the chosen engines handed back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aitune.exceptions import BackendError, carry_partial_result, partial_result, text_of
from aitune.torch.backend import Backend, Engine
from aitune.torch.backend.guarded import close_engine, described
from aitune.torch.bench import Bench, Path, Rules, Shelf, Tools, untaken, unusable
from aitune.torch.check.check import Check
from aitune.torch.config import Config, config
from aitune.torch.events import GraphChosen, GraphStarted, publish
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.measure import Stopwatch
from aitune.torch.module.dispatch import Dispatcher
from aitune.torch.module.plan import Entry, Plan
from aitune.torch.module.served import Served
from aitune.torch.module.slot import Slot
from aitune.torch.report import GraphResult, ModuleResult
from aitune.torch.store import Store, Subject, describe_subject
from aitune.torch.trial import ORIGINAL, Trial, Verdict
from aitune.torch.tune_strategy import TuneStrategy
from aitune.torch.worker import BuildFolders, Executor, Limits, open_executor

__all__ = ["OriginalEngine", "TuneOptions", "limits_of", "module_device", "stopwatch_for", "tune_module"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TuneOptions:
    """What a tune was asked for, apart from its function and data.

    Attributes:
        device: Where to move the modules first; None leaves them.
        dry_run: Whether to change nothing.
        check: How outputs are judged, for strategies that have no check of their own.
        deadline: Reading of the stopwatch's clock after which no candidate is begun; None for none.
        seed: Seeds synthesised inputs.
        executor: Where candidates are tried before this process lets them in; None makes one as ``config.isolation``
            says.
        limits: What each candidate may take there; None takes those of the configuration.
        store: Where findings are kept; None takes the store that the configuration asks for.
        folders: Where builds put their files; None makes a folder below ``config.cache_dir``.
        stopwatch: How time is read; None reads the system's clock and waits for the module's device.
    """

    device: Any = None
    dry_run: bool = False
    check: Check | None = None
    deadline: float | None = None
    seed: int = 0
    executor: Executor | None = None
    limits: Limits | None = None
    store: Store | None = None
    folders: BuildFolders | None = None
    stopwatch: Stopwatch | None = None


def module_device(module: torch.nn.Module) -> torch.device:
    """Return where the first parameter or buffer of a module is; the CPU where there is none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def tune_module(
    name: str, slot: Slot, entries: Sequence[Entry], plan: Plan, options: TuneOptions
) -> tuple[ModuleResult, tuple[Served, ...]]:
    """Find the engine of every graph of a module. Nothing is installed, and the module is as before.

    Args:
        name: The module's name.
        slot: Its slot.
        entries: Its graphs with their samples.
        plan: Which strategy tunes which graph.
        options: What was asked for.

    Returns:
        The result, and what should be installed: empty where no graph has an engine, else one entry for every graph,
        those of the graphs that stay with the original included, so that their calls take the quick path too.

        Where a strategy raised, the result carries the exception, and nothing is to be installed.
    """
    kind = type(slot.module).__name__
    device = module_device(slot.module)
    if options.dry_run:
        return ModuleResult(name, kind, tuple(_planned(entry, plan, i, device) for i, entry in enumerate(entries))), ()
    if slot.module.training:
        _log.warning(
            "%s is in training mode and is tuned as it stands; call .eval() first to tune it for inference",
            name,
        )
    unknown = plan.unknown([entry.graph.name for entry in entries])
    if unknown:
        _log.warning("%s: strategies= names no graph of it: %s", name, ", ".join(map(repr, unknown)))
    folders = options.folders or BuildFolders(config.cache_dir)
    served: list[Served] = []
    results: list[GraphResult] = []
    with _executor(options, folders) as executor:
        tuner = _Tuner(name, slot, device, replace(options, executor=executor), folders)
        try:
            for index, entry in enumerate(entries):
                result, found, error = tuner.tune(entry, plan.strategy_for(index, entry.graph.name))
                results.append(result)
                served.append(found)
                if error is not None:
                    _close(served)
                    return ModuleResult(name, kind, tuple(results), text_of(error), error), ()
        except BaseException as error:
            _close(served)
            if isinstance(result := partial_result(error), GraphResult):
                results.append(result)
            carry_partial_result(error, ModuleResult(name, kind, tuple(results), "interrupted", None))
            raise
    if all(isinstance(found.engine, OriginalEngine) for found in served):
        served = []
    return ModuleResult(name, kind, tuple(results)), tuple(served)


def limits_of(configuration: Config) -> Limits:
    """Return what each candidate may take in a worker."""
    return Limits(seconds=configuration.backend_time_limit, memory_bytes=configuration.backend_memory_limit)


def _executor(options: TuneOptions, folders: BuildFolders) -> AbstractContextManager[Executor | None]:
    return contextlib.nullcontext(options.executor) if options.executor is not None else open_executor(folders)


def _close(served: Sequence[Served]) -> None:
    for found in served:
        close_engine(found.engine)


class OriginalEngine(Engine):
    """The original, in the place of an engine: its calls take the quick path and are counted."""

    keeps_module = True
    live_weights = True
    own_errors = True

    def __init__(self, original: Callable[..., Any]) -> None:
        self.run = original  # type: ignore[method-assign]

    def run(self, *args: Any, **kwargs: Any) -> Any:  # pragma: no cover - replaced on every instance
        """Never called; see ``__init__``."""
        raise AssertionError(args, kwargs)


@dataclass(frozen=True)
class _Tuner:
    """What the graphs of one module share while they are tuned."""

    name: str
    slot: Slot
    device: torch.device
    options: TuneOptions
    folders: BuildFolders
    subjects: list[Subject] = field(default_factory=list)

    def tune(self, entry: Entry, strategy: TuneStrategy) -> tuple[GraphResult, Served, Exception | None]:
        """Tune one graph; the exception is what the strategy raised."""
        graph = entry.graph
        try:
            candidates = strategy.candidates(self.device)
        except Exception as error:  # noqa: BLE001 - strategies are foreign code
            return _result(graph), self._left_alone(graph), error
        publish(GraphStarted(self.name, graph.name, graph.describe(), len(candidates)))
        problem = entry.problem or _untaken(graph, candidates)
        if problem is not None:
            _log.info("%s: %s stays with the original: %s", self.name, graph.name, problem)
            publish(GraphChosen(self.name, graph.name, ORIGINAL))
            return _result(graph, notes=(problem,)), self._left_alone(graph), None
        folder, log = self.folders.new(self.name, graph.name)
        job = Job(self.name, self.slot.module, graph, entry.samples, self.device, folder, log)
        shelf = self._shelf(graph, strategy, candidates)
        with Bench(job, self._rules(strategy), replace(self._tools(), shelf=shelf)) as bench:
            try:
                trial = bench.choose_again() or strategy.choose(bench)
                recipe = bench.recipe(trial)
                bench.finish(trial)
                engine = bench.take(trial)
            except Exception as error:  # noqa: BLE001 - strategies and backends are foreign code
                result = _result(bench.graph, trials=bench.trials, notes=bench.notes)
                return result, self._left_alone(graph), error
            except BaseException as error:
                notes = (*bench.notes, "interrupted")
                carry_partial_result(error, _result(bench.recorded_graph, trials=bench.trials, notes=notes))
                raise
            graph = bench.graph
            chosen = trial.backend if engine is not None else ORIGINAL
            result = _result(graph, chosen=chosen, trials=bench.trials, notes=bench.notes)
            result = replace(result, recalled=bench.recalled)
        publish(GraphChosen(self.name, graph.name, chosen))
        if engine is None:
            return result, self._left_alone(graph), None
        return result, Served(graph, engine, trial.backend, recipe, shelf.leave_original), None

    def _shelf(self, graph: GraphSpec, strategy: TuneStrategy, candidates: Sequence[Backend[Any]]) -> Shelf:
        def subject() -> Subject:
            if not self.subjects:
                self.subjects.append(describe_subject(self.slot.module, graph, self.device))
            return self.subjects[0].with_graph(graph)

        store = self.options.store or Store.configured(config)
        return Shelf(store, subject, strategy, candidates, self._rules(strategy))

    def _rules(self, strategy: TuneStrategy) -> Rules:
        rules = strategy.rules
        return rules if rules.check is not None else replace(rules, check=self.options.check)

    def _tools(self) -> Tools:
        return Tools(
            executor=self.options.executor,
            limits=self.options.limits or limits_of(config),
            folders=self.folders,
            original=self.slot.original,
            route=self._routed,
            stopwatch=self.options.stopwatch or stopwatch_for(self.device),
            deadline=self.options.deadline,
            seed=self.options.seed,
        )

    def _routed(self, graph: GraphSpec, engine: Engine) -> Path:
        """Return the path that users of a tuned module take, with one engine behind it."""
        dispatcher = Dispatcher(self.name, self.slot, [Served(graph, engine, "candidate")])
        return Path(dispatcher.call, lambda: dispatcher.stats.fallbacks)

    def _left_alone(self, graph: GraphSpec) -> Served:
        return Served(graph, OriginalEngine(self.slot.original), ORIGINAL)


def _result(
    graph: GraphSpec, chosen: str = ORIGINAL, trials: Sequence[Trial] = (), notes: Sequence[str] = ()
) -> GraphResult:
    inputs = tuple(str(leaf) for leaf in graph.inputs.leaves)
    outputs = tuple(str(leaf) for leaf in graph.outputs.leaves)
    return GraphResult(graph.name, inputs, outputs, chosen, tuple(trials), tuple(notes))


def _untaken(graph: GraphSpec, candidates: Sequence[Backend[Any]]) -> str | None:
    """Return why no candidate could serve a graph with arguments that change from call to call, None if one may."""

    def reason(backend: Backend[Any]) -> str | None:
        try:
            return untaken(backend, graph)
        except BackendError:  # said in its row
            return None

    reasons = [reason(backend) for backend in candidates]
    return f"every candidate {reasons[0]}" if reasons and None not in reasons else None


def _planned(entry: Entry, plan: Plan, index: int, device: torch.device) -> GraphResult:
    """Return what would be tried, as trials that were skipped."""
    strategy = plan.strategy_for(index, entry.graph.name)
    if entry.problem is not None:
        return _result(entry.graph, notes=(entry.problem,))
    trials = [
        Trial(
            backend=described(backend),
            verdict=Verdict.skipped,
            reason=unusable(backend, device) or "would be tried",
        )
        for backend in strategy.candidates(device)
    ]
    return _result(entry.graph, trials=trials, notes=(strategy.describe(),))


def stopwatch_for(device: torch.device) -> Stopwatch:
    """Return a stopwatch that waits for a device before it reads the clock."""
    if device.type == "cuda":
        return Stopwatch(synchronize=lambda: torch.cuda.synchronize(device))
    return Stopwatch()
