"""What happens at a call of a module that is not decided: it is placed in the hierarchy, recorded, and decided."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from aitune.exceptions import text_of
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.signature import CallSignature
from aitune.torch.jit.config import JITMode, jit_config
from aitune.torch.jit.context import FOR_GRADIENTS, IN_TRAINING, is_traced, obstacle, unfit_call
from aitune.torch.jit.exclusions import why_excluded, why_transparent
from aitune.torch.jit.forest import Forest
from aitune.torch.jit.graph_breaks import find_graph_breaks
from aitune.torch.jit.history import History
from aitune.torch.jit.inspection import Inspection
from aitune.torch.jit.interception import Interception
from aitune.torch.jit.patched_module import JITState, PatchedModule, parameter_count
from aitune.torch.jit.policy import CALM, Action, Decision, Rules, Seen, decide
from aitune.torch.jit.record import recorded_call
from aitune.torch.jit.summary import Summary
from aitune.torch.jit.tuner import Tuner
from aitune.torch.jit.wrapped import is_below_wrapped, is_wrapped
from aitune.torch.module.handle import is_tuning_here
from aitune.torch.module.recording import Recording
from aitune.torch.module.tune_module import module_device

__all__ = ["Session"]

_log = logging.getLogger(__name__)


_PAST = object()
"""The call, and everything below it, is not looked at."""

_THROUGH = object()
"""The call is not looked at; what it calls is."""


_FILLS = "it changes the containers that it is passed"


class _Here(threading.local):
    """What runs in this thread.

    Attributes:
        running: Nodes whose calls are running, the innermost last.
        fresh: Whether a module was seen for the first time since the last call of a head ended.
        silent: Whether calls are not looked at: below one that is not, and during aitune's own work.
    """

    def __init__(self) -> None:
        self.running: list[PatchedModule] = []
        self.fresh = False
        self.silent = False


class Session:
    """Follows the calls of a process. Whatever goes wrong in it, a call is answered as by the program's own module.

    Args:
        forest: Takes the modules that are seen.
        history: Takes the steps.
        summary: Takes what is to be said in the end.
    """

    def __init__(self, forest: Forest[PatchedModule], history: History, summary: Summary) -> None:
        self.forest = forest
        self.history = history
        self.released = False
        self._summary = summary
        self._here = _Here()
        self._placing = threading.RLock()
        self.interception = Interception(self.on_call)
        self._tuner = Tuner(history, self.interception, summary)

    def close(self) -> None:
        """End the workers; tunes that come later start others."""
        self._tuner.crew.close()

    def restart(self) -> None:
        """Forget what was seen."""
        self.forest.clear()
        self._tuner.waste.clear()
        self.released = False
        self.close()

    def forget(self) -> None:
        """In a forked process, whose other threads stayed in the parent: begin anew, with no calls seen."""
        self._here, self._placing = _Here(), threading.RLock()
        self.released = False
        for part in (self.interception, self.forest, self.history, self._tuner.crew):
            part.forget()
        self._tuner.waste.clear()

    def on_call(self, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Answer a call of a module; what the module raises passes unchanged."""
        here = self._here
        if here.silent:
            return module._call_impl(*args, **kwargs)
        if here.running:
            return self._child_call(here, module, args, kwargs)
        return self._head_call(here, module, args, kwargs)

    # ------------------------------------------------------------------------------------------ calls

    def _head_call(self, here: _Here, module: Any, args: Any, kwargs: Any) -> Any:
        node: Any = self._safely(module, self._enter_head, module) or _PAST
        if node is _THROUGH:
            return module._call_impl(*args, **kwargs)
        if node is _PAST:
            with _silent(here):
                return module._call_impl(*args, **kwargs)
        result = self._call(here, node, module, args, kwargs)
        with _silent(here):
            self._safely(module, self._settle, node)
        return result

    def _child_call(self, here: _Here, module: Any, args: Any, kwargs: Any) -> Any:
        node = self._safely(module, self._enter_child, module, here.running[-1])
        if node is None:
            return module._call_impl(*args, **kwargs)
        return self._call(here, node, module, args, kwargs)

    def _call(self, here: _Here, node: PatchedModule, module: Any, args: Any, kwargs: Any) -> Any:
        here.running.append(node)
        try:
            if node.inspection is not None and jit_config.mode is JITMode.INSPECT:
                return node.inspection.call(module, args, kwargs)
            recording = node.recording
            if recording is None:
                return module._call_impl(*args, **kwargs)
            failed = functools.partial(self._stepped_aside, module)
            return recorded_call(recording, module, args, kwargs, failed, lambda: _fills(node))
        finally:
            here.running.pop()

    # --------------------------------------------------------------------------------------- placing

    def _enter_head(self, module: torch.nn.Module) -> Any:
        """Return the node of a head whose call is to be looked at; or how to go on without one."""
        if is_traced() or is_tuning_here() or is_wrapped(module):
            return _PAST
        node = self.forest.find(module)
        parent = self.forest.expected(module) if node is None else None
        through = self._excluded(module) or (parent is not None and _is_transparent(module)) if node is None else False
        if through or (node is not None and node.state.decided):
            self.interception.let_go(module)
            return _THROUGH
        unfit = None if jit_config.mode is JITMode.INSPECT else unfit_call(module)
        node = self._counted(module, node, parent)
        if unfit is not None:
            self._refuse(node, unfit)
            return _PAST
        if node.calm is not None:
            node.calm += 1
            if node.calm < CALM and jit_config.mode is not JITMode.INSPECT:
                return _PAST  # it may be trained again at once
        self._observe(node, module)
        return node

    def _enter_child(self, module: torch.nn.Module, caller: PatchedModule) -> PatchedModule | None:
        node = self.forest.find(module)
        if is_traced() or (node is None and is_wrapped(module)):
            return None
        if node.state.decided if node is not None else self._excluded(module) or _is_transparent(module):
            self.interception.let_go(module)
            return None
        node = self._counted(module, node, caller)
        if node.parent is None:  # called by the program itself before
            self.forest.adopt(node, caller)
        self._observe(node, module)
        return node

    def _excluded(self, module: torch.nn.Module) -> bool:
        reason = why_excluded(module, jit_config.patch_exclude)
        if reason is not None:
            self.history.add(f"Looking through {type(module).__name__}: {reason}", logging.DEBUG)
        return reason is not None or is_below_wrapped(module)

    def _counted(
        self, module: torch.nn.Module, node: PatchedModule | None, parent: PatchedModule | None
    ) -> PatchedModule:
        if node is not None:
            node.call_count += 1
            return node
        with self._placing:
            node = self.forest.find(module)
            if node is None:
                node = PatchedModule(module, parent)
                self.forest.add(module, node)
                self._summary.found(node)
        self._here.fresh = True
        node.call_count += 1
        self.history.add(f"New {'top' if parent is None else 'child'} module: {node}")
        return node

    def _observe(self, node: PatchedModule, module: torch.nn.Module) -> None:
        if jit_config.mode is JITMode.INSPECT:
            if node.inspection is None:
                node.inspection = Inspection(CallSignature.of(module.forward))
        elif node.recording is None and node.depth <= jit_config.max_depth_level:
            node.recording = Recording(CallSignature.of(module.forward))

    def _refuse(self, node: PatchedModule, reason: str) -> None:
        """Note, once, why calls of a module are not recorded."""
        if reason in (IN_TRAINING, FOR_GRADIENTS):
            node.calm = 0
        if reason not in node.refusals:
            node.refusals.add(reason)
            self._summary.refused(node, reason)
            self.history.add(f"Not recorded: {node.title}: {reason}")

    # -------------------------------------------------------------------------------------- deciding

    def _settle(self, node: PatchedModule) -> None:
        """Decide a head after a call that went well, and, where it is left, what is below it."""
        rules = Rules.now(jit_config, self.released)
        fresh, self._here.fresh = self._here.fresh, False
        if fresh or node.state is JITState.INIT:
            for one in (node, *node.below()):
                if one.state is JITState.INIT:
                    one.state = JITState.RECORDING
                    if one.parameters == 0 and one.module is not None:
                        one.parameters = parameter_count(one.module)  # a lazy module has them now
        if fresh or self._is_due(node, rules):
            self._skip_early(node, rules)
        if not node.state.decided:
            self._decide(node, rules)

    def _skip_early(self, node: PatchedModule, rules: Rules) -> None:
        """Let go of what the settings leave out, before anything above it is decided."""
        for child in list(node.children):
            if child.state.decided:
                continue
            if child.kind in rules.skip_modules:
                self._apply(child, decide(self._seen(child, rules), rules))
            else:
                self._skip_early(child, rules)

    def _decide(self, node: PatchedModule, rules: Rules) -> None:
        decision = decide(self._seen(node, rules), rules)
        if decision.action is Action.CHECK:
            self._check_breaks(node)
            decision = decide(self._seen(node, rules), rules)
        if decision.action is Action.TUNE:
            tuned = self._tuned(node)
            if tuned is None:
                return  # another tune is running; the next call tries again
            decision = tuned
        self._apply(node, decision)
        if decision.action is Action.DESCEND:
            for child in list(node.children):
                if not child.state.decided:
                    self._decide(child, rules)

    def _tuned(self, node: PatchedModule) -> Decision | None:
        try:
            return self._tuner.tune(node)
        except BaseException as error:  # Ctrl-C: whoever pressed it does not want the same again at the next call
            reason = "its tune failed" if isinstance(error, Exception) else "its tune was interrupted"
            self._apply(node, Decision(Action.LEAVE, reason))
            raise

    def _is_due(self, node: PatchedModule, rules: Rules) -> bool:
        """Whether there is enough for more than waiting; what takes time to find out is asked only then."""
        samples = node.recording.calls if node.recording is not None else 0
        return samples >= rules.min_samples and (rules.mode is not JITMode.TUNE_DEFERRED or rules.released)

    def _seen(self, node: PatchedModule, rules: Rules) -> Seen:
        module, recording = node.module, node.recording
        due = module is not None and self._is_due(node, rules)
        hinders = ""
        if due and module is not None:
            hinders = _FILLS if node.fills_containers else obstacle(module)
        axis = due and rules.batch_axis_required and recording is not None and _has_batch_axis(recording)
        return Seen(
            kind=node.kind,
            depth=node.depth,
            parameters=node.parameters,
            samples=recording.calls if recording is not None else 0,
            calm=node.calm,
            wasted=self._tuner.waste.of(node.head.path),
            batch_axis=axis,
            device=str(module_device(module)) if due and module is not None else "cpu",
            obstacle=hinders,
            breaks=node.breaks,
        )

    def _check_breaks(self, node: PatchedModule) -> None:
        module, recording = node.module, node.recording
        if module is None or recording is None:
            return
        with self.interception.only_marking():
            found = find_graph_breaks(module, recording)
        node.breaks = found.breaks
        self.history.add(f"{found.sentence(node.title)}. Checking took {found.seconds:.2f}s")

    def _apply(self, node: PatchedModule, decision: Decision) -> None:
        action, module = decision.action, node.module
        if action is Action.WAIT or module is None:
            self._summary.refused(node, decision.reason)
            return
        if action is Action.DONE:
            self._summary.decided(node)
            self._release_below(module, node, JITState.DETACHED, "a module above it is tuned")
            return
        if action is Action.SKIP:
            node.decide(JITState.SKIPPED, decision.reason)
            self._release_below(module, node, JITState.SKIPPED, decision.reason)
            self.history.add(f"Skipped: {node.title}: {decision.reason}")
        elif action is Action.PLAN:
            self.history.add(self._tuner.plan(node))
            node.decide(JITState.EAGER, "dry run")
            self._release_below(module, node, JITState.EAGER, "dry run")
        elif action is Action.DESCEND:
            node.decide(JITState.EAGER, decision.reason)
            self.forest.expect(module, node)
            self.history.add(f"Left as it is: {node.title}: {decision.reason}")
        else:
            node.decide(JITState.EAGER, decision.reason)
            self._release_below(module, node, JITState.EAGER, decision.reason)
            self.history.add(f"Left as it is: {node.title}: {decision.reason}")
        self._summary.decided(node)
        self.interception.let_go(module)

    def _release_below(self, module: torch.nn.Module, node: PatchedModule, state: JITState, reason: str) -> None:
        for child in node.below():
            if not child.state.decided:
                child.decide(state, reason)
                if state is JITState.DETACHED:
                    self.history.add(f"Unpatching child module: {child}")
        for part in module.modules():
            if part is module:
                continue
            seen = self.forest.find(part)
            if seen is not None and not seen.state.decided:  # called by the program itself, not from above
                seen.decide(state, reason)
            self.interception.let_go(part)

    # --------------------------------------------------------------------------------- stepping aside

    def _safely(self, module: torch.nn.Module, step: Callable[..., Any], *args: Any) -> Any:
        """Run a step of aitune's own at a call; where it fails, note it, and the module is left alone from now on."""
        try:
            return step(*args)
        except Exception as error:  # noqa: BLE001 - zero-code mode never breaks the host
            self._stepped_aside(module, error)
            return None

    def _stepped_aside(self, module: torch.nn.Module, error: Exception) -> None:
        node = self.forest.find(module)
        if node is not None and not node.state.decided:
            node.decide(JITState.EAGER, f"aitune failed at it: {text_of(error)}")
            self._summary.decided(node)
        self.interception.let_go(module)
        if jit_config.raise_failures:
            raise error
        self.history.add(f"Stepped aside after {text_of(error)}", logging.WARNING)
        _log.debug("stepped aside", exc_info=error)


@contextlib.contextmanager
def _silent(here: _Here) -> Iterator[None]:
    here.silent = True
    try:
        yield
    finally:
        here.silent = False


def _fills(node: PatchedModule) -> None:
    node.fills_containers = True


def _has_batch_axis(recording: Recording) -> bool:
    for number, seen in enumerate(recording.observations):
        tensors = seen.graph(f"graph{number}", recording.signature).inputs.tensors
        if any(spec.shape and isinstance(spec.shape[0], DynamicDim) for spec in tensors):
            return True
    return False


def _is_transparent(module: torch.nn.Module) -> bool:
    return why_transparent(module, parameter_count(module)) is not None
