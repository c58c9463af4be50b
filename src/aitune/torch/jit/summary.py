"""The line at exit that says what just-in-time tuning did."""

from __future__ import annotations

import logging
import sys

from aitune.torch.jit.config import jit_config
from aitune.torch.jit.forest import Forest
from aitune.torch.jit.history import History
from aitune.torch.jit.patched_module import JITState, PatchedModule
from aitune.torch.module.handle import find_handle

__all__ = ["Summary"]

_log = logging.getLogger(__name__)


class Summary:
    """Tells what was tuned.

    Args:
        forest: The modules that were seen.
        history: The steps.

    Attributes:
        wanted: Whether it is written where ``jit_config.summary`` is None.
    """

    def __init__(self, forest: Forest[PatchedModule], history: History) -> None:
        self._forest = forest
        self._history = history
        self.wanted = False

    def line(self) -> str:
        """Return it; empty where nothing was seen."""
        nodes = self._forest.all()
        tuned = [node for node in nodes if node.state is JITState.TUNED]
        if not nodes:
            return ""
        heads = sum(node.level == 0 for node in nodes)
        parts = [f"aitune: {heads} {'model' if heads == 1 else 'models'} seen, {len(tuned)} modules tuned"]
        calls, by_engine = 0, 0
        for node in tuned:
            handle = find_handle(node.module) if node.module is not None else None
            if handle is not None:
                calls += handle.stats.calls
                by_engine += sum(n for name, n in handle.stats.engine_calls.items() if name != "original")
        if tuned:
            parts.append(", ".join(f"{node.kind} ({node.backend})" for node in tuned[:5]))
        if calls:
            parts.append(f"engines answered {by_engine} of {calls} calls since")
        left = [node for node in nodes if node.level == 0 and node.state is not JITState.TUNED]
        reasons = [f"{node.kind}: {node.reason or '; '.join(sorted(node.refusals))}" for node in left]
        parts += [reason for reason in reasons[:3] if not reason.endswith(": ")]
        return "; ".join(parts)

    def show(self) -> None:
        """Write it to stderr where that is wanted, to the log else."""
        line = self.line()
        if not line:
            return
        wanted = self.wanted if jit_config.summary is None else jit_config.summary
        if wanted and sys.stderr is not None:
            try:
                sys.stderr.write(f"{line}\n")
            except (OSError, ValueError):  # the stream is closed or gone
                return
        else:
            _log.info("%s", line)
