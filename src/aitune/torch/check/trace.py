"""Leaving no trace: what a module holds and what the process is set to is afterwards what it was before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from aitune.torch.check.ambient import Ambient
from aitune.torch.check.rng import RngState
from aitune.torch.check.state import Snapshot, take_snapshot

__all__ = ["calm", "no_trace"]

_log = logging.getLogger(__name__)


@contextmanager
def no_trace(module: torch.nn.Module, lost: Callable[[list[str]], None] | None = None) -> Iterator[Snapshot]:
    """Use a module as is wanted, and undo at the end everything that was done to it and to the process.

    The block is :func:`calm`, whatever mode its caller is in: what is compared or timed does not depend on that.

    Covered are parameters and buffers with their values, flags and gradients, training flags, hooks,
    children, plain attributes with containers and small objects in them; the random number generators of
    torch, Python and numpy; grad mode, autocast, default dtype, thread count and precision settings. What
    does not differ is not written to.

    A parameter that was changed in a module too large to be copied (see :func:`take_snapshot`) is reported
    through the log, at level ERROR. Files, other modules and other threads' doings are not covered.

    Args:
        module: The module, with everything below it.
        lost: Told the paths of what could not be put back, if anything; None tells nobody but the log.

    Yields:
        What the module held at the beginning.
    """
    ambient, rng = Ambient.capture(), RngState.capture()
    gone: list[str] = []
    try:
        with calm():
            before = take_snapshot(module)
            try:
                yield before
            finally:
                gone = before.restore()
    finally:
        rng.restore()
        ambient.restore()
        if gone and lost is not None:
            lost(gone)
        if gone:
            _log.error(
                "%s: changed while a candidate was built or checked, and too large to have been copied: %s",
                type(module).__qualname__,
                ", ".join(gone),
            )


@contextmanager
def calm() -> Iterator[None]:
    """Run without gradients, and outside of inference mode, so that tensors made inside are ordinary ones."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield
