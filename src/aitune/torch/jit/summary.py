"""The line at exit that says what just-in-time tuning did, also to modules that are gone by then."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from aitune.torch.jit.config import jit_config
from aitune.torch.jit.patched_module import JITState, PatchedModule
from aitune.torch.module.stats import Stats
from aitune.torch.trial import ORIGINAL

__all__ = ["Summary"]

_log = logging.getLogger(__name__)

_KEPT = 1000
_SHOWN = 4


class Summary:
    """Takes note of what is found and decided. Keeps no module alive.

    Attributes:
        wanted: Whether the line is written to stderr where ``jit_config.summary`` is None; it goes to the log else.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._heads = 0
        self._tuned: list[str] = []
        self._left: dict[str, str] = {}
        self._readers: list[Callable[[], Stats]] = []

    def found(self, node: PatchedModule) -> None:
        """Take note of a module that was seen for the first time."""
        self._heads += node.parent is None

    def refused(self, node: PatchedModule, reason: str) -> None:
        """Take note of why a head is not tuned, or not yet."""
        if node.parent is None and len(self._left) < _KEPT:
            self._left[node.kind] = reason

    def decided(self, node: PatchedModule) -> None:
        """Take note of what was decided about a module."""
        if node.state is JITState.TUNED:
            self._left.pop(node.kind, None)
            if len(self._tuned) < _KEPT:
                self._tuned.append(f"{node.kind} ({node.backend})")
        else:
            self.refused(node, node.reason)

    def serves(self, read: Callable[[], Stats]) -> None:
        """Take note of how the calls of a tuned module are counted."""
        if len(self._readers) < _KEPT:
            self._readers.append(read)

    def line(self) -> str:
        """Return the line; empty where nothing was seen."""
        if not self._heads:
            return ""
        seen = f"{self._heads} {'module' if self._heads == 1 else 'modules'} called by the program"
        parts = [f"aitune: {seen}, {len(self._tuned)} tuned{_list(self._tuned)}"]
        stats = [read() for read in self._readers]
        calls = sum(one.calls for one in stats)
        if calls:
            engines = sum(n for one in stats for name, n in one.engine_calls.items() if name != ORIGINAL)
            parts.append(f"engines answered {engines} of {calls} calls since")
        parts += [f"{kind}: {reason}" for kind, reason in list(self._left.items())[:_SHOWN]]
        return "; ".join(parts)

    def show(self) -> None:
        """Write it to stderr where that is wanted, to the log else."""
        line = self.line()
        if not line:
            return
        wanted = self.wanted if jit_config.summary is None else jit_config.summary
        if not wanted:
            _log.info("%s", line)
        elif sys.stderr is not None:
            try:
                sys.stderr.write(f"{line}\n")
            except (OSError, ValueError):  # the stream is closed or gone
                return


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f": {', '.join(names[:_SHOWN])}{more}" if names else ""
