"""The handle: everything that can be done to a wrapped module, apart from calling it."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.torch.backend.resident import return_freed
from aitune.torch.check.trace import no_trace
from aitune.torch.config import config
from aitune.torch.graph.signature import CallSignature
from aitune.torch.module.declared import DynamicShapes, validated
from aitune.torch.module.dispatch import Dispatcher
from aitune.torch.module.graph_specs import GraphSpecs
from aitune.torch.module.plan import Plan, Strategies, plan_graphs
from aitune.torch.module.recording import Recording
from aitune.torch.module.registry import Registry
from aitune.torch.module.resting import Place
from aitune.torch.module.served import Served
from aitune.torch.module.slot import Slot, current, is_ours, its_own
from aitune.torch.module.stats import Stats
from aitune.torch.module.tune_module import TuneOptions, module_device, tune_module
from aitune.torch.report import ModuleResult
from aitune.torch.tune_strategy import TuneStrategy

__all__ = [
    "Handle",
    "ModuleState",
    "find_handle",
    "handles",
    "is_tuning_here",
    "try_tuning_alone",
    "tuning_alone",
]


_log = logging.getLogger(__name__)


class ModuleState(enum.Enum):
    """What a wrapped module does with its calls."""

    INIT = "init"
    PASSTHROUGH = "passthrough"
    RECORDING = "recording"
    TUNED = "tuned"

    def __str__(self) -> str:
        return self.value


class Handle:
    """Records, tunes and restores one module. Does not keep the module alive.

    Args:
        module: The module.
        name: Its name in reports; its class path if None. A number is added if another module has the name.
        strategy: How its graphs are tuned; None is ``MaxThroughputStrategy()``.
        strategies: One strategy for each graph: a sequence in order of the graphs, or a mapping by graph name.
        dynamic_shapes: Declared sizes, see :data:`~aitune.torch.module.declared.DynamicShapes`.

    Raises:
        AITuneUserInputError: If ``module`` is no module, both kinds of strategy are given, or something is of a
            wrong type.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        name: str | None = None,
        strategy: TuneStrategy | None = None,
        strategies: Strategies | None = None,
        dynamic_shapes: DynamicShapes | None = None,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise AITuneUserInputError(f"a torch.nn.Module is needed, not a {type(module).__name__}")
        if name is not None and (not isinstance(name, str) or not name):
            raise AITuneUserInputError(f"name must be a string that is not empty, not {name!r}")
        self._plan = Plan.checked(strategy, strategies)
        wanted = name or f"{type(module).__module__}.{type(module).__qualname__}"
        earlier = _registry.find(module)
        before = current(module)
        if earlier is not None:
            earlier.untune()  # an already wrapped module is taken over with the new settings
            before = earlier._before
        self.name = _registry.unique_name(wanted, module)
        self._before: Callable[..., Any] | None = before
        self._declared = validated(self.name, dynamic_shapes)
        self._module = weakref.ref(module)
        self._recording: Recording | None = None
        self._state = ModuleState.INIT
        self._result: ModuleResult | None = None
        _registry.register(module, self)

    @property
    def module(self) -> torch.nn.Module:
        """The wrapped module.

        Raises:
            AITuneError: If it is gone, or was wrapped again since, which made this handle's settings void.
        """
        module = self._module()
        if module is None:
            raise AITuneError(f"{self.name}: the module that this handle belonged to no longer exists")
        if _registry.find(module) not in (self, None):
            raise AITuneError(f"{self.name}: the module was wrapped again; ait.handle(module) gives its handle")
        return module

    @property
    def state(self) -> ModuleState:
        """What calls of the module do now."""
        return self._state

    @property
    def device(self) -> torch.device:
        """Where the module's first parameter or buffer is; the CPU for one without any."""
        return module_device(self.module)

    @property
    def result(self) -> ModuleResult | None:
        """What the last tune found, None before one."""
        return self._result

    @property
    def stats(self) -> Stats:
        """Where calls went since the module was tuned; empty where no engine is installed."""
        dispatcher = self._dispatcher
        return dispatcher.stats if dispatcher is not None else Stats()

    def reset_stats(self) -> None:
        """Count calls from zero again."""
        dispatcher = self._dispatcher
        if dispatcher is not None:
            dispatcher.reset_stats()

    @property
    def graph_specs(self) -> GraphSpecs:
        """The graphs of the recorded calls, with declared dimensions; those that are served, once tuned.

        A tuple that prints as a table.
        """
        dispatcher = self._dispatcher
        if dispatcher is not None:
            return GraphSpecs(one.graph for one in dispatcher.served)
        return GraphSpecs(entry.graph for entry in plan_graphs(self.name, self._recording, self._declared))

    @property
    def recorded(self) -> Recording | None:
        """The recorded calls that a tune without a dataset would use, None without any."""
        return self._recording if self._recording is not None and self._recording.calls else None

    @property
    def serves(self) -> bool:
        """Whether an engine is installed."""
        return self._dispatcher is not None

    @property
    def served(self) -> tuple[Served, ...]:
        """What calls are routed to; empty where no engine is installed."""
        dispatcher = self._dispatcher
        return () if dispatcher is None else dispatcher.served

    @property
    def outdated(self) -> bool:
        """Whether the module is not the one any more that its engines were made of, as far as is seen by looking."""
        dispatcher = self._dispatcher
        return dispatcher is not None and dispatcher.outdated

    def install(self, served: Sequence[Served], result: ModuleResult) -> None:
        """Let engines that were made elsewhere answer the calls, in place of what did so before.

        Args:
            served: One entry for each graph; the handle closes the engines from now on. Empty for none.
            result: What is known about them.
        """
        self.untune()
        slot = self._slot()
        if served:
            slot.install(Dispatcher(self.name, slot, served).call)
        self._state = ModuleState.TUNED
        self._result = result

    def original(self) -> Callable[..., Any]:
        """Return what a call of the module runs without aitune."""
        return self._slot().original

    def describe(self) -> str:
        """Return name, state and strategy, and a table of the graphs."""
        graphs = self.graph_specs
        title = f"{self.name}: {self.state}, {self._plan.describe()}"
        return f"{title}\n{graphs}" if graphs else title

    def enable_recording(self, force: bool = False) -> None:
        """Record every call from now on, beginning anew.

        Args:
            force: Also for a tuned module, which loses its engines.

        Raises:
            AITuneUserInputError: For a tuned module without ``force``.
        """
        self._leave_tuned("enable_recording", force)
        slot = self._slot()
        self._recording = Recording(CallSignature.of(slot.module.forward))
        slot.install(its_own(slot, functools.partial(self._recording.call, slot)))
        self._state = ModuleState.RECORDING

    def enable_passthrough(self, force: bool = False) -> None:
        """Let calls run the original; what was recorded is kept.

        Args:
            force: Also for a tuned module, which loses its engines.

        Raises:
            AITuneUserInputError: For a tuned module without ``force``.
        """
        self._leave_tuned("enable_passthrough", force)
        self._slot().remove()
        self._state = ModuleState.PASSTHROUGH

    def tune(self, device: Any = None, strategy: TuneStrategy | None = None, dry_run: bool = False) -> ModuleResult:
        """Tune the module on its recorded calls.

        Args:
            device: Where to move the module first; None leaves it where it is.
            strategy: In place of the handle's own, for this tune.
            dry_run: Find graphs and candidates, print them, and change nothing.

        Returns:
            What was tried and chosen.

        Raises:
            AITuneUserInputError: If no call was recorded.
            Exception: What ``OneBackendStrategy`` raises where its backend cannot build or is wrong; the module is as
                before.
        """
        plan = self._plan if strategy is None else Plan.checked(strategy, None)
        result = self.tune_with(TuneOptions(device=device, dry_run=dry_run), plan=plan)
        if result.error is not None:
            raise result.error
        if config.device_after_tuning is not None and self.serves and not dry_run:
            self.rest(config.device_after_tuning)
        return result

    def tune_with(
        self,
        options: TuneOptions,
        recording: Recording | None = None,
        plan: Plan | None = None,
        *,
        keep: bool = False,
    ) -> ModuleResult:
        """Tune the module with all options of :func:`aitune.torch.tune`; see :meth:`tune`.

        Args:
            options: What was asked for.
            recording: Calls to tune on; None takes those that the handle recorded itself.
            plan: In place of the handle's own, for this tune.
            keep: Keep the engines of an earlier tune where this one finds none.

        Returns:
            The result; where a strategy raised, it carries the exception and the module is as before.

        Raises:
            AITuneUserInputError: If no call was recorded, or a declared shape contradicts a recorded one.
        """
        if not options.dry_run:
            self._wake()
        recording = recording or self._recording
        if recording is None or not recording.calls:
            raise AITuneUserInputError(
                f"{self.name}: no call was recorded; pass a dataset to ait.tune, or call enable_recording() and then"
                " the module"
            )
        plan = plan or self._plan
        slot = self._slot()
        was_tuned = self._state is ModuleState.TUNED
        if options.device is not None and not options.dry_run:
            slot.module.to(options.device)
        entries = plan_graphs(self.name, recording, self._declared, device=options.device)
        result, served = tune_module(self.name, slot, entries, plan, options)
        if options.dry_run or result.error is not None or (keep and was_tuned and not served):
            return result
        if was_tuned:
            self.untune()
        if served:
            slot.install(Dispatcher(self.name, slot, served).call)
        else:
            slot.remove()
        self._state = ModuleState.TUNED
        self._result = result
        self._recording = recording
        return result

    def retune(self) -> ModuleResult:
        """Tune anew on the calls that were recorded for the last tune, with the module as it is now."""
        return self.tune()

    def untune(self) -> None:
        """Give back the original: calls run what they ran before anything was wrapped, engines are freed."""
        module = self._module()
        if module is None or _registry.find(module) is not self:
            return  # gone, or another handle's by now
        dispatcher = self._dispatcher
        Slot(module, self._before).remove()
        if dispatcher is not None:
            dispatcher.close()
            if dispatcher.resting is not None and dispatcher.resting.place == "meta":
                _log.warning("%s: its weights were given up by config.device_after_tuning='meta'", self.name)
            elif dispatcher.resting is not None:
                dispatcher.resting.wake()
            del dispatcher
            return_freed(cycles=True)
        self._state = ModuleState.INIT

    def rest(self, place: Place) -> str | None:
        """Put the weights of the original elsewhere while engines answer its calls; see ``config.device_after_tuning``.

        Args:
            place: Where to; on "meta" they are given up.

        Returns:
            Why they stay where they are, None if they were moved.
        """
        dispatcher = self._dispatcher
        problem = "no engine answers its calls" if dispatcher is None else dispatcher.rest(place)
        gc.collect()  # what watched the weights until now has references in circles
        if problem is not None:
            _log.info("%s: the original stays where it is: %s", self.name, problem)
        elif place == "meta":
            _log.warning(
                "%s: the weights of the original are given up (config.device_after_tuning='meta'): changes are not"
                " noticed any more, and a call that no engine was made for raises",
                self.name,
            )
        return problem

    def awake(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which the weights of the original are where they were before :meth:`rest`.

        Raises:
            AITuneError: If they were given up.
        """
        dispatcher = self._dispatcher
        resting = dispatcher.resting if dispatcher is not None else None
        return contextlib.nullcontext() if resting is None else resting.awake()

    def _wake(self) -> None:
        dispatcher = self._dispatcher
        if dispatcher is not None and dispatcher.resting is not None:
            dispatcher.resting.wake()

    def activate(self) -> None:
        """Use the engines again after :meth:`deactivate`.

        Raises:
            AITuneUserInputError: If the module is not tuned.
        """
        self._need_tuned("activate")
        dispatcher = self._dispatcher
        if dispatcher is not None:
            self._slot().install(dispatcher.call)

    def deactivate(self) -> None:
        """Let calls run the original while the engines are kept.

        Raises:
            AITuneUserInputError: If the module is not tuned.
        """
        self._need_tuned("deactivate")
        dispatcher = self._dispatcher
        if dispatcher is not None:
            self._slot().install(dispatcher.bypass)

    @property
    def may_be_put_back(self) -> bool:
        """Whether every strategy of the module asks for a gain over the original (decision 2)."""
        names = [graph.name for graph in self._result.graphs] if self._result is not None else []
        strategies = (self._plan.strategy_for(index, name) for index, name in enumerate(names))
        return all(strategy.rules.performance for strategy in strategies)

    def put_back(self) -> None:
        """Return to the original after a tune that did not pay off; the result says so."""
        result, dispatcher = self._result, self._dispatcher
        for one in dispatcher.served if dispatcher is not None else ():
            if one.put_back is not None:
                one.put_back("the whole was slower with it")
        self.untune()
        self._state = ModuleState.TUNED
        if result is not None:
            self._result = replace(result, put_back=True)

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recording]:
        """Record every call in the block, and leave slot, state and module as they were.

        Calls of threads that are running already are not recorded: they belong to whatever those threads do.
        """
        slot = self._slot()
        others = frozenset(thread.ident or 0 for thread in threading.enumerate()) - {threading.get_ident()}
        before, recording = current(slot.module), Recording(CallSignature.of(slot.module.forward), others)
        with _as_before(slot.module):
            slot.install(its_own(slot, functools.partial(recording.call, slot)))
            try:
                yield recording
            finally:
                slot.put_back(before)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<aitune handle of {self.name}: {self._state}>"

    @property
    def _dispatcher(self) -> Dispatcher | None:
        """The dispatcher, which lives in the slot of the module: a handle that held it would keep the module alive."""
        module = self._module()
        if module is None or _registry.find(module) is not self:
            return None
        return getattr(current(module), "dispatcher", None)

    def _slot(self) -> Slot:
        module = self.module
        there = current(module)
        if there is not None and not is_ours(there):
            self._before = there  # the user compiled the module after it was wrapped
        return Slot(module, self._before)

    def _leave_tuned(self, action: str, force: bool) -> None:
        if self._state is ModuleState.TUNED:
            if not force:
                raise AITuneUserInputError(
                    f"{self.name} is tuned: {action}(force=True) gives up its engines, deactivate() keeps them"
                )
            self.untune()

    def _need_tuned(self, action: str) -> None:
        if self._state is not ModuleState.TUNED:
            raise AITuneUserInputError(f"{self.name} is not tuned, so there is nothing to {action}; call tune() first")

    def settings(self) -> Mapping[str, Any]:
        """Return what a copy of the handle is made with."""
        shapes: dict[Any, Sequence[Any]] = dict(self._declared)
        return {"name": self.name, **self._plan.arguments(), "dynamic_shapes": shapes or None}


def _as_before(module: torch.nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return what undoes the effects of recorded calls; nothing for a lazy module, whose first call completes it."""
    lazy = any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers()))
    return contextlib.nullcontext() if lazy else no_trace(module)


