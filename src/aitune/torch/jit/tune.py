"""The point from which deferred tuning may start."""

from __future__ import annotations

from aitune.torch.jit.patcher import session

__all__ = ["deferred"]


def deferred() -> None:
    """Let modules be tuned from now on in ``JITMode.TUNE_DEFERRED``, each in the next call that its program makes."""
    session.released = True
