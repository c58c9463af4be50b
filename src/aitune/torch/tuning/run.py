"""One run of ``tune()``, step by step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from aitune.exceptions import AITuneUserInputError, LatencyBudgetError, carry_partial_result, partial_result
from aitune.torch.config import config, without_effect
from aitune.torch.events import ModuleFinished, ModuleStarted, Note, TuneFinished, TuneStarted, publish
from aitune.torch.measure import Stopwatch
from aitune.torch.module.handle import Handle
from aitune.torch.module.recording import Recording
from aitune.torch.module.tune_module import TuneOptions, limits_of, module_device, stopwatch_for
from aitune.torch.report import EndToEnd, ModuleResult, TuneResult, environment
from aitune.torch.store import Store
from aitune.torch.tuning.end_to_end import Whole, time_whole
from aitune.torch.tuning.recorded import Calls, find_handles, record
from aitune.torch.tuning.request import Request
from aitune.torch.worker import BuildFolders, open_executor

__all__ = ["Run"]

_log = logging.getLogger(__name__)


def _recalled(handle: Handle) -> bool:
    """Whether an earlier tune chose for every graph of a module, and timed the whole then."""
    return handle.result is not None and all(graph.recalled for graph in handle.result.graphs)


class Run:
    """Carries out a request.

    Args:
        request: What was asked for.
        stopwatch: How total time is read; None reads the system's clock.
    """

    def __init__(self, request: Request, stopwatch: Stopwatch | None = None) -> None:
        self._request = request
        self._clock = (stopwatch or Stopwatch()).clock
        self._start = self._clock.now()
        self._deadline = None if request.time_limit is None else self._start + request.time_limit
        self._current: Handle | None = None
        limit = request.backend_time_limit
        self._options = TuneOptions(
            device=request.device,
            dry_run=request.dry_run,
            check=request.check,
            deadline=self._deadline,
            seed=request.seed,
            limits=limits_of(config) if limit is None else replace(limits_of(config), seconds=limit),
            folders=None if request.dry_run else BuildFolders(config.cache_dir),
        )

    def tune(self) -> TuneResult:
        """Record, tune every module, time the whole.

        Raises:
            AITuneUserInputError: If the request cannot be carried out.
            Exception: As :func:`aitune.torch.tune` says.
        """
        request = self._request
        publish(TuneStarted(request.time_limit))
        notes = list(request.source.notes) if request.source is not None else []
        notes += [f"config.{name} has no effect in this version" for name in without_effect(config)]
        for note in notes:
            publish(Note(note))
            _log.info(note)
        if request.device is not None and request.module is not None and not request.dry_run:
            request.module.to(request.device)
        modules: dict[str, tuple[Handle, ModuleResult]] = {}
        try:
            end_to_end = self._carry_out(modules)
        except BaseException as error:
            self._undo(modules)
            if isinstance(partial := partial_result(error), ModuleResult):
                self._note_partial(modules, partial)
            notes.append(f"interrupted by {type(error).__name__}; every module runs as before")
            carry_partial_result(error, self._result(modules, None, notes, complete=False))
            raise
        finally:
            if self._options.folders is not None:
                self._options.folders.tidy()
        notes += self._rest(modules)
        if self._expired():
            notes.append(f"the time limit of {request.time_limit:g} s was reached")
        result = self._result(modules, end_to_end, notes, complete=not self._expired())
        publish(TuneFinished(result.seconds))
        return result

    def _carry_out(self, modules: dict[str, tuple[Handle, ModuleResult]]) -> EndToEnd | None:
        """Record, tune each module into ``modules``, and time the whole."""
        request = self._request
        with contextlib.ExitStack() as stack:
            if self._options.folders is not None:
                executor = stack.enter_context(
                    open_executor(self._options.folders, early=not Store.configured(config).has_choices)
                )
                self._options = replace(self._options, executor=executor)
            calls = record(request, self._expired) if request.source is not None else self._recorded_before()
            self._tune_all(calls, modules)
        return None if request.dry_run else self._time_whole(calls, modules)

    def _rest(self, modules: dict[str, tuple[Handle, ModuleResult]]) -> list[str]:
        """Put originals where ``config.device_after_tuning`` says; returns what a reader should know."""
        place = config.device_after_tuning
        if place is None or self._request.dry_run:
            return []
        notes = []
        for handle, _ in modules.values():
            if handle.serves:
                problem = handle.rest(place)
                done = "was given up" if place == "meta" else "was moved to the CPU"
                notes.append(f"{handle.name}: the original {done if problem is None else f'stays: {problem}'}")
        return notes

    def _note_partial(self, modules: dict[str, tuple[Handle, ModuleResult]], partial: ModuleResult) -> None:
        if self._current is not None:
            modules[partial.name] = self._current, partial

    def _undo(self, modules: dict[str, tuple[Handle, ModuleResult]]) -> None:
        """Give every module back its original calls."""
        for handle, _ in modules.values():
            handle.untune()

    def _result(
        self,
        modules: dict[str, tuple[Handle, ModuleResult]],
        end_to_end: EndToEnd | None,
        notes: Sequence[str],
        *,
        complete: bool,
    ) -> TuneResult:
        return TuneResult(
            modules={name: self._as_left(handle, result) for name, (handle, result) in modules.items()},
            end_to_end=end_to_end,
            seconds=self._clock.now() - self._start,
            environment=environment(),
            notes=tuple(notes),
            dry_run=self._request.dry_run,
            complete=complete,
        )

    def _expired(self) -> bool:
        return self._deadline is not None and self._clock.now() >= self._deadline

    def _recorded_before(self) -> Calls:
        handles = find_handles(self._request.func)
        ready = tuple((handle, handle.recorded) for handle in handles if handle.recorded is not None)
        if not ready:
            raise AITuneUserInputError(
                "without a dataset, the modules must have recorded calls: pass dataset=, or call"
                " enable_recording() on them and then run your code"
            )
        return Calls(ready, ())

    def _tune_all(self, calls: Calls, results: dict[str, tuple[Handle, ModuleResult]]) -> None:
        for index, (handle, recording) in enumerate(calls.recordings):
            graphs = len(recording.observations)
            publish(ModuleStarted(handle.name, index, len(calls.recordings), graphs))
            result = self._tune_one(handle, recording)
            publish(ModuleFinished(handle.name, result.failure))
            results[handle.name] = handle, result

    def _tune_one(self, handle: Handle, recording: Recording) -> ModuleResult:
        self._current = handle
        result = handle.tune_with(self._options, recording)
        if result.error is not None:
            if not self._request.ignore_failing_modules:
                carry_partial_result(result.error, result)
                raise result.error
            level = logging.WARNING if isinstance(result.error, LatencyBudgetError) else logging.ERROR
            _log.log(level, "%s is not tuned and runs as before: %s", handle.name, result.failure_text)
        return result

    def _time_whole(self, calls: Calls, modules: dict[str, tuple[Handle, ModuleResult]]) -> EndToEnd | None:
        served = [handle for handle, _ in modules.values() if handle.serves]
        if not served or not calls.batches or all(_recalled(handle) for handle in served):
            return None
        stopwatch = stopwatch_for(module_device(served[0].module))
        return time_whole(Whole(self._request.func, calls.batches, stopwatch), served, self._expired)

    def _as_left(self, handle: Handle, result: ModuleResult) -> ModuleResult:
        """Return the result with what the last step changed."""
        put_back = result.failure is None and handle.result is not None and handle.result.put_back
        return replace(result, put_back=True) if put_back else result