_registry: Registry[Handle] = Registry()


def tuning_alone() -> contextlib.AbstractContextManager[Any]:
    """Return the lock that lets one tune at a time record and install; entering it again in one thread is allowed."""
    return _registry.alone


@contextlib.contextmanager
def try_tuning_alone() -> Iterator[bool]:
    """Take the lock of :func:`tuning_alone` if it is free; tells whether it was, and this thread is in no tune yet."""
    if is_tuning_here() or not _registry.alone.acquire(blocking=False):
        yield False
        return
    try:
        yield True
    finally:
        _registry.alone.release()


def is_tuning_here() -> bool:
    """Whether this thread is in a tune."""
    return _registry.alone._is_owned()  # type: ignore[attr-defined, no-any-return]


def find_handle(module: torch.nn.Module) -> Handle | None:
    """Return the handle of a module, None if it was not wrapped."""
    return _registry.find(module)


def living() -> tuple[tuple[Handle, torch.nn.Module], ...]:
    """Return the handles with their modules, which stay alive as long as the answer does."""
    pairs = ((handle, handle._module()) for handle in handles())
    return tuple((handle, module) for handle, module in pairs if module is not None)


def handles() -> tuple[Handle, ...]:
    """Return the handles of all living modules, in the order in which they were wrapped."""
    return _registry.handles()
